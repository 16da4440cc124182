"""Sending of votes and commits, and the waiting for them, around what an `Arbiter` decides."""

import functools
import math
from collections.abc import Callable
from typing import TypeVar

from dtfm_node.engine.commit import Arbiter
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.lone_votes import LoneVotes
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.step_traffic import StepMessage, arbiter_of, ballot_messages, losses_due, received, sent
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote, read_ballot
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.fault_injection import armed, point
from dtfm_protocol.wire.stream import Bytes

T = TypeVar("T")


class Balloting:
    """Ballots of one peer under one plan: it votes, or as arbiter collects the votes and answers them."""

    def __init__(self, plan: Plan, me: str, exchange: Exchange, lenience: float = 1.0) -> None:
        """Nothing is voted on yet; `lenience` is that of `PartAlarm`."""
        self._plan, self._me, self._exchange = plan, me, exchange
        self._lone_votes = LoneVotes(plan, lenience)
        self._arbitrates = me == arbiter_of(plan)

    async def hold(
        self, step: int, ballot: Ballot, vote: Vote, micro_batches: int, seal: Callable[[Commit], Commit]
    ) -> Commit:
        """Vote, wait for the commit, and return it; on the arbiter, collect the votes and make it.

        Args:
            micro_batches: number of micro-batches whose losses all votes together must bring.
            seal: adds what the arbiter alone can tell; called there, once, when all have voted.

        Raises:
            PeerLost: a peer that is needed vanished, or sent what cannot be read.
        """
        messages = ballot_messages(self._plan, self._me, ballot)
        if self._arbitrates:
            arbiter = Arbiter(losses_due(self._plan, micro_batches))
            return await self._arbitrate(step, ballot, vote, arbiter, seal, messages)
        (voting,) = sent(messages, self._me)
        await self._exchange.send(voting.receiver, voting.key(step), vote.model_dump_json().encode())
        if ballot is Ballot.STEP:
            point("after-vote", step)
        (answering,) = received(messages, self._me)
        answer = await self._exchange.receive(answering.sender, answering.key(step))
        return self._read(answering, step, lambda: read_ballot(answer, Commit))

    async def _arbitrate(
        self,
        step: int,
        ballot: Ballot,
        vote: Vote,
        arbiter: Arbiter,
        seal: Callable[[Commit], Commit],
        messages: list[StepMessage],
    ) -> Commit:
        decided = arbiter.take(self._me, vote)
        squares = {self._me: math.fsum(vote.sum_squares.values())}
        for voting in received(messages, self._me):
            cast = await self._exchange.receive(voting.sender, voting.key(step))
            theirs, decided = self._read(voting, step, functools.partial(_take, arbiter, voting.sender, cast))
            squares[voting.sender] = math.fsum(theirs.sum_squares.values())
        assert decided is not None, "every peer of the plan has voted"
        if ballot is Ballot.STEP:
            self._look_at(step, squares)
        decided = seal(decided)
        data = decided.model_dump_json().encode()
        if ballot is Ballot.STEP:
            point("before-commit", step)
        for telling in sent(messages, self._me):
            await self._exchange.send(telling.receiver, telling.key(step), data)
            if ballot is Ballot.STEP and armed("mid-commit", step):
                await self._exchange.flush()
                point("mid-commit", step)
        return decided

    def _look_at(self, step: int, squares: dict[str, float]) -> None:
        """Refuse the norms of lone stages that cannot be.

        Raises:
            PeerLost: the first who voted one.
        """
        strains = self._lone_votes.judge(step, squares)
        faults = {peer: strain.fault for peer, strain in strains.items() if strain.fault}
        refused = [self._exchange.refuse(peer, FrameFault.CONTENT, f"a vote {why}") for peer, why in faults.items()]
        for lost in refused:
            raise lost

    def _read(self, message: StepMessage, step: int, read: Callable[[], T]) -> T:
        """Return what `read` makes of a message; a sender whose message cannot be read counts as lost (`PeerLost`)."""
        try:
            return read()
        except Refused as error:
            raise self._exchange.refuse(message.sender, FrameFault.CONTENT, f"{message.key(step)}: {error}") from None


def _take(arbiter: Arbiter, peer: str, cast: Bytes) -> tuple[Vote, Commit | None]:
    vote = read_ballot(cast, Vote)
    return vote, arbiter.take(peer, vote)
