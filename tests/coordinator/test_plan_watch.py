"""What a coordinator looks for a better plan for, and how soon a move must pay back."""

from typing import Any

import pytest

from dtfm_coordinator.faults.stragglers import SECONDS
from dtfm_coordinator.leader.change_cost import USUAL_SECONDS, standstill_seconds
from dtfm_coordinator.leader.comparison import SENDERS_TELL
from dtfm_coordinator.leader.plan_watch import CALM, TRUSTED_SECONDS, Change, Situation, reason_to_compare
from dtfm_coordinator.links.link_degradation import SECONDS as LINK_SECONDS
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_protocol.job.job_file import Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.view.view import View
from tests.coordinator.peers import LAYERS, plan_of
from tests.coordinator.watching_peers import Led, led

__all__ = ["led"]  # a fixture


async def test_a_move_for_a_changed_link_must_pay_back_soon_after_a_change_and_later_later(led: Led) -> None:
    await led.trains("a", "b")
    await led.becomes_slow()
    change = await led.change()
    assert (change.gently, change.passing) == (True, "links")
    assert await led.kept(change)
    await led.passes(10 * TRUSTED_SECONDS)
    assert await led.kept(Change("a link", gently=True, passing="links"))
    assert led.planner.horizons == [TRUSTED_SECONDS, 10 * TRUSTED_SECONDS + LINK_SECONDS + SENDERS_TELL]


async def test_a_move_for_a_link_that_fails_must_pay_back_soon_however_long_all_was_well(led: Led) -> None:
    """Everybody stands still for it, and what is better later has its state moved ahead."""
    await led.trains("a", "b", "c")
    await led.passes(10 * TRUSTED_SECONDS)
    await led.fails()
    led.planner.chosen = "ac"
    assert not await led.kept(await led.change())
    assert led.comparison.is_urgent
    assert led.planner.horizons == [TRUSTED_SECONDS]
    assert led.state.plan is not None
    assert not led.watch.wish(led.state.plan)
    await led.passes(TRUSTED_SECONDS)
    assert led.watch.wish(led.state.plan), "it is compared again"


async def test_where_nothing_pays_back_so_soon_a_move_for_a_link_that_fails_has_as_long_as_others(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    await led.trains("a", "b", "c")
    await led.passes(10 * TRUSTED_SECONDS)
    await led.fails()
    plan_for = led.planner.plan

    def plan(view: View, in_force: Plan | None, horizon: float, *more: Any) -> Plan:
        led.planner.chosen = "abc" if horizon <= TRUSTED_SECONDS else "ac"
        return plan_for(view, in_force, horizon, *more)

    monkeypatch.setattr(led.planner, "plan", plan)
    assert not await led.kept(await led.change())
    assert led.comparison.is_urgent
    soon, later = led.planner.horizons
    assert (soon, later) == (TRUSTED_SECONDS, pytest.approx(10 * TRUSTED_SECONDS, abs=1))


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


async def test_who_is_ready_while_others_are_not_is_no_reason_for_a_new_plan_until_it_was_there_for_long(
    led: Led,
) -> None:
    await led.trains("a", "b")
    plan = led.state.plan
    assert plan is not None
    led.clock.skip(2 * TIMEOUTS.arrival)
    await led.waits(1.0)
    await led.join("c")
    for _ in range(int(TIMEOUTS.arrival) - 2):
        await led.report("d", "measuring")
        await led.report("c")
        assert led.watch.wish(plan) == ""
        await led.waits(1.0)
    await led.waits(3.0)
    await led.report("d", "measuring")
    await led.report("c")
    assert led.watch.wish(plan) == "c came"
