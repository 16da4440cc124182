"""What training's frames show of links that nobody has measured is put into the view, and nobody can lie with it."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from dtfm_coordinator.links.link_degradation import SECONDS, LinkDegradation
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.links.view_bounds import at_least
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.view.view import View
from tests.coordinator.laid_out_swarm import Swarm
from tests.coordinator.peers import plan_of
from tests.coordinator.test_link_table import member

PEERS = "abcdef"
KNOWN = 0.1


@pytest.fixture
def links() -> LinkTable:
    """Links of which all are measured but those between a and b; most have measured both with them."""
    found = LinkTable()
    for one, other in itertools.combinations(PEERS, 2):
        if one + other != "ab":
            tell(found, other, one, KNOWN)
    return found


def tell(links: LinkTable, teller: str, other: str, gbps: float) -> None:
    one = Link(round_trip_ms=20.0, sent_gbps=gbps, received_gbps=gbps)
    links.reported(teller, LinkReport(links={other: one}))


def view(links: LinkTable) -> View:
    return links.view([member(peer) for peer in PEERS], "fp32")


def rate(view: View, pair: str) -> float:
    return float(view.bandwidth_gbps[PEERS.index(pair[0]), PEERS.index(pair[1])])


def test_a_link_that_nobody_has_measured_carries_what_its_frames_have_shown(links: LinkTable) -> None:
    """One that is slower than its estimate need not be: nothing may have been there to send faster."""
    known = view(links)
    estimate = float(known.estimated_gbps.values[0, 1])
    assert rate(at_least(known, {("a", "b"): 2 * estimate}), "ab") == 2 * estimate
    assert np.isnan(rate(at_least(known, {("a", "b"): 2 * estimate}), "ba"))
    slower = at_least(known, {("a", "b"): 0.5 * estimate})
    assert np.isnan(rate(slower, "ab"))
    assert slower.estimated_gbps.values[0, 1] == pytest.approx(estimate)


def test_the_estimates_follow_what_was_shown(links: LinkTable) -> None:
    raised = at_least(view(links), {("a", "b"): 5 * KNOWN})
    assert raised.estimated_gbps.values[0, 1] == 5 * KNOWN


def test_links_that_were_measured_and_peers_that_are_not_here_stay_as_they_are(links: LinkTable) -> None:
    known = view(links)
    assert at_least(known, {("a", "c"): 9.0, ("a", "x"): 9.0}) is known


def test_of_links_that_were_measured_frames_say_nothing(links: LinkTable) -> None:
    assert links.carried({("a", "c"): 9.0}) == {}


def test_no_receiver_is_believed_above_what_others_have_measured_with_it(links: LinkTable) -> None:
    assert links.carried({("a", "b"): 9.0, ("b", "a"): 0.5 * KNOWN}) == {("a", "b"): KNOWN, ("b", "a"): 0.5 * KNOWN}


def test_a_receiver_with_whom_nobody_has_measured_is_not_believed() -> None:
    links = LinkTable()
    tell(links, "b", "c", 9.0)
    assert links.carried({("a", "b"): 9.0}) == {("a", "b"): 0.0}


def test_what_frames_have_shown_lasts_for_some_seconds_and_ends_with_the_plan() -> None:
    now = [1000.0]
    watch = LinkDegradation(lambda: now[0])
    for step, gbps in enumerate((0.3, 0.1)):
        watch.reported("b", 1, step, {"a": gbps})
        now[0] += 0.3 * SECONDS
    assert watch.carried == {("a", "b"): 0.3}
    now[0] += SECONDS
    watch.reported("b", 1, 3, {"a": 0.1})
    assert watch.carried == {("a", "b"): 0.1}
    watch.reported("b", 2, 4, {})
    assert watch.carried == {}


async def test_the_coordinator_plans_on_what_it_hears_of_frames(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.join(*PEERS)
    for one, other in itertools.combinations(PEERS, 2):
        if one + other != "ab":
            tell(swarm.state.links, other, one, KNOWN if {one, other} != {"b", "c"} else 3 * KNOWN)
    swarm.state.plan = plan_of("a", "b")
    await swarm.report("b", "training", plan_version=1, step=1, received_gbps={"a": 2.5 * KNOWN})
    known = swarm.one.view(swarm.ready())
    assert known.bandwidth_gbps[known.ids.index("a"), known.ids.index("b")] == 2.5 * KNOWN


def looked_at(links: LinkTable, gbps: float, *, is_least: bool) -> None:
    """Have a and b measured beside training."""
    found = Link(round_trip_ms=20.0, sent_gbps=gbps, received_gbps=gbps, is_least=is_least)
    links.tried([("a", "b")])
    links.reported("a", LinkReport(links={"b": found}))
    links.beside(("a", "b"))


def test_a_look_beside_training_that_shared_a_line_is_no_measurement_but_a_least(links: LinkTable) -> None:
    looked_at(links, 5 * KNOWN, is_least=True)
    assert links.unmeasured([frozenset("ab")]) == [frozenset("ab")]
    assert np.isnan(rate(view(links), "ab"))
    assert links.carried({}) == {("a", "b"): 5 * KNOWN, ("b", "a"): 5 * KNOWN}
    assert links.delay("a", "b") == 10.0
    tell(links, "a", "b", KNOWN)
    assert links.carried({}) == {}
    looked_at(links, KNOWN, is_least=True)
    links.forget("b")
    assert links.carried({}) == {}


def test_a_look_on_idle_lines_is_a_measurement(links: LinkTable) -> None:
    looked_at(links, 5 * KNOWN, is_least=False)
    assert rate(view(links), "ab") == 5 * KNOWN
    assert links.carried({}) == {}
