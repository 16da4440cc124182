"""Layouts for those who are ready: measured first where there is time, and without waiting where everyone waits."""

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtfm_coordinator.leader.new_layout import RESTLESS
from dtfm_coordinator.leader.planner import UnmeasuredLinks
from dtfm_protocol.control.messages import ProbeRound
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.view.view import View
from tests.coordinator.laid_out_swarm import Swarm, ids_of, swarm
from tests.coordinator.peers import until
from tests.harness.manual_clock import settle

__all__ = ["swarm"]  # a fixture


def is_measured(view: View) -> bool:
    return not np.isnan(view.bandwidth_gbps).any()


@pytest.mark.parametrize("own", [None, 4])
async def test_the_first_layout_waits_for_enough_and_is_made_when_all_pairs_are_measured(
    tmp_path: Path, own: int | None
) -> None:
    """The planner needs 3; the owner may want more."""
    swarm = Swarm(tmp_path, 3, own)
    wanted = "abcd"[: own or 3]
    await swarm.join(*wanted[:-1])
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: bool(swarm.phases) and swarm.phases[-1].name == "waiting")
    assert f"{len(wanted) - 1} of {len(wanted)} are ready" in swarm.phases[-1].text
    assert swarm.planned == []
    await swarm.join(wanted[-1])
    assert ids_of(await waiting) == wanted
    assert sorted(swarm.asked) == ["".join(pair) for pair in itertools.combinations(wanted, 2)]
    (view,) = swarm.planner.views
    assert is_measured(view)
    assert swarm.planner.before == [None]
    assert [name for name, _ in itertools.groupby(phase.name for phase in swarm.phases)] == [
        "probing",
        "waiting",
        "probing",
        "planning",
    ]
    assert (tmp_path / "view.json").exists()


async def test_who_is_there_is_measured_while_others_are_waited_for_and_not_again(tmp_path: Path) -> None:
    """So that the last to come waits for its own links alone. What a line carries in all shows beside three others."""
    swarm = Swarm(tmp_path, 5)
    swarm.gbps = {frozenset(pair): 0.1 for pair in itertools.combinations("abcde", 2)}
    await swarm.join("a", "b")
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: swarm.phases != [] and swarm.phases[-1].name == "waiting")
    assert swarm.asked == ["ab"]
    await swarm.join("c", "d")
    await until(lambda: "4 of 5 are ready" in swarm.phases[-1].text)
    before = swarm.asked
    assert sorted(before) == ["".join(pair) for pair in itertools.combinations("abcd", 2)]
    assert {fan.centre for turn in swarm.rounds for fan in turn.fans} == {*"abc"}, "the fourth is like them"
    rounds = len(swarm.rounds)
    await swarm.join("e")
    assert ids_of(await waiting) == "abcde"
    later = swarm.rounds[rounds:]
    assert [sorted({*pair} & {"e"}) for turn in later for pair in turn.pairs][:3] == [["e"]] * 3
    assert not any(turn.fans for turn in later), "its line is thought to be like the others'"
    assert len({frozenset(pair) for pair in swarm.asked}) == len(swarm.asked), "none twice"


@pytest.mark.parametrize("only", "abc")
async def test_of_four_who_reaches_but_one_other_takes_part_whichever_that_is(tmp_path: Path, only: str) -> None:
    swarm = Swarm(tmp_path, 4)
    swarm.gbps = {frozenset((peer, "d")): None for peer in "abc" if peer != only}
    await swarm.join(*"abcd")
    assert ids_of(await swarm.layout()) == "abcd"
    assert "".join(sorted((only, "d"))) in swarm.asked


async def test_while_the_last_nodes_are_waited_for_links_of_a_plan_without_them_are_measured(tmp_path: Path) -> None:
    """So that a plan with them has few links that are to be measured. It is no plan, and nobody is told of one."""
    swarm = Swarm(tmp_path, 3, 7)
    await swarm.join(*"abcde")
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: swarm.phases != [] and "5 of 7 are ready" in swarm.phases[-1].text)
    assert swarm.planned == []
    assert len(swarm.asked) < 10
    await swarm.join("f")
    await until(lambda: "6 of 7 are ready" in swarm.phases[-1].text)
    assert swarm.planned == ["abcdef"]
    assert swarm.asked == ["".join(pair) for pair in itertools.combinations("abcdef", 2)]
    assert "planning" not in {phase.name for phase in swarm.phases}
    assert not (tmp_path / "view.json").exists()
    await swarm.join("g")
    assert ids_of(await waiting) == "abcdefg"
    assert swarm.planned == ["abcdef", "abcdefg"]
    assert swarm.asked == ["".join(pair) for pair in itertools.combinations("abcdefg", 2)], "none twice"


