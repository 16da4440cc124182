"""Rounds in which peers measure links: what is asked of whom, when a round is over, and whose result counts."""

import asyncio
import itertools

from dtfm_protocol.control.messages import ProbeResult
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.coordinator.laid_out_swarm import AB, AC, Swarm, ids_of, swarm
from tests.coordinator.peers import GBPS, UP_GBPS, link_of, until
from tests.harness.manual_clock import settle

__all__ = ["swarm"]  # a fixture


async def test_only_what_is_unknown_is_measured_and_what_was_tried_in_vain_is_tried_again(swarm: Swarm) -> None:
    swarm.gbps[frozenset("ac")] = None
    await swarm.join("a", "b", "c")
    await swarm.probe()
    assert swarm.asked == ["ab", "ac", "bc"]
    assert swarm.rounds[0].addresses == {peer: (f"/p2p/{peer}",) for peer in "abc"}
    assert swarm.rounds[0].ports == {peer: 1024 + ord(peer) for peer in "ab"}, "c does not say"
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


async def test_a_round_names_the_pairs_of_the_next_one_where_these_do_not_follow_from_what_it_finds(
    swarm: Swarm,
) -> None:
    await swarm.join(*"abcd")
    await swarm.probe()
    rounds = [turn for turn in swarm.rounds if turn.pairs]
    assert len(rounds) == 3
    assert [turn.next for turn in rounds] == [*(turn.pairs for turn in rounds[1:]), ()]
    swarm.control.said.clear()
    await swarm.join(*"efgh")
    await swarm.probe()
    assert sum(bool(turn.pairs) for turn in swarm.rounds) > 1
    assert not any(turn.next for turn in swarm.rounds), "whom one is to measure with is not known yet"
    swarm.control.said.clear()
    of_plan = [[("a", "e"), ("b", "f")], [("a", "f")]]
    await asyncio.wait_for(swarm.one._measuring.rounds_of_plan(of_plan, swarm.ready()), 30)
    assert [turn.next for turn in swarm.rounds] == [(("a", "f"),), ()]


async def test_nobody_waits_for_who_leaves_in_the_midst_of_a_round(swarm: Swarm) -> None:
    await swarm.join("a", "b")
    swarm.silent = {"a", "b"}
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: bool(swarm.rounds))
    await swarm.goodbye(swarm.rounds[0].pairs[0][0])
    await probing
    assert swarm.state.links.gbps("a", "b") is None


async def test_who_leaves_in_the_midst_of_a_round_is_measured_once_it_is_back(swarm: Swarm) -> None:
    await swarm.join(*"abcdef")
    swarm.silent = {*"abcdef"}
    probing = asyncio.create_task(swarm.probe())
    await until(lambda: bool(swarm.rounds))
    swarm.silent = {"f"}
    await swarm.goodbye("f")
    for peer in "abcde":
        await swarm.finish(peer, swarm.rounds[0])
    await probing
    assert not any(swarm.state.links.known("f", other) for other in "abcde")
    swarm.silent = set()
    await swarm.join("f")
    assert "f" in swarm.state.links.untried("abcdef")
    await swarm.probe()
    assert any(swarm.state.links.gbps("f", other) for other in "abcde")


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


async def test_a_newcomer_is_measured_without_taking_the_lines_of_those_that_train(swarm: Swarm) -> None:
    plan = await swarm.trains("a", "b", "c")
    await swarm.join("d")
    await asyncio.wait_for(swarm.one.probe(swarm.ready(), busy=plan.peers), 30)
    assert swarm.rounds
    assert not any(turn.quick for turn in swarm.rounds if turn.pairs)


async def test_a_link_that_is_suspected_is_measured_quickly_though_its_ends_train(swarm: Swarm) -> None:
    plan = await swarm.trains("a", "b", "c")
    await asyncio.wait_for(swarm.one.probe(swarm.ready(), [AB], busy=plan.peers), 30)
    assert swarm.asked == ["ab"]
    assert all(turn.quick for turn in swarm.rounds)
