"""A clock that stands until a test moves it."""

import asyncio
import heapq
from itertools import count

from dtfm_node.engine.engine_clock import MonotonicClock

TURNS = 50
"""Turns of the event loop in which every task of these tests comes to wait again."""


async def settle() -> None:
    """Let every task run until all of them wait."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class ManualClock(MonotonicClock):
    """Time passes in `advance` alone, from one sleeper's end to the next one's."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), over))
        await over

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and all tasks do what they do in them."""
        await settle()
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            wakes, _, over = heapq.heappop(self._sleepers)
            self._now = max(self._now, wakes)
            if not over.done():
                over.set_result(None)
            await settle()
        self._now = end

    def skip(self, seconds: float) -> None:
        """Let so many seconds pass in which nothing runs."""
        self._now += seconds
