"""A line that its peer's links and others' lines show is not measured beside several others."""

import asyncio
import itertools
from pathlib import Path

import pytest

from dtfm_coordinator.links.line_estimate import (
    ALIKE,
    ENOUGH,
    LEAST_SPREAD,
    MUCH_SLOWER,
    ROOM,
    UNKNOWN_LINE,
    Examples,
    KnownLink,
    line_spread,
)
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_protocol.discovery.records import Limits, Link, LinkReport
from dtfm_protocol.view.spread import SLACK
from tests.coordinator.laid_out_swarm import Swarm, ids_of
from tests.coordinator.peers import until

HOMES = [f"p{number}" for number in range(7)]
MOST = 5
"""Of these, more than half, and not almost all."""
UP, DOWN = 0.05, 0.1


def homes(lines: int = len(HOMES), down: float | None = DOWN) -> LinkTable:
    """Each has a link with the next two; so many have found out what their lines carry."""
    links = LinkTable()
    for place, peer in enumerate(HOMES):
        others = (HOMES[(place + step) % len(HOMES)] for step in (1, 2))
        links.reported(peer, LinkReport(links={other: link(UP, UP) for other in others}))
        limits = Limits(up_gbps=UP, down_gbps=down) if place < lines else Limits()
        links.reported(peer, LinkReport(links={}, limits=limits))
    return links


def link(sent: float, received: float, round_trip_ms: float = 20.0) -> Link:
    return Link(round_trip_ms=round_trip_ms, sent_gbps=sent, received_gbps=received)


def found(links: LinkTable, round_trip_ms: float = 20.0, /, **of_new: tuple[float, float]) -> tuple[Limits, list[str]]:
    """What a newcomer's line is thought to carry, whose links to others send and receive so much, and who is asked to
    measure it."""
    for other, (sent, received) in of_new.items():
        links.reported(other, LinkReport(links={"new": link(received, sent, round_trip_ms)}))
    fans = list(links.fans([*HOMES, "new"]))
    return links.limits.of("new"), [fan.centre for turn in fans for fan in turn]


def test_two_links_that_are_equally_fast_though_the_others_could_receive_more_show_what_it_sends() -> None:
    assert found(homes(), p1=(0.02, 0.05), p4=(0.021, 0.05)) == (Limits(up_gbps=0.021), [])


def test_what_comes_more_slowly_than_the_other_end_could_send_shows_what_it_receives() -> None:
    assert found(homes(), p1=(0.02, 0.03), p4=(0.02, 0.03)) == (Limits(up_gbps=0.02, down_gbps=0.03), [])


def test_where_a_line_has_not_told_what_it_receives_the_fastest_link_to_it_stands_in() -> None:
    assert found(homes(down=None), p1=(0.02, 0.05), p4=(0.02, 0.05)) == (Limits(up_gbps=0.02), [])
    assert found(homes(MOST, down=None), p1=(UP, 0.05), p4=(UP, 0.05)) == (Limits(), ["new"])


@pytest.mark.parametrize(
    "of_new",
    [
        {"p1": (0.02, 0.05)},
        {"p1": (0.02, 0.05), "p4": (0.02 / ALIKE * 0.99, 0.05)},
        {"p1": (DOWN / ROOM * 1.01, 0.05), "p4": (DOWN / ROOM * 1.01, 0.05)},
        {"p1": (0.9, 0.9), "p4": (0.02, 0.05), "p5": (0.02, 0.05)},
    ],
    ids=["one link", "unlike links", "others that receive no more", "a neighbour"],
)
def test_else_it_is_measured_where_some_have_no_line_that_limits_them(of_new: dict[str, tuple[float, float]]) -> None:
    limits, asked = found(homes(MOST), **of_new)
    assert limits == Limits()
    assert asked == ["new"] * (len(of_new) > 1)


@pytest.mark.parametrize(
    ("of_new", "limits"),
    [
        ({"p1": (0.02, 0.05), "p4": (0.01, 0.05)}, Limits(up_gbps=0.02)),
        ({"p1": (DOWN, UP), "p4": (DOWN, UP)}, Limits(up_gbps=DOWN)),
        ({"p1": (0.9, 0.9), "p4": (0.02, 0.05)}, Limits(up_gbps=0.9)),
    ],
    ids=["unlike links", "a line that is faster than the others can tell", "a neighbour"],
)
def test_among_homes_a_line_carries_what_is_sent_most_over_one_link(
    of_new: dict[str, tuple[float, float]], limits: Limits
) -> None:
    assert found(homes(), **of_new) == (limits, [])


