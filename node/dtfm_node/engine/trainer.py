"""The steps of one plan: from its first state, step by step, to the job's last step or the plan's end.

A step: compute the schedule; all-reduce each bucket; vote; on the arbiter's commit, apply. No peer applies what not
all peers hold. Anything that breaks before the commit ends this trainer with `PeerLost`, and the next plan says from
which state to go on.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable

from dtfm_node.engine.allreduce import Compute, all_reduce
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.commit import Arbiter, Ballot, Commit, Vote, parse
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.executor import Executor
from dtfm_node.engine.expectations import Expected, arbiter_of, ballot_frames, evaluation_frames, step_frames
from dtfm_node.engine.stage_state import StageState
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.shards import TokenReader
from dtfm_protocol.errors import UserError
from dtfm_protocol.frames import Key, Kind
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.plan import Plan
from dtfm_protocol.resolved import ResolvedJob


class Diverged(UserError):
    """The loss or the gradients are no longer finite."""


class Trainer:
    """Trains `me`'s stage under one plan."""

    def __init__(
        self,
        job: ResolvedJob,
        plan: Plan,
        me: str,
        state: StageState,
        tokens: TokenReader | None,
        exchange: Exchange,
        compute: Compute,
    ) -> None:
        self._job, self._plan, self._me, self._state = job, plan, me, state
        self._exchange, self._compute = exchange, compute
        self._batches = Batches(job.corpus, job.training, job.evaluation)
        self._executor = Executor(plan, me, state, self._batches, tokens, exchange, compute)
        self._arbiter = arbiter_of(plan)
        self._hidden = state.hidden_size
        self._partners: set[str] = set()

    def expect_first(self) -> None:
        """Post the first frames that other peers may send; call it before they can reach this exchange."""
        self._post(ballot_frames(self._plan, self._me, self._plan.resume_step, Ballot.START))
        self._expect(self._plan.resume_step + 1)

    async def start(self) -> None:
        """Wait until all peers hold the state that the plan resumes from.

        Raises:
            PeerLost: a peer vanished.
        """
        for peer in self._partners:
            self._exchange.connect(peer)
        await self._ballot(self._plan.resume_step, Ballot.START, Vote(), 0)

    async def step(self, step: int, prepare: Callable[[int], Awaitable[None]]) -> StepMetrics:
        """Run one step, evaluation included; the same row on every peer.

        Args:
            prepare: makes the tokens of a step present.

        Raises:
            PeerLost: a peer vanished before the commit; the state is that before the step, and the gradients void.
                In an exception group where it happened during the all-reduce.
            Diverged: loss or gradients are not finite; likewise.
        """
        begun = time.monotonic()
        await prepare(step)
        await self._executor.run_step(step)
        async with asyncio.TaskGroup() as tasks:
            sums = {bucket.group: tasks.create_task(self._reduce(step, bucket)) for bucket in self._state.buckets}
        squares = {group: task.result() for group, task in sums.items()}
        vote = Vote.model_construct(losses=dict(self._state.losses), sum_squares=squares)
        if not all(map(math.isfinite, [*vote.losses.values(), *vote.sum_squares.values()])):
            raise Diverged(f"step {step}: loss or gradients are not finite; lower learning_rate, or check the data")
        self._expect(step + 1)
        commit = await self._ballot(step, Ballot.STEP, vote, len(self._plan.routes), begun)
        await self._compute(self._state.apply, step, commit.grad_norm)
        training = self._job.training
        return StepMetrics(
            step=step,
            loss=commit.loss / training.tokens,
            tokens=training.tokens,
            seconds=commit.seconds,
            plan_version=self._plan.version,
            learning_rate=training.learning_rate_at(step),
            grad_norm=commit.grad_norm,
            predicted_seconds=self._plan.cost.total if self._plan.cost is not None else None,
            eval_loss=await self._evaluate(step) if self.evaluates(step) else None,
        )

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation follows `step`."""
        every = self._job.evaluation.every
        return every > 0 and (step % every == 0 or step == self._job.training.steps)

    async def _reduce(self, step: int, bucket: Bucket) -> float:
        flat = self._state.gradients[bucket.group]
        return await all_reduce(bucket, self._me, step, flat, self._plan.wire, self._exchange, self._compute)

    async def _evaluate(self, step: int) -> float:
        losses = await self._executor.evaluate(step)
        if not all(map(math.isfinite, losses.values())):
            raise Diverged(f"step {step}: the evaluation loss is not finite; lower learning_rate")
        commit = await self._ballot(
            step, Ballot.EVALUATION, Vote(losses=losses), self._batches.evaluation_micro_batches
        )
        return commit.loss / self._batches.evaluation_tokens

    def _expect(self, step: int) -> None:
        """Post all frames of `step`: no peer can send one before this peer's next vote."""
        if step > self._job.training.steps:
            return
        self._post(
            step_frames(self._plan, self._me, step, self._job.training, self._hidden, self._state.buckets),
        )
        self._post(ballot_frames(self._plan, self._me, step, Ballot.STEP))
        if self.evaluates(step):
            sizes = list(self._batches.evaluation_batch_sizes)
            length = self._job.training.sequence_length
            self._post(evaluation_frames(self._plan, self._me, step, sizes, length, self._hidden))
            self._post(ballot_frames(self._plan, self._me, step, Ballot.EVALUATION))

    def _post(self, frames: Iterable[Expected]) -> None:
        for frame in frames:
            self._partners.add(frame.sender)  # frames go both ways between two peers, or not at all
            self._exchange.post(frame.sender, frame.key, frame.size, exact=frame.exact)

    async def _ballot(
        self, step: int, ballot: Ballot, vote: Vote, micro_batches: int, begun: float | None = None
    ) -> Commit:
        """Vote, and wait for the commit; on the arbiter, collect the votes and make it."""
        if self._me != self._arbiter:
            await self._exchange.send(self._arbiter, Key(Kind.VOTE, step, ballot), vote.model_dump_json().encode())
            received = await self._exchange.receive(self._arbiter, Key(Kind.COMMIT, step, ballot))
            return parse(received.payload, Commit)
        arbiter = Arbiter(self._plan.peers, micro_batches)
        decided = arbiter.take(self._me, vote)
        for peer in self._plan.peers:
            if peer != self._me:
                received = await self._exchange.receive(peer, Key(Kind.VOTE, step, ballot))
                decided = arbiter.take(peer, parse(received.payload, Vote))
        assert decided is not None, "every peer of the plan has voted"
        if begun is not None:
            decided = decided.model_copy(update={"seconds": time.monotonic() - begun})
        data = decided.model_dump_json().encode()
        for peer in self._plan.peers:
            if peer != self._me:
                await self._exchange.send(peer, Key(Kind.COMMIT, step, ballot), data)
        return decided