async def test_who_comes_last_does_not_wait_until_links_of_a_plan_without_it_are_measured(tmp_path: Path) -> None:
    swarm, goes_on, plan = Swarm(tmp_path, 3, 7), threading.Event(), Swarm(tmp_path).planner.plan

    def slow(view: View, *others: Any, **named: Any) -> Plan:
        if len(view.ids) < 7:
            goes_on.wait(30)
        return plan(view, *others, **named)

    swarm.planner.plan = slow  # type: ignore[method-assign]
    await swarm.join(*"abcdef")
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: len(swarm.rounds) > 1 and not swarm.state.links.untried("abcdef"))
    await swarm.join("g")
    try:
        assert ids_of(await waiting) == "abcdefg"
    finally:
        goes_on.set()


@pytest.mark.parametrize("rehearsed", [True, False])
async def test_who_has_filled_rounds_while_others_were_waited_for_does_not_measure_beside_the_last_one(
    tmp_path: Path, rehearsed: bool
) -> None:
    """Of links that follow from nothing. Where there was no time for that, all fill rounds."""
    peers, draw = "abcdefghijklmnop", np.random.default_rng(0)
    swarm = Swarm(tmp_path, 3, len(peers))
    swarm.gbps = {frozenset(pair): float(np.exp(2 * draw.normal())) for pair in itertools.combinations(peers, 2)}
    swarm.planner.chosen = "abcd"
    late = peers[-1:] if rehearsed else peers[8:]
    await swarm.join(*peers.removesuffix(late))
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: swarm.phases != [] and "of 16 are ready" in swarm.phases[-1].text)
    asked = len(swarm.asked)
    assert bool(swarm.planned) == rehearsed
    swarm.planner.chosen = "mnop"
    await swarm.join(*late)
    await waiting
    later = [pair for turn in swarm.rounds for pair in turn.pairs][asked:]
    beside = [pair for pair in later if not {*pair} & {*"mnop"}]
    assert len(later) > len(beside)
    assert not beside if rehearsed else len(beside) > len(peers)


@pytest.mark.parametrize(("seconds", "taken"), [(0.96, "abcd"), (0.94, "efgh")])
async def test_a_plan_that_was_rehearsed_is_taken_where_another_one_is_not_worth_measuring_for(
    tmp_path: Path, seconds: float, taken: str
) -> None:
    swarm, peers = Swarm(tmp_path, 3, 8), "abcdefgh"
    swarm.planner.seconds_of = lambda plan, view: seconds if "h" in plan.peers else 1.0
    swarm.planner.chosen = "abcd"
    await swarm.join(*peers[:-1])
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: bool(swarm.planned) and "7 of 8 are ready" in swarm.phases[-1].text)
    asked, swarm.planner.chosen = len(swarm.asked), "efgh"
    await swarm.join("h")
    plan = await waiting
    assert ids_of(plan) == taken
    assert swarm.planner.begun[-1] is not None
    assert ids_of(swarm.planner.begun[-1]) == "abcd", "the search begins with it"
    of_plan = [pair for pair in swarm.asked if {*pair} <= {*"efgh"}]
    assert len(of_plan) == 6 if taken == "efgh" else len(swarm.asked) == asked + 2, "a newcomer's own links"
    if taken == "abcd":
        assert plan.idle == tuple("efgh")


