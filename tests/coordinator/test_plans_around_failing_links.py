"""What is done about a link that fails under frames on their way: a plan around it, and what else may be the matter."""

import asyncio
import math
from typing import Any

import pytest

from dtfm_coordinator.leader.change_cost import step_patience
from dtfm_coordinator.leader.comparison import MEASURED, SENDERS_TELL
from dtfm_coordinator.leader.plan_watch import TRUSTED_SECONDS
from dtfm_coordinator.links.link_degradation import SECONDS as LINK_SECONDS
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.plan.plan import Cost, Plan
from tests.coordinator.peers import LAYERS, plan_of, until
from tests.coordinator.watching_peers import Led, led
from tests.harness.manual_clock import settle

__all__ = ["led"]  # a fixture


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
    await led.report("a", "training", plan_version=1, step=9, sent_gbps={"b": 0.19, "c": 0.9})
    assert led.watch.failing() == {}
    assert led.watch.still_failing({("a", "b"): 0.1}) == {("a", "b"): 0.19}
    led.state.links.limits.reported("a", Limits())
    assert led.watch.failing() == {("a", "b"): 0.19}


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


async def test_a_slow_link_that_carries_no_tensors_is_measured_at_once(led: Led) -> None:
    await led.trains("a", "b", "c", "d")
    stages = tuple((layer, layer + 1) for layer in range(LAYERS))
    led.state.plan = Plan(version=1, stages=stages, routes=(("a", "b", "c", "d"),))
    await led.steps(LINK_SECONDS, gbps={"d": 0.1})
    assert led.watch.suspects() == {("d", "b")}
    change = await led.change()
    led.control.said.clear()
    assert not led.watch.is_doubted()
    await led.kept(change)  # which would not end if it waited: the test's clock stands
    assert [[set(pair) for pair in turn.pairs] for turn in led.rounds] == [[{"b", "d"}]]
    await led.steps(LINK_SECONDS, gbps={"a": 0.1})
    assert led.watch.is_doubted()


async def test_a_sender_that_falls_silent_while_a_plan_is_made_keeps_no_other_link_from_being_measured(
    led: Led,
) -> None:
    await led.trains("a", "b", "c")
    await led.becomes_slow()
    await led.fails(sender="c", receiver="a")
    change = await led.change()
    plan_for = led.layout_maker.plan_for

    async def meanwhile(*arguments: Any, **options: Any) -> Plan:
        await led.fails(0.0, sender="c", receiver="a")
        return await plan_for(*arguments, **options)

    led.layout_maker.plan_for = meanwhile  # type: ignore[method-assign]
    led.control.said.clear()
    assert await led.kept(change)
    assert [[set(pair) for pair in turn.pairs] for turn in led.rounds] == [[{"a", "b"}]]


@pytest.mark.parametrize(("seconds", "is_better"), [(4.9, True), (5.0, False)])
async def test_a_plan_around_a_failing_link_must_be_better_as_its_own_links_were_found(
    led: Led, monkeypatch: pytest.MonkeyPatch, seconds: float, is_better: bool
) -> None:
    await led.trains("a", "b", "c")
    led.carries(1.0, 1.0)
    cost = Cost(kind="makespan", total=seconds, data_parallel=0.0, pipeline=seconds)

    async def plan_for(*_: Any, **__: Any) -> Plan:
        return plan_of("a", "c").model_copy(update={"cost": cost})

    async def step_seconds(_: Plan) -> float:
        assert led.rates() == pytest.approx((0.1, 0.1)), "as the link is now"
        return 5.0

    monkeypatch.setattr(led.layout_maker, "plan_for", plan_for)
    monkeypatch.setattr(led.layout_maker, "step_seconds", step_seconds)
    await led.fails()
    change = await led.change()
    led.control.said.clear()
    await led.kept(change)
    assert bool(led.rounds) is not is_better, "else it is measured"


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
    await led.passes(2 * TRUSTED_SECONDS)
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
    assert (led.planner.horizons[-1] == TRUSTED_SECONDS) is is_urgent


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


async def test_a_newcomer_that_does_not_answer_keeps_nobody_from_doing_without_a_link_that_fails(led: Led) -> None:
    await led.trains("a", "b", "c")
    led.silent = {"mute"}
    await led.join("mute")
    change = await led.change()
    assert led.state.plan is not None
    led.planner.chosen, before = "ac", len(led.planner.views)
    looking = asyncio.create_task(led.comparison.better(led.state.plan, change))
    await until(lambda: any("mute" in pair for turn in led.rounds for pair in turn.pairs) or looking.done())

    async def a_second_passes() -> None:
        await led.waits(1.0)
        await led.report("mute")
        await led.fails()
        await settle()

    for _ in range(int(MEASURED)):
        await a_second_passes()
        assert len(led.planner.views) == before
    await a_second_passes()
    await until(lambda: len(led.planner.views) > before)
    found = await asyncio.wait_for(looking, 30)
    assert found is not None
    assert set(found.peers) == {"a", "c"}
    assert led.comparison.is_urgent
    assert led.comparison.is_broken_off
    assert led.watch.wish(led.state.plan), "the newcomer is yet to be measured"
