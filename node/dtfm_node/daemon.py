"""One member of a swarm: joins by invite, says what it can do, serves the tasklets it is given, says goodbye."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dtfm_node import probe
from dtfm_node.devices import choose, describe
from dtfm_node.display import Display
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello, PeerLost
from dtfm_node.engine.stage_state import StageState
from dtfm_node.engine.trainer import Diverged, Trainer
from dtfm_node.keep import Keeper, load_state, snapshot
from dtfm_node.measure import measure
from dtfm_node.tokens import TokenSource
from dtfm_protocol.control import (
    CHALLENGE,
    JOB,
    LEDGER,
    PHASE,
    PLAN,
    PRESENCE,
    PROBE,
    REPORT,
    Challenge,
    Ledger,
    Phase,
    Presence,
    ProbeRound,
    Report,
)
from dtfm_protocol.data.shards import ShardFolder
from dtfm_protocol.envelope import Post
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity import Identity, short
from dtfm_protocol.invite import Invite
from dtfm_protocol.logs import log
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.model.sizes import smallest_stage_bytes
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.control import BrokerAddress, ControlPlane
from dtfm_protocol.planes.data import DataPlane, Stream, Unreachable, read_message
from dtfm_protocol.planes.discovery import RECORD_SECONDS, Discovery, HivemindDiscovery, Registry
from dtfm_protocol.planes.libp2p import LibP2PDataPlane
from dtfm_protocol.records import Link, LinkReport, Profile
from dtfm_protocol.resolved import ResolvedJob
from dtfm_protocol.transfers import SHARDS, serve_shards

REPORT_SECONDS = 1.0
CHALLENGE_SECONDS = 1.0
"""How long a live daemon with the same identity has to answer."""
PLAN_WAIT_SECONDS = 30.0
"""How long another peer's stream may be ahead of the plan that it belongs to."""
PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """What the person at the machine decides."""

    device: str = "auto"
    announce: str | None = None
    listen: str | None = None
    threads: int | None = None
    memory_gib: float | None = None
    """Most memory to offer."""
    timeout: float = 30.0
    """Seconds to wait for the coordinator before giving up."""