def test_of_one_link_alone_nothing_is_estimated() -> None:
    assert found(homes(), p1=(0.02, 0.05)) == (Limits(), [])
    assert found(homes(0), p1=(0.06, UP)) == (Limits(), [])


def test_where_no_line_limits_the_others_it_is_measured_if_its_links_are_much_slower_or_alike() -> None:
    slow = UP / MUCH_SLOWER * 0.99
    assert found(homes(0), p1=(0.03, UP), p4=(0.09, UP)) == (Limits(), [])
    assert found(homes(0), p1=(slow, UP), p4=(0.09, UP)) == (Limits(), ["new"])
    assert found(homes(0), p1=(0.06, slow), p4=(0.09, UP)) == (Limits(), ["new"])
    assert found(homes(0, down=None), p1=(0.03, UP), p4=(0.03, UP)) == (Limits(), ["new"])


def test_links_are_compared_with_those_that_lead_about_as_far() -> None:
    """The others' lead 10 ms far, one way."""
    slow = UP / MUCH_SLOWER / 2 * 0.99
    assert found(homes(0), 40.0, p1=(slow * 1.02, UP), p4=(0.09, UP)) == (Limits(), [])
    assert found(homes(0), 40.0, p1=(slow, UP), p4=(0.09, UP)) == (Limits(), ["new"])
    assert found(homes(0), 61.0, p1=(0.06, UP), p4=(0.09, UP)) == (Limits(), ["new"])
    assert found(homes(0), 6.0, p1=(0.06, UP), p4=(0.09, UP)) == (Limits(), ["new"])


def test_one_link_that_is_said_to_be_slow_does_not_make_others_seem_fast() -> None:
    links = homes(0)
    links.reported("p0", LinkReport(links={"p1": link(1e-6, 1e-6)}))
    assert found(links, p1=(UP / 3, UP), p4=(0.09, UP)) == (Limits(), ["new"])


def test_who_was_asked_and_did_not_answer_is_no_example() -> None:
    links = homes()
    for peer in HOMES:
        links.limits.forget(peer)
    assert [fan for turn in links.limits.fans(HOMES, links.gbps) for fan in turn]
    assert links.limits.unasked(HOMES) == []
    assert found(links, p1=(0.03, UP), p4=(0.09, UP)) == (Limits(), ["new"])


def test_estimates_are_no_examples_and_few_examples_do_not_do_for_many() -> None:
    many = [f"q{number}" for number in range(30)]

    def estimated(some: int) -> list[str]:
        links, peers = LinkTable(), [*HOMES[:4], *many[:some]]
        for peer in HOMES[:4]:
            links.reported(peer, LinkReport(links={}, limits=Limits(up_gbps=UP, down_gbps=DOWN)))
        for peer in many:
            links.reported("p0", LinkReport(links={peer: link(0.05, 0.02)}))
            links.reported("p1", LinkReport(links={peer: link(0.05, 0.01)}))
        next(links.fans(peers), None)
        return [peer for peer in peers if links.limits.of(peer).up_gbps == 0.02]

    assert estimated(20) == many[:20]
    assert estimated(21) == []


def test_an_estimate_is_no_less_than_what_a_link_carries() -> None:
    links = homes()
    assert found(links, p1=(0.02, 0.03), p4=(0.021, 0.03)) == (Limits(up_gbps=0.021, down_gbps=0.03), [])
    links.reported("p2", LinkReport(links={"new": link(0.01, 0.04)}))
    assert links.limits.of("new") == Limits(up_gbps=0.04, down_gbps=0.03)
    links.reported("p3", LinkReport(links={"new": link(0.07, 0.01)}))
    assert links.limits.of("new") == Limits(up_gbps=0.04, down_gbps=0.07)
    links.reported("p2", LinkReport(links={"p3": link(0.2, 0.2)}))
    assert links.limits.of("p2") == Limits(up_gbps=UP, down_gbps=DOWN), "what was measured stands"


def test_how_far_off_estimates_are_is_told_by_those_that_have_measured() -> None:
    links = homes()
    found(links, p1=(0.02, 0.03), p4=(0.021, 0.03))
    assert links.limits.spread("new") == UNKNOWN_LINE, "seven tell nothing of nine in ten"
    assert links.limits.spread("p1") is None, "it was measured"
    alike = [KnownLink(sent=UP, received=UP, delay=10.0, other_receives=2 * UP, other_sends=2 * UP)] * 3
    as_estimated, faster = (Limits(up_gbps=times * UP, down_gbps=UP) for times in (1.0, 1.5))
    examples = Examples(limited=1.0, free=())
    assert line_spread([(alike, faster)] * (ENOUGH - 1), examples) == UNKNOWN_LINE
    assert line_spread([(alike, as_estimated)] * ENOUGH, examples) == LEAST_SPREAD
    some = [(alike, faster if place % 4 == 0 else as_estimated) for place in range(2 * ENOUGH)]
    assert line_spread(some, examples) == pytest.approx(1.5**SLACK)


