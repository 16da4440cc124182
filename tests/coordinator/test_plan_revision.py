"""Plans on estimates: their links are measured before they begin, and they are made anew where these were wrong."""

import asyncio
import itertools

import numpy as np
import pytest

from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.links.plan_pairs import pairs_along, pairs_of
from dtfm_coordinator.links.plan_revision import (
    DIFFERENT,
    FIRST_REVISIONS,
    FIRST_ROUNDS,
    HURRIED_ROUNDS,
    MOST_REVISIONS,
    MOST_ROUNDS,
    REVISIONS,
    PlanRevision,
)
from dtfm_coordinator.links.view_bounds import at_worst
from dtfm_protocol.control.messages import ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.view.view import NodeView, View
from tests.coordinator.laid_out_swarm import Swarm, ids_of, swarm
from tests.coordinator.peers import plan_of
from tests.coordinator.test_link_table import member
from tests.harness.manual_clock import settle

__all__ = ["swarm"]  # a fixture
PEERS = "abcdefgh"
PLAN = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("a", "b"), ("a", "c")))


def link(gbps: float, milliseconds: float = 20.0) -> Link:
    return Link(round_trip_ms=milliseconds, sent_gbps=gbps, received_gbps=gbps)


def a_table() -> LinkTable:
    """Of all but a, b and c every link is known, and is alike."""
    links = LinkTable()
    for one, other in itertools.combinations(PEERS[3:], 2):
        links.reported(one, LinkReport(links={other: link(0.1)}))
    for one in "abc":
        links.reported(one, LinkReport(links={"d": link(0.1)}))
    return links


def view(links: LinkTable) -> View:
    return links.view([member(peer) for peer in PEERS], "fp32")


def measure(links: LinkTable, rounds: list[list[tuple[str, str]]], found: Link | None) -> None:
    for one, other in itertools.chain(*rounds):
        links.tried([(one, other)])
        if found is not None:
            links.reported(one, LinkReport(links={other: found}))


def test_the_links_of_a_plan_are_measured_and_no_others() -> None:
    links = a_table()
    rounds = PlanRevision(links, tied=False).planned(PLAN, view(links))
    assert {frozenset(pair) for pair in itertools.chain(*rounds)} == {frozenset(pair) for pair in ("ab", "ac", "bc")}
    measure(links, rounds, link(0.1))
    assert PlanRevision(links, tied=False).planned(PLAN, view(links)) == []


@pytest.mark.parametrize(
    ("gbps", "milliseconds", "stands"),
    [(0.1, 20, True), (0.09, 22, True), (0.05, 20, False), (0.2, 20, False), (0.1, 28, True), (0.1, 40, False)],
)
def test_a_plan_stands_where_its_links_are_about_what_was_thought(
    gbps: float, milliseconds: float, stands: bool
) -> None:
    links = a_table()
    revision = PlanRevision(links, tied=False)
    measure(links, revision.planned(PLAN, view(links)), link(gbps, milliseconds))
    assert revision.stands() is stands


def test_it_is_made_anew_so_often_and_no_more_and_the_last_time_on_the_worst_that_may_be() -> None:
    plans = 0
    links = a_table()
    revision = PlanRevision(links, tied=False)
    while True:
        known = view(links)
        cautious = revision.seen(known)
        plans += 1
        assert (cautious is known) == (plans <= REVISIONS)
        for pair in ("ab", "ac", "bc"):
            links.forget_pair(*pair)
        measure(links, revision.planned(PLAN, view(links)), link(0.1 / DIFFERENT / 2))
        if revision.stands():
            break
    assert plans == REVISIONS + 1


