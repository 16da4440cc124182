"""A running coordinator: finds out who is there and how fast, plans, watches, and keeps what the swarm achieves.

It is not needed for a step: peers train on under the plan in force while it is away, and hand in what it missed.
"""

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator import broker
from dtfm_coordinator.allocator.allocate import NotEnoughNodes
from dtfm_coordinator.archive import Archive
from dtfm_coordinator.endpoints import Endpoints
from dtfm_coordinator.linkmap import LinkMap
from dtfm_coordinator.members import Member, Members
from dtfm_coordinator.planning import Planner
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.control import (
    JOB,
    LEDGER,
    PHASE,
    PLAN,
    PRESENCE,
    PROBE,
    REPORT,
    Ledger,
    Phase,
    Presence,
    ProbeRound,
    Report,
)
from dtfm_protocol.data.shards import ShardFolder
from dtfm_protocol.envelope import Post
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity import Identity, short
from dtfm_protocol.invite import Invite
from dtfm_protocol.job import Job
from dtfm_protocol.logs import log
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.control import BrokerAddress, ControlPlane, split_broker_url
from dtfm_protocol.planes.data import DataPlane
from dtfm_protocol.planes.discovery import Discovery, HivemindDiscovery, Registry
from dtfm_protocol.planes.libp2p import LibP2PDataPlane
from dtfm_protocol.prepare import prepare
from dtfm_protocol.resolved import ResolvedJob
from dtfm_protocol.rows import RowFile
from dtfm_protocol.statedir import write_atomically
from dtfm_protocol.transfers import CHECKPOINT, SHARDS, STATE, serve_shards, serve_state

LOOK_SECONDS = 0.5
"""How often the DHT is read and the swarm looked at while something is awaited."""
SETTLE_SECONDS = 1.5
"""Nobody must have joined or left for so long before a plan is made: volunteers arrive in bursts."""
ROUND_SECONDS = 60.0
"""A round of probes that takes longer goes on without the slow ones."""
RETURN_SECONDS = 10.0
"""How long a returning coordinator waits for the peers of its last plan before it plans anew."""
GOODBYE_SECONDS = 15.0
SHOW_SECONDS = 2.0
"""Steps that follow each other faster share a line of the log."""


@dataclass(frozen=True)
class Options:
    """What the owner decides beyond the job."""

    listen: str = "0.0.0.0"
    port: int = 7700
    announce: str | None = None
    broker: str = "embedded"
    broker_ca: Path | None = None
    plan: Path | None = None
    min_nodes: int | None = None
    exit_when_done: bool = False
    seed: int = 0


class Failed(UserError):
    """The run cannot go on, whatever the swarm does."""