@pytest.mark.parametrize(("needed", "before", "later"), [(4, "abc", ""), (5, "", "abc")])
async def test_of_four_three_find_out_what_their_lines_carry_before_the_last_comes(
    tmp_path: Path, needed: int, before: str, later: str
) -> None:
    """The line of the last one is then thought to be of their kind."""

    def fanned(rounds: list[ProbeRound]) -> str:
        return "".join(sorted(fan.centre for turn in rounds for fan in turn.fans))

    swarm = Swarm(tmp_path, needed)
    swarm.gbps = {frozenset(pair): 0.1 for pair in itertools.combinations("abcd", 2)}
    await swarm.join(*"abc")
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: swarm.phases != [] and "3 of" in swarm.phases[-1].text)
    assert fanned(swarm.rounds) == before
    rounds = len(swarm.rounds)
    await swarm.join("d")
    await until(lambda: waiting.done() or "4 of" in swarm.phases[-1].text)
    assert fanned(swarm.rounds[rounds:]) == later
    waiting.cancel()


@pytest.mark.parametrize("how", ["leaves", "is gone"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_who_comes_and_goes_all_the_time_holds_nobody_up_for_long(
    tmp_path: Path, is_first: bool, how: str
) -> None:
    swarm = Swarm(tmp_path, timeouts=TIMEOUTS)
    await swarm.trains("a", "b", "restless")
    swarm.state.plan = None if is_first else swarm.state.plan
    waiting, passed = asyncio.create_task(swarm.layout()), 0.0
    calm = TIMEOUTS.settle if is_first else TIMEOUTS.settle_in_run
    while passed <= (RESTLESS + 0.5) * calm and not swarm.planned:
        for peer in "ab":
            await swarm.report(peer)
        goes = passed % calm < calm / 2
        if how == "leaves":
            await swarm.report("restless", leaving=goes)
        else:
            await (swarm.goodbye("restless") if goes else swarm.join("restless"))
        await swarm.clock.advance(calm / 2)
        await settle()
        passed += calm / 2
    await until(lambda: bool(swarm.planned))
    assert {"a", "b"} <= {*ids_of(await waiting)}


async def test_who_comes_while_it_settles_is_planned_for_too(tmp_path: Path) -> None:
    """Measuring is no reason to settle longer."""
    swarm = Swarm(tmp_path, timeouts=TIMEOUTS)
    await swarm.join("a", "b")
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: swarm.asked == ["ab"])
    await swarm.clock.advance(TIMEOUTS.settle - 0.1)
    assert swarm.planned == []
    await swarm.join("c")
    await until(lambda: swarm.asked == ["ab", "ac", "bc"])  # it settles from when c was seen on
    await swarm.clock.advance(TIMEOUTS.settle - 0.1)
    assert swarm.planned == []
    await swarm.clock.advance(0.2)
    assert ids_of(await waiting) == "abc"


async def test_what_fewer_nodes_lack_is_said_until_more_have_come(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    swarm.planner.needed = 4
    await swarm.join("a", "b")
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: bool(swarm.planned) and swarm.phases[-1].name == "waiting")
    assert swarm.phases[-1].text == "2 more are needed"
    await swarm.join("c")
    await settle()
    assert swarm.planned == ["ab"]
    await swarm.join("d")
    assert ids_of(await waiting) == "abcd"
    assert swarm.planned == ["ab", "abcd"]


async def test_after_a_view_that_no_plan_fits_one_more_node_is_waited_for(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    swarm.planner.needed, swarm.planner.as_missing = 3, False
    await swarm.join("a", "b")
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: bool(swarm.planned) and swarm.phases[-1].name == "waiting")
    assert swarm.phases[-1].text == "none fits"
    await swarm.join("c")
    assert ids_of(await waiting) == "abc"


async def test_a_repair_leaves_out_who_is_yet_to_be_measured_and_asks_for_no_measurement(swarm: Swarm) -> None:
    plan = await swarm.trains("a", "b")
    await swarm.join("c", "d")
    assert ids_of(await swarm.layout()) == "ab"
    assert swarm.rounds == []
    assert "probing" not in {phase.name for phase in swarm.phases}
    assert swarm.planned == ["ab"]
    assert swarm.planner.before == [plan]
    assert is_measured(swarm.planner.views[0])


@pytest.mark.parametrize("as_missing", [True, False])
async def test_a_repair_has_the_rest_measured_where_it_cannot_do_without(swarm: Swarm, as_missing: bool) -> None:
    swarm.gbps = {frozenset(pair): 0.1 for pair in ("ab", "ac", "bc")}
    await swarm.trains("a", "b")
    swarm.planner.needed, swarm.planner.as_missing = 3, as_missing
    await swarm.join("c")
    assert ids_of(await swarm.layout()) == "abc"
    assert swarm.asked == ["ac", "bc"]
    assert not any(turn.fans for turn in swarm.rounds)  # everyone waits
    await swarm.probe()
    assert any(turn.fans for turn in swarm.rounds)
    assert swarm.planned == ["ab", "abc"]
    assert is_measured(swarm.planner.views[1])


async def test_a_repair_for_those_who_are_all_measured_asks_for_no_measurement(swarm: Swarm) -> None:
    await swarm.trains("a", "b", "c")
    await swarm.goodbye("c")
    assert ids_of(await swarm.layout()) == "ab"
    assert swarm.rounds == []
    assert swarm.planned == ["ab"]


async def test_a_repair_does_not_wait_for_as_many_as_the_start(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, 2, 3)
    await swarm.trains("a", "b", "c")
    await swarm.goodbye("c")
    assert ids_of(await swarm.layout()) == "ab"


async def test_a_better_plan_is_looked_for_once_all_who_train_are_heard_of(swarm: Swarm) -> None:
    plan = await swarm.trains("a", "b")
    assert await swarm.one.hears_all(plan, lambda: False)
    await swarm.clock.advance(TIMEOUTS.report_silence + 0.1)
    waiting = asyncio.create_task(swarm.one.hears_all(plan, lambda: False))
    await swarm.report("a")
    await settle()
    assert not waiting.done()
    await swarm.report("b")
    assert await asyncio.wait_for(waiting, 30)
    await swarm.clock.advance(TIMEOUTS.report_silence + 0.1)
    await swarm.report("a")
    waiting = asyncio.create_task(swarm.one.hears_all(plan, lambda: False))
    await swarm.clock.advance(TIMEOUTS.report_return - 0.1)
    assert not waiting.done()
    await swarm.clock.advance(0.1)
    assert not await asyncio.wait_for(waiting, 30)
    assert not await asyncio.wait_for(swarm.one.hears_all(plan, lambda: True), 30)


async def test_nothing_is_planned_for_who_has_gone_or_whom_nobody_reaches(swarm: Swarm) -> None:
    swarm.gbps = {frozenset(pair): None for pair in ("ad", "bd", "cd", "de")}
    await swarm.join("a", "b", "c", "d", "e")
    there = swarm.ready()
    await swarm.probe()
    await swarm.goodbye("c")
    assert ids_of(await swarm.one.plan_for(there)) == "abe"


async def lay_out_strangers(swarm: Swarm) -> asyncio.Task[Plan]:
    """Look for a layout of three of whom nobody reached another one; they do from now on."""
    await swarm.join("a", "b", "c")
    swarm.gbps = dict.fromkeys(map(frozenset, itertools.combinations("abc", 2)))
    laying = asyncio.create_task(swarm.layout())
    await until(lambda: any("reaches" in phase.text for phase in swarm.phases))
    swarm.gbps = {}
    return laying


async def test_where_nobody_reaches_another_one_more_nodes_are_waited_for(swarm: Swarm) -> None:
    laying = await lay_out_strangers(swarm)
    await swarm.join("d")
    assert ids_of(await laying) == "abcd"


async def test_links_that_could_not_be_measured_are_tried_again_though_nobody_comes(swarm: Swarm) -> None:
    laying = await lay_out_strangers(swarm)
    await swarm.clock.advance(TIMEOUTS.layout_retry - 0.1)
    assert not laying.done()
    for peer in "abc":
        await swarm.report(peer)
    await swarm.clock.advance(0.1)
    assert ids_of(await laying) == "abc"


async def test_links_of_an_owners_layout_that_could_not_be_measured_are_tried_again(swarm: Swarm) -> None:
    """Among more peers than have all their pairs measured whenever links are."""
    plan, shut = swarm.planner.plan, [("a", "b"), ("c", "d")]

    def forced(view: View, *others: Any, **named: Any) -> Plan:
        if found := [pair for pair in shut if not view.bandwidth_gbps[tuple(map(view.ids.index, pair))] > 0]:
            raise UnmeasuredLinks(found)
        return plan(view, *others, **named)

    await swarm.trains(*"abcdef")
    swarm.planner.plan = forced  # type: ignore[method-assign]
    swarm.gbps = dict.fromkeys(map(frozenset, shut))
    for pair in shut:
        await swarm.probe(pair)
    swarm.control.said.clear()
    there = swarm.ready()
    for _ in range(2):
        with pytest.raises(UserError, match="a and b, c and d"):
            await swarm.one.plan_for(there)
    assert swarm.asked == ["ab", "cd"], "once at a time"
    swarm.gbps = {}
    await swarm.clock.advance(TIMEOUTS.layout_retry)
    for peer in "abcdef":
        await swarm.report(peer)
    assert ids_of(await swarm.one.plan_for(swarm.ready())) == "abcdef"
    assert swarm.asked == ["ab", "ab", "cd", "cd"]


async def test_a_good_link_of_two_who_are_kept_apart_is_not_measured_for_an_owners_layout(swarm: Swarm) -> None:
    plan, refused = swarm.planner.plan, list[View]()

    def forced(view: View, *others: Any, **named: Any) -> Plan:
        if not view.bandwidth_gbps[view.ids.index("a"), view.ids.index("b")] > 0:
            refused.append(view)
            raise UnmeasuredLinks([("a", "b")])
        return plan(view, *others, **named)

    await swarm.trains(*"abcdef")
    swarm.planner.plan = forced  # type: ignore[method-assign]
    for pair in itertools.combinations("abcdef", 2):
        await swarm.probe(pair)
    swarm.control.said.clear()
    swarm.state.accusations.differed(frozenset("ab"), 1)
    assert ids_of(await swarm.one.plan_for(swarm.ready())) == "abcdef"
    assert refused
    assert swarm.asked == []


async def test_a_run_that_has_lost_nodes_waits_a_while_for_others_and_then_goes_on_with_fewer(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, 3)
    swarm.planner.fewest_in_run, swarm.planner.needed = 1, 1
    await swarm.trains("a", "b", "c")
    await swarm.goodbye("c")
    waiting = asyncio.create_task(swarm.layout())
    await settle()
    assert "waiting for 1 more nodes" in swarm.phases[-1].text
    assert "after 20 s the run goes on with those that are here" in swarm.phases[-1].text
    await swarm.clock.advance(TIMEOUTS.fewer_nodes - 1)
    assert not waiting.done()
    for peer in "ab":
        await swarm.report(peer)
    await swarm.clock.advance(1.1)
    assert ids_of(await waiting) == "ab"


async def test_who_was_merely_started_anew_is_waited_for(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, 3)
    swarm.planner.fewest_in_run = 1
    await swarm.trains("a", "b", "c")
    await swarm.goodbye("c")
    waiting = asyncio.create_task(swarm.layout())
    await settle()
    await swarm.join("c")
    assert ids_of(await waiting) == "abc"


@pytest.mark.parametrize("answers", [True, False])
async def test_a_link_that_is_too_good_is_measured_by_the_other_end_before_a_plan_uses_it(
    swarm: Swarm, caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    swarm.gbps = {frozenset(pair): 0.1 for pair in ("ab", "ac", "bc")}
    await swarm.trains("a", "b", "c")
    links = swarm.state.links
    claim = LinkReport(links={"a": Link(round_trip_ms=2.0, sent_gbps=9.0, received_gbps=9.0, round=1 << 60)})
    links.reported("b", LinkReport(links={"c": Link(round_trip_ms=2.0, sent_gbps=0.1, received_gbps=0.1)}))
    links.reported("c", claim)
    assert links.gbps("c", "a") == 9.0
    swarm.gbps[frozenset("ac")] = 0.1 if answers else None
    await swarm.layout()
    assert next(turn.pairs for turn in swarm.rounds if turn.pairs) == (("a", "c"),)
    assert links.gbps("c", "a") == (0.1 if answers else None)
    if answers:
        assert "c has told much more of its link with a" in caplog.text
        links.reported("c", claim)
        assert links.gbps("c", "a") == 0.1