@pytest.mark.parametrize(("told", "spread"), [(None, 1.5**SLACK), (1e24, UNKNOWN_LINE), (1e-12, UNKNOWN_LINE)])
async def test_who_tells_nonsense_of_its_line_makes_estimates_no_more_than_unsure(
    told: float | None, spread: float, tmp_path: Path
) -> None:
    """The others receive twice what one link carries, of three."""
    swarm, nodes = Swarm(tmp_path), "abcdefghijkl"
    swarm.gbps = {frozenset(pair): UP for pair in itertools.combinations(nodes, 2)}
    await swarm.join(*nodes)
    links = swarm.state.links
    for peer in nodes:
        links.reported(peer, LinkReport(links={other: link(UP, UP) for other in nodes if other != peer}))
    for peer in nodes[:-1]:
        links.reported(peer, LinkReport(links={}, limits=Limits(up_gbps=UP, down_gbps=DOWN)))
    links.estimate_lines(nodes)
    assert links.limits.spread("l") == pytest.approx(1.5**SLACK)
    if told is not None:
        links.reported("a", LinkReport(links={}, limits=Limits(up_gbps=told, down_gbps=told)))
    links.estimate_lines(nodes)
    found = links.view(swarm.ready(), "fp32").nodes[-1]
    assert (found.up_gbps, found.line_spread) == (UP, pytest.approx(spread))


