"""Sending of votes and commits, and the waiting for them, around what an `Arbiter` decides."""

import asyncio
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dtfm_node.engine.arbiter_audit import Answered, Auditor
from dtfm_node.engine.drifted_pace import DriftedPace
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.frame_seals import FrameSeals
from dtfm_node.engine.lone_stage_alarm import LoneStageAlarm
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.reduction_receipts import StepReceipts, judge, reduction_of
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.signed_ballots import SignedBallots, text_of
from dtfm_node.engine.step_arbiter import Arbiter, Disputed, StateAgreement
from dtfm_node.engine.step_evidence import StepEvidence
from dtfm_node.engine.step_messages import (
    StepMessage,
    arbiter_of,
    ballot_messages,
    durations_due,
    losses_due,
    received,
    replicas_of,
    sent,
)
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SignedCommit, digest_of, root_of_votes
from dtfm_protocol.process.fault_injection import armed, point
from dtfm_protocol.wire.stream import Bytes

T = TypeVar("T")


class Balloting:
    """Ballots of one peer under one plan: it votes, or as arbiter collects the votes and answers them."""

    def __init__(
        self,
        plan: Plan,
        me: str,
        exchange: Exchange,
        evidence: StepEvidence,
        auditor: Auditor,
        lenience: float = 1.0,
        targets: Callable[[int], int] = lambda step: 1,
    ) -> None:
        """Nothing is voted on yet.

        Args:
            lenience: that of `PartAlarm`.
            targets: counts the targets of a step.
        """
        self._plan, self._me, self._exchange = plan, me, exchange
        self._evidence, self._auditor = evidence, auditor
        self._signed = SignedBallots(evidence.signer, plan.version)
        self._lone_votes, self._targets = LoneStageAlarm(plan, lenience), targets
        self._arbitrates = me == arbiter_of(plan)
        stages = {layers: plan.replicas(index) for index, layers in enumerate(plan.stages)}
        self._states = StateAgreement(plan.version, stages)
        self._drift = DriftedPace(plan) if self._arbitrates and durations_due(plan) else None
        self._newest = ""
        """Digest of the newest commit on a step, or on START."""
        self.commit: SignedCommit | None = None
        """Commit on the newest step that is final under this plan."""

    async def hold(
        self,
        step: int,
        ballot: Ballot,
        vote: Vote,
        micro_batches: int,
        seal: Callable[[Commit], Commit],
        sets: Sequence[Mapping[int, int]] = (),
    ) -> Commit:
        """Vote, wait for the commit, and return it; on the arbiter, collect the votes and make it.

        Args:
            micro_batches: number of micro-batches whose losses all votes together must bring; 0 on a step of which
                nothing is learned.
            seal: adds what the arbiter alone can tell; called there, once, when all have voted.
            sets: that of `Arbiter`.

        Raises:
            PeerLost: a peer that is needed vanished, sent what cannot be read, or has lied.
            Disputed: replicas differ, and it cannot be told who has lied.
        """
        vote = vote.model_copy(update={"follows": self._newest})
        messages = ballot_messages(self._plan, self._me, ballot)
        if self._arbitrates:
            due, count, learned = losses_due(self._plan, micro_batches), durations_due(self._plan), micro_batches > 0
            stages, after = replicas_of(self._plan), self._newest
            arbiter = Arbiter(due, stages, after, self._states, ballot, sets, durations=count, learned=learned)
            return await self._arbitrate(step, ballot, vote, arbiter, seal, messages)
        (voting,) = sent(messages, self._me)
        cast = self._signed.signed(ballot, step, vote)
        await self._exchange.send(voting.receiver, voting.key(step), cast)
        if ballot is Ballot.STEP:
            point("after-vote", step)
        (answering,) = received(messages, self._me)
        answer = await self._exchange.receive(answering.sender, answering.key(step))
        follows = self._newest
        commit = self._read(answering, step, lambda: self._answered(answering.sender, step, ballot, answer, sets))
        if ballot is Ballot.STEP:
            self._auditor.hear(Answered(step, commit, cast, follows, micro_batches))
        return commit

    def _answered(
        self, arbiter: str, step: int, ballot: Ballot, answer: Bytes, sets: Sequence[Mapping[int, int]]
    ) -> Commit:
        """Return the commit of the arbiter's answer, and keep it.

        Raises:
            Refused: the arbiter has not signed it, it does not follow the newest one, or says of sets or of durations
                what cannot be.
        """
        commit = self._signed.opened(arbiter, ballot, step, answer, Commit)
        if commit.before != self._newest:
            raise Refused("a commit that follows another one")
        targets = [sum(one.values()) for one in sets]
        if len(commit.sets) != len(targets) or any(
            sums.right > most for sums, most in zip(commit.sets, targets, strict=True)
        ):
            raise Refused("a commit with sums of sets that the job does not have")
        if commit.durations and (ballot is not Ballot.STEP or not durations_due(self._plan)):
            raise Refused("a commit with durations that are not due")
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
            vote = self._signed.opened(peer, ballot, step, cast[peer], Vote)
            if vote.state is not None:
                vote.state.check(self._evidence.signer.swarm, self._evidence.signer.check)
            return arbiter.take(peer, vote)

        for voting in received(messages, self._me):
            peer = voting.sender
            cast[peer] = await self._exchange.receive(peer, voting.key(step))
            try:
                decided = self._read(voting, step, functools.partial(take, peer))
            except Disputed as dispute:
                raise await self._judged(step, dispute, arbiter.votes) from None
        assert decided is not None, "every peer of the plan has voted"
        votes = [cast[peer] for peer in self._plan.peers]
        root = root_of_votes(votes)
        if ballot is Ballot.STEP:
            squares = {peer: math.fsum(one.sum_squares.values()) for peer, one in arbiter.votes.items()}
            if self._targets(step):
                self._check_lone_norms(step, squares)
            self._evidence.keep_votes(self._plan, step, votes)
        if self._drift is not None and ballot is Ballot.STEP:  # now and then it plays whole steps
            decided = decided.model_copy(update={"durations": await asyncio.to_thread(self._drift.on, arbiter.votes)})
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

    async def _judged(self, step: int, dispute: Disputed, votes: Mapping[str, Vote]) -> PeerLost | Disputed:
        """Return how a dispute between holders ends: with the loss of who has lied, or has no receipts to show; with
        the dispute itself where that is nobody."""
        if dispute.over == "state":
            return dispute  # what has led to it was agreed on: no receipt tells; the coordinator gets the evidence
        asked = await asyncio.gather(*(self._receipts(peer, step) for peer in dispute.peers))
        given = {peer: found for peer, found in zip(dispute.peers, asked, strict=True) if found is not None}
        held = {peer: reduction_of(self._plan, peer) for peer in given}
        seals = FrameSeals(self._evidence.signer, self._plan.version, self._plan.seal_hash)
        named = await asyncio.to_thread(judge, step, votes, given, held, seals)  # there may be many signatures
        if not named:
            named = {peer: "no receipts" for peer in dispute.peers if peer not in given}
        faults = {peer: f"{named[peer]}, of step {step}" for peer in self._plan.peers if peer in named}
        return self._exchange.refuse_all(faults) or dispute

    async def _receipts(self, peer: str, step: int) -> StepReceipts | None:
        try:
            async with asyncio.timeout(self._evidence.answer_seconds):
                return await self._evidence.receipts_of(peer, self._plan, step)
        except (TimeoutError, ConnectionError, Refused):
            return None

    def _check_lone_norms(self, step: int, squares: dict[str, float]) -> None:
        """Refuse the votes of lone stages whose norms cannot be.

        Raises:
            PeerLost: the first who voted such a norm.
        """
        strains = self._lone_votes.judge(step, squares, self._targets(step))
        faults = {peer: f"a vote {strain.fault}" for peer, strain in strains.items() if strain.fault}
        if lost := self._exchange.refuse_all(faults):
            raise lost

    def _read(self, message: StepMessage, step: int, read: Callable[[], T]) -> T:
        """Return what `read` makes of a message; a sender whose message cannot be read counts as lost (`PeerLost`)."""
        try:
            return read()
        except Refused as error:
            raise self._exchange.refuse(message.sender, FrameFault.CONTENT, f"{message.key(step)}: {error}") from None