class Daemon:
    """The state of one membership."""

    def __init__(self, invite: Invite, folder: Path, options: Options, display: Display) -> None:
        self._invite, self._folder, self._options, self._display = invite, folder, options, display
        self._identity = Identity.load_or_create(folder / "key")
        self._post = Post(invite.swarm, self._identity)
        self._me = self._identity.peer_id
        self._session = secrets.token_hex(8)
        self._shards = ShardFolder(folder / "tokens")
        self._compute = ThreadPoolExecutor(1, "compute")
        self._job: ResolvedJob | None = None
        self._plan: Plan | None = None
        self._phase: Phase | None = None
        self._changed = asyncio.Condition()
        self._twin: str | None = None
        self._exchanges: dict[int, Exchange] = {}
        self._links: dict[str, Link] = {}
        self._rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
        self._report = Report(session=self._session, state="measuring")
        self._report_now = asyncio.Event()
        self._rows: dict[int, StepMetrics] = {}

    async def run(self) -> None:
        """Stay until the job is done.

        Raises:
            UserError: nobody answers, another daemon has this identity, or the job cannot run here.
        """
        if self._options.threads is not None:
            torch.set_num_threads(self._options.threads)
        device = choose(self._options.device)
        control = self._control()
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(control.run())]
            await self._enter(control)
            async with contextlib.AsyncExitStack() as stack:
                plane = await stack.enter_async_context(
                    LibP2PDataPlane.running(
                        self._identity,
                        self._invite.service,
                        listen=self._options.listen or self._default_listen(),
                        announce=self._options.announce,
                        bootstrap=self._invite.dht,
                    )
                )
                registry = Registry(self._invite.swarm, self._post)
                discovery = await stack.enter_async_context(
                    HivemindDiscovery.running(plane, registry, self._invite.dht)
                )
                await self._serve(plane)
                job = await self._await_job()
                profile = await self._measure(job, device, await plane.addresses())
                keeper = Keeper(plane, self._invite.coordinator)
                background += [
                    tasks.create_task(self._stay_listed(discovery, registry, profile)),
                    tasks.create_task(self._report_always(control)),
                    tasks.create_task(self._probe_always(plane, discovery, registry)),
                    tasks.create_task(keeper.run()),
                ]
                await control.publish(PRESENCE, Presence(online=True, session=self._session))
                self._say("idle", self._availability(job, profile))
                try:
                    await self._follow_plans(job, device, plane, keeper)
                    await control.publish(REPORT, self._report)
                finally:
                    self._compute.shutdown(wait=True, cancel_futures=True)
                    for task in background[1:]:
                        task.cancel()
            background[0].cancel()

    # -- joining ---------------------------------------------------------------------------------------------------

    def _control(self) -> ControlPlane:
        control = ControlPlane(
            BrokerAddress.of(self._invite), self._invite.swarm, self._invite.coordinator, self._post, self._session
        )
        control.on(JOB, self._take_job)
        control.on(PLAN, self._take_plan)
        control.on(PHASE, self._take_phase)
        control.on(LEDGER, self._take_ledger)
        control.on(PROBE, self._take_round)
        control.on(PRESENCE, self._see_own_presence, self._me)

        async def answer(_: str, challenge: Challenge) -> None:
            if challenge.session != self._session:
                await control.publish(PRESENCE, Presence(online=True, session=self._session))

        control.on(CHALLENGE, answer, self._me)
        return control

    async def _enter(self, control: ControlPlane) -> None:
        """Reach the broker, and make sure that no other daemon has this identity."""
        self._display.note(f"joining swarm {self._invite.swarm} as {self._me}")
        try:
            async with asyncio.timeout(self._options.timeout):
                await control.connected.wait()
        except TimeoutError:
            where = BrokerAddress.of(self._invite)
            raise UserError(
                f"no coordinator: its broker at {where} did not let this node in for {self._options.timeout:g} s "
                f"({control.last_error or 'no answer'}); check that it runs and that the address is reachable from here"
            ) from None
        await control.publish(CHALLENGE, Challenge(session=self._session))
        await asyncio.sleep(CHALLENGE_SECONDS)
        if self._twin is not None:
            raise UserError(
                f"another node with the identity {short(self._me)} is in the swarm: "
                "stop it, or join with another --state-dir"
            )

    def _default_listen(self) -> str:
        """Loopback for a swarm on this machine alone, else every interface."""
        local = all("/127.0.0.1/" in address for address in self._invite.dht)
        return "127.0.0.1" if local else "0.0.0.0"

    async def _serve(self, plane: DataPlane) -> None:
        """Answer the other members' streams."""

        def find(sha256: str) -> bytes | None:
            return self._shards.path(sha256).read_bytes() if self._shards.has(sha256) else None

        async def training(stream: Stream) -> None:
            version = (await read_message(stream, Hello)).plan_version
            await (await self._exchange_of(version)).serve(stream)

        await plane.serve(probe.PROBE, probe.answer)
        await plane.serve(SHARDS, lambda stream: serve_shards(stream, find))
        await plane.serve(TRAINING, training)

    async def _exchange_of(self, version: int) -> Exchange:
        """The exchange of a plan that the other side has, and this one may be about to get."""
        try:
            async with asyncio.timeout(PLAN_WAIT_SECONDS), self._changed:
                await self._changed.wait_for(
                    lambda: version in self._exchanges or max(self._exchanges, default=0) > version
                )
        except TimeoutError:
            raise Refused(f"a stream for plan {version}, which is not in force") from None
        if version not in self._exchanges:
            raise Refused(f"a stream for plan {version}, which is over")
        return self._exchanges[version]

    async def _await_job(self) -> ResolvedJob:
        async with self._changed:
            await self._changed.wait_for(lambda: self._job is not None)
        assert self._job is not None
        return self._job

    async def _measure(self, job: ResolvedJob, device: torch.device, addresses: tuple[str, ...]) -> Profile:
        """Measure this device with the job's own layer."""
        self._say("measuring", f"measuring {describe(device)}")
        training = job.training
        measured = await self._on_compute_thread(
            measure, job.config, training.precision, training.micro_batch, training.sequence_length, device
        )
        memory = float(measured.memory_bytes)
        if self._options.memory_gib is not None:
            memory = max(1.0, min(memory, self._options.memory_gib * 2**30))
        return Profile(
            device=describe(device),
            flops=measured.flops,
            layer_seconds=measured.layer_seconds,
            memory_bytes=memory,
            addresses=addresses,
            version=version("dtfm"),
        )

    def _availability(self, job: ResolvedJob, profile: Profile) -> str:
        """Whether any stage could fit here, in one line."""
        training = job.training
        needed = smallest_stage_bytes(job.config, training.micro_batch, training.sequence_length, training.precision)
        if profile.memory_bytes >= needed:
            return "available; waiting for a plan"
        return (
            f"this node offers {profile.memory_bytes / 1e9:.3g} GB of memory and the smallest stage of the model needs "
            f"{needed / 1e9:.3g} GB: it stays available; free some memory, or offer more with --memory"
        )

    # -- what the coordinator says ----------------------------------------------------------------------------------

    async def _take_job(self, _: str, job: ResolvedJob) -> None:
        if self._job is None:
            await self._change(_job=job)
        elif job != self._job:
            log.warning("the swarm's job has changed; this node keeps to the one it joined with: start it again")

    async def _take_plan(self, _: str, plan: Plan) -> None:
        if self._plan is not None and plan.version <= self._plan.version:
            return  # repeated after a reconnection, or older than what is in force
        plan.verify(self._invite.coordinator, self._invite.swarm)
        await self._change(_plan=plan)

    async def _take_phase(self, _: str, phase: Phase) -> None:
        await self._change(_phase=phase)
        self._display.phase(phase)

    async def _take_ledger(self, _: str, ledger: Ledger) -> None:
        self._rows = {step: row for step, row in self._rows.items() if step > ledger.recorded}

    async def _take_round(self, _: str, turn: ProbeRound) -> None:
        self._rounds.put_nowait(turn)

    async def _see_own_presence(self, _: str, presence: Presence) -> None:
        if presence.online and presence.session != self._session:
            self._twin = presence.session

    async def _change(self, **values: Any) -> None:
        async with self._changed:
            for name, value in values.items():
                setattr(self, name, value)
            self._changed.notify_all()

    # -- what this node says ----------------------------------------------------------------------------------------

    def _say(self, state: Any, text: str, **values: Any) -> None:
        """Change what is reported, at once."""
        self._report = self._report.model_copy(update={"state": state, "text": text, **values})
        self._display.state(state, text)
        self._report_now.set()

    async def _report_always(self, control: ControlPlane) -> None:
        while True:
            self._report_now.clear()
            rows = tuple(self._rows[step] for step in sorted(self._rows)[:100])
            await control.publish(REPORT, self._report.model_copy(update={"rows": rows}))
            self._display.save(self._folder / "status.json", self._report)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._report_now.wait()

    async def _stay_listed(self, discovery: Discovery, registry: Registry, profile: Profile) -> None:
        """Publish the profile and the links again before they expire."""
        while True:
            try:
                listed = await registry.publish(discovery, profile)
                if self._links:
                    await registry.publish(discovery, LinkReport(links=self._links))
                if not listed:
                    log.warning("no DHT peer took this node's profile; trying again")
            except (OSError, RuntimeError) as error:
                # Training must go on without the DHT: it carries no tensor.
                log.warning("cannot publish to the DHT: %s", error)
            await asyncio.sleep(RECORD_SECONDS / 3)

    async def _probe_always(self, plane: DataPlane, discovery: Discovery, registry: Registry) -> None:
        """Measure the links that the coordinator asks for, one round at a time."""
        while True:
            turn = await self._rounds.get()
            for peer, other in turn.pairs:
                if peer == self._me:
                    await self._probe(plane, other, turn.addresses.get(other, ()))
            if any(peer == self._me for peer, _ in turn.pairs):
                await registry.publish(discovery, LinkReport(links=self._links))
                self._report = self._report.model_copy(update={"probed": turn.id})
                self._report_now.set()

    async def _probe(self, plane: DataPlane, peer: str, addresses: tuple[str, ...]) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                if addresses:
                    with contextlib.suppress(Unreachable):
                        await plane.introduce(peer, addresses)
                self._links[peer] = await probe.probe(plane, peer)
        except (ConnectionError, Refused, TimeoutError) as error:
            self._links.pop(peer, None)
            log.warning("cannot measure the link to %s: %s", short(peer), error or "no answer")

    # -- training ---------------------------------------------------------------------------------------------------

    async def _follow_plans(self, job: ResolvedJob, device: torch.device, plane: DataPlane, keeper: Keeper) -> None:
        """Serve each plan until the next one comes; return when the swarm is done.

        Raises:
            UserError: the swarm has failed.
        """
        plan = await self._next_plan(0)
        while plan is not None:
            serving = asyncio.create_task(self._serve_plan(job, plan, device, plane, keeper))
            coming = asyncio.create_task(self._next_plan(plan.version))
            try:
                await asyncio.wait({serving, coming}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
                plan = await coming
            finally:
                serving.cancel()
                coming.cancel()
                await asyncio.wait({serving, coming})
        assert self._phase is not None
        if self._phase.name == "failed":
            raise UserError(f"the swarm has stopped: {self._phase.text}")
        self._say("finished", self._phase.text)

    async def _next_plan(self, served: int) -> Plan | None:
        """Wait for a plan after version `served`; None when there will be none."""

        def ready() -> bool:
            return self._is_over() or (self._plan is not None and self._plan.version > served)

        async with self._changed:
            await self._changed.wait_for(ready)
        return None if self._is_over() else self._plan

    def _is_over(self) -> bool:
        return self._phase is not None and self._phase.name in {"done", "failed"}

    async def _serve_plan(
        self, job: ResolvedJob, plan: Plan, device: torch.device, plane: DataPlane, keeper: Keeper
    ) -> None:
        """Train under `plan`; what breaks is reported, and the coordinator plans anew."""
        self._rows = {step: row for step, row in self._rows.items() if step <= plan.resume_step}
        if plan.stage_of(self._me) is None:
            self._say("idle", f"plan {plan.version} leaves this node as a spare", plan_version=plan.version, lost=())
            return
        self._say("starting", f"plan {plan.version}: {plan.reason}", plan_version=plan.version, lost=())
        try:
            async with Exchange.running(plane, plan.version) as exchange:
                await self._train(job, plan, device, plane, keeper, exchange)
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
        state = "diverged" if isinstance(first, Diverged) else "stalled"
        self._say(state, str(first)[:400], lost=lost)
        log.warning("plan %d stops here: %s", plan.version, first)

    async def _train(
        self,
        job: ResolvedJob,
        plan: Plan,
        device: torch.device,
        plane: DataPlane,
        keeper: Keeper,
        exchange: Exchange,
    ) -> None:
        """From the plan's first state to the job's last step."""
        compute = self._on_compute_thread
        state = await compute(StageState, job.config, plan, self._me, job.training, device)
        await load_state(plane, self._invite.coordinator, job, plan, state, compute)
        tokens = (
            TokenSource(plane, job, self._shards, self._invite.coordinator) if state.is_first or state.is_last else None
        )
        trainer = Trainer(job, plan, self._me, state, tokens.reader if tokens else None, exchange, compute)
        steps = job.training.steps

        async def prepare(step: int) -> None:
            if tokens is not None:
                await tokens.ensure(plan, self._me, step)

        first = plan.resume_step + 1
        if first <= steps:
            await prepare(first)
        trainer.expect_first()
        await self._change(_exchanges={plan.version: exchange})
        await trainer.start()
        self._say("training", f"stage {state.index + 1} of {len(plan.stages)}", step=plan.resume_step)
        for step in range(first, steps + 1):
            row = await trainer.step(step, prepare)
            self._rows[step] = row
            self._report = self._report.model_copy(update={"step": step})
            self._display.step(row, steps)
            every = job.checkpoint.every
            if step == steps or (every and step % every == 0):
                keeper.keep(await compute(snapshot, state, plan, self._me, step, row.eval_loss))
                self._report_now.set()
        await keeper.settled()
        self._say("training", "all steps done; waiting for the coordinator to keep the result")

    async def _on_compute_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._compute, function, *arguments)