async def test_what_a_person_allows_is_no_estimate(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    swarm.gbps = {frozenset(pair): UP for pair in itertools.combinations("abcd", 2)}
    await swarm.join(*"abcd")
    await swarm.probe()
    links, last = swarm.state.links, swarm.ready()[-1]
    assert last.profile is not None
    assert links.limits.spread(last.peer) == UNKNOWN_LINE
    for allowed, spread in ({"up_gbps": 0.01}, UNKNOWN_LINE), ({"up_gbps": 0.01, "down_gbps": 0.02}, None):
        last.profile = last.profile.model_copy(update=allowed)
        (seen,) = links.view([last], "fp32").nodes
        assert (seen.up_gbps, seen.line_spread) == (0.01, spread)


def test_what_follows_from_the_word_of_who_is_contradicted_is_found_out_anew() -> None:
    links = homes()
    links.reported("p1", LinkReport(links={"p2": link(0.05, 5.0)}))
    found(links, p1=(0.02, 0.03), p4=(0.02, 0.03))
    assert links.limits.unasked(["new"]) == []
    links.reported("p2", LinkReport(links={"p1": link(0.05, 0.05).model_copy(update={"round": 1})}))
    assert links.contradicted(("p2", "p1"), [5.0, 0.05])
    assert links.limits.unasked(["new", "p2"]) == ["new"]
    assert links.limits.of("new") == Limits(up_gbps=0.02, down_gbps=0.03), "better than none until then"


def test_what_was_raised_by_a_link_that_is_contradicted_is_found_out_anew() -> None:
    links = homes()
    found(links, p1=(0.02, 0.03), p4=(0.02, 0.03))
    links.reported("p1", LinkReport(links={"new": link(0.03, 5.0)}))
    assert links.limits.of("new").up_gbps == 5.0
    links.reported("new", LinkReport(links={"p1": link(0.02, 0.03).model_copy(update={"round": 1})}))
    assert links.contradicted(("new", "p1"), [5.0, 0.03])
    assert found(links) == (Limits(up_gbps=0.02, down_gbps=0.03), [])


def test_who_leaves_while_others_measure_is_asked_when_it_is_back() -> None:
    links = homes(0)
    for peer in HOMES:
        links.limits.forget(peer)
    rounds = links.limits.fans(HOMES, links.gbps)
    measuring = {fan.centre for fan in next(rounds)}
    gone = next(peer for peer in HOMES if peer not in measuring)
    links.forget(gone)
    assert gone not in {fan.centre for turn in rounds for fan in turn}
    assert links.limits.unasked([gone]) == [gone]


def test_those_whose_links_are_all_fast_are_examples_of_no_line_and_no_homes() -> None:
    peers = [*"abcd"]
    links = LinkTable()
    for one, other in itertools.permutations(peers, 2):
        links.reported(one, LinkReport(links={other: link(3.0, 3.0)}))
    assert list(links.limits.fans(peers, links.gbps)) == []
    links.reported("a", LinkReport(links={"new": link(0.9, 0.5)}))
    links.reported("b", LinkReport(links={"new": link(2.0, 2.0)}))
    assert next(links.fans([*peers, "new"]))[0].centre == "new", "much slower than theirs"
    assert found(homes(), p1=(3.0, 3.0), p2=(3.0, 3.0)) == (Limits(), [])


def test_a_link_over_a_relay_does_not_show_a_line() -> None:
    links = homes()
    for other in ("p1", "p4"):
        relayed = link(0.05, 0.02).model_copy(update={"way": "relayed"})
        links.reported(other, LinkReport(links={"new": relayed}))
    list(links.fans([*HOMES, "new"]))
    assert links.limits.of("new") == Limits()


@pytest.mark.parametrize("lines", [0, 3])
def test_where_few_lines_are_known_alike_links_may_be_chance(lines: int) -> None:
    assert found(homes(lines), p1=(0.02, 0.05), p4=(0.02, 0.05)) == (Limits(), ["new"])


def test_a_link_beside_other_traffic_does_not_show_a_line() -> None:
    links = homes()
    for other, is_least in (("p1", False), ("p4", True)):
        seen = link(0.05, 0.02).model_copy(update={"is_least": is_least})
        links.reported(other, LinkReport(links={"new": seen}))
    fans = list(links.fans([*HOMES, "new"]))
    assert [fan.centre for turn in fans for fan in turn] == ["new"]
    assert links.limits.of("new") == Limits()


def test_what_a_newcomer_says_of_others_does_not_make_room_for_it() -> None:
    """Nobody else has ever sent those so much."""
    links = homes(MOST, down=None)
    links.reported("new", LinkReport(links={other: link(9.0, 0.05) for other in ("p1", "p4")}))
    assert found(links) == (Limits(), ["new"])


def test_who_has_been_thought_to_have_a_line_may_measure_another_one() -> None:
    links = homes()
    found(links, p1=(0.02, 0.05), p4=(0.02, 0.05))
    links.reported("new", LinkReport(links={}, limits=Limits(up_gbps=0.03)))
    assert links.limits.of("new") == Limits(up_gbps=0.03)
    links.forget("new")
    assert links.limits.of("new") == Limits()
    assert links.limits.unasked(["new"]) == ["new"]


async def test_the_last_of_some_waits_for_its_links_alone(tmp_path: Path) -> None:
    swarm, nodes = Swarm(tmp_path, 8), "abcdefgh"
    swarm.gbps = {frozenset(pair): 0.1 for pair in itertools.combinations(nodes[:-1], 2)}
    swarm.gbps |= {frozenset((nodes[-1], other)): 0.04 for other in nodes[:-1]}
    await swarm.join(*nodes[:-1])
    waiting = asyncio.create_task(swarm.layout())
    await until(lambda: bool(swarm.planned) and "7 of 8" in swarm.phases[-1].text)
    rounds = len(swarm.rounds)
    assert {fan.centre for turn in swarm.rounds for fan in turn.fans} == {*nodes[:3]}, "the others are like them"
    await swarm.join(nodes[-1])
    assert ids_of(await waiting) == nodes
    assert not any(turn.fans for turn in swarm.rounds[rounds:])
    last = swarm.planner.views[-1].nodes[-1]
    assert (last.up_gbps, last.line_spread) == (0.04, UNKNOWN_LINE)


async def test_lines_are_estimated_by_who_takes_over_for_nobody_publishes_that(tmp_path: Path) -> None:
    swarm, limits = Swarm(tmp_path), Limits(up_gbps=UP, down_gbps=DOWN)
    for peer in "abcd":
        links = {other: link(UP, UP) for other in "abcd" if other != peer}
        swarm.records.measured[peer] = LinkReport(links=links, limits=None if peer == "d" else limits)
    await swarm.one.recall("abcd")
    assert swarm.state.links.limits.of("d").up_gbps == UP
    assert swarm.state.links.limits.unasked("abcd") == []


async def test_lines_are_estimated_where_there_is_no_time_to_measure_them(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    swarm.gbps = {frozenset(pair): 0.1 for pair in itertools.combinations("abc", 2)}
    await swarm.join(*"abc")
    await swarm.probe()
    assert {fan.centre for turn in swarm.rounds for fan in turn.fans} == {*"abc"}
    swarm.control.said.clear()
    swarm.gbps |= {frozenset((one, "d")): 0.02 for one in "abc"}
    await swarm.join("d")
    await asyncio.wait_for(swarm.one.probe(swarm.ready(), limits=False), 30)
    assert not any(turn.fans for turn in swarm.rounds)
    assert swarm.state.links.limits.of("d").up_gbps == 0.02
