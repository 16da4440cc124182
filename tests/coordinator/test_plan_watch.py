"""What a coordinator looks for a better plan for, and how soon a move must pay back."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.faults.stragglers import SECONDS
from dtfm_coordinator.leader.change_cost import USUAL_SECONDS, standstill_seconds, step_patience
from dtfm_coordinator.leader.comparison import SENDERS_TELL, Comparison
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.plan_watch import CALM, TRUSTED_SECONDS, Change, PlanWatch, Situation, reason_to_compare
from dtfm_coordinator.links.link_degradation import SECONDS as LINK_SECONDS
from dtfm_coordinator.links.link_degradation import WARM_STEPS
from dtfm_coordinator.plan_change.ended_processes import EndedProcesses
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import Role
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_protocol.discovery.records import Limits, Link, LinkReport
from dtfm_protocol.job.job_file import Wire
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.view.view import View
from tests.coordinator.peers import LAYERS, ME, Peers, plan_of
from tests.harness.manual_clock import ManualClock


class Led(Peers):
    """Peers that train, and who looks for a better plan, under a clock of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        super().__init__(folder, clock=self.clock)
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]
        self.watch = PlanWatch(self.state, self.context.planner, self.clock.now)
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
        self.events: list[PlanEvent] = []
        self.comparison = Comparison(
            self.state,
            self.watch,
            self.layout_maker,
            driver,
            self.rows,
            self.announcer.say,
            lambda: self.context.job.plan.horizon,
            lambda: self.events,
        )
        self._step = 0

    async def trains(self, *peers: str) -> None:
        """They train under a plan, on links that are known, and its first steps are over."""
        self.state.plan = plan_of(*peers)
        await self.join(*peers)
        await self.layout_maker.probe(self.ready())
        for _ in range(1 + WARM_STEPS):
            await self.steps()

    async def steps(self, seconds: float = 0.0, *, gbps: dict[str, float] | None = None, **busy: float) -> None:
        """So many seconds pass until the next step.

        Args:
            gbps: what frames to the second peer come at, by sender.
            busy: seconds of compute of peers; 1 of those that are not named.
        """
        assert self.state.plan is not None
        self.clock.skip(seconds)
        self._step += 1
        for number, peer in enumerate(self.state.plan.peers):
            await self.report(
                peer, "training", plan_version=1, step=self._step, busy_seconds=busy.get(peer, 1.0),
                received_gbps=(gbps or {}) if number == 1 else {},
            )  # fmt: skip

    async def becomes_slow(self) -> None:
        """So do frames from a to b."""
        await self.steps(LINK_SECONDS, gbps={"a": 0.1})

    async def fails(self, gbps: float = 0.1, sender: str = "a", receiver: str = "b") -> None:
        """Frames from one to the other are on their way, and go that slowly."""
        sent = {receiver: gbps} if gbps else {}
        await self.report(sender, "training", plan_version=1, step=self._step, sent_gbps=sent)

    def carries(self, ahead: float, back: float) -> None:
        """The link from a to b was measured at `ahead` Gbit/s, and back."""
        link = Link(round_trip_ms=20.0, sent_gbps=ahead, received_gbps=back, round=1 << 50)
        self.state.links.reported("a", LinkReport(links={"b": link}))

    def rates(self, view: View | None = None) -> tuple[float, ...]:
        """Gbit/s from a to b and back, as links are known, or in a view."""
        if view is None:
            return tuple(self.state.links.gbps(*pair) or 0.0 for pair in ("ab", "ba"))
        here, there = view.ids.index("a"), view.ids.index("b")
        return float(view.bandwidth_gbps[here, there]), float(view.bandwidth_gbps[there, here])

    async def passes(self, seconds: float) -> None:
        """So many seconds pass in which all is as it was."""
        self.clock.skip(seconds)
        await self.steps()

    async def change(self) -> Change:
        """What is found to be looked into."""
        assert self.state.plan is not None
        assert self.watch.wish(self.state.plan)
        return self.watch.look_into(self.state.plan)

    async def kept(self, change: Change) -> bool:
        """Whether the plan in force stays, once that is looked into."""
        assert self.state.plan is not None
        async with asyncio.timeout(30):
            looking = asyncio.create_task(self.comparison.better(self.state.plan, change))
            if self.watch.is_doubted() and not self.watch.failing():
                await self.waits(SENDERS_TELL)
            return await looking is None

    async def waits(self, seconds: float) -> None:
        """So many seconds pass within a step."""
        assert self.state.plan is not None
        for _ in range(int(seconds)):
            for peer in self.state.plan.peers:
                await self.report(peer, "training", plan_version=1, step=self._step)
            await self.clock.advance(1.0)


