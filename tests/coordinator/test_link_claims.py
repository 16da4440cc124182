"""What one end alone tells of its links is looked into where it is too good, and bounded where it was not true."""

from itertools import chain, combinations

import numpy as np
import pytest

from dtfm_coordinator.links.chosen_pairs import next_partners
from dtfm_coordinator.links.link_claims import doubtful
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.links.plan_revision import PlanRevision
from dtfm_coordinator.links.probe_rounds import pair_rounds
from dtfm_protocol.control.messages import ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.test_link_table import member

LIAR_AB = frozenset(("liar", "a"))
PLAN = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("a", "liar"),))


def tell(links: LinkTable, peer: str, other: str, sent: float, received: float | None = None) -> None:
    """Have a peer report its link with another one."""
    link = Link(round_trip_ms=20.0, sent_gbps=sent, received_gbps=sent if received is None else received)
    links.reported(peer, LinkReport(links={other: link}))


def told(claim: float, seen: float = 0.01) -> LinkTable:
    """Return links of which the liar has told one, and others what they found with it."""
    links = LinkTable()
    for other in "bc":
        tell(links, other, "liar", seen)
    tell(links, "liar", "a", claim)
    return links


@pytest.mark.parametrize(("claim", "is_doubted"), [(0.014, False), (0.016, True), (10.0, True)])
def test_what_is_above_all_that_others_have_seen_is_measured_by_the_other_end(claim: float, is_doubted: bool) -> None:
    assert told(claim).doubtful([LIAR_AB]) == ([("a", "liar")] if is_doubted else [])


def test_a_lie_about_one_direction_is_enough() -> None:
    links = told(0.01)
    tell(links, "liar", "a", 0.01, 1.0)
    assert links.doubtful([LIAR_AB]) == [("a", "liar")]


def test_rates_that_are_no_bottleneck_are_all_the_same_and_where_there_is_nothing_to_compare_nothing_is_doubted() -> (
    None
):
    assert told(100.0, seen=2.0).doubtful([LIAR_AB]) == []
    links = LinkTable()
    tell(links, "liar", "a", 10.0)
    assert links.doubtful([LIAR_AB]) == []
    assert doubtful([LIAR_AB], {}, {}) == []


@pytest.mark.parametrize("is_first", [True, False])
def test_who_takes_round_trips_meanwhile_confirms_the_link_whatever_it_tells_first(is_first: bool) -> None:
    links = told(0.01)
    links.forget_pair("liar", "a")
    links.requests.ask(ProbeRound(id=7, pairs=(("liar", "a"),), echoes={"a": ("b", "c")}, addresses={}))
    seen = Link(round_trip_ms=20.0, sent_gbps=10.0, received_gbps=10.0)
    words = [ProbeResult(round=7, link=seen), ProbeResult(round=7, echoes={"b": 30.0, "c": 40.0})]
    for word in words if is_first else words[::-1]:
        links.answered("a", word)
    links.answered("liar", ProbeResult(round=7, link=seen))
    assert links.delay("a", "c") == 20.0
    assert links.doubtful([LIAR_AB]) == [], "both ends have told"


def test_a_plan_has_such_a_link_measured_once_before_it_begins() -> None:
    links = told(10.0)
    view = links.view([member(peer) for peer in ("a", "b", "c", "liar")], "fp32")
    revision = PlanRevision(links, tied=False)
    assert revision.planned(PLAN, view) == [[("a", "liar")]]
    tell(links, "a", "liar", 0.01)
    assert not revision.stands()
    assert revision.planned(PLAN, view) == []


@pytest.mark.parametrize(("seen", "is_doubted"), [(0.9, False), (0.02, True)])
def test_what_the_other_end_has_seen_of_a_measurement_need_not_be_measured_again(seen: float, is_doubted: bool) -> None:
    """If it is what was told: it bears a claim out, and takes nothing of the other end's word for its own."""
    links, others = told(0.01), ProbeRound(id=7, pairs=(("liar", "a"),), addresses={})
    links.requests.ask(others)
    link = Link(round_trip_ms=20.0, sent_gbps=1.0, received_gbps=1.0)
    links.answered("liar", ProbeResult(round=7, link=link))
    assert links.doubtful([LIAR_AB]) == [("a", "liar")]
    for teller, number in (("b", 7), ("a", 6), ("liar", 7)):  # whoever else says so
        links.answered(teller, ProbeResult(round=number, link=link))
        assert links.doubtful([LIAR_AB]) == [("a", "liar")]
    links.answered("a", ProbeResult(round=7, link=link.model_copy(update={"sent_gbps": seen, "received_gbps": 2.0})))
    assert links.doubtful([LIAR_AB]) == ([("a", "liar")] if is_doubted else [])
    assert links.gbps("liar", "a") == links.gbps("a", "liar") == 1.0


def test_who_is_contradicted_is_believed_up_to_what_others_have_seen() -> None:
    links = told(10.0)
    tell(links, "liar", "d", 5.0)
    tell(links, "a", "liar", 0.02)
    assert links.contradicted(("a", "liar"), [10.0, 10.0])
    assert links.gbps("liar", "a") == 0.02
    assert links.gbps("liar", "d") == links.gbps("d", "liar") == 0.02
    tell(links, "liar", "e", 5.0)
    assert links.gbps("liar", "e") == 0.02
    tell(links, "liar", "e", 0.005)
    assert links.gbps("liar", "e") == 0.005
    tell(links, "e", "liar", 0.5)  # others' word of it is their own
    assert links.gbps("liar", "e") == 0.5


