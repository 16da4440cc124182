"""Waits for what is heard: each look at once where it is cheap, and more seldom where it takes long."""

import asyncio

from dtfm_coordinator.membership.change_signal import LONGEST_REST, REST_TIMES, ChangeSignal
from tests.harness.manual_clock import ManualClock, settle


class Looks:
    """A condition that takes so many seconds to look at, and is true once it is told to be."""

    def __init__(self, seconds: float) -> None:
        self.clock = ManualClock()
        self.signal = ChangeSignal(self.clock)
        self.at: list[float] = []
        self.is_true = False
        self._seconds = seconds

    def look(self) -> bool:
        self.at.append(self.clock.now())
        self.clock.skip(self._seconds)
        return self.is_true

    async def notify(self, times: int, every: float) -> None:
        for _ in range(times):
            self.signal.notify()
            await self.clock.advance(every)


async def test_a_cheap_condition_is_looked_at_whenever_something_was_heard() -> None:
    looks = Looks(0.0)
    waiting = asyncio.create_task(looks.signal.wait(looks.look))
    await settle()
    await looks.notify(20, 0.001)
    assert len(looks.at) == 21
    looks.is_true = True
    await looks.notify(1, 0.0)
    assert await waiting


async def test_a_condition_that_takes_long_is_looked_at_as_seldom_as_that_allows_and_soon_enough() -> None:
    looks = Looks(0.01)
    waiting = asyncio.create_task(looks.signal.wait(looks.look))
    await settle()
    await looks.notify(1000, 0.001)
    assert 2 <= len(looks.at) <= 1 + 2.0 / (REST_TIMES * 0.01)
    looks.is_true = True
    await looks.notify(1, LONGEST_REST)
    assert await asyncio.wait_for(waiting, 30)


async def test_a_wait_ends_in_time_however_long_looks_take() -> None:
    looks = Looks(0.1)
    waiting = asyncio.create_task(looks.signal.wait(looks.look, 3.0))
    await settle()
    await looks.notify(400, 0.01)
    assert not await asyncio.wait_for(waiting, 30)
