"""Layouts for those who are ready: measured first where there is time, and without waiting where everyone waits."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtfm_coordinator.lead.new_layout import LayoutMaker
from dtfm_coordinator.links.link_degradation import FIRST_PAUSE, Pair
from dtfm_protocol.control.messages import ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts
from dtfm_protocol.view.view import View
from tests.coordinator.peers import GBPS, UP_GBPS, Peers, link_of, plan_of, until
from tests.harness.manual_clock import ManualClock, settle

AB: Pair = ("a", "b")
AC = frozenset("ac")


AT_ONCE = replace(TIMEOUTS, settle=0.0, settle_in_run=0.0)


class Swarm(Peers):
    """Peers, and the coordinator's part that makes layouts for them. Nobody falls silent while the clock stands."""

    def __init__(
        self, folder: Path, fewest_nodes: int = 1, min_nodes: int | None = None, timeouts: Timeouts = AT_ONCE
    ) -> None:
        self.clock = ManualClock()
        super().__init__(folder, fewest_nodes, self.clock)
        self.first_rounds: list[ProbeRound] = []
        """Those before `trains`."""
        self.one = LayoutMaker(self.context, self.state, self.announcer.say, min_nodes, timeouts)

    async def layout(self) -> Plan:
        return await asyncio.wait_for(self.one.layout(), 30)

    async def probe(self, *anew: Pair) -> None:
        await asyncio.wait_for(self.one.probe(self.ready(), anew), 30)

    async def trains(self, *peers: str) -> Plan:
        """Those have been measured, and a plan for them is in force."""
        await self.join(*peers)
        await self.probe()
        self.state.plan = plan_of(*peers)
        self.first_rounds = self.rounds
        self.control.said.clear()
        return self.state.plan

    def suspects(self) -> frozenset[Pair]:
        return self.state.link_watch.suspects(self.state.links.gbps)

    @property
    def planned(self) -> list[str]:
        """For whom the planner was asked, time after time."""
        return ["".join(sorted(view.ids)) for view in self.planner.views]


def ids_of(plan: Plan) -> str:
    return "".join(sorted(plan.peers))


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    """One whose planner takes any view."""
    return Swarm(tmp_path)


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
    await until(lambda: bool(swarm.phases))
    assert swarm.phases[0].name == "waiting"
    assert f"{len(wanted) - 1} of {len(wanted)} are ready" in swarm.phases[0].text
    assert (swarm.rounds, swarm.planned) == ([], [])
    await swarm.join(wanted[-1])
    assert ids_of(await waiting) == wanted
    assert swarm.asked == ["".join(pair) for pair in itertools.combinations(wanted, 2)]
    (view,) = swarm.planner.views
    assert is_measured(view)
    assert swarm.planner.before == [None]
    assert [name for name, _ in itertools.groupby(phase.name for phase in swarm.phases)] == [
        "waiting",
        "probing",
        "planning",
    ]
    assert (tmp_path / "view.json").exists()


async def test_who_comes_while_it_settles_is_planned_for_too(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, timeouts=TIMEOUTS)
    await swarm.join("a", "b")
    waiting = asyncio.create_task(swarm.layout())
    await swarm.clock.advance(TIMEOUTS.settle - 0.1)
    assert swarm.control.said == []
    await swarm.join("c")
    await swarm.clock.advance(TIMEOUTS.settle - 0.1)
    assert swarm.control.said == []
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
    await swarm.trains("a", "b")
    swarm.planner.needed, swarm.planner.as_missing = 3, as_missing
    swarm.gbps = {frozenset(pair): 0.1 for pair in ("ac", "bc")}
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


async def test_only_what_is_unknown_is_measured_and_what_was_tried_in_vain_is_tried_again(swarm: Swarm) -> None:
    swarm.gbps[frozenset("ac")] = None
    await swarm.join("a", "b", "c")
    await swarm.probe()
    assert swarm.asked == ["ab", "ac", "bc"]
    assert swarm.rounds[0].addresses == {peer: (f"/p2p/{peer}",) for peer in "abc"}
    swarm.control.said.clear()
    await swarm.probe()
    assert swarm.asked == ["ac"]


