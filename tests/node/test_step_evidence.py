"""What a peer keeps of the newest steps it gives to the peers of their plan, and to nobody else."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from dtfm_node.engine.reduction_receipts import StepReceipts
from dtfm_node.engine.signed_ballots import SignedBallots
from dtfm_node.engine.step_evidence import (
    ANSWERS_AT_ONCE,
    RECEIPTS,
    RECEIPTS_KEPT,
    VOTE_BYTES_KEPT,
    VOTES,
    VOTES_KEPT,
    CastVotes,
    StepEvidence,
    WantVotes,
)
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import Ballot, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.voted_step import VOTES_LIMIT
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Bytes, Stream, StreamClosed, read_message, write_message
from tests.harness.manual_clock import ManualClock, settle
from tests.harness.membership import SWARM
from tests.harness.named_peers import id_of, signer_of
from tests.node.test_reduction_receipts import part

PLAN = Plan(version=1, stages=((0, 1),), routes=(("a",), ("b",)))
CAST = [b"a" * 70, b"b" * 99]
RECEIVED = StepReceipts(parts=(part("a", 0, 0), part("b", 0, 1)))


def evidence(network: MemoryNetwork, name: str, answer_seconds: float = 20.0) -> StepEvidence:
    return StepEvidence(signer_of(name), MemoryDataPlane(network, name), answer_seconds)


class Unread:
    """A stream that brings a request, and takes no answer before it is told to."""

    def __init__(self, peer: str, taken: asyncio.Event) -> None:
        self.peer, self._taken = peer, taken
        text = WantVotes(plan=1, step=7).model_dump_json().encode()
        self._bytes = struct.pack("!I", len(text)) + text

    async def read(self, size: int) -> Bytes:
        found, self._bytes = self._bytes[:size], self._bytes[size:]
        return found

    async def write(self, *_: Bytes) -> None:
        await self._taken.wait()


@contextlib.asynccontextmanager
async def arbiter(network: MemoryNetwork) -> AsyncIterator[StepEvidence]:
    a = evidence(network, "a")
    await a.listen()
    async with asyncio.timeout(20):
        yield a


async def test_votes_and_receipts_come_as_they_were_kept() -> None:
    network = MemoryNetwork()
    async with arbiter(network) as a:
        a.keep_votes(PLAN, 7, CAST)
        a.keep_receipts(PLAN, 7, RECEIVED)
        b = evidence(network, "b")
        assert await b.votes_of("a", PLAN, 7) == CAST
        assert await b.receipts_of("a", PLAN, 7) == RECEIVED
        assert await a.receipts_of("a", PLAN, 7) == RECEIVED  # its own


def test_the_arbiter_of_a_stage_of_few_replicas_alone_has_to_prove_that_all_have_voted() -> None:
    a, step = evidence(MemoryNetwork(), "a"), Ballot.STEP
    votes = {
        number: [SignedBallots(signer_of(name), 1).signed(step, number, Vote(bytes_sent=number)) for name in "ab"]
        for number in (7, 8)
    }
    assert a.voted(PLAN) is None
    for number, cast in votes.items():
        a.keep_votes(PLAN, number, cast)
    voted = a.voted(PLAN)
    assert voted is not None
    assert (voted.plan, voted.step) == (1, 8)
    voted.check(SWARM, (id_of("a"), id_of("b")))
    assert a.voted(Plan(version=2, stages=((0, 1),), routes=(("a",), ("b",)))) is None, "of another plan"
    two, many = ((0, 1), (1, 2)), tuple((f"peer {number}",) for number in range(VOTES_LIMIT + 1))
    for plan in (
        Plan(version=1, stages=((0, 1),), routes=(("a",),)),
        Plan(version=1, stages=two, routes=(("a", "b"),)),
        Plan(version=1, stages=((0, 1),), routes=many),
    ):
        assert a.voted(plan) is None, "who is not alone with the model needs no proof, nor who is alone in the plan"


async def test_only_the_newest_steps_are_kept_once_nobody_may_ask_for_older_ones() -> None:
    network, clock = MemoryNetwork(), ManualClock()
    a = StepEvidence(signer_of("a"), MemoryDataPlane(network, "a"), 10.0, clock)
    await a.listen()
    async with asyncio.timeout(20):
        for step in range(1, 40):
            await clock.advance(21.0)
            a.keep_votes(PLAN, step, CAST)
            a.keep_receipts(PLAN, step, RECEIVED)
        b = evidence(network, "b")
        for step in range(40):
            if step > 39 - VOTES_KEPT:
                assert await b.votes_of("a", PLAN, step) == CAST
            else:
                with pytest.raises(Refused, match="0 votes of 0 bytes from 2 peers"):
                    await b.votes_of("a", PLAN, step)
            assert bool((await b.receipts_of("a", PLAN, step)).parts) == (step > 39 - RECEIPTS_KEPT)


async def test_votes_are_kept_as_long_as_somebody_may_ask_for_them_however_short_steps_are() -> None:
    """Else an honest arbiter would seem to hide them from a peer that asks over a slow line."""
    network, clock = MemoryNetwork(), ManualClock()
    a = StepEvidence(signer_of("a"), MemoryDataPlane(network, "a"), 10.0, clock)
    await a.listen()
    async with asyncio.timeout(20):
        for step in range(1, 191):
            a.keep_votes(PLAN, step, CAST)
            await clock.advance(0.1)
        assert await evidence(network, "b").votes_of("a", PLAN, 1) == CAST


async def test_votes_of_many_bytes_do_not_fill_memory() -> None:
    large, small = bytes(VOTE_BYTES_KEPT // 20), bytes(VOTE_BYTES_KEPT // 150)
    a = StepEvidence(signer_of("a"), MemoryDataPlane(MemoryNetwork(), "a"), 10.0, ManualClock())
    for step in range(1, 100):
        a.keep_votes(PLAN, step, [large, large])
        assert len(a._votes) <= VOTES_KEPT
    for step in range(100, 200):
        a.keep_votes(PLAN, step, [small, small])
    assert VOTES_KEPT < len(a._votes) <= VOTE_BYTES_KEPT // (2 * len(small))


async def test_another_plan_and_another_peer_get_nothing() -> None:
    network = MemoryNetwork()
    async with arbiter(network) as a:
        a.keep_votes(PLAN, 7, CAST)
        a.keep_receipts(PLAN, 7, RECEIVED)
        later = PLAN.model_copy(update={"version": 2})
        for name, plan in (("stranger", PLAN), ("b", later)):
            with pytest.raises(Refused, match="0 votes"):
                await evidence(network, name).votes_of("a", plan, 7)
            assert not (await evidence(network, name).receipts_of("a", plan, 7)).parts


@pytest.mark.parametrize("sizes", [(70,), (70, 70, 70), (), ((64 << 10) + 64,) * 2])
async def test_an_answer_of_another_number_of_votes_or_of_too_many_bytes_is_refused_before_it_is_read(
    sizes: tuple[int, ...],
) -> None:
    network = MemoryNetwork()
    b = StepEvidence(signer_of("b"), MemoryDataPlane(network, "b"), answer_limit=128 << 10)

    async def answer(stream: Stream) -> None:
        await read_message(stream, WantVotes)
        await write_message(stream, CastVotes(sizes=sizes))
        await stream.read(1)

    await MemoryDataPlane(network, "a").serve(VOTES, answer)
    async with asyncio.timeout(20):
        with pytest.raises(Refused, match=f"{len(sizes)} votes of {sum(sizes)} bytes from 2 peers"):
            await b.votes_of("a", PLAN, 7)


async def test_a_peer_that_takes_none_of_many_answers_gets_no_more() -> None:
    """Else one that reads nothing could have any number of answers made."""
    network = MemoryNetwork()
    async with arbiter(network) as a:
        a.keep_votes(PLAN, 7, CAST)
        taken = asyncio.Event()
        answer = network.services["a", VOTES]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ANSWERS_AT_ONCE):
                tasks.create_task(answer(Unread("b", taken)))  # type: ignore[arg-type]
            await settle()
            with pytest.raises(StreamClosed):
                await evidence(network, "b").votes_of("a", PLAN, 7)
            assert await evidence(network, "a").votes_of("a", PLAN, 7) == CAST  # another one is answered
            taken.set()
        assert not a._answering
        assert await evidence(network, "b").votes_of("a", PLAN, 7) == CAST


async def test_what_is_no_request_is_answered_with_the_streams_end() -> None:
    network = MemoryNetwork()
    async with arbiter(network):
        for service in (VOTES, RECEIPTS):
            stream = await MemoryDataPlane(network, "b").open("a", service)
            await stream.write(b"\xff\xff\xff\xff")
            with pytest.raises(StreamClosed):
                await stream.read(1)