@pytest.fixture
def led(tmp_path: Path) -> Led:
    return Led(tmp_path)


async def test_a_move_for_a_changed_link_must_pay_back_soon_after_a_change_and_later_later(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    change = await led.change()
    assert (change.gently, change.passing) == (True, "links")
    assert await led.kept(change)
    await led.passes(10 * TRUSTED_SECONDS)
    assert await led.kept(Change("a link", gently=True, passing="links"))
    assert led.planner.horizons == [TRUSTED_SECONDS, 10 * TRUSTED_SECONDS + LINK_SECONDS + SENDERS_TELL]


async def test_a_plan_that_differs_in_the_wire_of_a_boundary_alone_is_gone_over_to(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    await led.trains("a", "b")
    plan = Plan(version=1, stages=((0, 1), (1, LAYERS)), routes=(("a", "b"),))
    led.state.plan = plan
    await led.becomes_slow()
    change = await led.change()
    for boundaries, is_kept in (((plan.wire,), True), ((Wire(activations="int8", gradients="int8"),), False)):
        found = plan.model_copy(update={"boundaries": boundaries})
        monkeypatch.setattr(led.planner, "plan", lambda *_, found=found, **__: found)
        assert await led.kept(change) == is_kept


async def test_what_did_not_pay_back_soon_enough_is_compared_again_until_the_jobs_horizon(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    assert await led.kept(await led.change())
    horizons: list[float] = led.planner.horizons  # type: ignore[assignment]
    while horizons[-1] < led.context.job.plan.horizon:
        assert led.state.plan is not None
        assert not led.watch.wish(led.state.plan)
        await led.passes(horizons[-1])
        change = await led.change()
        assert change.passing == "links"
        assert await led.kept(change)
        assert horizons[-1] >= 1.5 * horizons[-2] or len(horizons) == 2
    await led.passes(100 * horizons[-1])
    assert led.state.plan is not None
    assert not led.watch.wish(led.state.plan)


async def becomes_slow(led: Led, peer: str) -> Change:
    """Let a peer compute three times as slowly, and return the change that is looked into, once one is."""
    plan = led.state.plan
    assert plan is not None
    for _ in range(20):
        await led.steps(2.0)
        assert not led.watch.wish(plan)
    while not led.watch.wish(plan):
        await led.steps(2.0, **{peer: 3.0})
    return await led.change()


async def test_a_move_for_a_peer_that_has_become_slow_must_pay_back_in_as_long_as_it_has_been_slow(led: Led) -> None:
    await led.trains("a", "b", "c")
    change = await becomes_slow(led, "b")
    assert (change.why, change.passing) == ("b has become slow", "pace")
    assert await led.kept(change)
    horizons: list[float] = led.planner.horizons  # type: ignore[assignment]
    assert SECONDS / 2 <= horizons[0] <= SECONDS
    plan = led.state.plan
    assert plan is not None
    while horizons[-1] < led.context.job.plan.horizon:
        while not led.watch.wish(plan):
            await led.steps(2.0, b=3.0)
        change = await led.change()
        assert (change.why, change.passing) == ("b stays slow", "pace")
        assert await led.kept(change)
        assert 1.5 * horizons[-2] <= horizons[-1] <= 2.5 * horizons[-2] + 10
    assert led.planner.standstills == [2 * USUAL_SECONDS] * len(horizons)


async def test_what_changes_have_taken_so_far_is_what_the_next_one_is_to_save(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.events = [PlanEvent(plan=2, why="", called_at=10.0, in_force_at=15.0, started_at=17.5, step=1, repeated=0,
                            source="replicas")]  # fmt: skip
    assert await led.kept(await becomes_slow(led, "b"))
    await led.join("d")
    await led.kept(await led.change())
    assert led.planner.standstills == [2 * 7.5, 7.5]


async def test_a_peer_that_is_slow_no_more_is_planned_for(led: Led) -> None:
    await led.trains("a", "b", "c")
    await becomes_slow(led, "b")
    for _ in range(2):
        await led.steps(2.0, b=3.0)
    assert led.state.plan is not None
    led.state.plan = plan = led.state.plan.model_copy(update={"version": 2})
    led.watch.follows()
    for step in range(100, 140):
        led.clock.skip(2.0)
        for peer in plan.peers:
            seconds = 3.0 if peer == "b" and step < 120 else 1.0
            await led.report(peer, "training", plan_version=2, step=step, busy_seconds=seconds)
        if wish := led.watch.wish(plan):
            break
        assert step < 139
    assert wish == "b is slow no more"
    assert led.watch.look_into(plan).passing == "pace"


async def test_who_comes_or_wants_to_leave_is_planned_for_within_the_jobs_horizon(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    await led.join("c")
    change = await led.change()
    assert not change.passing
    await led.kept(change)
    await led.report("b", "training", plan_version=1, step=99, leaving=True)
    change = await led.change()
    assert not change.passing
    await led.kept(change)
    assert led.planner.horizons == [None, None]


def test_reasons_to_compare_are_told_once_and_links_that_may_have_changed_come_first() -> None:
    def reason(now: Situation, considered: Situation = CALM, **more: object) -> str:
        values: dict[str, object] = {"suspects": (), "trusted": False, "unknown": ()} | more
        return reason_to_compare(now, considered, **values)  # type: ignore[arg-type]

    came = Situation(came=frozenset({"n"}), leaving=frozenset({"m"}))
    assert reason(came) == "n came; m wants to leave or to pause"
    assert reason(came, came) == ""
    assert reason(came, came, trusted=True) == "what has changed has stayed as it is since"
    assert reason(came, suspects={("b", "a"), ("a", "b"), ("c", "b")}) == "a -> b, c -> b may have changed"
    assert reason(CALM, unknown=["s"]) == "s may have links that nobody knows"
    assert reason(CALM, came, unknown=["s"]) == "s may have links that nobody knows"
    assert reason(came, unknown=["s"]) == "n came; m wants to leave or to pause"
    slow = Situation(slow=frozenset({"a"}))
    assert reason(slow) == "a has become slow"
    assert reason(slow, slow, trusted=True) == "a stays slow"
    assert reason(Situation(well=frozenset({"a"}))) == "a is slow no more"


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


def changed(plan: int, took: float) -> PlanEvent:
    """A change of plan that took so many seconds; 0: its peers have not begun."""
    started = 100.0 + took if took else 0.0
    return PlanEvent(plan=plan, why="", called_at=100.0, in_force_at=101.0, started_at=started, step=1, repeated=0,
                     source="replicas")  # fmt: skip


def test_a_change_is_taken_to_cost_what_the_shortest_of_the_newest_has() -> None:
    assert standstill_seconds([]) == USUAL_SECONDS
    assert standstill_seconds([changed(1, 40.0)]) == USUAL_SECONDS
    assert standstill_seconds([changed(1, 1.0), changed(2, 9.0), changed(3, 5.0), changed(4, 0.0)]) == 5.0
    assert standstill_seconds([changed(2, 1.0), *(changed(plan, 8.0) for plan in range(3, 9))]) == 8.0


async def test_a_link_that_fails_under_frames_is_done_without_at_once_and_nothing_is_measured(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.carries(1.0, 3.0)
    led.control.said.clear()
    await led.fails()
    change = await led.change()
    assert (change.gently, change.passing) == (True, "links")
    led.planner.chosen = "ac"
    assert not await led.kept(change)
    assert led.rounds == []
    assert led.rates(led.planner.views[-1]) == pytest.approx((0.1, 0.3)), "the other way may have lost as much"
    assert led.rates() == pytest.approx((0.1, 0.3))
    assert led.watch.failing() == {}
    await led.passes(TRUSTED_SECONDS)
    assert led.watch.suspects() == {("a", "b"), ("b", "a")}  # then it is measured


async def test_a_link_that_begins_to_fail_while_a_plan_is_made_is_looked_into_by_itself(led: Led) -> None:
    await led.trains("a", "b", "c")
    await led.fails()
    change = await led.change()
    plan_for, before = led.layout_maker.plan_for, led.state.links.gbps("c", "a")

    async def meanwhile(*arguments: Any, **options: Any) -> Plan:
        assert options == {"hurried": True}
        await led.fails(sender="c", receiver="a")
        return await plan_for(*arguments, **options)

    led.layout_maker.plan_for = meanwhile  # type: ignore[method-assign]
    led.planner.chosen = "ac"
    assert not await led.kept(change)
    assert led.state.links.gbps("c", "a") == before
    assert led.watch.failing() == {("c", "a"): 0.1}


async def test_a_link_over_which_only_votes_go_does_not_fail(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.state.plan = Plan(version=1, stages=((0, 1), (1, 2), (2, LAYERS)), routes=(("a", "b", "c"),))
    await led.fails(sender="c", receiver="a")
    assert led.watch.failing() == {}
    await led.fails(sender="b", receiver="a")
    assert led.watch.failing() == {("b", "a"): 0.1}


async def test_what_lines_were_measured_to_carry_says_whether_links_share_them(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.carries(1.0, 1.0)
    led.state.links.limits.reported("a", Limits(up_gbps=1.0))
    await led.report("a", "training", plan_version=1, step=9, sent_gbps={"b": 0.2, "c": 0.9})
    assert led.watch.failing() == {}
    assert led.watch.still_failing({("a", "b"): 0.1}) == {("a", "b"): 0.2}
    led.state.links.limits.reported("a", Limits())
    assert led.watch.failing() == {("a", "b"): 0.2}


async def test_of_a_plan_around_a_failing_link_those_links_alone_are_measured_that_nobody_knows(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.state.links.forget_pair("a", "c")
    led.control.said.clear()
    await led.fails()
    led.planner.chosen = "ac"
    assert not await led.kept(await led.change())
    assert [[set(pair) for pair in turn.pairs] for turn in led.rounds] == [[{"a", "c"}]]


async def test_a_link_that_is_well_again_when_a_plan_is_found_moves_nothing(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.carries(1.0, 3.0)
    await led.fails()
    change = await led.change()
    plan_for = led.layout_maker.plan_for

    async def meanwhile(*arguments: Any, **options: Any) -> Plan:
        await led.fails(0.0)
        return await plan_for(*arguments, **options)

    led.layout_maker.plan_for = meanwhile  # type: ignore[method-assign]
    led.planner.chosen = "ac"
    led.control.said.clear()
    assert await led.kept(change)
    assert led.rounds == []
    assert led.rates() == (1.0, 3.0)
    await led.fails()
    assert led.watch.failing() == {}  # for a while


async def test_of_a_link_whose_frames_came_late_the_sender_is_heard_before_it_is_measured(led: Led) -> None:
    await led.trains("a", "b", "c")
    await led.becomes_slow()
    change = await led.change()
    led.planner.chosen = "ac"
    led.control.said.clear()
    assert led.state.plan is not None
    async with asyncio.timeout(30):
        looking = asyncio.create_task(led.comparison.better(led.state.plan, change))
        await led.waits(SENDERS_TELL / 2)
        assert led.rounds == []
        await led.fails()
        assert await looking is not None
    assert led.rounds == []
    assert led.comparison.is_urgent


async def test_a_failing_link_without_which_nothing_is_better_is_measured(led: Led) -> None:
    await led.trains("a", "b", "c")
    await led.fails()
    change = await led.change()
    led.control.said.clear()
    assert await led.kept(change)
    assert [[set(pair) for pair in turn.pairs] for turn in led.rounds] == [[{"a", "b"}]]


@pytest.mark.parametrize(("found", "is_urgent"), [(0.1, True), (1.0, False)])
async def test_a_link_that_has_failed_and_is_measured_slow_is_not_kept_until_state_has_moved(
    led: Led, monkeypatch: pytest.MonkeyPatch, found: float, is_urgent: bool
) -> None:
    """Where a plan around it was only found once it had been measured."""
    await led.trains("a", "b", "c")
    led.carries(1.0, 1.0)
    await led.fails()
    change = await led.change()
    probe = led.layout_maker.probe

    async def measured(*arguments: Any, **options: Any) -> None:
        await probe(*arguments, **options)
        led.carries(found, found)
        led.planner.chosen = "ac"

    monkeypatch.setattr(led.layout_maker, "probe", measured)
    assert not await led.kept(change)
    assert led.comparison.is_urgent is is_urgent


def test_a_step_is_waited_for_no_longer_than_doing_it_anew_takes() -> None:
    assert step_patience(elapsed=2.0, present=10.0, next_=3.0) == 0.0
    assert step_patience(elapsed=8.0, present=10.0, next_=3.0) == 3.0
    assert step_patience(elapsed=20.0, present=10.0, next_=3.0) == 3.0


async def test_only_where_a_link_fails_is_a_step_given_up(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.planner.chosen = "ac"
    assert led.state.plan is not None
    cost = Cost(kind="makespan", total=1.0, data_parallel=0.0, pipeline=1.0)
    plan = led.state.plan.model_copy(update={"cost": cost.model_copy(update={"total": 9.0})})
    found = plan_of("a", "c").model_copy(update={"cost": cost})
    assert await led.comparison.patience(plan, found) == math.inf
    await led.fails()
    assert not await led.kept(await led.change())
    assert await led.comparison.patience(plan, found) == 0.0