async def test_the_next_round_waits_until_all_who_act_have_finished_the_last(swarm: Swarm) -> None:
    swarm.silent = set("abcd")
    await swarm.join("a", "b", "c", "d")
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: len(swarm.rounds) == 1)
    (turn,) = swarm.rounds
    (first, _), (second, _) = turn.pairs
    await swarm.finish(first, turn)
    await swarm.finish(second, turn.model_copy(update={"id": turn.id - 1}))
    await settle()
    assert len(swarm.rounds) == 1
    swarm.silent = set()
    await swarm.finish(second, turn)
    await probing
    assert len(swarm.rounds) == 3


async def test_a_round_that_somebody_never_finishes_goes_on_without(swarm: Swarm) -> None:
    await swarm.join("a", "b", "c")
    swarm.silent = {"a"}
    probing = asyncio.create_task(swarm.probe())
    while not probing.done():
        await until(lambda: probing.done() or any(pair[0] == "a" for turn in swarm.rounds[-1:] for pair in turn.pairs))
        await swarm.clock.advance(TIMEOUTS.probe_round)
    await probing
    assert swarm.asked == ["ab", "ac", "bc"]
    acted_by_a = {frozenset(pair) for turn in swarm.rounds for pair in turn.pairs if pair[0] == "a"}
    assert acted_by_a
    links = swarm.state.links
    for pair in itertools.combinations("abc", 2):
        assert links.known(*pair)
        assert links.gbps(*pair) == (None if frozenset(pair) in acted_by_a else GBPS)


async def test_nobody_waits_for_who_leaves_in_the_midst_of_a_round(swarm: Swarm) -> None:
    await swarm.join("a", "b")
    swarm.silent = {"a", "b"}
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: bool(swarm.rounds))
    await swarm.goodbye(swarm.rounds[0].pairs[0][0])
    await probing
    assert swarm.state.links.gbps("a", "b") is None


async def test_what_slow_lines_carry_in_all_is_measured_once_after_the_links(swarm: Swarm) -> None:
    swarm.gbps = {frozenset(pair): 0.1 for pair in itertools.combinations("abc", 2)}
    await swarm.join("a", "b", "c")
    plan = await swarm.layout()
    assert ids_of(plan) == "abc"
    assert [fan.centre for turn in swarm.rounds for fan in turn.fans] == ["a", "b", "c"]
    kinds = [bool(turn.fans) for turn in swarm.rounds]
    assert kinds == sorted(kinds)
    assert [node.up_gbps for node in swarm.planner.views[0].nodes] == [UP_GBPS] * 3
    swarm.control.said.clear()
    await swarm.probe()
    assert swarm.rounds == []


async def test_the_next_group_waits_until_the_last_has_measured(swarm: Swarm) -> None:
    await swarm.join("a", "b", "c")
    for pair in itertools.combinations("abc", 2):
        swarm.records.measure(*pair, 0.1)
    await swarm.one.recall("abc")
    swarm.silent = {"a"}
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: bool(swarm.rounds))
    await settle()
    (turn,) = swarm.rounds
    await swarm.finish("a", turn)
    await probing
    assert [[fan.centre for fan in turn.fans] for turn in swarm.rounds] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("found", [0.1, None])
async def test_a_suspect_is_measured_again_and_no_other_and_where_it_is_slow_it_is_looked_at_later(
    swarm: Swarm, found: float | None
) -> None:
    await swarm.trains("a", "b", "c")
    swarm.gbps[frozenset(AB)] = found
    await swarm.probe(AB)
    assert swarm.asked == ["ab"]
    assert swarm.state.links.gbps(*AB) == found
    assert swarm.state.links.gbps("b", "c") == GBPS
    assert swarm.suspects() == set()
    swarm.clock.skip(FIRST_PAUSE)
    assert swarm.suspects() == {AB}


async def test_a_suspect_that_is_found_as_it_was_is_left_alone(swarm: Swarm) -> None:
    await swarm.trains("a", "b", "c")
    await swarm.probe(AB)
    assert swarm.asked == ["ab"]
    swarm.clock.skip(2 * FIRST_PAUSE)
    assert swarm.suspects() == set()


async def test_a_suspect_is_judged_by_what_it_was_before_and_not_by_what_others_are(swarm: Swarm) -> None:
    swarm.gbps[frozenset(AB)] = 0.4
    await swarm.trains("a", "b")
    swarm.gbps[frozenset(AB)] = 0.3
    await swarm.probe(AB)
    swarm.clock.skip(2 * FIRST_PAUSE)
    assert swarm.suspects() == set()


