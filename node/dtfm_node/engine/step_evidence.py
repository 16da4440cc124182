"""Evidence of the newest steps: what a peer keeps to prove who said what, gives to others, and asks others for.

Receipts of reduced parts lie with every peer, for a dispute between holders; all votes of a step lie with the arbiter,
for whoever checks it. Both are signed by those who made them, so that it does not matter who gives them.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dtfm_node.engine.reduction_receipts import StepReceipts
from dtfm_protocol.bounds import MOST_PEERS, Step, Version
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.ballot import VOTE_LIMIT
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SIGNATURE_BYTES
from dtfm_protocol.plan.voted_step import VOTES_LIMIT, VotedStep
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.stream import Bytes, DataPlane, Stream, read_message, write_message

VOTES = "votes"
"""Data-plane service of a plan's arbiter that gives all votes on a step."""
RECEIPTS = "receipts"
"""Data-plane service of a peer that gives its receipts of a step."""
VOTES_KEPT = 16
"""Number of the newest steps whose votes an arbiter keeps in any case."""
VOTE_BYTES_KEPT = 64 << 20
"""Bytes of the votes of older steps that it keeps beside them, as long as somebody who asks in time may still ask."""
RECEIPTS_KEPT = 2
"""Number of the newest steps whose receipts a peer keeps: that under way, and the one that it follows."""
ANSWER_LIMIT = 64 << 20
"""Bytes of all votes on a step that are taken."""
RECEIPTS_LIMIT = 16 << 20
"""Bytes of one peer's receipts that are taken: those of ten thousand million parameters and eight replicas are 4 MB."""
ANSWERS_AT_ONCE = 16
"""Answers to one peer that go on at a time, so that nobody can have any number of them made."""


class WantVotes(Message):
    """A request for all votes on a step."""

    plan: Version
    step: Step


class WantReceipts(Message):
    """A request for a peer's receipts of a step."""

    plan: Version
    step: Step


class CastVotes(Message):
    """The answer to `WantVotes`: as many votes follow, in the plan's order, each its signature and text; none where
    they are not here."""

    sizes: Annotated[
        tuple[Annotated[int, Field(ge=SIGNATURE_BYTES, le=SIGNATURE_BYTES + VOTE_LIMIT)], ...],
        Field(max_length=MOST_PEERS),
    ] = ()
    """Bytes of each."""


@dataclass(frozen=True)
class _Cast:
    """All votes on a step, and when they were cast."""

    plan: Plan
    votes: tuple[Bytes, ...]
    at: float

    @property
    def size(self) -> int:
        return sum(map(len, self.votes))


