"""A result is taken once, from whom it was asked of, for the round in which it was asked."""

from collections.abc import Callable

import pytest

from dtfm_coordinator.links.probe_requests import ProbeRequests
from dtfm_protocol.control.messages import Fan, ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Limits, Link, LinkReport

LIMITS = Limits(up_gbps=0.1)


def link(number: int = 0) -> Link:
    return Link(round_trip_ms=1.0, sent_gbps=2.0, received_gbps=3.0, round=number)


def pairs(number: int, *both: str) -> ProbeRound:
    """A round of pairs, each in two letters."""
    return ProbeRound(id=number, pairs=tuple((pair[0], pair[1]) for pair in both), addresses={})


def group(number: int, centre: str) -> ProbeRound:
    return ProbeRound(id=number, fans=(Fan(centre=centre, gbps={"x": (1.0, 1.0)}),), addresses={})


def test_a_result_is_taken_once() -> None:
    requests, result = ProbeRequests(), ProbeResult(round=7, link=link())
    requests.ask(pairs(7, "ab"))
    assert requests.awaits("a", 7)
    assert requests.take("a", result) == LinkReport(links={"b": link(7)}, probed=7)
    assert not requests.awaits("a", 7)
    assert requests.take("a", result) is None


def test_a_measurement_in_vain_is_an_answer_too() -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab"))
    assert requests.take("a", ProbeResult(round=7)) == LinkReport(links={}, probed=7)
    assert not requests.awaits("a", 7)


@pytest.mark.parametrize(("peer", "number"), [("b", 7), ("c", 7), ("a", 6), ("a", 8)])
def test_what_was_not_asked_for_is_no_answer(peer: str, number: int) -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab"))
    requests.ask(pairs(8, "cd"))
    assert requests.take(peer, ProbeResult(round=number, link=link(), limits=LIMITS)) is None
    assert requests.awaits("a", 7)


def test_who_was_asked_for_a_link_says_nothing_of_its_limits_nor_the_other_way_round() -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab"))
    requests.ask(group(8, "a"))
    both = {number: ProbeResult(round=number, link=link(), limits=LIMITS) for number in (7, 8)}
    assert requests.take("a", both[7]) == LinkReport(links={"b": link(7)}, probed=7)
    assert requests.take("a", both[8]) == LinkReport(links={}, limits=LIMITS, probed=8)


def test_a_round_in_a_result_does_not_outlast_the_one_that_was_asked_for() -> None:
    """Else what the other end measures later would count as older."""
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab"))
    taken = requests.take("a", ProbeResult(round=7, link=link(1 << 60)))
    assert taken is not None
    assert taken.links["b"].round == 7


def test_who_is_asked_again_answers_the_newest_and_a_late_result_about_others_is_taken() -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab", "cd"))
    requests.ask(group(8, "a"))
    requests.ask(pairs(9, "ba"))  # by the other end this time
    requests.ask(group(10, "a"))
    assert requests.take("a", ProbeResult(round=7, link=link())) is None
    assert requests.take("a", ProbeResult(round=8, limits=LIMITS)) is None
    assert requests.take("c", ProbeResult(round=7, link=link())) is not None
    assert requests.take("b", ProbeResult(round=9, link=link())) is not None
    assert requests.take("a", ProbeResult(round=10, limits=LIMITS)) is not None


@pytest.mark.parametrize("leaver", ["a", "b"])
def test_nothing_is_awaited_from_or_about_who_has_left(leaver: str) -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab", "cd"))
    requests.forget(leaver)
    assert requests.take("a", ProbeResult(round=7, link=link())) is None
    assert requests.awaits("c", 7)


def test_a_result_about_a_link_that_was_forgotten_since_counts_no_more() -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab", "cd"))
    requests.forget_pair("b", "a")
    assert not requests.awaits("a", 7)
    assert requests.awaits("c", 7)


def test_a_record_from_before_the_last_result_is_outdated_whatever_clocks_say() -> None:
    requests = ProbeRequests()
    old, new = (LinkReport(links={}, probed=number) for number in (9, 7))
    assert not requests.is_outdated("a", old)
    requests.ask(pairs(7, "ab"))
    requests.take("a", ProbeResult(round=7, link=link()))
    assert requests.is_outdated("a", old)
    assert not requests.is_outdated("a", new)
    assert not requests.is_outdated("b", old)
    requests.forget("a")
    assert not requests.is_outdated("a", old)


def test_whoever_was_measured_with_may_tell_once_what_it_has_seen() -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab", "cd"))
    assert requests.watched("a", 7) is requests.watched("b", 6) is requests.watched("e", 7) is None
    assert requests.watched("b", 7) == "a"
    assert requests.watched("b", 7) is None
    assert requests.awaits("a", 7), "only who measures is waited for"


def test_what_was_seen_is_taken_though_others_measure_with_the_same_peer_by_now() -> None:
    requests = ProbeRequests()
    for number, pair in ((7, "ab"), (8, "cb"), (9, "ab")):
        requests.ask(pairs(number, pair))
    assert requests.watched("b", 8) == "c"
    assert requests.watched("b", 7) is None, "what was found then counts no more"
    assert requests.watched("b", 9) == "a"


@pytest.mark.parametrize(
    "forget", [lambda one: one.forget("a"), lambda one: one.forget("b"), lambda one: one.forget_pair("b", "a")]
)
def test_of_a_measurement_that_counts_no_more_nobody_tells(forget: Callable[[ProbeRequests], None]) -> None:
    requests = ProbeRequests()
    requests.ask(pairs(7, "ab"))
    forget(requests)
    assert requests.watched("b", 7) is None
