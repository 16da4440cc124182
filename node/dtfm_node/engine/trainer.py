"""Trainer of one plan: runs its steps from its first state, step by step, to the job's last step or the plan's end.

A step: compute the schedule, and all-reduce each bucket as soon as its gradient is final; vote; on the arbiter's
commit, apply. No peer applies what not all peers hold, and each keeps what it holds until it hears: where a peer, or
the arbiter, vanishes in between, the next plan says whether the step was final, and those who missed it apply it then.
Anything that breaks ends this trainer with `PeerLost`. A step of which nothing is learned, as no token of it is a
target, is voted on and final like any other; nothing is computed for it, and the state after it is that before it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from itertools import chain
from typing import Any

from dtfm_node.engine.allreduce import AllReduce
from dtfm_node.engine.arbiter_audit import Auditor
from dtfm_node.engine.balloting import Balloting
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.expected_frames import ExpectedFrame, ballot_frames, evaluation_frames, step_frames
from dtfm_node.engine.frame_seals import FrameSeals
from dtfm_node.engine.micro_batches import MicroBatches
from dtfm_node.engine.part_alarm import PartAlarm
from dtfm_node.engine.reduction_receipts import StepReceipts
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.schedule_executor import ScheduleExecutor
from dtfm_node.engine.step_evidence import StepEvidence
from dtfm_node.engine.step_messages import arbiter_of
from dtfm_node.engine.training_stage import Diverged, TrainingStage
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import SetMetrics, StepMetrics
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.logs import log


class Trainer:
    """Trainer of the stage that the plan gives to peer `me`."""

    def __init__(
        self,
        job: ResolvedJob,
        plan: Plan,
        me: str,
        state: TrainingStage,
        corpus: CorpusReader,
        exchange: Exchange,
        machine: Runtime,
        evidence: StepEvidence,
        newest_state: Callable[[], StateVote | None] = lambda: None,
        lenience: float = 1.0,
    ) -> None:
        """Nothing is done before `expect_first`.

        Args:
            corpus: reads its files; those of a step are here before it begins.
            newest_state: tells this peer's newest vote on a part of a state, for the others' to be held against it.
            lenience: that of `PartAlarm`.

        Raises:
            UserError: the plan's amendments do not fit the job.
        """
        self._timeline, first = JobTimeline(job, plan.amendments), plan.resume.mark.step + 1
        self._training = self._timeline.training_at(first)
        self.last_step = self._timeline.plan_end(first)
        """Last step of this plan: the job's, or that before one which needs another layout."""
        self._plan, self._me, self._state = plan, me, state
        self._exchange, self._machine, self._evidence = exchange, machine, evidence
        self._newest_state = newest_state
        self._batches = Batches.of_plan(self._timeline, first)
        files = MicroBatches(self._batches, corpus, first=state.is_first, last=state.is_last)
        self._micro_batches = files
        self._executor = ScheduleExecutor(plan, me, state, self._batches, files, exchange, machine)
        drawn, shares = self._batches.training_windows / self._training.micro_batch, lru_cache(2)(self._targets_by_peer)
        alarm = PartAlarm(plan, me, drawn, lenience, shares)
        seals = FrameSeals(evidence.signer, plan.version, plan.seal_hash)
        auditor = Auditor(plan, me, exchange, evidence, self._keeps)
        self._all_reduce = AllReduce(me, exchange, machine, seals, alarm)
        self._balloting = Balloting(plan, me, exchange, evidence, auditor, lenience, files.targets)
        self._hidden = state.hidden_size
        self._partners: set[str] = set()
        self._stopping = self._kept = False
        self.final: StepMetrics | None = None
        """Metrics of the newest step that is final, without its evaluation; None before the first."""
        self.over = False
        """Whether the arbiter has ended the plan."""
        self.kept = False
        """Whether the arbiter has ended the plan with a checkpoint."""
        self._begun = time.monotonic()
        """Time (`time.monotonic()`) when the step under way began: at the commit before it, evaluations left out."""
        self._counted = 0
        """Number of bytes sent up to the last vote on a step."""

    @property
    def commit(self) -> SignedCommit | None:
        """Commit on the newest step that is final under this plan, signed by the arbiter; None before the first."""
        return self._balloting.commit

    def expect_first(self) -> None:
        """Post the first frames that other peers may send. Call it before they can reach this exchange."""
        self._post(ballot_frames(self._plan, self._me, self._plan.resume.mark.step, Ballot.START))

    async def start(self) -> None:
        """Wait until all peers hold the state that the plan resumes from. Call it when the files of the first step are
        here.

        Raises:
            PeerLost: a peer vanished.
        """
        first = self._plan.resume.mark.step + 1
        self._expect(first)
        # Whom no frame of the first step comes from, one of a later step may.
        for peer in {frame.sender for frame in self._step_frames(first)} | self._partners:
            self._exchange.connect(peer)
        await self._ballot(self._plan.resume.mark.step, Ballot.START, Vote(), 0)
        self._begun, self._counted = time.monotonic(), self._exchange.bytes_sent

    def stop(self, *, kept: bool) -> None:
        """Have the plan end with the step under way, and with a checkpoint of it where it is to be `kept`.

        It counts on the arbiter only, which tells all peers with the commit.
        """
        self._stopping, self._kept = True, kept

    async def step(self, step: int, prepare: Callable[[int], Awaitable[None]]) -> StepMetrics:
        """Run one step, evaluation included, and return its metrics, the same on every peer.

        Args:
            prepare: fetches the tokens of a step where they are missing.

        Raises:
            PeerLost: a peer vanished before the commit; the state is that before the step, and the gradients void.
        In an exception group where it happened during the all-reduce.
            Diverged: loss or gradients are not finite; likewise.
        """
        await prepare(step)
        targets = self._micro_batches.targets(step)
        losses, squares = await self._compute(step) if targets else ({}, {})
        sent = self._exchange.bytes_sent
        receipts = StepReceipts.model_construct(parts=self._all_reduce.take_receipts())
        vote = Vote.model_construct(
            losses=losses,
            sum_squares=squares,
            bytes_sent=sent - self._counted,
            reduced=receipts.reduced,
            shared=receipts.shared,
            state=self._newest_state(),
            durations=self._executor.durations if targets else (),
        )
        self._counted = sent
        self._evidence.keep_receipts(self._plan, step, receipts)
        if not vote.is_plausible:
            raise Diverged(f"step {step}: loss or gradients are")
        self._expect(step + 1)
        self._state.prepare(Mark(step=step, plan=self._plan.version), learned=targets > 0)
        point("before-vote", step)
        commit = await self._ballot(step, Ballot.STEP, vote, len(self._plan.routes) if targets else 0)
        self._begun = time.monotonic()
        row = self.final = self._row(step, commit, targets)
        point("before-apply", step)
        await self._machine.run("optimizer", "AdamW", self._state.apply, commit.grad_norm, self.commit, step=step)
        point("after-apply", step)
        self.over, self.kept = commit.last, commit.kept
        if commit.durations and not self.over:
            await self._follow(step, commit)
        begun = time.monotonic()
        evaluated = await self._evaluate(step) if self._evaluates(step) else {"eval_loss": None}
        self._begun += time.monotonic() - begun
        return row.model_copy(update=evaluated)

    async def _follow(self, step: int, commit: Commit) -> None:
        """Have orders follow the new durations that the commit on a step brings.

        Raises:
            PeerLost: they are none; the arbiter is at fault.
        """
        try:
            await asyncio.to_thread(self._executor.follow, commit.durations)  # a step of many is played for a while
        except Refused as error:
            fault = f"a commit on step {step}: {error}"
            raise self._exchange.refuse(arbiter_of(self._plan), FrameFault.CONTENT, fault) from None
        whose = "one machine" if len(commit.durations) == 1 else f"{len(commit.durations)} machines"
        log.info("the order of work follows new durations of %s from step %d on", whose, step + 1)

    async def _compute(self, step: int) -> tuple[dict[int, float], dict[int, float]]:
        """Compute a step's gradients, and reduce those that its vote waits for; return the summed loss of each
        micro-batch that this peer has computed, and the sum of squares of each bucket."""
        self._executor.begin_step()
        due = [each for each in self._state.gradients.buckets if each and each[0].reduction.timing.due == "vote"]
        async with asyncio.TaskGroup() as tasks:
            sums = [tasks.create_task(self._reduce(step, buckets)) for buckets in due]
            await self._executor.run_step(step)
        squares = {group: value for task in sums for group, value in task.result().items()}
        return dict(self._state.losses), squares

    def _row(self, step: int, commit: Commit, targets: int) -> StepMetrics:
        """Return the metrics of a step, with so many targets, that are known as soon as it is final."""
        return StepMetrics(
            step=step,
            loss=commit.loss / max(1, targets),
            tokens=targets,
            seconds=commit.seconds,
            plan_version=self._plan.version,
            learning_rate=self._timeline.learning_rate_at(step),
            grad_norm=commit.grad_norm,
            predicted_seconds=self._plan.cost.total if self._plan.cost is not None else None,
            bytes_sent=commit.bytes_sent,
            at=round(time.time(), 3),
        )

    def _evaluates(self, step: int) -> bool:
        """Whether an evaluation follows `step`: never where no token that is held out is a target."""
        return self._timeline.evaluates(step) and self._micro_batches.evaluation_targets > 0

    def _targets_by_peer(self, step: int) -> dict[str, int]:
        """Count the targets of each peer's micro-batches."""
        each = [self._micro_batches.targets_of(step, [index]) for index in range(len(self._plan.routes))]
        return {peer: sum(each[index] for index in self._plan.micro_batches(peer)) for peer in self._plan.peers}

    def _keeps(self, step: int) -> bool:
        """Whether the state after `step` is kept: the commit on it is audited in any case."""
        return self._timeline.keeps(step) or bool(self._plan.shadows and self._timeline.copies(step))

    async def _reduce(self, step: int, buckets: tuple[Bucket, ...]) -> dict[int, float]:
        """All-reduce one reduction's buckets in order, each when it may begin, and return sums of squares by bucket
        number.

        All holders take the same order, and start one only when an earlier one is done: how much of it lies in memory
        is bounded, and nobody waits for what another has put off.
        """
        room = asyncio.Semaphore(max((bucket.reduction.under_way for bucket in buckets), default=1))

        async def run(bucket: Bucket) -> float:
            begun = time.monotonic()
            try:
                return await self._all_reduce.run(bucket, step, self._state.gradients.of_bucket[bucket.group])
            finally:
                room.release()
                self._machine.drawn("all-reduce", f"bucket {bucket.group}", begun, step=step, group=bucket.group)

        async with asyncio.TaskGroup() as tasks:
            under_way = {}
            for bucket in buckets:
                await self._executor.final(bucket.after)
                await room.acquire()
                under_way[bucket.group] = tasks.create_task(run(bucket))
        return {group: task.result() for group, task in under_way.items()}

    async def _evaluate(self, step: int) -> dict[str, Any]:
        """Evaluate, and return the fields of the step's metrics that come of it."""
        found, files = await self._executor.evaluate(step), self._micro_batches
        losses = {index: loss for index, (loss, _) in found.items()}
        vote = Vote.model_construct(losses=losses)
        if files.sets:
            vote = vote.model_copy(update={"right": {index: right for index, (_, right) in found.items()}})
        if not vote.is_plausible:
            raise Diverged(f"step {step}: the evaluation loss is")
        commit = await self._ballot(step, Ballot.EVALUATION, vote, self._batches.evaluation_micro_batches)
        told = zip(files.sets, commit.sets, files.set_targets, strict=True)
        sets = [SetMetrics.of(name, sums.loss, sums.right, sum(each.values())) for name, sums, each in told]
        return {"eval_loss": commit.loss / files.evaluation_targets, "sets": tuple(sets)}

    def _expect(self, step: int) -> None:
        """Post all frames of `step`: no peer can send one before this peer's next vote."""
        if step > self.last_step:
            return
        if self._micro_batches.targets(step):
            self._post(self._step_frames(step))
        self._post(ballot_frames(self._plan, self._me, step, Ballot.STEP))
        if self._evaluates(step):
            sizes = list(self._batches.evaluation_batch_sizes)
            length = self._training.sequence_length
            self._post(evaluation_frames(self._plan, self._me, step, sizes, length, self._hidden))
            self._post(ballot_frames(self._plan, self._me, step, Ballot.EVALUATION))

    def _step_frames(self, step: int) -> Iterable[ExpectedFrame]:
        """Return the frames with tensors of a step that has targets."""
        buckets = chain.from_iterable(self._state.gradients.buckets)
        return step_frames(self._plan, self._me, step, self._training, self._hidden, buckets)

    def _post(self, frames: Iterable[ExpectedFrame]) -> None:
        for frame in frames:
            self._partners.add(frame.sender)  # frames go both ways between two peers, or not at all
            self._exchange.post(frame.sender, frame.key, frame.size, exact=frame.exact)

    async def _ballot(self, step: int, ballot: Ballot, vote: Vote, micro_batches: int) -> Commit:
        def seal(decided: Commit) -> Commit:
            last = self._stopping and ballot is Ballot.STEP
            seconds = time.monotonic() - self._begun
            return decided.model_copy(update={"seconds": seconds, "last": last, "kept": last and self._kept})

        sets = self._micro_batches.set_targets if ballot is Ballot.EVALUATION else ()
        return await self._balloting.hold(step, ballot, vote, micro_batches, seal, sets)
