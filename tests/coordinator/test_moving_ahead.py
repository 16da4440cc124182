"""Before a better plan is called for, those who lack state for it have fetched it, and nobody waits for who cannot."""

import asyncio
from pathlib import Path

import pytest

from dtfm_coordinator.leader.moving_ahead import MovingAhead, fails_beside, lacking
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.coordinator.peers import Peers, until
from tests.harness.manual_clock import ManualClock, settle

BEFORE = Plan(version=1, stages=((0, 2), (2, 4)), routes=(("a", "b"),) * 2)
AFTER = Plan(stages=((0, 1), (1, 4)), routes=(("a", "b"), ("a", "c")), reason="better", history=((0.1, 2.0),))
"""Peer a has all its layers; b lacks one, and c all."""


class Setting:
    """A coordinator whose plan is in force, and that has its peers' state moved ahead of another one."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.peers = Peers(folder, clock=self.clock)
        self.is_off = False
        self.moving: asyncio.Task[None] | None = None

    async def begin(self, layout: Plan = AFTER) -> int:
        """Have state moved ahead; the number of the round that peers were told, 0: of none."""
        await self.peers.join("a", "b", "c")
        self.peers.control.said.clear()
        mover = MovingAhead(self.peers.context, self.peers.state)
        self.moving = asyncio.create_task(mover.move(BEFORE, layout, unless=lambda: self.is_off))
        await until(lambda: bool(self.peers.answered) or self.is_over)
        return self.peers.rounds[0].id if self.peers.rounds else 0

    async def hear(self, peer: str, number: int, *, is_ahead: bool) -> None:
        await self.peers.report(peer, coming=number, is_ahead=is_ahead)
        await settle()

    @property
    def is_over(self) -> bool:
        assert self.moving is not None
        return self.moving.done()


@pytest.fixture
async def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_those_lack_state_who_serve_layers_that_they_did_not_serve() -> None:
    assert lacking(BEFORE, AFTER) == ["b", "c"]
    assert lacking(AFTER, BEFORE) == ["a"]
    assert lacking(BEFORE, BEFORE) == []


async def test_the_plan_waits_until_all_who_lack_state_have_it(setting: Setting) -> None:
    number = await setting.begin()
    await setting.hear("b", number, is_ahead=True)
    await setting.hear("c", number, is_ahead=False)
    await setting.clock.advance(TIMEOUTS.state_ahead / 2)
    await settle()
    assert not setting.is_over
    await setting.hear("c", number, is_ahead=True)
    assert setting.is_over


async def test_peers_are_told_the_layout_and_are_to_measure_nothing(setting: Setting) -> None:
    await setting.begin()
    (turn,) = setting.peers.rounds
    assert turn.coming is not None
    assert (turn.coming.stages, turn.coming.routes, turn.coming.history) == (AFTER.stages, AFTER.routes, ())
    assert not turn.pairs
    assert not turn.fans
    assert not turn.echoes
    setting.is_off = True
    setting.peers.state.notify()
    await settle()
    assert setting.is_over, "something else is more urgent"


async def test_something_more_urgent_ends_the_wait(setting: Setting) -> None:
    await setting.begin()
    setting.is_off = True
    assert not setting.is_over
    setting.peers.state.notify()
    await settle()
    assert setting.is_over


async def test_what_was_said_of_another_layout_does_not_count(setting: Setting) -> None:
    number = await setting.begin()
    await setting.hear("b", number, is_ahead=True)
    await setting.hear("c", number - 1, is_ahead=True)
    assert not setting.is_over
    await setting.hear("c", number, is_ahead=True)
    assert setting.is_over


async def test_who_has_not_heard_of_it_as_an_older_version_does_not_is_not_waited_for(setting: Setting) -> None:
    number = await setting.begin()
    await setting.hear("b", number, is_ahead=True)
    assert not setting.is_over
    await setting.clock.advance(TIMEOUTS.report_silence + 1)
    await settle()
    assert setting.is_over


async def test_who_leaves_is_not_waited_for(setting: Setting) -> None:
    number = await setting.begin()
    await setting.hear("b", number, is_ahead=True)
    await setting.hear("c", number, is_ahead=False)
    assert not setting.is_over
    await setting.peers.goodbye("c")
    await settle()
    assert setting.is_over


async def test_it_is_not_waited_for_ever(setting: Setting) -> None:
    number = await setting.begin()
    await setting.hear("b", number, is_ahead=False)
    await setting.hear("c", number, is_ahead=False)
    await setting.clock.advance(TIMEOUTS.state_ahead)
    await settle()
    assert setting.is_over


async def test_nothing_is_said_where_nobody_lacks_anything(setting: Setting) -> None:
    assert await setting.begin(BEFORE) == 0
    assert setting.is_over


def test_links_of_who_fetches_state_do_not_count_as_failing_meanwhile() -> None:
    assert not fails_beside([], ["c"])
    assert not fails_beside([("a", "c"), ("c", "b")], ["c"])
    assert fails_beside([("a", "c"), ("a", "b")], ["c"])
