"""Plans on estimates: their links are measured before they begin, and they are made anew where these were wrong."""

import itertools

import numpy as np
import pytest

from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.links.plan_revision import DIFFERENT, MOST_REVISIONS, REVISIONS, PlanRevision
from dtfm_coordinator.links.view_bounds import at_worst
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import NodeView, View
from tests.coordinator.laid_out_swarm import Swarm, ids_of, swarm
from tests.coordinator.test_link_table import member

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