async def test_what_frames_told_before_a_look_is_no_reason_for_another(swarm: Swarm) -> None:
    await swarm.trains("a", "b")
    for step in (1, 2):
        await swarm.report("b", "training", plan_version=1, step=step, received_gbps={"a": 0.1})
    assert swarm.suspects() == {AB}
    await swarm.probe(*swarm.suspects())
    assert swarm.state.links.gbps(*AB) == GBPS
    assert swarm.suspects() == set()


async def test_what_was_measured_arrives_without_any_lookup(swarm: Swarm) -> None:
    swarm.records.unread = dict.fromkeys("abc")
    swarm.gbps[AC] = 0.1
    await swarm.join("a", "b", "c")
    await swarm.probe()
    assert swarm.records.links_looked_up == []
    links = swarm.state.links
    assert [links.gbps(*pair) for pair in itertools.combinations("abc", 2)] == [GBPS, 0.1, GBPS]


async def test_a_report_that_was_lost_is_made_up_for_by_any_later_one(swarm: Swarm) -> None:
    await swarm.join("a", "b")
    swarm.silent = {"a", "b"}
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: bool(swarm.rounds))
    (turn,) = swarm.rounds
    await settle()
    assert not probing.done()
    for _ in range(3):
        await swarm.finish(turn.pairs[0][0], turn)
    await probing
    assert swarm.state.links.gbps(*AB) == GBPS


async def test_what_nobody_asked_a_peer_for_is_not_believed(swarm: Swarm) -> None:
    """It would draw work to itself, or turn others away from a rival."""
    await swarm.join("a", "b", "c")
    swarm.silent = set("abc")
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: bool(swarm.rounds))
    (turn,) = swarm.rounds
    ((actor, other),) = turn.pairs
    (liar,) = {*"abc"} - {actor, other}
    lie = ProbeResult(round=turn.id, link=link_of(999.0), limits=Limits(up_gbps=999.0))
    for peer in (liar, other):  # neither it nor the passive end of the pair was asked
        await swarm.report(peer, probed=lie)
    for number in (turn.id - 1, turn.id + 1):
        await swarm.report(actor, probed=lie.model_copy(update={"round": number}))
    await settle()
    assert len(swarm.rounds) == 1
    links = swarm.state.links
    assert [links.gbps(*pair) for pair in itertools.permutations("abc", 2)] == [None] * 6
    await swarm.report(actor, probed=lie)
    await until(lambda: len(swarm.rounds) == 2)
    assert links.gbps(actor, other) == 999.0  # what is between it and the other end, nobody else can tell
    assert links.view(swarm.ready(), "fp32").nodes[0].up_gbps is None
    await swarm.report(actor, probed=lie.model_copy(update={"link": link_of(1.0)}))
    assert links.gbps(actor, other) == 999.0
    probing.cancel()
    await asyncio.wait([probing])


async def test_a_late_result_of_an_earlier_round_is_taken_for_that_one_and_ends_no_other(swarm: Swarm) -> None:
    await swarm.join("a", "b", "c")
    swarm.silent = set("abc")
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: len(swarm.rounds) == 1 and swarm.answered == 1)
    await swarm.clock.advance(TIMEOUTS.probe_round)
    await until(lambda: len(swarm.rounds) == 2)
    first, second = swarm.rounds
    await swarm.finish(first.pairs[0][0], first)
    assert swarm.state.links.gbps(*first.pairs[0]) == GBPS
    await settle()
    assert len(swarm.rounds) == 2
    assert swarm.state.links.gbps(*second.pairs[0]) is None
    probing.cancel()
    await asyncio.wait([probing])


async def test_a_late_result_is_not_taken_for_the_link_that_is_measured_again(swarm: Swarm) -> None:
    await swarm.join("a", "b")
    swarm.silent = {"a", "b"}
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: swarm.answered == 1)
    await swarm.clock.advance(TIMEOUTS.probe_round)
    await probing
    for peer in AB:
        await swarm.report(peer)
    probing = asyncio.create_task(swarm.probe(AB))
    await until(lambda: len(swarm.rounds) == 2)
    first, second = swarm.rounds
    ((actor, _),) = first.pairs
    await swarm.finish(actor, first)
    await settle()
    assert not probing.done()
    assert swarm.state.links.gbps(*AB) is None
    swarm.gbps[frozenset(AB)] = 0.1
    await swarm.finish(actor, second)
    await probing
    assert swarm.state.links.gbps(*AB) == 0.1
    await swarm.report(actor, probed=ProbeResult(round=first.id, link=link_of(GBPS)))
    assert swarm.state.links.gbps(*AB) == 0.1


