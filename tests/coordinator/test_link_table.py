"""Links: every pair is measured once, undisturbed by others, and the view says what is known and what is not."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.membership.members import Member
from dtfm_protocol.control.messages import ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Limits, Link, LinkReport, Profile
from dtfm_protocol.view.link_matrix import rows
from dtfm_protocol.view.view import LayerSeconds
from dtfm_protocol.wire.stream import Way


def member(peer: str, **profile: Any) -> Member:
    values = {
        "device": "cpu",
        "flops": {"fp32": 1e11, "bf16": 2e11},
        "layer_seconds": LayerSeconds(forward=0.1, backward=0.2),
        "memory_bytes": 1e9,
        "addresses": (),
        "version": "0.1.0",
    }
    return Member(peer, 0, profile=Profile.model_validate(values | profile))


def report(**links: tuple[float, float, float]) -> LinkReport:
    """For each peer: milliseconds there and back, Gbit/s sent, Gbit/s received."""
    return LinkReport(
        links={
            peer: Link(round_trip_ms=trip, sent_gbps=sent, received_gbps=received)
            for peer, (trip, sent, received) in links.items()
        }
    )


names = st.lists(st.text("abcdefgh", min_size=1, max_size=3), unique=True, max_size=4)


@given(peers=names)
@settings(max_examples=60)
def test_all_pairs_of_a_few_are_measured_once_in_rounds_in_which_nobody_is_twice(peers: list[str]) -> None:
    rounds = list(LinkTable().rounds(peers))
    for pairs in rounds:
        busy = list(itertools.chain(*pairs))
        assert busy
        assert len(set(busy)) == len(busy)
    measured = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, measured)) == sorted(map(sorted, itertools.combinations(peers, 2)))
    if len(peers) > 1:
        assert len(rounds) == len(peers) - 1 + len(peers) % 2


@given(peers=names, data=st.data())
@settings(max_examples=60)
def test_only_what_was_not_measured_is_measured(peers: list[str], data: st.DataObject) -> None:
    """A measurement that failed is tried again; one that succeeded is not."""
    pairs = list(itertools.combinations(peers, 2))
    tried = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = LinkTable()
    links.tried(pairs)
    for one, other in (data.draw(st.permutations(pair)) for pair in tried):
        links.reported(one, report(**{other: (1.0, 1.0, 1.0)}))
    left = [frozenset(pair) for round_ in links.rounds(peers) for pair in round_]
    assert sorted(map(sorted, left)) == sorted(
        map(sorted, {frozenset(p) for p in pairs} - {frozenset(p) for p in tried})
    )


def test_one_way_is_half_the_round_trip_and_each_direction_has_its_own_speed() -> None:
    links = LinkTable()
    links.tried([("a", "b")])
    links.reported("a", report(b=(20.0, 0.1, 0.5)))
    view = links.view([member("a"), member("b")], "fp32")
    assert rows(view.latency_ms) == [[0.0, 10.0], [10.0, 0.0]]
    assert rows(view.bandwidth_gbps) == [[0.0, 0.1], [0.5, 0.0]]


def test_a_pair_that_was_tried_in_vain_cannot_talk_and_one_that_was_not_is_unknown() -> None:
    links = LinkTable()
    links.tried([("a", "b"), ("c", "a")])
    links.reported("c", report(a=(2.0, 1.0, 3.0)))
    view = links.view([member("a"), member("b"), member("c")], "fp32")
    assert rows(view.bandwidth_gbps) == [[0.0, 0.0, 3.0], [0.0, 0.0, None], [1.0, None, 0.0]]
    assert rows(view.latency_ms) == [[0.0, None, 1.0], [None, 0.0, None], [1.0, None, 0.0]]


def test_a_newer_report_replaces_an_older_one() -> None:
    links = LinkTable()
    links.reported("a", report(b=(20.0, 0.1, 0.5)))
    links.reported("b", report(a=(4.0, 0.7, 0.3)))
    view = links.view([member("a"), member("b")], "fp32")
    assert view.latency_ms[0, 1] == 2.0
    assert rows(view.bandwidth_gbps) == [[0.0, 0.3], [0.7, 0.0]]


def test_what_the_other_end_has_measured_before_counts_no_more_in_whatever_order_reports_are_read() -> None:
    def measured(peer: str, round_: int, gbps: float) -> LinkReport:
        return LinkReport(links={peer: Link(round_trip_ms=2.0, sent_gbps=gbps, received_gbps=gbps, round=round_)})

    reports = [("a", measured("b", 7, 0.1)), ("b", measured("a", 3, 1.0))]
    for order in (reports, reports[::-1]):
        links = LinkTable()
        for reporter, found in order:
            links.reported(reporter, found)
        assert links.gbps("a", "b") == links.gbps("b", "a") == 0.1
        links.reported("a", measured("b", 5, 0.2))  # its own newest word, though a clock was set back
        assert links.gbps("a", "b") == 0.2
        links.forget_pair("a", "b")
        links.reported("b", measured("a", 1, 0.5))
        assert links.gbps("a", "b") == 0.5


def test_an_undone_look_at_a_link_brings_nothing_back_of_who_has_left_meanwhile() -> None:
    for leaver in ("a", "b", "c"):
        links = LinkTable()
        links.reported("a", report(b=(2.0, 1.0, 1.0)))
        undo = links.forget_pair("a", "b")
        links.forget(leaver)
        undo()
        assert links.gbps("a", "b") == (1.0 if leaver == "c" else None)


def test_a_view_says_which_pairs_are_not_direct() -> None:
    links, members = LinkTable(), [member(peer) for peer in "abc"]

    def says(reporter: str, **ways: Way) -> list[tuple[str, str, str]]:
        measured = {
            peer: Link(round_trip_ms=2.0, sent_gbps=1.0, received_gbps=1.0, way=way) for peer, way in ways.items()
        }
        links.reported(reporter, LinkReport(links=measured))
        return [(link.sender, link.receiver, link.way) for link in links.view(members, "fp32").ways]

    assert says("a", b="relayed", c="direct", z="relayed") == [("a", "b", "relayed"), ("b", "a", "relayed")]
    assert says("b", a="punched") == [("a", "b", "punched"), ("b", "a", "punched")]
    assert says("c", b="punched")[2:] == [("b", "c", "punched"), ("c", "b", "punched")]
    links.forget("c")
    links.forget_pair("b", "a")
    assert says("a", c="direct") == []
    assert says("a", b="relayed", a="relayed") == [("a", "b", "relayed"), ("b", "a", "relayed")]
    assert says("b", a="direct") == []


def test_a_peer_that_left_is_measured_anew_when_it_returns_and_the_others_are_not() -> None:
    links, peers = LinkTable(), ["a", "b", "c"]
    links.tried(list(itertools.combinations(peers, 2)))
    links.reported("a", report(b=(2.0, 1.0, 1.0), c=(2.0, 1.0, 1.0)))
    links.reported("b", report(c=(2.0, 1.0, 1.0)))
    assert list(links.rounds(peers)) == []
    links.forget("b")
    assert {frozenset(pair) for pairs in links.rounds(peers) for pair in pairs} == {frozenset("ab"), frozenset("bc")}
    view = links.view([member(peer) for peer in peers], "fp32")
    assert rows(view.bandwidth_gbps) == [[0.0, None, 1.0], [None, 0.0, None], [1.0, None, 0.0]]


def test_what_a_peer_says_of_strangers_and_of_itself_does_no_harm() -> None:
    links = LinkTable()
    links.reported("a", report(a=(1.0, 9.0, 9.0), stranger=(1.0, 9.0, 9.0), b=(2.0, 1.0, 1.0)))
    view = links.view([member("a"), member("b")], "fp32")
    assert rows(view.bandwidth_gbps) == [[0.0, 1.0], [1.0, 0.0]]


def test_the_view_takes_the_figures_of_the_jobs_precision() -> None:
    nodes = LinkTable().view([member("a"), member("b", flops={"fp32": 5.0})], "bf16").nodes
    assert [node.flops for node in nodes] == [2e11, None]
    assert [node.id for node in nodes] == ["a", "b"]
    assert nodes[0].layer_seconds == LayerSeconds(forward=0.1, backward=0.2)
    assert nodes[0].memory_bytes == 1e9


def test_a_peer_that_nobody_reaches_is_left_out_of_three_but_not_of_two() -> None:
    """Of two that do not meet, nobody can say whose fault it is."""
    links = LinkTable()
    everyone = [member("a"), member("b"), member("c")]
    assert links.reachable(everyone) == everyone
    links.tried([("a", "b"), ("b", "c"), ("a", "c")])
    links.reported("a", report(b=(1.0, 1.0, 1.0)))
    assert [each.peer for each in links.reachable(everyone)] == ["a", "b"]
    assert links.reachable([member("a"), member("c")]) == [member("a"), member("c")]


def test_one_peer_alone_has_a_view_without_links() -> None:
    view = LinkTable().view([member("a")], "fp32")
    assert rows(view.latency_ms) == rows(view.bandwidth_gbps) == [[0.0]]


def test_who_has_become_slower_than_its_profile_is_planned_for_as_it_is() -> None:
    members = [member("a"), member("b", layer_seconds=LayerSeconds(forward=0.1, backward=0.2, optimizer=0.4))]
    plain, slower = (LinkTable().view(members, "fp32", factors) for factors in (None, {"b": 3.0, "gone": 2.0}))
    assert slower.nodes[0] == plain.nodes[0]
    seconds = slower.nodes[1].layer_seconds
    assert seconds == LayerSeconds(forward=0.1, backward=0.2, optimizer=0.4).times(3.0)
    assert seconds is not None
    assert (seconds.forward, seconds.optimizer, seconds.weight) == (0.1 * 3.0, 0.4 * 3.0, None)


def test_a_link_is_known_as_it_was_measured_last_or_not_at_all() -> None:
    links = LinkTable()
    assert links.gbps("a", "b") is None
    links.tried([("a", "b"), ("a", "c")])
    links.reported("a", report(b=(20.0, 0.1, 0.5)))
    assert (links.gbps("a", "b"), links.gbps("b", "a")) == (0.1, 0.5)
    assert links.gbps("a", "c") is None
    links.reported("b", report(a=(4.0, 0.7, 0.3)))
    assert (links.gbps("a", "b"), links.gbps("b", "a")) == (0.3, 0.7)


def test_a_pair_that_is_forgotten_is_measured_anew_both_ways_and_no_other_is() -> None:
    links, peers = LinkTable(), ["a", "b", "c"]
    links.tried(list(itertools.combinations(peers, 2)))
    links.reported("a", report(b=(2.0, 1.0, 1.0), c=(2.0, 1.0, 1.0)))
    links.reported("b", report(c=(2.0, 1.0, 1.0)))
    links.forget_pair("b", "a")
    assert links.gbps("a", "b") is links.gbps("b", "a") is None
    assert not links.known("a", "b")
    assert links.known("a", "c")
    assert links.known("b", "c")
    assert [{frozenset(pair) for pair in pairs} for pairs in links.rounds(peers)] == [{frozenset("ab")}]
    view = links.view([member(peer) for peer in peers], "fp32")
    assert rows(view.bandwidth_gbps) == [[0.0, None, 1.0], [None, 0.0, 1.0], [1.0, 1.0, 0.0]]
    assert rows(view.latency_ms) == [[0.0, None, 1.0], [None, 0.0, 1.0], [1.0, 1.0, 0.0]]
    links.tried([("a", "b")])
    links.reported("a", report(b=(6.0, 0.25, 0.5)))
    assert (links.gbps("a", "b"), links.gbps("b", "a")) == (0.25, 0.5)
    assert list(links.rounds(peers)) == []


def test_forgetting_a_pair_that_nobody_knows_does_no_harm() -> None:
    links = LinkTable()
    links.forget_pair("a", "b")
    assert links.gbps("a", "b") is None


def all_linked(peers: list[str], gbps: float) -> LinkTable:
    links = LinkTable()
    for here, there in itertools.combinations(peers, 2):
        links.reported(here, report(**{there: (20.0, gbps, gbps)}))
    return links


@given(peers=st.lists(st.text("abcdefgh", min_size=1, max_size=3), unique=True, min_size=3, max_size=13))
@settings(max_examples=60)
def test_each_peer_is_the_centre_of_one_group_and_nobody_is_in_two_at_a_time(peers: list[str]) -> None:
    links = all_linked(peers, 0.1)
    rounds = list(links.limits.fans(peers, links.gbps))
    for fans in rounds:
        busy = [peer for fan in fans for peer in (fan.centre, *fan.gbps)]
        assert len(set(busy)) == len(busy)
        assert all(len(fan.gbps) > 1 for fan in fans)
    assert sorted(fan.centre for fans in rounds for fan in fans) == sorted(peers)
    assert list(links.limits.fans(peers, links.gbps)) == []
    links.forget(peers[0])
    assert list(links.limits.fans(peers[1:], links.gbps)) == []


def test_who_was_not_asked_for_its_limits_and_has_not_told_them_is_known() -> None:
    links = all_linked(["a", "b", "c"], 0.1)
    assert links.limits.unasked(["a", "b", "c"]) == ["a", "b", "c"]
    links.reported("b", LinkReport(links={}, limits=Limits(up_gbps=0.01)))
    assert links.limits.unasked(["a", "b", "c"]) == ["a", "c"]
    assert sorted(fan.centre for fans in links.limits.fans(["a", "b", "c"], links.gbps) for fan in fans) == ["a", "c"]
    assert links.limits.unasked(["a", "b", "c"]) == []
    links.forget("b")
    assert links.limits.unasked(["a", "b"]) == ["b"]


def test_nobody_is_asked_for_limits_where_all_links_are_fast_or_there_is_only_one() -> None:
    fast, one = all_linked(["a", "b", "c"], 10.0), all_linked(["a", "b"], 0.1)
    assert list(fast.limits.fans(["a", "b", "c"], fast.gbps)) == []
    assert list(one.limits.fans(["a", "b"], one.gbps)) == []


def test_a_peers_limits_are_in_the_view() -> None:
    links = all_linked(["a", "b"], 0.1)
    links.reported("a", LinkReport(links={}, limits=Limits(up_gbps=0.05)))
    first, second = links.view([member("a"), member("b")], "fp32").nodes
    assert (first.up_gbps, first.down_gbps) == (0.05, None)
    assert (second.up_gbps, second.down_gbps) == (None, None)
    links.forget("a")
    assert links.view([member("a")], "fp32").nodes[0].up_gbps is None


def test_links_that_nobody_tried_are_told_by_their_peers() -> None:
    links = LinkTable()
    assert links.untried(["a"]) == []
    assert links.untried(["a", "b", "c"]) == ["a", "b", "c"]
    links.reported("a", report(b=(1.0, 1.0, 1.0)))
    links.tried([("a", "c")])
    assert links.untried(["a", "b", "c"]) == ["b", "c"]
    links.tried([("c", "b")])  # in vain; it is not asked for again as long as all is well
    assert links.untried(["a", "b", "c"]) == []
    links.forget("a")
    assert links.untried(["a", "b", "c"]) == ["a", "b", "c"]


def test_who_is_yet_to_be_measured_is_left_out_and_nobody_else() -> None:
    links, members = LinkTable(), [member(peer) for peer in "abcd"]

    def left() -> str:
        return "".join(one.peer for one in links.acquainted(members))

    assert len(left()) == 1  # whose links to itself need no measurement
    links.reported("a", report(b=(1.0, 1.0, 1.0), c=(1.0, 1.0, 1.0), d=(1.0, 1.0, 1.0)))
    links.reported("b", report(c=(1.0, 1.0, 1.0), d=(1.0, 1.0, 1.0)))
    links.tried([("c", "d")])
    assert left() == "abcd"
    links.forget("a")
    assert left() == "bcd"
    links.tried([("b", "a"), ("c", "a")])
    assert left() in {"abc", "bcd"}  # one of the two that do not know each other


@pytest.mark.parametrize("value", [1e-15, 1e30, 0.0, -1.0])
@pytest.mark.parametrize("key", ["round_trip_ms", "sent_gbps", "received_gbps"])
def test_a_link_that_no_view_could_hold_is_refused_when_it_is_read(key: str, value: float) -> None:
    """A member must not be able to stop the planning."""
    good = {"round_trip_ms": 1.0, "sent_gbps": 1.0, "received_gbps": 1.0}
    with pytest.raises(ValidationError):
        Link.model_validate(good | {key: value})


@pytest.mark.parametrize("extreme", [4e-9, 1e12])
def test_every_report_that_is_read_makes_a_view(extreme: float) -> None:
    links = LinkTable()
    link = Link(round_trip_ms=extreme, sent_gbps=extreme, received_gbps=extreme)
    links.reported("a", LinkReport(links={"b": link}, limits=Limits(up_gbps=extreme, down_gbps=extreme)))
    made = links.view([member("a", flops={"fp32": 1e24}, memory_bytes=1e24), member("b", memory_bytes=1e-12)], "fp32")
    assert made.bandwidth_gbps[0, 1] == extreme


@pytest.mark.parametrize("change", [{"memory_bytes": 1e25}, {"flops": {"fp32": 1e25}}, {"memory_bytes": 1e-13}])
def test_a_profile_that_no_view_could_hold_is_refused_when_it_is_read(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        member("a", **change)


def newcomer_to(peers: list[str]) -> LinkTable:
    """Links of which all are known but those of the newcomer, z; c sends fastest, and f is near it."""
    links = LinkTable()
    for one, other in itertools.combinations(peers, 2):
        links.tried([(one, other)])
        links.reported(one, report(**{other: (20.0, 5.0 if one == "c" else 1.0, 1.0)}))
    links.requests.ask(ProbeRound(id=3, echoes={"z": tuple(peers)}, addresses={}))
    links.answered("z", ProbeResult(round=3, echoes={peer: 2.0 if peer == "f" else 30.0 for peer in peers}))
    return links


@pytest.mark.parametrize("answers", [True, False])
def test_after_whoever_sends_fastest_comes_the_nearest_whether_that_one_answered_or_not(answers: bool) -> None:
    links, peers = newcomer_to(list("abcdef")), [*"abcdef", "z"]
    (first,) = links.first_pairs(peers, {"z"})
    assert first == ("c", "z")
    links.tried([first])
    if answers:
        links.reported("c", report(z=(30.0, 1.0, 1.0)))
    assert next(links.rounds(peers)) == [("f", "z")], "another measuring may have been broken off in between"


def test_without_a_first_pair_the_nearest_comes_first() -> None:
    links = newcomer_to(list("abcdef"))
    assert next(links.rounds([*"abcdef", "z"])) == [("f", "z")]
    links.first_pairs([*"abcdef", "z"], {"z"})
    links.forget("z")
    links.tried([("c", "z")])
    assert next(links.rounds([*"abcdef", "z"])) != [("f", "z")], "who comes back begins anew"


def test_what_a_peers_person_allows_is_a_limit_of_its_line() -> None:
    links = LinkTable()
    links.reported("a", LinkReport(links={}, limits=Limits(up_gbps=0.02, down_gbps=0.2)))
    members = [member("a", up_gbps=0.01, down_gbps=0.5), member("b", up_gbps=0.3), member("c")]
    found = [(node.up_gbps, node.down_gbps) for node in links.view(members, "fp32").nodes]
    assert found == [(0.01, 0.2), (0.3, None), (None, None)]


def test_round_trips_that_were_asked_for_stand_in_until_a_link_is_measured_and_no_others_do() -> None:
    links = LinkTable()
    members = [member(peer) for peer in "abc"]
    links.requests.ask(ProbeRound(id=7, echoes={"a": ("b",)}, addresses={}))
    links.answered("c", ProbeResult(round=7, echoes={"b": 1.0}))
    links.answered("a", ProbeResult(round=6, echoes={"b": 1.0}))
    assert rows(links.view(members, "fp32").latency_ms)[0] == [0.0, None, None]
    links.answered("a", ProbeResult(round=7, echoes={"b": 30.0, "c": 1.0}))
    links.answered("a", ProbeResult(round=7, echoes={"b": 99.0}))
    view = links.view(members, "fp32")
    assert rows(view.latency_ms) == [[0.0, 15.0, None], [15.0, 0.0, None], [None, None, 0.0]]
    assert np.isnan(view.bandwidth_gbps[0, 1])
    links.reported("b", report(a=(20.0, 0.1, 0.5)))
    assert links.view(members, "fp32").latency_ms[0, 1] == 10.0
    links.forget("a")
    assert rows(links.view(members, "fp32").latency_ms)[0] == [0.0, None, None]


def test_what_frames_tell_of_a_failing_link_holds_until_it_is_measured_anew() -> None:
    table = LinkTable()
    link = Link(round_trip_ms=10.0, sent_gbps=1.0, received_gbps=2.0, round=5)
    table.reported("a", LinkReport(links={"b": link}))
    undo = table.failing(("a", "b"), 0.1)
    assert (table.gbps("a", "b"), table.gbps("b", "a")) == (0.1, 2.0)
    undo()
    assert table.gbps("a", "b") == 1.0
    table.failing(("a", "b"), 0.1)
    table.reported("a", LinkReport(links={"b": link}))  # the record is read once more
    assert table.gbps("a", "b") == 0.1
    table.reported("a", LinkReport(links={"b": link.model_copy(update={"round": 6})}))
    assert table.gbps("a", "b") == 1.0


def test_a_failing_link_that_is_looked_at_in_vain_is_as_slow_as_before() -> None:
    table = LinkTable()
    table.reported("a", report(b=(10.0, 1.0, 1.0)))
    table.failing(("a", "b"), 0.1)
    undo = table.forget_pair("a", "b")
    undo()
    assert table.gbps("a", "b") == 0.1
    table.reported("a", report(b=(10.0, 1.0, 1.0)))
    assert table.gbps("a", "b") == 0.1
