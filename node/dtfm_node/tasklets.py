"""Serves the tasklets that plans give this node: one plan after the other, until the job is done.

A plan is served when it is in force; one that is over is served no more, whatever comes. What this node has promised
to that end is on its disk before it says so.
"""

import asyncio
import contextlib
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from dtfm_node.bulletin import Bulletin
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.machine import Machine
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.stage_state import Diverged, StageState
from dtfm_node.engine.trainer import Trainer
from dtfm_node.fetch import Fetched
from dtfm_node.holdings import Holdings
from dtfm_node.journal import Journal
from dtfm_node.keep import Keeper
from dtfm_node.loading import load_state
from dtfm_node.tokens import TokenSource
from dtfm_node.uplink import Uplink
from dtfm_protocol.data.shards import ShardFolder
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.faults import point
from dtfm_protocol.logs import log
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.data import DataPlane, Stream, read_message
from dtfm_protocol.resolved import ResolvedJob
from dtfm_protocol.standing import Promise
from dtfm_protocol.statedir import write_atomically

PLAN_WAIT_SECONDS = 120.0
"""How long another peer's stream may be ahead of the plan that it belongs to."""

ROOM_SECONDS = 1.0
"""Between two looks at whether a full disk has room again."""


class Tasklets:
    """What this node does under each plan."""

    def __init__(
        self,
        job: ResolvedJob,
        machine: Machine,
        plane: DataPlane,
        shards: ShardFolder,
        holdings: Holdings,
        keeper: Keeper,
        journal: Journal,
        uplink: Uplink,
        promise_file: Path,
    ) -> None:
        self._job, self._machine, self._plane = job, machine, plane
        self._shards, self._holdings, self._keeper, self._journal = shards, holdings, keeper, journal
        self._uplink = uplink
        self._me = plane.peer_id
        self._exchange: tuple[int, Exchange | None] = (0, None)
        self._opened = asyncio.Condition()
        self._promise_file = promise_file
        self._promise = _read_promise(promise_file)
        self._plan_file = promise_file.with_name("plan.json")
        self._taken = Plan.load(self._plan_file) if self._plan_file.exists() else None
        self._forgotten = self._promise.accepted
        """The newest plan of an earlier life of this daemon: what it held for it in memory is gone."""
        self._serving: asyncio.Task[None] | None = None
        self._served: Plan | None = None
        self._trainer: Trainer | None = None
        self._ending = self._parked = False
        """Whether the plan that is served is to end with a step; and with a checkpoint."""
        self._leaving = False

    async def listen(self) -> None:
        """Take the other peers' training streams."""

        async def training(stream: Stream) -> None:
            hello = await read_message(stream, Hello)
            exchange = await self._exchange_of(hello.plan_version)
            await (exchange.take_pulses(stream) if hello.pulses else exchange.serve(stream))

        await self._plane.serve(TRAINING, training)

    async def _exchange_of(self, version: int) -> Exchange:
        """The exchange of a plan that the other side has, and this one may be about to get."""
        try:
            async with asyncio.timeout(PLAN_WAIT_SECONDS), self._opened:
                await self._opened.wait_for(lambda: self._exchange[0] >= version)
        except TimeoutError:
            raise Refused(f"a stream for plan {version}, which is not in force") from None
        opened, exchange = self._exchange
        if opened != version or exchange is None:
            raise Refused(f"a stream for plan {version}, which is over")
        return exchange

    async def follow(self, bulletin: Bulletin) -> None:
        """Serve each plan from when it is in force until it is over; return when the job is done, or this node may go.

        Raises:
            UserError: the swarm has failed.
        """
        self._journal.remember(self._holdings.snapshots.rows())
        self.say_standing()
        self._journal.hurry()
        try:
            while not bulletin.is_over and not self._may_go(bulletin):
                bulletin.changed.clear()
                try:
                    await self._answer_call(bulletin)
                    self._take_plan(bulletin)
                except UserError as error:  # a promise must be on the disk: without room for it, nothing goes on
                    self._journal.say("stalled", str(error)[:400])
                    await asyncio.sleep(ROOM_SECONDS)
                    bulletin.changed.set()
                await self._begin(bulletin)
                self._drop_former(bulletin)
                changed = asyncio.create_task(bulletin.changed.wait())
                serving = {self._serving} if self._serving is not None and not self._serving.done() else set()
                try:
                    await asyncio.wait({changed, *serving}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if self._serving is not None and self._serving.done() and not self._serving.cancelled():
                    self._serving.result()
        finally:
            await self._stop()
        if bulletin.is_over or self._leaving:
            self._holdings.drop()
        self._journal.say("finished", bulletin.last_words)

    def leave(self, bulletin: Bulletin) -> None:
        """Have `follow` return as soon as the others can do without this node."""
        self._leaving = True
        self._journal.note(leaving=True)
        self._journal.hurry()
        bulletin.changed.set()

    def _may_go(self, bulletin: Bulletin) -> bool:
        """Whether this node is leaving, and a plan without it has what it held; or a checkpoint has."""
        if not self._leaving:
            return False
        plan, epoch = bulletin.plan, bulletin.epoch
        if plan is None or self._holdings.live is None:
            return True
        if epoch.parked:
            return self._sealed and self._keeper.is_idle
        return epoch.started >= plan.version and plan.stage_of(self._me) is None

    @property
    def _sealed(self) -> bool:
        return self._serving is None or self._serving.done()

    async def _answer_call(self, bulletin: Bulletin) -> None:
        """Promise what a coordinator calls for, once this node has stopped acting under the plan that it ends."""
        epoch = bulletin.epoch
        promise = self._promise.called(epoch.called, bulletin.caller)
        if promise is None:
            return
        if epoch.gently and not self._sealed:
            self._ending, self._parked = True, epoch.parked
            if self._trainer is not None:
                self._trainer.stop(kept=epoch.parked)
            return  # this plan's end will come with a step's commit, or by itself
        await self._stop()
        self._bind(promise)
        point("after-promise")
        self._journal.hurry()

    def _take_plan(self, bulletin: Bulletin) -> None:
        """Take a plan that this node's promise allows."""
        plan = bulletin.plan
        promise = self._promise.offered(plan.version, plan.author) if plan is not None else None
        if plan is not None and promise is not None and self._sealed:
            write_atomically(self._plan_file, plan.model_dump_json(), lasting=True)
            self._taken = plan
            self._bind(promise)
            point("after-accept")
            self._journal.hurry()

    async def _begin(self, bulletin: Bulletin) -> None:
        """Serve the plan that was taken, if it is in force."""
        plan = bulletin.plan
        # Not one that was taken before a later promise, either: who has promised is counted on to have stopped.
        if plan is None or not self._sealed or not plan.version == self._promise.accepted == self._promise.version:
            return
        served = self._served.version if self._served is not None else 0
        if bulletin.epoch.in_force < plan.version or served >= plan.version:
            return
        self._served, self._ending = plan, False
        if plan.version <= self._forgotten and plan.stage_of(self._me) is not None:
            text = f"started anew: not part of plan {plan.version} any more"
            self._journal.say("stalled", text, plan_version=plan.version)
            return
        self._serving = asyncio.create_task(self._serve(plan))

    def _drop_former(self, bulletin: Bulletin) -> None:
        """As a spare, let go what this node held under an earlier plan, once the others have all they need."""
        plan = self._served
        if plan is not None and plan.stage_of(self._me) is None and bulletin.epoch.started >= plan.version:
            self._holdings.drop()
            self.say_standing()

    async def save(self) -> None:
        """Leave what this node holds on its disk, for its next life."""
        live = self._holdings.live
        if live is not None and live.mark is not None:
            await self._keeper.save(live, self._journal.unconfirmed())

    async def _stop(self) -> None:
        """Stop serving; what this node then holds is what it stands by."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
            with contextlib.suppress(asyncio.CancelledError):
                self._serving.result()
        await self._machine.compute(int)  # an update that was under way is through
        self.say_standing()

    def _bind(self, promise: Promise) -> None:
        """Promise, for this and all later lives of this daemon."""
        write_atomically(self._promise_file, promise.model_dump_json(), lasting=True)
        self._promise = promise
        self.say_standing()

    def say_standing(self) -> None:
        """Have the next report say what this node holds and has promised."""
        taken = self._taken if self._taken is not None and self._taken.author != self._promise.to else None
        self._journal.note(standing=self._holdings.standing(self._promise), taken=taken)

    async def _serve(self, plan: Plan) -> None:
        """Train under `plan`; what breaks is reported, and the coordinator plans anew."""
        self._uplink.release()
        self._journal.forget(after=plan.resume.mark.step)
        await self._holdings.redo(plan.resume.mark, plan.resume.norm)
        self._keeper.serve(plan)
        if plan.stage_of(self._me) is None:
            spare = f"plan {plan.version} leaves this node as a spare"
            self._journal.say("idle", spare, plan_version=plan.version, lost=())
            return
        self._journal.say("starting", f"plan {plan.version}: {plan.reason}", plan_version=plan.version, lost=())
        try:
            exchanging = Exchange.running(
                self._plane, plan.version, plan.peers, self._uplink, self._machine.tracer, self._machine.action_seconds
            )
            async with exchanging as exchange:
                self._journal.timeouts = lambda: {peer: one.measured for peer, one in exchange.patience.items()}
                await self._train(plan, exchange)
                await exchange.flush()
        except BaseExceptionGroup as group:
            # The exchange's task group wraps whatever ended the block.
            known, others = group.split((PeerLost, Refused, ConnectionError, Diverged))
            if others is not None or known is None:
                raise
            self._stall(plan, known)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that this plan's work waited for was cancelled, and not this work itself.
            log.exception("plan %d: a part of it was cancelled", plan.version)
            self._journal.say("stalled", "a part of its work was cancelled")
        finally:
            self._trainer, self._journal.timeouts = None, dict
            await self._machine.compute(int)
            self.say_standing()

    def _stall(self, plan: Plan, group: BaseExceptionGroup[Exception]) -> None:
        """Report why the plan cannot go on."""
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        lost = (first.peer,) if isinstance(first, PeerLost) else ()
        self._journal.say("diverged" if isinstance(first, Diverged) else "stalled", str(first)[:400], lost=lost)
        log.warning("plan %d stops here: %s", plan.version, first)

    async def _train(self, plan: Plan, exchange: Exchange) -> None:
        """From the plan's first state to the job's last step, or to the plan's end."""
        job, machine, holdings = self._job, self._machine, self._holdings
        build = partial(StageState, compiled=machine.compiled)
        state: StageState = await machine.compute(build, job.config, plan, self._me, job.training, machine.device)
        tokens = None
        if state.is_first or state.is_last:
            tokens = TokenSource(self._plane, job, self._shards, plan.author)
        trainer = Trainer(job, plan, self._me, state, tokens.reader if tokens else None, exchange, machine)

        async def prepare(step: int) -> None:
            if tokens is not None:
                await tokens.ensure(plan, self._me, step)

        # Open to the others before the long part: who has loaded first must not wait before a closed door.
        trainer.expect_first()
        async with self._opened:
            self._exchange = (plan.version, exchange)
            self._opened.notify_all()
        fetched = await self._load(plan, state)
        resumed, steps = plan.resume.mark.step, job.training.steps
        if resumed < steps:
            await prepare(resumed + 1)
        point("before-start", resumed)
        await trainer.start()
        holdings.enter(state)
        self._trainer = trainer
        if self._ending:
            trainer.stop(kept=self._parked)
        text = f"stage {state.index + 1} of {len(plan.stages)}"
        self._journal.say("training", text, step=resumed, fetched_bytes=fetched.bytes)
        for step in range(resumed + 1, steps + 1):
            try:
                row = await trainer.step(step, prepare)
            finally:
                if trainer.final is not None:  # whatever breaks after the commit: nobody else may be left who knows it
                    self._journal.remember([trainer.final])
            if step == resumed + 1:
                holdings.begun()
            self._journal.committed(row, steps)
            self._journal.note(busy_seconds=machine.take_busy(), received_gbps=exchange.inflow.take())
            self.say_standing()
            await self._keep(plan, state, row, parked=trainer.kept)
            if trainer.over:
                self._journal.say("starting", f"plan {plan.version} ends with step {step}")
                return
        await self._keeper.settled()
        self._journal.say("training", "all steps done; waiting for the coordinator to keep the result")

    async def _load(self, plan: Plan, state: StageState) -> Fetched:
        await self._machine.compute(self._holdings.begin, state, plan.resume.mark)
        return await load_state(self._plane, self._job, plan, state, self._holdings, self._machine.compute)

    async def _keep(self, plan: Plan, state: StageState, row: StepMetrics, *, parked: bool) -> None:
        """Keep the state after a step where that is due."""
        checkpoint = self._job.checkpoint
        due = parked or row.step == self._job.training.steps or (checkpoint.every and row.step % checkpoint.every == 0)
        copied = bool(plan.shadows and row.step % checkpoint.shadow == 0)
        if due or copied:
            rows = self._journal.unconfirmed()
            last = parked or row.step == self._job.training.steps
            await self._keeper.keep(state, plan, row, rows, handed_in=bool(due), copied=copied, last=last)
            self._journal.hurry()


def _read_promise(path: Path) -> Promise:
    """What an earlier life has promised.

    Raises:
        UserError: the file cannot be read: without it, this peer might act against its word.
    """
    if not path.exists():
        return Promise()
    try:
        return Promise.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"cannot read {path}: {error}; take another --state-dir, to join as a new peer") from None
