"""Who may use this machine's line: frames that somebody's compute waits for go first, bulk when none is under way."""

import asyncio
import contextlib
from collections.abc import Iterator


class Uplink:
    """One for all that a node sends. Bulk senders ask before each piece, so that none holds the line for long."""

    def __init__(self) -> None:
        self._urgent = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def urgent(self) -> Iterator[None]:
        """While the block lasts, bulk waits."""
        self._urgent += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._urgent -= 1
            if not self._urgent:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until nothing urgent is being sent."""
        await self._idle.wait()
