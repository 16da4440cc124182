"""A running coordinator: opens the three planes, hands out the invite, and lets the conductor lead."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator import broker
from dtfm_coordinator.archive import Archive
from dtfm_coordinator.conductor import Conductor, Tools
from dtfm_coordinator.endpoints import Endpoints
from dtfm_coordinator.planning import Planner
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.control import JOB, PHASE, Phase
from dtfm_protocol.data.shards import ShardFolder
from dtfm_protocol.envelope import Post
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity import Identity
from dtfm_protocol.invite import Invite
from dtfm_protocol.job import Job
from dtfm_protocol.logs import log
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.control import BrokerAddress, ControlPlane, split_broker_url
from dtfm_protocol.planes.data import DataPlane
from dtfm_protocol.planes.direct import DirectDataPlane
from dtfm_protocol.planes.discovery import HivemindDiscovery, Registry
from dtfm_protocol.planes.libp2p import LibP2PDataPlane
from dtfm_protocol.prepare import prepare
from dtfm_protocol.statedir import write_atomically
from dtfm_protocol.transfers import CHECKPOINT, SHARDS, STATE, serve_shards, serve_state

LOOK_SECONDS = 0.5
"""How often the DHT is read."""
BROKER_SECONDS = 15.0
"""How long the broker may take to let the coordinator in."""


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
    without_quorum: bool = False


class Coordinator:
    """One served job: its identity, its secret, its planes."""

    def __init__(self, job: Job, folder: Path, options: Options) -> None:
        self._job, self._folder, self._options = job, folder, options
        self._forced = Plan.load(options.plan) if options.plan else None
        self._identity = Identity.load_or_create(folder / "key")
        self._secret = _secret(folder / "secret")
        self._swarm = hashlib.sha256(f"dtfm swarm {self._secret}".encode()).hexdigest()[:16]

    async def run(self, ready: Callable[[str], None] = lambda _: None) -> None:
        """Serve until the job is done (with `exit_when_done`) or until cancelled.

        Args:
            ready: called with the invite once nodes can join.

        Raises:
            UserError: bad job, port taken, broker out of reach, or a run that cannot go on.
        """
        options, folder = self._options, self._folder
        job = await asyncio.to_thread(prepare, self._job, folder, log.info)
        planner = Planner(job, self._forced, options.seed)
        archive = Archive(CheckpointStore(folder / "checkpoints"), job)
        ends = Endpoints.choose(folder, options)
        invite = self._draft_invite(ends)
        post = Post(self._swarm, self._identity)
        registry = Registry(self._swarm, post)
        async with contextlib.AsyncExitStack() as stack:
            if options.broker == "embedded":
                await stack.enter_async_context(broker.embedded(options.listen, ends.broker, invite.password()))
            running = LibP2PDataPlane.running(
                self._identity, invite.service, listen=options.listen, port=ends.data, announce=ends.announced_data
            )
            libp2p = await stack.enter_async_context(running)
            direct = DirectDataPlane.running(
                libp2p, self._identity, listen=options.listen, port=ends.data + 1 if options.port else 0
            )
            plane = await stack.enter_async_context(direct)
            discovery = await stack.enter_async_context(HivemindDiscovery.running(libp2p, registry))
            await self._serve(plane, archive)
            invite = invite.model_copy(update={"dht": await plane.addresses()})
            address = BrokerAddress.of(invite)
            control = ControlPlane(address, self._swarm, invite.coordinators, post, secrets.token_hex(8))
            tools = Tools(job, folder, self._identity, self._swarm, planner, archive, control, discovery, registry)
            conductor = Conductor(
                tools, options.min_nodes, options.exit_when_done, without_quorum=options.without_quorum
            )
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(control.run()), tasks.create_task(plane.watch())]
                await self._reach_broker(control, address)
                await control.publish(JOB, job)
                # A broker of its own may still hold the last life's phase, which would send new nodes away.
                await control.publish(PHASE, Phase(name="waiting", text="the coordinator is starting"))
                write_atomically(folder / "invite", invite.encode() + "\n", private=True)
                ready(invite.encode())
                background.append(tasks.create_task(conductor.look(LOOK_SECONDS)))
                await conductor.run()
                for task in background:
                    task.cancel()

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

    async def _serve(self, plane: DataPlane, archive: Archive) -> None:
        shards = ShardFolder(self._folder / "tokens")
        await plane.serve(SHARDS, lambda stream: serve_shards(stream, shards.find))
        await plane.serve(STATE, lambda stream: serve_state(stream, archive))
        await plane.serve(CHECKPOINT, archive.take)

    async def _reach_broker(self, control: ControlPlane, address: BrokerAddress) -> None:
        try:
            async with asyncio.timeout(BROKER_SECONDS):
                await control.connected.wait()
        except TimeoutError:
            raise UserError(
                f"the broker at {address} does not let the coordinator in "
                f"({control.last_error or 'no answer'}): check --broker, its password and its certificate"
            ) from None


def _secret(path: Path) -> str:
    """The swarm's secret, 32 hex digits, made on first use (mode 600)."""
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    secret = secrets.token_hex(16)
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")
    return secret
