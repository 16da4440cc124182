"""Sending of votes and commits, and the waiting for them, around what an `Arbiter` decides."""

import functools
from collections.abc import Callable
from typing import TypeVar

from dtfm_node.engine.commit import Arbiter
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.signed_ballots import SignedBallots, text_of
from dtfm_node.engine.step_traffic import StepMessage, arbiter_of, ballot_messages, losses_due, received, sent
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SignedCommit, digest_of, root_of_votes
from dtfm_protocol.process.fault_injection import armed, point
from dtfm_protocol.wire.stream import Bytes

T = TypeVar("T")


class Balloting:
    """Ballots of one peer under one plan: it votes, or as arbiter collects the votes and answers them."""

    def __init__(self, plan: Plan, me: str, exchange: Exchange, signer: Signer) -> None:
        self._plan, self._me, self._exchange = plan, me, exchange
        self._signed = SignedBallots(signer, plan.version)
        self._arbitrates = me == arbiter_of(plan)
        self._newest = ""
        """Digest of the newest commit on a step, or on START."""
        self.commit: SignedCommit | None = None
        """Commit on the newest step that is final under this plan."""

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
        vote = vote.model_copy(update={"follows": self._newest})
        messages = ballot_messages(self._plan, self._me, ballot)
        if self._arbitrates:
            replicas = [self._plan.replicas(stage) for stage in range(len(self._plan.stages))]
            arbiter = Arbiter(losses_due(self._plan, micro_batches), replicas, self._newest)
            return await self._arbitrate(step, ballot, vote, arbiter, seal, messages)
        (voting,) = sent(messages, self._me)
        await self._exchange.send(voting.receiver, voting.key(step), self._signed.signed(ballot, step, vote))
        if ballot is Ballot.STEP:
            point("after-vote", step)
        (answering,) = received(messages, self._me)
        answer = await self._exchange.receive(answering.sender, answering.key(step))
        return self._read(answering, step, lambda: self._answered(answering.sender, step, ballot, answer))

    def _answered(self, arbiter: str, step: int, ballot: Ballot, answer: Bytes) -> Commit:
        """Return the commit of the arbiter's answer, and keep it.

        Raises:
            Refused: the arbiter has not signed it, or it does not follow the newest one.
        """
        commit = self._signed.opened(arbiter, ballot, step, answer, Commit)
        if commit.before != self._newest:
            raise Refused("a commit that follows another one")
        self._keep(step, ballot, answer)
        return commit

    def _keep(self, step: int, ballot: Ballot, answer: Bytes) -> None:
        if ballot is not Ballot.EVALUATION:
            self._newest = digest_of(text_of(answer))
        if ballot is Ballot.STEP:
            self.commit = self._signed.commit_of(step, answer)

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
        cast: dict[str, Bytes] = {self._me: self._signed.signed(ballot, step, vote)}

        def take(peer: str) -> Commit | None:
            return arbiter.take(peer, self._signed.opened(peer, ballot, step, cast[peer], Vote))

        for voting in received(messages, self._me):
            peer = voting.sender
            cast[peer] = await self._exchange.receive(peer, voting.key(step))
            decided = self._read(voting, step, functools.partial(take, peer))
        assert decided is not None, "every peer of the plan has voted"
        root = root_of_votes(cast[peer] for peer in self._plan.peers)
        decided = seal(decided).model_copy(update={"votes": root, "before": self._newest})
        answer = self._signed.signed(ballot, step, decided)
        self._keep(step, ballot, answer)
        if ballot is Ballot.STEP:
            point("before-commit", step)
        for telling in sent(messages, self._me):
            await self._exchange.send(telling.receiver, telling.key(step), answer)
            if ballot is Ballot.STEP and armed("mid-commit", step):
                await self._exchange.flush()
                point("mid-commit", step)
        return decided

    def _read(self, message: StepMessage, step: int, read: Callable[[], T]) -> T:
        """Return what `read` makes of a message; a sender whose message cannot be read counts as lost (`PeerLost`)."""
        try:
            return read()
        except Refused as error:
            raise self._exchange.refuse(message.sender, FrameFault.CONTENT, f"{message.key(step)}: {error}") from None
