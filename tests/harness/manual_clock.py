"""Clocks for tests: one that stands until a test moves it, and one that is fast."""

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from itertools import count

from dtfm_protocol.process.clock import MonotonicClock

TURNS = 50
"""Turns of the event loop in which every task of these tests comes to wait again."""


async def settle() -> None:
    """Let every task run until all of them wait."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class ManualClock(MonotonicClock):
    """Time passes in `advance` alone, from one wait's end to the next one's."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._waits: list[tuple[float, int, Callable[[], None]]] = []
        """When each of them ends, and what ends it."""
        self._numbers = count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._push(seconds, lambda: None if over.done() else over.set_result(None))
        await over

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        if seconds is None or seconds <= 0:
            return asyncio.timeout(seconds)
        limit = asyncio.timeout(None)

        def expire() -> None:
            with contextlib.suppress(RuntimeError):  # its block has ended
                limit.reschedule(asyncio.get_running_loop().time())

        self._push(seconds, expire)
        return limit

    def _push(self, seconds: float, end: Callable[[], None]) -> None:
        heapq.heappush(self._waits, (self._now + seconds, next(self._numbers), end))

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and all tasks do what they do in them."""
        await settle()
        end = self._now + seconds
        while self._waits and self._waits[0][0] <= end:
            wakes, _, over = heapq.heappop(self._waits)
            self._now = max(self._now, wakes)
            over()
            await settle()
        self._now = end

    def skip(self, seconds: float) -> None:
        """Let so many seconds pass in which nothing runs."""
        self._now += seconds


class FastClock(MonotonicClock):
    """So many times faster than others: for tests in which waits come to their end."""

    def __init__(self, times: float = 600.0) -> None:
        self._times = times

    def now(self) -> float:
        return self._times * super().now()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self._times)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return super().timeout(None if seconds is None else seconds / self._times)
