"""Signal by which tasks wait until something that was heard makes a condition true."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from dtfm_protocol.process.clock import MonotonicClock


class ChangeSignal:
    """Signal that anything may have changed; every task that waits then looks again."""

    def __init__(self, clock: MonotonicClock | None = None) -> None:
        self.clock = clock or MonotonicClock()
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Have all tasks that wait look again."""
        self._changed.set()

    async def change(self, seconds: float | None = None) -> None:
        """Wait for the next notification, or for `seconds` (None: for ever)."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with self.clock.timeout(seconds):
                await self._changed.wait()

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something that was heard makes `condition` true; False if it did not within `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with self.clock.timeout(seconds):
                while not condition():
                    await self.change()
                return True
        return condition()

    async def unless(self, condition: Callable[[], bool], work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`, but give it up once something that was heard makes `condition` true; True if it was done."""
        working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(self.wait(condition))
        try:
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            working.cancel()
            waiting.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)
