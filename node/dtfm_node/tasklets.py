"""Serves the tasklets that plans give this node: one plan after the other, until the job is done."""

import asyncio
from functools import partial

from dtfm_node.bulletin import Bulletin
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello, PeerLost
from dtfm_node.engine.machine import Machine
from dtfm_node.engine.stage_state import Diverged, StageState
from dtfm_node.engine.trainer import Trainer
from dtfm_node.journal import Journal
from dtfm_node.keep import Keeper, load_state, snapshot
from dtfm_node.tokens import TokenSource
from dtfm_node.uplink import Uplink
from dtfm_protocol.data.shards import ShardFolder
from dtfm_protocol.errors import Refused
from dtfm_protocol.logs import log
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.data import DataPlane, Stream, read_message
from dtfm_protocol.resolved import ResolvedJob

PLAN_WAIT_SECONDS = 120.0
"""How long another peer's stream may be ahead of the plan that it belongs to."""


class Tasklets:
    """What this node does under each plan."""

    def __init__(
        self,
        job: ResolvedJob,
        coordinator: str,
        machine: Machine,
        plane: DataPlane,
        shards: ShardFolder,
        keeper: Keeper,
        journal: Journal,
        uplink: Uplink,
    ) -> None:
        self._job, self._coordinator, self._machine, self._plane = job, coordinator, machine, plane
        self._shards, self._keeper, self._journal, self._uplink = shards, keeper, journal, uplink
        self._me = plane.peer_id
        self._exchange: tuple[int, Exchange | None] = (0, None)
        self._opened = asyncio.Condition()

    async def listen(self) -> None:
        """Take the other peers' training streams."""

        async def training(stream: Stream) -> None:
            version = (await read_message(stream, Hello)).plan_version
            await (await self._exchange_of(version)).serve(stream)

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
        """Serve each plan until the next one comes; return when the job is done.

        Raises:
            UserError: the swarm has failed.
        """
        plan = await bulletin.next_plan(0)
        while plan is not None:
            serving = asyncio.create_task(self._serve(plan))
            coming = asyncio.create_task(bulletin.next_plan(plan.version))
            try:
                await asyncio.wait({serving, coming}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
                plan = await coming
            finally:
                serving.cancel()
                coming.cancel()
                await asyncio.wait({serving, coming})
        self._journal.say("finished", bulletin.last_words)

    async def _serve(self, plan: Plan) -> None:
        """Train under `plan`; what breaks is reported, and the coordinator plans anew."""
        self._journal.forget(after=plan.resume_step)
        if plan.stage_of(self._me) is None:
            spare = f"plan {plan.version} leaves this node as a spare"
            self._journal.say("idle", spare, plan_version=plan.version, lost=())
            return
        self._journal.say("starting", f"plan {plan.version}: {plan.reason}", plan_version=plan.version, lost=())
        try:
            exchanging = Exchange.running(self._plane, plan.version, plan.peers, self._uplink, self._machine.tracer)
            async with exchanging as exchange:
                await self._train(plan, exchange)
                await exchange.flush()
        except BaseExceptionGroup as group:
            # The exchange's task group wraps whatever ended the block.
            known, others = group.split((PeerLost, Refused, ConnectionError, Diverged))
            if others is not None or known is None:
                raise
            self._stall(plan, known)

    def _stall(self, plan: Plan, group: BaseExceptionGroup[Exception]) -> None:
        """Report why the plan cannot go on."""
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        lost = (first.peer,) if isinstance(first, PeerLost) else ()
        self._journal.say("diverged" if isinstance(first, Diverged) else "stalled", str(first)[:400], lost=lost)
        log.warning("plan %d stops here: %s", plan.version, first)

    async def _train(self, plan: Plan, exchange: Exchange) -> None:
        """From the plan's first state to the job's last step."""
        job, machine = self._job, self._machine
        build = partial(StageState, compiled=machine.compiled)
        state = await machine.compute(build, job.config, plan, self._me, job.training, machine.device)
        tokens = None
        if state.is_first or state.is_last:
            tokens = TokenSource(self._plane, job, self._shards, self._coordinator)
        trainer = Trainer(job, plan, self._me, state, tokens.reader if tokens else None, exchange, machine)

        async def prepare(step: int) -> None:
            if tokens is not None:
                await tokens.ensure(plan, self._me, step)

        # Open to the others before the long part: who has loaded first must not wait before a closed door.
        trainer.expect_first()
        async with self._opened:
            self._exchange = (plan.version, exchange)
            self._opened.notify_all()
        await load_state(self._plane, self._coordinator, job, plan, state, machine.compute)
        first, steps = plan.resume_step + 1, job.training.steps
        if first <= steps:
            await prepare(first)
        await trainer.start()
        self._journal.say("training", f"stage {state.index + 1} of {len(plan.stages)}", step=plan.resume_step)
        for step in range(first, steps + 1):
            row = await trainer.step(step, prepare)
            self._journal.committed(row, steps)
            every = job.checkpoint.every
            if step == steps or (every and step % every == 0):
                rows, folder = self._journal.unconfirmed(), self._keeper.folder
                self._keeper.keep(await machine.compute(snapshot, state, plan, self._me, row, rows, folder))
                self._journal.hurry()
        await self._keeper.settled()
        self._journal.say("training", "all steps done; waiting for the coordinator to keep the result")