@pytest.mark.parametrize(("claim", "found"), [(0.02, 0.01), (0.01, 0.5), (9.0, 1.0)])
def test_an_error_of_measuring_is_no_lie(claim: float, found: float) -> None:
    links = told(claim)
    tell(links, "a", "liar", found)
    assert not links.contradicted(("a", "liar"), [claim, claim])


def test_what_both_ends_have_found_is_doubted_only_when_more_is_told() -> None:
    links = told(1.0)
    tell(links, "a", "liar", 0.9)
    assert not links.contradicted(("a", "liar"), [1.0, 1.0])
    for teller, other in (("a", "liar"), ("liar", "a")):
        tell(links, teller, other, 1.2)
        assert links.doubtful([LIAR_AB]) == []
    tell(links, "liar", "a", 2.0)
    assert links.doubtful([LIAR_AB]) == [("a", "liar")]


def test_a_newcomer_does_not_tell_itself_what_its_links_carry() -> None:
    tried = ~np.eye(5, dtype=np.bool_)
    tried[4] = tried[:, 4] = False
    gbps = np.where(tried, 1.0, np.nan)
    pairs = next_partners(tried, np.ones((5, 5)), gbps)
    assert [pair[1] for pair in pairs] == [4]


@pytest.mark.parametrize("count", [3, 4, 5])
def test_of_few_each_is_measured_by_others_too(count: int) -> None:
    peers = "abcde"[:count]
    pairs = list(chain(*pair_rounds(peers, lambda a, b: False)))
    assert len(pairs) == len(list(combinations(peers, 2)))
    assert {other for _, other in pairs} == set(peers)


@pytest.mark.parametrize("order", ["a liar", "liar a"])
def test_after_a_restart_nobody_contradicts_what_the_other_end_has_kept_and_then_counts_what_is_measured(
    order: str,
) -> None:
    """Nobody knows any more who was asked, and a liar may number its rounds as it likes."""
    links = LinkTable()
    kept = {
        "a": LinkReport(links={"liar": Link(round_trip_ms=20.0, sent_gbps=0.01, received_gbps=0.02, round=7)}),
        "liar": LinkReport(links={"a": Link(round_trip_ms=20.0, sent_gbps=9.0, received_gbps=9.0, round=1 << 60)}),
    }
    for peer in order.split():
        links.recalled(peer, kept[peer])
    assert (links.gbps("a", "liar"), links.gbps("liar", "a")) == (0.01, 0.02)
    tell(links, "a", "liar", 0.5)
    assert links.gbps("a", "liar") == 0.5


@pytest.mark.parametrize("order", ["a liar", "liar a"])
def test_one_way_told_too_low_does_not_keep_the_other_end_from_being_heard(order: str) -> None:
    links = LinkTable()
    kept = {
        "a": LinkReport(links={"liar": Link(round_trip_ms=20.0, sent_gbps=0.5, received_gbps=0.5, round=7)}),
        "liar": LinkReport(links={"a": Link(round_trip_ms=20.0, sent_gbps=1.9, received_gbps=0.1, round=9)}),
    }
    for peer in order.split():
        links.recalled(peer, kept[peer])
    assert (links.gbps("liar", "a"), links.gbps("a", "liar")) == (0.5, 0.1)


@pytest.mark.parametrize("order", ["a b", "b a"])
def test_after_a_restart_the_newer_counts_of_what_both_ends_have_kept(order: str) -> None:
    links = LinkTable()
    for peer in order.split():
        other, gbps, number = ("b", 0.2, 8) if peer == "a" else ("a", 0.1, 7)
        link = Link(round_trip_ms=20.0, sent_gbps=gbps, received_gbps=gbps, round=number)
        links.recalled(peer, LinkReport(links={other: link}))
    assert links.gbps("a", "b") == links.gbps("b", "a") == 0.2


def test_a_link_of_a_peer_to_itself_is_none() -> None:
    links = told(10.0)
    tell(links, "liar", "liar", 9.0)
    tell(links, "a", "liar", 0.01)
    assert links.contradicted(("a", "liar"), [10.0, 10.0])
    assert links.gbps("liar", "liar") is None


def test_nobody_confirms_what_it_tells_itself_later() -> None:
    links = told(0.01)
    links.forget_pair("liar", "a")
    fast = Link(round_trip_ms=20.0, sent_gbps=10.0, received_gbps=10.0)
    links.requests.ask(ProbeRound(id=7, pairs=(("a", "liar"),), addresses={}))
    links.answered("liar", ProbeResult(round=7, link=fast))
    links.answered("a", ProbeResult(round=7, link=fast.model_copy(update={"sent_gbps": 0.01, "received_gbps": 0.01})))
    links.forget_pair("liar", "a")
    links.requests.ask(ProbeRound(id=8, pairs=(("liar", "a"),), addresses={}))
    links.answered("liar", ProbeResult(round=8, link=fast))
    assert links.doubtful([LIAR_AB]) == [("a", "liar")]