class Coordinator:
    """The state of one served job."""

    def __init__(self, job: Job, folder: Path, options: Options) -> None:
        self._folder, self._options = folder, options
        self._forced = Plan.load(options.plan) if options.plan else None
        self._file = job
        self._identity = Identity.load_or_create(folder / "key")
        self._secret = _secret(folder / "secret")
        self._swarm = hashlib.sha256(f"dtfm swarm {self._secret}".encode()).hexdigest()[:16]
        self._members = Members()
        self._links = LinkMap()
        self._rows = RowFile(folder / "metrics.jsonl")
        self._changed = asyncio.Event()
        self._phase = Phase(name="waiting", text="starting")
        self._plan: Plan | None = None
        self._kept = 0
        self._version = 0
        self._shown = 0.0

    async def run(self, ready: Callable[[str], None] = lambda _: None) -> None:
        """Serve until the job is done (with `exit_when_done`) or until cancelled.

        Args:
            ready: called with the invite once nodes can join.

        Raises:
            UserError: bad job, port taken, broker out of reach, or a run that cannot go on.
        """
        job = await asyncio.to_thread(prepare, self._file, self._folder, log.info)
        planner = Planner(job, self._forced, self._options.seed)
        store = CheckpointStore(self._folder / "checkpoints")
        archive = Archive(store, job, self._keep)
        async with contextlib.AsyncExitStack() as stack:
            post = Post(self._swarm, self._identity)
            ends = Endpoints.choose(self._folder, self._options)
            invite = self._draft_invite(ends)
            if self._options.broker == "embedded":
                await stack.enter_async_context(broker.embedded(self._options.listen, ends.broker, invite.password()))
            plane = await stack.enter_async_context(
                LibP2PDataPlane.running(
                    self._identity,
                    invite.service,
                    listen=self._options.listen,
                    port=ends.data,
                    announce=ends.announced_data,
                )
            )
            registry = Registry(invite.swarm, post)
            discovery = await stack.enter_async_context(HivemindDiscovery.running(plane, registry))
            await self._serve(plane, archive)
            invite = invite.model_copy(update={"dht": await plane.addresses()})
            async with asyncio.TaskGroup() as tasks:
                control = self._control(invite, post)
                background = [tasks.create_task(control.run())]
                await self._reach_broker(control, invite)
                write_atomically(self._folder / "invite", invite.encode() + "\n", private=True)
                await control.publish(JOB, job)
                ready(invite.encode())
                background.append(tasks.create_task(self._look(discovery, registry, control)))
                try:
                    await self._conduct(job, planner, archive, control)
                    self._save_status(control)
                except Failed as error:
                    await self._say(control, "failed", str(error))
                    await self._farewell()
                    raise
                for task in background:
                    task.cancel()

    # -- setting up -------------------------------------------------------------------------------------------------

    def _draft_invite(self, ends: Endpoints) -> Invite:
        address, ca = self._options.broker, None
        if address == "embedded":
            address = f"mqtt://{ends.announced_broker}"
        else:
            split_broker_url(address)
        if self._options.broker_ca is not None:
            try:
                ca = self._options.broker_ca.read_text(encoding="ascii")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"--broker-ca {self._options.broker_ca}: {error}") from None
        return Invite(
            swarm=self._swarm,
            coordinator=self._identity.peer_id,
            dht=("unknown",),
            broker=address,
            secret=self._secret,
            broker_ca=ca,
        )

    def _control(self, invite: Invite, post: Post) -> ControlPlane:
        control = ControlPlane(
            BrokerAddress.of(invite), invite.swarm, self._identity.peer_id, post, secrets.token_hex(8)
        )

        async def presence(peer: str, message: Presence) -> None:
            before = self._members.get(peer)
            was_online = before is not None and before.online
            self._members.seen(peer, message)
            if message.online != was_online:
                log.info("%s %s", short(peer), "joined" if message.online else "left")
                if not message.online:
                    self._links.forget(peer)
            self._changed.set()

        async def report(peer: str, message: Report) -> None:
            self._members.reported(peer, message)
            recorded = [
                row for row in message.rows if self._is_valid(row.plan_version, row.step) and self._rows.append(row)
            ]
            if recorded:
                self._show(recorded)
            if message.rows:
                await control.publish(LEDGER, self._ledger())
            self._changed.set()

        control.on(PRESENCE, presence)
        control.on(REPORT, report)
        return control

    def _is_valid(self, plan_version: int, step: int) -> bool:
        """Whether a row belongs to the history that leads to the present state."""
        plan = self._plan
        return plan is not None and (plan_version == plan.version or step <= plan.resume_step)

    def _show(self, rows: list[StepMetrics]) -> None:
        """Say how training goes: the newest step, and every evaluation."""
        steps = self._file.training.steps
        for row in rows:
            due = row.step == steps or time.monotonic() - self._shown >= SHOW_SECONDS
            if row.eval_loss is not None or (row is rows[-1] and due):
                self._shown = time.monotonic()
                log.info("%s", row.line(steps), extra={"fields": row.model_dump(mode="json")})

    def _ledger(self) -> Ledger:
        return Ledger(recorded=self._rows.last, plan_version=self._plan.version if self._plan else 0)

    async def _serve(self, plane: DataPlane, archive: Archive) -> None:
        shards = ShardFolder(self._folder / "tokens")

        def find(sha256: str) -> bytes | None:
            return shards.path(sha256).read_bytes() if shards.has(sha256) else None

        await plane.serve(SHARDS, lambda stream: serve_shards(stream, find))
        await plane.serve(STATE, lambda stream: serve_state(stream, archive.find))
        await plane.serve(CHECKPOINT, archive.take)

    async def _reach_broker(self, control: ControlPlane, invite: Invite) -> None:
        try:
            async with asyncio.timeout(15):
                await control.connected.wait()
        except TimeoutError:
            raise UserError(
                f"the broker at {BrokerAddress.of(invite)} does not let the coordinator in "
                f"({control.last_error or 'no answer'}): check --broker, its password and its certificate"
            ) from None

    # -- looking ----------------------------------------------------------------------------------------------------

    async def _look(self, discovery: Discovery, registry: Registry, control: ControlPlane) -> None:
        """Keep reading the DHT, and keep the status file fresh."""
        self._registry, self._discovery = registry, discovery
        while True:
            try:
                self._members.listed(await registry.profiles(discovery))
                self._changed.set()
            except (OSError, RuntimeError) as error:
                log.warning("cannot read the DHT: %s", error)
            self._save_status(control)
            await asyncio.sleep(LOOK_SECONDS if self._phase.name != "training" else 4 * LOOK_SECONDS)

    async def _wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something that was heard makes `condition` true; whether it did within `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return condition()

    async def _say(self, control: ControlPlane, name: str, text: str) -> None:
        """Change the phase, for nodes, log and status."""
        phase = Phase.model_validate({"name": name, "text": text[:480]})
        if phase != self._phase:
            self._phase = phase
            log.info("%s: %s", name, text)
            await control.publish(PHASE, phase)

    # -- conducting -------------------------------------------------------------------------------------------------

    async def _conduct(self, job: ResolvedJob, planner: Planner, archive: Archive, control: ControlPlane) -> None:
        """From waiting to the last step, planning anew whenever a plan breaks.

        Raises:
            Failed: no plan can help.
        """
        plan = await self._return_to(job, archive)
        while not self._is_done(job, archive):
            if plan is None:
                plan = await self._make_plan(job, planner, archive, control)
            plan = await self._watch(job, plan, archive, control)
        done = f"all {job.training.steps} steps are done; the model is in {self._folder / 'checkpoints'}"
        await self._say(control, "done", done)
        if self._options.exit_when_done:
            await self._farewell()
            return
        await asyncio.Event().wait()

    def _is_done(self, job: ResolvedJob, archive: Archive) -> bool:
        return self._kept >= job.training.steps and self._rows.last >= job.training.steps

    async def _farewell(self) -> None:
        """Let the nodes hear the last phase and leave."""
        await self._wait(lambda: not self._members.online(), GOODBYE_SECONDS)

    async def _return_to(self, job: ResolvedJob, archive: Archive) -> Plan | None:
        """The plan of an earlier life, if its peers still train under it."""
        newest = await asyncio.to_thread(archive.newest)
        self._kept = newest.step if newest else 0
        path = self._folder / "plan.json"
        if self._kept >= job.training.steps or not path.exists():
            self._rows.forget_after(self._kept)
            return None
        plan = Plan.load(path)
        self._version = plan.version

        def states() -> list[Report | None]:
            return [member.report if (member := self._members.get(peer)) else None for peer in plan.peers]

        def trains(report: Report | None) -> bool:
            return report is not None and report.plan_version == plan.version and report.state == "training"

        def decided() -> bool:
            fresh = any(report is not None and report.plan_version == 0 for report in states())
            return fresh or all(map(trains, states()))

        self._plan = plan
        await self._wait(decided, RETURN_SECONDS)
        if all(map(trains, states())):
            log.info("found the swarm training under plan %d", plan.version)
            archive.expect(plan)
            return plan
        self._plan = None
        self._rows.forget_after(self._kept)
        return None

    async def _make_plan(self, job: ResolvedJob, planner: Planner, archive: Archive, control: ControlPlane) -> Plan:
        """Wait for enough nodes, measure the links between them, plan, publish."""
        # --min-nodes is for the start: a run that has lost a node goes on as soon as the others suffice.
        needed = planner.fewest_nodes if self._version else self._options.min_nodes or planner.fewest_nodes
        while True:
            members = await self._gather(needed, control)
            await self._probe(members, control)
            members = [member for member in members if member.online]
            await self._say(control, "planning", f"planning for {len(members)} nodes")
            view = self._links.view(members, job.training.precision)
            try:
                plan = await asyncio.to_thread(planner.plan, view)
            except NotEnoughNodes as error:
                needed = len(members) + error.missing
                await self._say(control, "waiting", str(error))
                continue
            except UserError as error:
                # A view that no plan fits may be followed by one that does: a node with more memory joins.
                needed = len(members) + 1
                await self._say(control, "waiting", str(error))
                continue
            break
        newest = await asyncio.to_thread(archive.newest)
        self._kept = newest.step if newest else 0
        self._rows.forget_after(self._kept)
        self._version += 1
        plan = plan.model_copy(update={"version": self._version, "resume_step": self._kept})
        plan = plan.signed(self._identity, self._swarm)
        write_atomically(self._folder / "view.json", view.model_dump_json(indent=1))
        write_atomically(self._folder / "plan.json", plan.model_dump_json(indent=1))
        archive.expect(plan)
        self._plan = plan
        await control.publish(PLAN, plan)
        await control.publish(LEDGER, self._ledger())
        await self._say(control, "training", f"plan {plan.version}: {plan.reason}")
        return plan

    async def _gather(self, needed: int, control: ControlPlane) -> list[Member]:
        """Wait until at least `needed` nodes are ready and nobody has come or gone for a while."""
        while True:
            missing = needed - len(self._members.ready())
            if missing > 0:
                joining = len(self._members.online()) - len(self._members.ready())
                also = f"; {joining} more are measuring" if joining else ""
                text = f"waiting for {missing} more nodes ({len(self._members.ready())} of {needed} are ready{also})"
                await self._say(control, "waiting", text)
                before = (len(self._members.ready()), len(self._members.online()))
                await self._wait(
                    lambda b=before: (len(self._members.ready()), len(self._members.online())) != b  # type: ignore[misc]
                )
                continue
            ready = {member.peer for member in self._members.ready()}
            busy = len(self._members.online()) > len(ready)

            def moved(ready: set[str] = ready) -> bool:
                return {member.peer for member in self._members.ready()} != ready

            if not await self._wait(moved, SETTLE_SECONDS * (4 if busy else 1)):
                return self._members.ready()

    async def _probe(self, members: list[Member], control: ControlPlane) -> None:
        """Have all unknown links between `members` measured, in rounds of disjoint pairs."""
        peers = [member.peer for member in members]
        addresses = {member.peer: member.profile.addresses for member in members if member.profile}
        rounds = list(self._links.rounds(peers))
        for number, pairs in enumerate(rounds, 1):
            await self._say(control, "probing", f"measuring links: round {number} of {len(rounds)}")
            # Unique over restarts of the coordinator, too: nodes report the last round that they have finished.
            turn = ProbeRound(id=time.time_ns() // 1_000_000, pairs=tuple(pairs), addresses=addresses)
            await control.publish(PROBE, turn)

            def finished(turn: ProbeRound = turn) -> bool:
                return all(self._has_probed(peer, turn.id) for peer, _ in turn.pairs)

            if not await self._wait(finished, ROUND_SECONDS):
                log.warning("round %d of link measurements was not finished in %.0f s", number, ROUND_SECONDS)
            self._links.tried(pairs)
        for peer in peers:
            report = await self._registry.links(self._discovery, peer)
            if report is not None:
                self._links.reported(peer, report)

    def _has_probed(self, peer: str, turn: int) -> bool:
        member = self._members.get(peer)
        if member is None or not member.online:
            return True  # nothing to wait for
        return member.report is not None and member.report.probed >= turn

    async def _watch(self, job: ResolvedJob, plan: Plan, archive: Archive, control: ControlPlane) -> Plan | None:
        """Stay with `plan` until the job is done, or until it breaks: then None.

        Raises:
            Failed: the training itself has gone wrong.
        """

        def over() -> bool:
            return bool(
                archive.fault
                or self._is_done(job, archive)
                or self._members.missing(plan.peers)
                or self._members.broken(plan.peers, plan.version)
            )

        await self._wait(over)
        if archive.fault:
            raise Failed(archive.fault)
        if self._is_done(job, archive):
            return plan
        broken = self._members.broken(plan.peers, plan.version)
        if broken is not None and broken.report is not None and broken.report.state == "diverged":
            raise Failed(f"training diverged: {broken.report.text}")
        missing = self._members.missing(plan.peers)
        if missing:
            why = f"{', '.join(map(short, missing))} left"
        else:
            assert broken is not None
            why = f"{short(broken.peer)} stalled" + (f" ({broken.report.text})" if broken.report else "")
        newest = await asyncio.to_thread(archive.newest)
        back = newest.step if newest else 0
        await self._say(control, "planning", f"{why}: going on from step {back} with a new plan")
        return None

    def _keep(self, manifest: Manifest) -> None:
        self._kept = manifest.step
        log.info("kept the checkpoint of step %d", manifest.step)
        self._changed.set()

    # -- status -----------------------------------------------------------------------------------------------------

    def _save_status(self, control: ControlPlane) -> None:
        rows = self._rows
        status = {
            "at": time.time(),
            "swarm": self._swarm,
            "phase": self._phase.name,
            "text": self._phase.text,
            "step": rows.last,
            "steps": self._file.training.steps,
            "checkpoint": self._kept,
            "plan_version": self._plan.version if self._plan else None,
            "dropped": {"records": dict(self._registry.dropped), "messages": dict(control.dropped)},
            "nodes": [
                {
                    "id": member.peer,
                    "online": member.online,
                    "listed": member.profile is not None,
                    "device": member.profile.device if member.profile else None,
                    "state": member.report.state if member.report else None,
                    "text": member.report.text if member.report else None,
                    "stage": self._plan.stage_of(member.peer) if self._plan else None,
                    "micro_batches": len(self._plan.micro_batches(member.peer)) if self._plan else 0,
                    "step": member.report.step if member.report else None,
                }
                for member in self._members.online()
            ],
        }
        write_atomically(self._folder / "status.json", json.dumps(status, indent=1))


def _secret(path: Path) -> str:
    """The swarm's secret, 32 hex digits, made on first use (mode 600)."""
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    secret = secrets.token_hex(16)
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")
    return secret
