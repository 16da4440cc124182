"""What a coordinator looks for a better plan for, and how soon a move must pay back."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtfm_coordinator import conductor
from dtfm_coordinator.conductor import Change, Conductor
from tests.unit.peers import Peers, plan_of


class Led(Peers):
    """Peers that train, and their conductor, under a clock of the test's own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.now = 1000.0
        patch.setattr(conductor, "time", SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now))
        self.one = Conductor(self.tools, None, False)
        self.hearing = self.one._hearing
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]

    async def trains(self, *peers: str) -> None:
        """They train under a plan, on links that are known."""
        self.hearing.plan = plan_of(*peers)
        await self.join(*peers)
        await self.one._gathering.probe(self.ready())
        for peer in peers:
            await self.report(peer, "training", plan_version=1, step=1)

    async def becomes_slow(self) -> None:
        """So do frames from a to b."""
        await self.report("b", "training", plan_version=1, step=2, received_gbps={"a": 0.1})

    async def change(self) -> Change:
        """What is found to be looked into."""
        async with asyncio.timeout(5):
            found = await self.one._watch()
        assert found is not None
        return found

    async def kept(self, change: Change) -> bool:
        """Whether the plan in force stays, once that is looked into."""
        async with asyncio.timeout(5):
            return await self.one._better(change) is None


@pytest.fixture
def led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Led:
    return Led(tmp_path, monkeypatch)


async def test_a_move_for_a_changed_link_must_pay_back_soon_after_a_change_and_later_later(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    change = await led.change()
    assert (change.gently, change.links_only) == (True, True)
    assert await led.kept(change)
    led.now += 10 * conductor.TRUSTED_SECONDS
    await led.becomes_slow()
    assert await led.kept(Change("a link", gently=True, links_only=True))
    assert led.planner.horizons == [conductor.TRUSTED_SECONDS, 10 * conductor.TRUSTED_SECONDS]


async def test_what_did_not_pay_back_soon_enough_is_compared_again_until_the_jobs_horizon(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    assert await led.kept(await led.change())
    horizons = led.planner.horizons
    while horizons[-1] < led.tools.job.plan.horizon:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await led.one._watch()
        led.now += horizons[-1]
        change = await led.change()
        assert change.links_only
        assert await led.kept(change)
        assert horizons[-1] >= 1.5 * horizons[-2] or len(horizons) == 2
    assert led.one._again_at == math.inf


async def test_who_comes_or_wants_to_leave_is_planned_for_within_the_jobs_horizon(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    await led.join("c")
    change = await led.change()
    assert not change.links_only
    await led.kept(change)
    await led.report("b", "training", plan_version=1, step=3, leaving=True)
    change = await led.change()
    assert not change.links_only
    await led.kept(change)
    assert led.planner.horizons == [None, None]
