"""Work under a plan: connects to its other peers, loads the state that it resumes from, trains, keeps and reports."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from dtfm_node.control.plain_words import WorkShare
from dtfm_node.control.reporter import Reporter
from dtfm_node.engine.device import is_out_of_memory, release_memory
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.part_alarm import Retries
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.step_arbiter import Disputed
from dtfm_node.engine.step_evidence import StepEvidence
from dtfm_node.engine.trainer import Trainer
from dtfm_node.engine.training_stage import Diverged, TrainingStage
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.runner.plan_check import prepare, why_refused
from dtfm_node.runner.token_source import TokenSource
from dtfm_node.state.checkpointer import Checkpointer
from dtfm_node.state.fetch import Fetched
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.restore import load_state
from dtfm_node.state.shadowed_base import fetch_coming, fetch_shadowed
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane, Stream, read_message

_KNOWN = (PeerLost, Disputed, Refused, ConnectionError, Diverged)
"""Errors that end the work under a plan, and not this node."""
_NO_FAULT: dict[str, Any] = {"lost": (), "refused": "", "evidence": ()}
"""What a report says of others while all is well."""


class PlanWorker:
    """Worker of this node under one plan after the other; `on_change` is called when it holds another state.

    Which plan, and for how long, `Follower` decides.
    """

    def __init__(
        self,
        job: ResolvedJob,
        machine: Runtime,
        plane: DataPlane,
        shards: ShardFolder,
        holdings: Inventory,
        checkpointer: Checkpointer,
        reporter: Reporter,
        uplink: UplinkPacer,
        on_change: Callable[[], None],
        offered: float,
        signer: Signer,
        host: float | None = None,
    ) -> None:
        """Nothing is done before `listen`.

        Args:
            offered: bytes of memory that a plan may ask for.
            host: those of the machine's memory, where the device has its own; None: they are one.
        """
        self._job, self._machine, self._plane = job, machine, plane
        self._shards, self._holdings, self._checkpointer, self._reporter = shards, holdings, checkpointer, reporter
        self._uplink, self._on_change, self._offered = uplink, on_change, (offered, host)
        self._me, self._evidence = plane.peer_id, StepEvidence(signer, plane)
        self._exchange: tuple[int, Exchange | None] = (0, None)
        self._opened = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._trainer: Trainer | None = None
        self._retries = Retries()
        self._ending: bool | None = None
        """Whether the plan is to end with a checkpoint, once it was asked to end with a step; None before."""

    async def listen(self) -> None:
        """Take the other peers' training streams from now on."""

        async def training(stream: Stream) -> None:
            hello = await read_message(stream, Hello)
            exchange = await self._exchange_of(hello.plan_version)
            await (exchange.take_pulses(stream) if hello.pulses else exchange.serve(stream))

        await self._evidence.listen()
        await self._plane.serve(TRAINING, training)

    async def prepare(self) -> None:
        """Work out what takes a while and is the same for every plan, before one comes."""
        await self._machine.compute(prepare, self._job)

    async def _exchange_of(self, version: int) -> Exchange:
        """Return the exchange of a plan under which a stream has come, and which this node may be about to begin."""
        try:
            async with asyncio.timeout(TIMEOUTS.early_stream), self._opened:
                await self._opened.wait_for(lambda: self._exchange[0] >= version)
        except TimeoutError:
            raise Refused(f"a stream for plan {version}, which is not in force") from None
        opened, exchange = self._exchange
        if opened != version or exchange is None:
            raise Refused(f"a stream for plan {version}, which is over")
        return exchange

    def begin(self, plan: Plan) -> None:
        """Begin to serve `plan`; the one before must have ended."""
        assert self._task is None, "one plan at a time"
        self._ending = None
        self._task = asyncio.create_task(self._serve(plan))

    def end(self, *, kept: bool) -> None:
        """Have the plan end with the step under way, and with a checkpoint of it where it is to be `kept`."""
        self._ending = kept
        if self._trainer is not None:
            self._trainer.stop(kept=kept)

    async def stop(self) -> None:
        """Stop at once, and wait until nothing changes any more what this node holds."""
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.wait({task})
            self._task = None
            with contextlib.suppress(asyncio.CancelledError):
                task.result()
        await self._machine.compute(int)  # an update that was under way is through
        self._on_change()

    async def release_memory(self) -> None:
        """Give the device's memory back that nothing uses any more."""
        await self._machine.compute(release_memory, self._machine.device)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Tasks that are under way, to be waited for; one at most."""
        return {self._task} if self._task is not None else set()

    def has_ended(self) -> bool:
        """Whether the work under the plan has ended by itself; True once for each work."""
        if self._task is None or not self._task.done():
            return False
        task, self._task = self._task, None
        if not task.cancelled():
            task.result()
        return True

    async def _serve(self, plan: Plan) -> None:
        """Work under `plan` until it ends; what breaks is reported, and the coordinator plans anew."""
        self._uplink.release()
        self._reporter.forget(after=plan.resume.mark.step)
        try:
            await self._holdings.redo(plan, self._evidence.signer)
        except Refused as error:
            self._stall(plan, "stalled", str(error))
            return
        self._checkpointer.serve(plan)
        self._reporter.given(WorkShare.of_plan(plan, self._me))
        if plan.stage_of(self._me) is None:
            spare = f"plan {plan.version} leaves this node as a spare"
            self._reporter.say("idle", spare, plan_version=plan.version, **_NO_FAULT)
            return
        refusal = await self._machine.compute(why_refused, self._job, plan, self._me, *self._offered)
        if refusal is not None:
            self._stall(plan, "stalled", refusal)
            return
        self._reporter.say("starting", f"plan {plan.version}: {plan.reason}", plan_version=plan.version, **_NO_FAULT)
        try:
            exchanging = Exchange.running(
                self._plane, plan.version, plan.peers, self._uplink, self._machine.tracer, self._machine.action_seconds
            )
            async with exchanging as exchange:
                self._reporter.timeouts = lambda: {peer: one.measured for peer, one in exchange.patience.items()}
                self._reporter.sent_gbps = lambda: exchange.sent_gbps
                await self._train(plan, exchange)
                await exchange.flush()
        except BaseExceptionGroup as group:
            # The exchange's task group wraps whatever ended the block.
            known, others = group.split(lambda error: isinstance(error, _KNOWN) or is_out_of_memory(error))
            if others is not None or known is None:
                raise
            self._stall(plan, *_why(known))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that this plan's work waited for was cancelled, and not this work itself.
            log.exception("plan %d: a part of it was cancelled", plan.version)
            self._stall(plan, "stalled", "a part of its work was cancelled")
        finally:
            self._trainer, self._reporter.timeouts, self._reporter.sent_gbps = None, dict, dict
            await self._machine.compute(int)
            self._on_change()

    def _stall(self, plan: Plan, state: str, why: str, error: BaseException | None = None) -> None:
        """Report why the plan cannot go on, with the peer that was lost if one was, or evidence that one has lied."""
        fault = dict(_NO_FAULT)
        if isinstance(error, PeerLost):
            fault |= {"lost": (error.peer,), "refused": error.peer if error.refused else ""}
        if isinstance(error, Disputed):
            fault["evidence"] = error.evidence
        self._reporter.say(state, why[:400], plan_version=plan.version, **fault)
        log.warning("plan %d stops here: %s", plan.version, why)

    async def _train(self, plan: Plan, exchange: Exchange) -> None:
        """Train from the plan's first state to the job's last step, or to the plan's end."""
        job, machine, holdings = self._job, self._machine, self._holdings
        first, timeline = plan.resume.mark.step + 1, JobTimeline(job, plan.amendments)
        training = timeline.training_at(first)
        build = partial(TrainingStage, compiled=machine.compiled)
        state: TrainingStage = await machine.compute(build, job.config, plan, self._me, training, machine.device)
        state.training_at = timeline.training_at
        budget, batches = holdings.snapshots.budget, Batches.of_plan(timeline, first)
        tokens = TokenSource(self._plane, job, self._shards, plan.author, budget=budget, batches=batches)
        lenience = self._retries.begun(plan.resume.mark.step)
        trainer = Trainer(
            job,
            plan,
            self._me,
            state,
            tokens.reader,
            exchange,
            machine,
            self._evidence,
            lambda: holdings.newest_vote,
            lenience,
        )

        async def prepare(step: int) -> None:
            await tokens.ensure(plan, self._me, step)

        # Open to the others before the long part: who has loaded first must not wait before a closed door.
        trainer.expect_first()
        async with self._opened:
            self._exchange = (plan.version, exchange)
            self._opened.notify_all()
        resumed, steps = plan.resume.mark.step, timeline.last_step
        async with asyncio.TaskGroup() as tasks:  # they come from other machines, as a rule over other links
            loading = tasks.create_task(self._load(plan, state))
            if resumed < steps:
                tasks.create_task(prepare(resumed + 1))
        fetched = loading.result()
        point("before-start", resumed)
        await trainer.start()
        holdings.enter(state)
        self._trainer = trainer
        if self._ending is not None:
            trainer.stop(kept=self._ending)
        text = "; ".join((f"stage {state.index + 1} of {len(plan.stages)}", *fetched.false.values()))[:400]
        self._reporter.say("training", text, step=resumed, fetched_bytes=fetched.bytes)
        if resumed >= steps:  # a plan ended between the last step and the checkpoint of it: this one has to hand it in
            rows = self._reporter.unconfirmed()
            await self._checkpointer.keep(state, plan, None, rows, handed_in=True, copied=False, last=True)
        async with _beside(fetch_shadowed(self._plane, job, plan, holdings)):
            is_through = await self._steps(plan, state, trainer, timeline, exchange, prepare)
        if not is_through:
            return
        await self._checkpointer.settled()
        self._reporter.say("training", "all steps done; waiting for the coordinator to keep the result")

    async def _steps(
        self,
        plan: Plan,
        state: TrainingStage,
        trainer: Trainer,
        timeline: JobTimeline,
        exchange: Exchange,
        prepare: Callable[[int], Awaitable[None]],
    ) -> bool:
        """Train step after step; whether it was to the job's last one, and not to the plan's end."""
        resumed, steps = plan.resume.mark.step, timeline.last_step
        for step in range(resumed + 1, trainer.last_step + 1):
            try:
                row = await trainer.step(step, prepare)
            finally:
                if trainer.final is not None:  # whatever breaks after the commit: nobody else may be left who knows it
                    self._reporter.remember([trainer.final])
                    self._reporter.note(voted=self._evidence.voted(plan))
            if step == resumed + 1:
                self._holdings.begun()
            self._reporter.committed(row, steps)
            self._reporter.note(busy_seconds=self._machine.take_busy(), received_gbps=exchange.inflow.take())
            self._on_change()
            await self._keep(plan, state, row, timeline, parked=trainer.kept)
            if trainer.over or step == trainer.last_step < steps:
                self._reporter.say("idle" if trainer.kept else "starting", f"plan {plan.version} ends with step {step}")
                return False
        return True

    async def fetch_files(self, layout: Plan, plan: Plan, step: int) -> None:
        """Fetch what this node is to read for its stage of a layout that is to come after `plan`: tokens of `step`, and
        weights that are never trained.

        Raises:
            Refused: there is no room for it.
        """
        timeline, budget = JobTimeline(self._job, plan.amendments), self._holdings.snapshots.budget
        batches = Batches.of_plan(timeline, step)
        tokens = TokenSource(self._plane, self._job, self._shards, plan.author, budget=budget, batches=batches)
        await tokens.ensure(layout, self._me, step)
        await fetch_coming(self._plane, self._job, layout, plan.author, self._holdings)

    async def _load(self, plan: Plan, state: TrainingStage) -> Fetched:
        await self._machine.compute(self._holdings.begin, state, plan.resume.mark)
        return await load_state(self._plane, self._job, plan, state, self._holdings, self._machine.compute)

    async def _keep(
        self, plan: Plan, state: TrainingStage, row: StepMetrics, timeline: JobTimeline, *, parked: bool
    ) -> None:
        """Have the state after a step kept where that is due."""
        due = parked or timeline.keeps(row.step)
        copied = bool(plan.shadows and timeline.copies(row.step))
        if due or copied:
            rows = self._reporter.unconfirmed()
            last = parked or row.step == timeline.last_step
            await self._checkpointer.keep(state, plan, row, rows, handed_in=due, copied=copied, last=last)
            self._reporter.hurry()


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While the block lasts, do `work`, too; it is given up at the end of the block.

    Raises:
        Exception: it has failed.
    """
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


def _why(group: BaseExceptionGroup[Exception]) -> tuple[str, str, BaseException]:
    """Return what a node reports of the first of the errors that ended its work: state, reason, and the error."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if is_out_of_memory(first):
        return "stalled", f"there is no memory left for it here: {first}", first
    return "diverged" if isinstance(first, Diverged) else "stalled", str(first), first
