"""Patch for Python 3.11: its `asyncio.wait_for`, which aiomqtt uses, may drop a cancellation.

Reported as https://github.com/python/cpython/issues/86296, and mended in 3.12.
"""

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def mend_wait_for() -> None:
    """Replace `asyncio.wait_for` on Python 3.11 by one that loses no cancellation."""
    if sys.version_info < (3, 12):
        asyncio.wait_for = _wait_for  # type: ignore[assignment]


async def _wait_for(fut: Awaitable[T], timeout: float | None) -> T:
    """Await `fut` as `asyncio.wait_for` does from Python 3.12 on.

    That of 3.11 drops a cancellation that comes in the turn in which `fut` is done; a task of aiomqtt's caller would
    then live on, and the program never end.
    """
    async with asyncio.timeout(timeout):
        return await fut