def test_the_first_plan_is_made_anew_more_often_as_long_as_few_rounds_were_measured_for_it() -> None:
    def plans(plan: Plan, peers: str) -> int:
        links, made = a_table(), 0
        revision = PlanRevision(links, tied=False, first=True)
        while made == 0 or not revision.stands():
            known = view(links)
            assert (revision.seen(known) is known) == (not made or not revision._is_spent)
            made += 1
            for pair in itertools.combinations(peers, 2):
                links.forget_pair(*pair)
            measure(links, revision.planned(plan, view(links)), link(0.1 / DIFFERENT / 2))
        return made

    of_two = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("a", "b"),))
    assert plans(of_two, "ab") == FIRST_REVISIONS + 1 > REVISIONS + 1
    replicas = Plan(version=1, stages=((0, 1),), routes=tuple((peer,) for peer in "abcdefg"))
    assert plans(replicas, "abcdefg") == -(-FIRST_ROUNDS // MOST_ROUNDS) + 1


def test_of_a_hurried_plan_few_links_are_measured_and_it_stands_whatever_they_are() -> None:
    links = a_table()
    revision = PlanRevision(links, tied=False, hurried=True)
    known = view(links)
    assert revision.seen(known) is known
    rounds = revision.planned(PLAN, known)
    assert len(rounds) == HURRIED_ROUNDS
    assert {frozenset(pair) for pair in rounds[0] + rounds[1]} == {frozenset("ab"), frozenset("ac")}, "along pipelines"
    assert {frozenset((one, *others)) for one, others in revision.doors().items()} == {frozenset("bc")}
    measure(links, rounds, link(0.001))
    links.requests.ask(ProbeRound(id=7, echoes={"b": ("c",)}, addresses={}))
    links.answered("b", ProbeResult(round=7, echoes={"c": 20.0}))
    assert revision.shut() == []
    assert revision.stands()


def test_a_hurried_plan_is_made_anew_where_its_peers_cannot_talk() -> None:
    links = a_table()
    revision = PlanRevision(links, tied=False, hurried=True)
    measure(links, revision.planned(PLAN, view(links)), None)
    assert not revision.stands()


@pytest.mark.parametrize(("gbps", "stands"), [(None, True), (0.01, True), (9.0, False)])
def test_peers_that_the_first_plan_does_not_use_measure_meanwhile_and_count_where_they_are_better(
    gbps: float | None, stands: bool
) -> None:
    """Nothing is known of any link."""
    plan = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("p00", "p01"), ("p00", "p02")))
    assert sum(map(len, PlanRevision(LinkTable(), tied=False).planned(plan, many(LinkTable())))) == 3
    links = LinkTable()
    known = many(links)
    revision = PlanRevision(links, tied=False, first=True)
    rounds = revision.planned(plan, known)
    used = pairs_of(plan)
    assert [len(turn) for turn in rounds] == [len(MANY) // 2] * 3
    assert sum(frozenset(pair) in used for turn in rounds for pair in turn) == len(used)
    measure(links, [[pair for pair in turn if frozenset(pair) in used] for turn in rounds], link(1.0, 0.1))
    beside = [[pair for pair in turn if frozenset(pair) not in used] for turn in rounds]
    measure(links, beside, None if gbps is None else link(gbps, 0.1))
    assert revision.stands() is stands


def test_where_peers_cannot_talk_it_is_made_anew_though_not_for_ever() -> None:
    links, plans = a_table(), 0
    revision = PlanRevision(links, tied=False)
    while plans == 0 or not revision.stands():
        plans += 1
        for pair in ("ab", "ac", "bc"):
            links.forget_pair(*pair)
        measure(links, revision.planned(PLAN, view(links)), None)
    assert plans == MOST_REVISIONS + 1


def test_at_worst_nothing_that_was_measured_changes_and_nothing_else_is_better() -> None:
    links, rng = a_table(), np.random.default_rng(0)
    for one, other in itertools.combinations(PEERS[3:], 2):
        links.reported(one, LinkReport(links={other: link(float(np.exp(rng.standard_normal())))}))
    known = view(links)
    worst = at_worst(known)
    measured = ~np.isnan(known.bandwidth_gbps)
    np.testing.assert_array_equal(worst.bandwidth_gbps[measured], known.bandwidth_gbps[measured])
    assert (worst.beta() <= known.beta()).all()
    assert (worst.alpha() >= known.alpha()).all()
    assert known.estimated_gbps.spread > 1
    assert (worst.beta()[~measured] < known.beta()[~measured]).all()
    assert isinstance(worst.nodes[0], NodeView)


MANY = [f"p{number:02}" for number in range(24)]
REPLICAS = Plan(version=1, stages=((0, 1),), routes=tuple((peer,) for peer in MANY))


def many(links: LinkTable) -> View:
    return links.view([member(peer) for peer in MANY], "fp32")


def test_of_a_stage_of_many_replicas_some_rounds_are_measured_and_the_other_doors_are_tried() -> None:
    links = LinkTable()
    revision = PlanRevision(links, tied=False)
    rounds = revision.planned(REPLICAS, many(links))
    assert len(rounds) == MOST_ROUNDS
    measured = {frozenset(pair) for turn in rounds for pair in turn}
    doors = revision.doors()
    left = {frozenset((peer, other)) for peer, others in doors.items() for other in others}
    assert measured | left == {frozenset(pair) for pair in itertools.combinations(MANY, 2)}
    assert sum(map(len, doors.values())) == len(left), "each is tried by one end"
    assert max(map(len, doors.values())) <= len(MANY) / 2 + 1


def test_who_does_not_answer_is_measured_by_itself_and_who_cannot_talk_has_the_plan_made_anew() -> None:
    links = LinkTable()
    revision = PlanRevision(links, tied=False)
    measure(links, revision.planned(REPLICAS, many(links)), link(1.0))
    doors = revision.doors()
    mute = next(iter(doors)), next(iter(doors.values()))[0]
    turn = ProbeRound(id=7, echoes=doors, addresses={})
    links.requests.ask(turn)
    for peer, others in doors.items():
        found = {other: 20.0 for other in others if (peer, other) != mute}
        links.answered(peer, ProbeResult(round=7, echoes=found))
    assert [{*pair} for turn in revision.shut() for pair in turn] == [{*mute}]
    links.tried([mute])
    assert not revision.stands()


def test_links_along_pipelines_are_measured_before_those_of_replicas() -> None:
    plan = Plan(version=1, stages=((0, 1), (1, 2)), routes=tuple(zip(MANY[:12], MANY[12:], strict=True)))
    links = LinkTable()
    rounds = PlanRevision(links, tied=False).planned(plan, many(links))
    assert len(rounds) == MOST_ROUNDS
    assert {frozenset(pair) for pair in rounds[0]} == pairs_along(plan)


def test_links_that_carry_training_are_left_to_its_frames_unless_a_peer_has_come_back() -> None:
    links = LinkTable()
    heard = {peer: tuple(other for other in MANY if other < peer)[:16] for peer in MANY[1:17]}
    links.requests.ask(ProbeRound(id=7, echoes=heard, addresses={}))
    for peer, others in heard.items():
        links.answered(peer, ProbeResult(round=7, echoes=dict.fromkeys(others, 20.0)))
    plan = REPLICAS.model_copy(update={"routes": tuple((peer,) for peer in MANY[:17])})
    plan = Plan.model_validate(plan.model_dump(include={"version", "stages", "routes"}))
    revision = PlanRevision(links, tied=False, carried=pairs_of(plan))
    assert revision.planned(plan, many(links)) == []
    assert revision.doors() == {}
    assert revision.stands()
    links.forget("p03")
    assert {peer for turn in revision.planned(plan, many(links)) for pair in turn for peer in pair} >= {"p03"}


async def test_before_a_first_plan_of_many_few_links_are_measured_and_then_those_of_the_plan(swarm: Swarm) -> None:
    swarm.planner.chosen = "abcd"
    peers = [chr(ord("a") + number) for number in range(20)]
    await swarm.join(*peers)
    assert ids_of(await swarm.layout()) == "abcd"
    echoes, *rounds = [turn for turn in swarm.rounds if not turn.fans]
    assert set(echoes.echoes) == set(peers)
    assert all(turn.quick for turn in rounds)
    assert len(rounds) <= 3 + 2 + 3
    asked = {frozenset(pair) for turn in rounds for pair in turn.pairs}
    assert {frozenset(pair) for pair in itertools.combinations("abcd", 2)} <= asked
    assert len(asked) < 50 < len(peers) * (len(peers) - 1) // 2
    swarm.control.said.clear()
    await swarm.probe()
    assert swarm.rounds == []


async def test_a_newcomer_takes_round_trips_while_its_first_link_is_measured(swarm: Swarm) -> None:
    peers = [chr(ord("a") + number) for number in range(8)]
    await swarm.join(*peers)
    await swarm.probe()
    swarm.control.said.clear()
    await swarm.join("z")
    await swarm.probe()
    first, *rounds = [turn for turn in swarm.rounds if not turn.fans]
    assert set(first.echoes) == {"z"}
    ((measures, other),) = first.pairs
    assert other == "z", "a newcomer does not tell itself what its links carry"
    ((again,),) = [turn.pairs for turn in rounds]
    assert "z" in again
    assert measures not in again
    assert swarm.state.links.untried([*peers, "z"]) == []


async def test_a_long_measurement_beside_round_trips_is_waited_for(swarm: Swarm) -> None:
    peers = [chr(ord("a") + number) for number in range(8)]
    await swarm.join(*peers)
    await swarm.probe()
    await swarm.join("z")
    swarm.control.said.clear()
    swarm.silent |= {*peers}
    probing = asyncio.create_task(swarm.probe())
    await settle()
    (turn,) = swarm.rounds
    await swarm.clock.advance(2 * TIMEOUTS.echo_round)
    assert [turn.id for turn in swarm.rounds] == [turn.id], "the round trips are there, the link is being measured"
    swarm.silent.clear()
    await swarm.finish(turn.pairs[0][0], turn)
    await probing
    assert swarm.state.links.gbps(*turn.pairs[0]) is not None
    assert len([turn for turn in swarm.rounds if turn.pairs]) == 2


async def test_before_a_first_plan_of_many_replicas_no_more_rounds_are_measured_than_of_fewer(swarm: Swarm) -> None:
    peers = [f"p{number}" for number in range(50)]
    await swarm.join(*peers)
    await swarm.probe()
    swarm.control.said.clear()
    assert set((await swarm.layout()).peers) == set(peers)
    measured = [turn for turn in swarm.rounds if turn.pairs]
    tried = [turn for turn in swarm.rounds if turn.echoes]
    assert len(measured) == MOST_ROUNDS
    assert len(tried) == 2, "a peer tries 16 others at a time"
    links = swarm.state.links
    assert all(links.delay(*pair) is not None for pair in itertools.combinations(peers, 2))
    assert {phase.text for phase in swarm.phases} >= {"trying who can talk to whom"}
    swarm.state.plan = plan_of(*peers)
    swarm.control.said.clear()
    await swarm.layout()
    assert swarm.rounds == [], "its links carry training now"


async def test_a_link_of_the_plan_that_is_slow_has_it_made_anew(swarm: Swarm) -> None:
    swarm.planner.chosen = "abcd"
    peers = [chr(ord("a") + number) for number in range(12)]
    await swarm.join(*peers)
    await swarm.probe()
    unknown = swarm.state.links.unmeasured([frozenset(pair) for pair in itertools.combinations("abcd", 2)])
    assert unknown
    swarm.gbps = dict.fromkeys(unknown, 0.01)
    plan = await swarm.layout()
    assert len(swarm.planned) == 2
    assert [begun and begun.peers for begun in swarm.planner.begun] == [None, plan.peers], "it goes on from the first"
    assert np.nanmin(np.where(np.eye(12), np.nan, swarm.planner.views[-1].bandwidth_gbps)) == 0.01


@pytest.mark.parametrize(("seconds", "kept"), [((2.0, 1.95), True), ((2.0, 1.5), False), ((np.inf, 1.95), False)])
async def test_before_a_run_no_links_are_measured_for_a_plan_that_is_hardly_better(
    swarm: Swarm, seconds: tuple[float, float], kept: bool
) -> None:
    """The first plan's link is slower than was thought; the second one has another peer."""
    await swarm.join(*"abcdefghijkl")
    await swarm.probe()
    (unknown, *others) = (
        sorted(pair)
        for pair in swarm.state.links.unmeasured([frozenset(pair) for pair in itertools.combinations("abcdefgh", 2)])
    )
    second = next(pair for pair in others if pair != unknown)
    swarm.gbps[frozenset(unknown)] = 0.01
    made: list[Plan] = []
    plan = swarm.planner.plan

    def one_after_the_other(*arguments: object) -> Plan:
        swarm.planner.chosen = "".join(unknown if not made else second)
        made.append(plan(*arguments))  # type: ignore[arg-type]
        return made[-1]

    swarm.planner.plan = one_after_the_other  # type: ignore[method-assign, assignment]
    swarm.planner.seconds_of = lambda plan, view: seconds[plan.peers != made[0].peers]
    swarm.control.said.clear()
    assert list((await swarm.layout()).peers) == (unknown if kept else second)
    assert len(made) == 2
    assert ("".join(second) in swarm.asked) is not kept
