"""Signal by which tasks wait until something that was heard makes a condition true."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from dtfm_protocol.process.clock import MonotonicClock

BRIEF_SECONDS = 2e-4
"""Seconds that a look at a condition may take to be taken at every notification."""
REST_TIMES = 30.0
"""Times as long as a longer look has taken that the next one waits: however often a large swarm notifies, looks take no
more than a thirtieth of a processor."""
LONGEST_REST = 0.5
"""Seconds that it waits at most."""


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
                while True:
                    begun = self.clock.now()
                    if condition():
                        return True
                    rest = _rest(self.clock.now() - begun)
                    await self.change()
                    if rest:
                        await self.clock.sleep(rest)
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


def _rest(took: float) -> float:
    """Return the seconds that the next look at a condition waits after one that took so many."""
    return min(LONGEST_REST, REST_TIMES * took) if took > BRIEF_SECONDS else 0.0
