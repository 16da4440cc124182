"""What a coordinator looks for a better plan for, and how soon a move must pay back."""

import asyncio
from pathlib import Path

import pytest

from dtfm_coordinator.leader.comparison import Comparison
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.plan_watch import CALM, TRUSTED_SECONDS, Change, PlanWatch, Situation, reason_to_compare
from dtfm_coordinator.plan_change.ended_processes import EndedProcesses
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import Role
from tests.coordinator.peers import ME, Peers, plan_of


class Led(Peers):
    """Peers that train, and who looks for a better plan, under a clock of the test's own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.now = 1000.0
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]
        self.watch = PlanWatch(self.state, self.context.planner, lambda: self.now)
        self.layout_maker = LayoutMaker(self.context, self.state, self.announcer.say, None)
        driver = PlanChangeDriver(
            folder,
            Role(ME.peer_id, alone=True),
            self.state.members,
            self.state,
            self.context.control.publish,
            lambda text: self.announcer.say("waiting", text),
            is_genuine=lambda _: True,
            liveness=EndedProcesses(self.state.members),
        )
        self.comparison = Comparison(
            self.state,
            self.watch,
            self.layout_maker,
            driver,
            self.rows,
            self.announcer.say,
            lambda: self.context.job.plan.horizon,
        )

    async def trains(self, *peers: str) -> None:
        """They train under a plan, on links that are known."""
        self.state.plan = plan_of(*peers)
        await self.join(*peers)
        await self.layout_maker.probe(self.ready())
        for peer in peers:
            await self.report(peer, "training", plan_version=1, step=1)

    async def becomes_slow(self) -> None:
        """So do frames from a to b."""
        await self.report("b", "training", plan_version=1, step=2, received_gbps={"a": 0.1})

    async def change(self) -> Change:
        """What is found to be looked into."""
        assert self.state.plan is not None
        assert self.watch.wish(self.state.plan)
        return self.watch.look_into(self.state.plan)

    async def kept(self, change: Change) -> bool:
        """Whether the plan in force stays, once that is looked into."""
        assert self.state.plan is not None
        async with asyncio.timeout(30):
            return await self.comparison.better(self.state.plan, change) is None


@pytest.fixture
def led(tmp_path: Path) -> Led:
    return Led(tmp_path)


async def test_a_move_for_a_changed_link_must_pay_back_soon_after_a_change_and_later_later(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    change = await led.change()
    assert (change.gently, change.links_only) == (True, True)
    assert await led.kept(change)
    led.now += 10 * TRUSTED_SECONDS
    await led.becomes_slow()
    assert await led.kept(Change("a link", gently=True, links_only=True))
    assert led.planner.horizons == [TRUSTED_SECONDS, 10 * TRUSTED_SECONDS]


async def test_what_did_not_pay_back_soon_enough_is_compared_again_until_the_jobs_horizon(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    assert await led.kept(await led.change())
    horizons: list[float] = led.planner.horizons  # type: ignore[assignment]
    while horizons[-1] < led.context.job.plan.horizon:
        assert led.state.plan is not None
        assert not led.watch.wish(led.state.plan)
        led.now += horizons[-1]
        change = await led.change()
        assert change.links_only
        assert await led.kept(change)
        assert horizons[-1] >= 1.5 * horizons[-2] or len(horizons) == 2
    led.now += 100 * horizons[-1]
    assert led.state.plan is not None
    assert not led.watch.wish(led.state.plan)


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


def test_reasons_to_compare_are_told_once_and_links_that_may_have_changed_come_first() -> None:
    def reason(now: Situation, considered: Situation = CALM, **more: object) -> str:
        values: dict[str, object] = {"suspects": (), "trusted": False, "unknown": ()} | more
        return reason_to_compare(now, considered, **values)  # type: ignore[arg-type]

    came = Situation(came=frozenset({"n"}), leaving=frozenset({"m"}))
    assert reason(came) == "n came; m wants to leave or to pause"
    assert reason(came, came) == ""
    assert reason(came, came, trusted=True) == "links have changed, and have stayed as they are since"
    assert reason(came, suspects={("b", "a"), ("a", "b")}) == "a -> b, b -> a may have changed"
    assert reason(CALM, unknown=["s"]) == "s may have links that nobody knows"
    assert reason(CALM, came, unknown=["s"]) == "s may have links that nobody knows"
    assert reason(came, unknown=["s"]) == "n came; m wants to leave or to pause"
    assert reason(Situation(slow=frozenset({"a"}))) == "a has become slow"


def test_plans_that_break_before_their_first_step_are_not_tried_in_a_rush(led: Led) -> None:
    plan = plan_of("a")
    assert [led.watch.pause(plan, 0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert led.watch.pause(plan, 1) == 0.0
    assert led.watch.pause(plan, 0) == 0.5


async def test_a_plan_whose_peer_pauses_is_over_and_nobody_is_blamed(led: Led) -> None:
    await led.trains("a", "b")
    plan = led.state.plan
    assert plan is not None
    await led.report("b", "paused", plan_version=1, step=3, leaving=True)
    assert led.watch.broken(plan) == "b paused"
    assert led.state.doubted == frozenset()
    assert led.watch.broken(plan_of("a")) == ""