async def test_a_link_that_its_peer_has_measured_again_is_read_from_its_record_and_no_other(swarm: Swarm) -> None:
    """Its way has changed: nobody asks for that."""
    await swarm.trains("a", "b", "c")
    rounds = swarm.first_rounds
    by = {frozenset(pair): pair[0] for turn in rounds for pair in turn.pairs}
    reporter = by[frozenset(AB)]
    (other,) = {*AB} - {reporter}
    swarm.records.measure(reporter, other, 0.5)
    swarm.records.measure(other, reporter, 0.7)
    swarm.records.measure(reporter, "d", 0.9)
    for peer in AB:
        swarm.records.finish(peer, 1)
    await swarm.probe()
    assert swarm.state.links.gbps(*AB) == GBPS  # the record is older than what was reported since
    last = {pair[0]: turn.id for turn in rounds for pair in turn.pairs}
    for peer in AB:
        swarm.records.finish(peer, last.get(peer, 1))
    await swarm.probe()
    assert swarm.state.links.gbps(*AB) == 0.5
    assert swarm.state.links.gbps(reporter, "d") is None


async def test_links_that_were_published_are_taken_over_without_any_probing(swarm: Swarm) -> None:
    await swarm.join("a", "b", "c")
    swarm.records.measure("a", "b", 1.0)
    swarm.records.measure("b", "c", 3.0)
    await asyncio.wait_for(swarm.one.recall({"a", "b"}), 30)
    links = swarm.state.links
    assert (links.gbps("a", "b"), links.gbps("c", "b"), links.gbps("a", "c")) == (1.0, 3.0, None)
    assert swarm.control.said == []


@pytest.mark.parametrize("error", [None, OSError("the DHT does not answer"), RuntimeError("closed")])
async def test_links_that_cannot_be_read_keep_no_others_from_being_taken_over(
    swarm: Swarm, error: Exception | None
) -> None:
    swarm.records.unread["a"] = error
    swarm.records.measure("a", "c", 1.0)
    swarm.records.measure("b", "c", 3.0)
    recalling = asyncio.create_task(swarm.one.recall(["a", "b"]))
    await swarm.clock.advance(TIMEOUTS.links_read)
    await asyncio.wait_for(recalling, 30)
    assert (swarm.state.links.gbps("b", "c"), swarm.state.links.gbps("a", "c")) == (3.0, None)


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


async def test_a_look_at_suspects_that_is_given_up_leaves_them_known_as_they_were(swarm: Swarm) -> None:
    await swarm.trains("a", "b", "c")
    swarm.silent = {"a", "b"}
    looking = asyncio.create_task(swarm.one.probe(swarm.ready(), {AB}))
    await until(lambda: len(swarm.rounds) == 1)
    assert swarm.state.links.gbps(*AB) is None
    looking.cancel()
    await asyncio.wait([looking])
    assert swarm.state.links.gbps(*AB) == GBPS
    assert swarm.state.links.untried(["a", "b", "c"]) == []


async def test_a_round_is_not_done_because_a_clock_was_ahead_once(swarm: Swarm) -> None:
    await swarm.join("a", "b")
    for peer in "ab":
        await swarm.report(peer, probed=ProbeResult(round=1 << 60, link=link_of(1.0)))
    swarm.silent = {"a", "b"}
    probing = asyncio.create_task(swarm.one.probe(swarm.ready()))
    await until(lambda: len(swarm.rounds) == 1)
    await settle()
    assert not probing.done()
    swarm.silent = set()
    await swarm.control.answer(swarm.rounds[0])  # type: ignore[misc]
    await asyncio.wait_for(probing, 30)


async def test_links_that_could_not_be_measured_are_tried_again_though_nobody_comes(swarm: Swarm) -> None:
    laying = await lay_out_strangers(swarm)
    await swarm.clock.advance(TIMEOUTS.layout_retry - 0.1)
    assert not laying.done()
    for peer in "abc":
        await swarm.report(peer)
    await swarm.clock.advance(0.1)
    assert ids_of(await laying) == "abc"


async def test_a_record_that_is_older_than_the_measurement_changes_nothing(swarm: Swarm) -> None:
    await swarm.join("a", "b")
    swarm.records.measure("a", "b", 1.0)
    swarm.records.measure("b", "a", 1.0)
    for _ in range(2):
        await swarm.probe()
        assert swarm.state.links.gbps(*AB) == GBPS
    assert swarm.records.links_looked_up != []