class StepEvidence:
    """One peer's evidence, under one plan after the other.

    Args:
        answer_seconds: see `Timeouts.evidence`.
        answer_limit: see `ANSWER_LIMIT`.
    """

    def __init__(
        self,
        signer: Signer,
        plane: DataPlane,
        answer_seconds: float = TIMEOUTS.evidence,
        clock: MonotonicClock | None = None,
        answer_limit: int = ANSWER_LIMIT,
    ) -> None:
        self.signer = signer
        self.answer_seconds, self._answer_limit = answer_seconds, answer_limit
        self._plane, self._clock = plane, clock or MonotonicClock()
        self._votes: OrderedDict[tuple[int, int], _Cast] = OrderedDict()
        self._receipts: OrderedDict[tuple[int, int], tuple[Plan, StepReceipts]] = OrderedDict()
        self._answering: Counter[str] = Counter()
        """Number of answers to each peer that are under way."""

    async def listen(self) -> None:
        """Answer the other peers of plans from now on."""
        await self._plane.serve(VOTES, self._give_votes)
        await self._plane.serve(RECEIPTS, self._give_receipts)

    def keep_votes(self, plan: Plan, step: int, votes: Sequence[Bytes]) -> None:
        """Keep all votes on a step, in the plan's order, each its signature and text."""
        now = self._clock.now()
        self._votes[plan.version, step] = _Cast(plan, tuple(votes), now)
        held = sum(one.size for one in self._votes.values())
        while len(self._votes) > VOTES_KEPT:
            oldest = next(iter(self._votes.values()))
            if held <= VOTE_BYTES_KEPT and now - oldest.at <= 2 * self.answer_seconds:
                break
            held -= oldest.size
            self._votes.popitem(last=False)

    def voted(self, plan: Plan) -> VotedStep | None:
        """Return the proof that all have voted on the newest step of `plan`; None where this peer is not its arbiter,
        or needs none: a peer of another stage, or one of many replicas, can say that the step was made."""
        newest = next((key for key in reversed(self._votes) if key[0] == plan.version), None)
        if newest is None or len(plan.stages) > 1 or not 1 < len(plan.peers) <= VOTES_LIMIT:
            return None
        return VotedStep.of(*newest, self._votes[newest].votes)

    def keep_receipts(self, plan: Plan, step: int, receipts: StepReceipts) -> None:
        """Keep this peer's receipts of a step."""
        self._receipts[plan.version, step] = plan, receipts
        while len(self._receipts) > RECEIPTS_KEPT:
            self._receipts.popitem(last=False)

    async def votes_of(self, peer: str, plan: Plan, step: int) -> list[Bytes]:
        """Return what `peer`, the plan's arbiter, gives as all votes on a step; nothing of them is checked.

        Raises:
            Refused: it has none, or gives too much.
            ConnectionError: it cannot be reached.
        """
        stream = await self._plane.open(peer, VOTES)
        try:
            await write_message(stream, WantVotes(plan=plan.version, step=step))
            sizes = (await read_message(stream, CastVotes)).sizes
            if len(sizes) != len(plan.peers) or sum(sizes) > self._answer_limit:
                raise Refused(f"{len(sizes)} votes of {sum(sizes)} bytes from {len(plan.peers)} peers")
            return [await stream.read(size) for size in sizes]
        finally:
            await stream.close()

    async def receipts_of(self, peer: str, plan: Plan, step: int) -> StepReceipts:
        """Return what `peer` gives as its receipts of a step; nothing of them is checked.

        Raises:
            Refused: what it gives are none.
            ConnectionError: it cannot be reached.
        """
        if peer == self._plane.peer_id:
            return self._receipts[plan.version, step][1]
        stream = await self._plane.open(peer, RECEIPTS)
        try:
            await write_message(stream, WantReceipts(plan=plan.version, step=step))
            return await read_message(stream, StepReceipts, RECEIPTS_LIMIT)
        finally:
            await stream.close()

    async def _give_votes(self, stream: Stream) -> None:
        wanted = await read_message(stream, WantVotes)
        cast = self._votes.get((wanted.plan, wanted.step))
        votes = cast.votes if cast is not None and stream.peer in cast.plan.peers else ()
        await self._answer(stream, CastVotes(sizes=tuple(map(len, votes))), votes)

    async def _give_receipts(self, stream: Stream) -> None:
        wanted = await read_message(stream, WantReceipts)
        plan, receipts = self._receipts.get((wanted.plan, wanted.step), (None, StepReceipts()))
        if plan is None or stream.peer not in plan.peers:
            receipts = StepReceipts()
        await self._answer(stream, receipts, ())

    async def _answer(self, stream: Stream, message: Message | StepReceipts, votes: Sequence[Bytes]) -> None:
        if self._answering[stream.peer] >= ANSWERS_AT_ONCE:
            raise Refused("one more request beside those that are being answered")
        self._answering[stream.peer] += 1
        try:
            async with asyncio.timeout(self.answer_seconds):
                await write_message(stream, message)
                if votes:
                    await stream.write(*votes)
        except TimeoutError:
            raise Refused("an answer that is not taken") from None
        finally:
            self._answering[stream.peer] -= 1
            self._answering += Counter()  # who is answered no more is forgotten
