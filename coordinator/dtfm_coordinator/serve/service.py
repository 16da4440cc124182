"""Service of a job: opens the three planes, hands out the invite, and lets the controller lead."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator.allocator.job_demand import kept_requirements
from dtfm_coordinator.lead.controller import Controller
from dtfm_coordinator.lead.lead_context import LeadContext
from dtfm_coordinator.lead.planner import Planner
from dtfm_coordinator.membership.known_peers import KnownPeers
from dtfm_coordinator.membership.tcp_check import open_doors
from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_coordinator.serve import embedded_broker
from dtfm_coordinator.serve.endpoints import Endpoints
from dtfm_coordinator.serve.standby import Standby
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, SHARDS, STATE, serve_shards, serve_state
from dtfm_protocol.control.messages import JOB, PHASE, PRESENCE, Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane, split_broker_url
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.open_planes import open_planes
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.multiaddress import announced
from dtfm_protocol.wire.stream import DataPlane

DHT_LOOK_SECONDS = 0.5
"""How often the DHT is read."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of `dtfm-coordinator serve`: what the owner decides beyond the job."""

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
    cards: tuple[str, ...] = ()
    """Cards (`StandbyCard`) of the coordinators that may take over."""
    standby: str | None = None
    """Invite of the swarm that this coordinator may take over; None: it has a swarm of its own."""


class Coordinator:
    """Coordinator of one served job: its identity, its secret, its planes."""

    def __init__(self, job: Job, folder: Path, options: ServeOptions) -> None:
        self._job, self._folder, self._options = job, folder, options
        self._forced = Plan.load(options.plan) if options.plan else None
        self._identity = Identity.load_or_create(folder / "key")
        self._first = Invite.decode(options.standby) if options.standby is not None else None
        """Invite of the swarm for which this coordinator stands by; None: it is the first one itself."""
        if self._first is not None:
            self._check_appointed(self._first)
        self._secret = _secret(folder / "secret") if self._first is None else self._first.secret
        self._swarm = hashlib.sha256(f"dtfm swarm {self._secret}".encode()).hexdigest()[:16]

    def _check_appointed(self, invite: Invite) -> None:
        if self._identity.peer_id not in invite.coordinators[1:]:
            raise UserError(
                f"the invite does not list this coordinator ({short(self._identity.peer_id)}): give the line that "
                "`dtfm-coordinator card` prints here to `serve --card` there"
            )

    async def run(self, ready: Callable[[str], None] = lambda _: None) -> None:
        """Serve until the job is done (with `exit_when_done`) or until cancelled; stand by while another one leads.

        Args:
            ready: called with the invite once nodes can join.

        Raises:
            UserError: bad job, port taken, broker out of reach, or a run that cannot go on.
        """
        options, folder = self._options, self._folder
        job = await asyncio.to_thread(prepare, self._job, folder, log.info)
        demand = await asyncio.to_thread(kept_requirements, job.config, job.training, folder)
        planner = Planner(job, demand, self._forced, options.seed)
        archive = CheckpointCollector(CheckpointStore(folder / "checkpoints"), job)
        ends = Endpoints.choose(folder, options)
        invite = self._first or self._draft_invite(ends)
        post = Post(self._swarm, self._identity)
        registry = Registry(self._swarm, post)
        async with contextlib.AsyncExitStack() as stack:
            is_alone = not invite.standbys
            if is_alone:  # then nobody else has the broker, and nodes can come back to it while the rest starts
                await self._open_broker(stack, ends, invite)
            doors, known = await self._doors(invite), await KnownPeers(folder).recall()
            opening = open_planes(
                self._identity,
                invite.service,
                registry,
                listen=options.listen,
                port=ends.data,
                direct_port=ends.data + 1 if options.port else 0,
                announce=ends.announced_data,
                bootstrap=doors,
                known_peers=known,
                relay=True,
            )
            planes = await stack.enter_async_context(opening)
            plane, discovery = planes.data, planes.discovery
            await self._serve(plane, archive)
            if self._first is None:
                invite = invite.model_copy(update={"dht": await plane.addresses()})
            taken_over = not is_alone and await self._stand_by(invite, job, post)
            if not is_alone:
                await self._open_broker(stack, ends, invite)
            address = BrokerAddress.of(invite, self._own_broker(ends))
            control = ControlPlane(address, self._swarm, invite.coordinators, post, secrets.token_hex(8))
            context = LeadContext(
                job,
                folder,
                self._identity,
                self._swarm,
                invite.coordinators,
                planner,
                archive,
                control,
                discovery,
                registry,
            )
            controller = Controller(
                context,
                options.min_nodes,
                options.exit_when_done,
                without_quorum=options.without_quorum,
                taken_over=taken_over,
            )
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(control.run()), tasks.create_task(plane.watch())]
                await self._reach_broker(control, address)
                await self._announce(control, job, invite)
                ready(invite.encode())
                background.append(tasks.create_task(controller.attend(DHT_LOOK_SECONDS)))
                if options.plan is not None:
                    background.append(tasks.create_task(_follow(options.plan, planner)))
                await controller.run()
                for task in background:
                    task.cancel()

    async def _announce(self, control: ControlPlane, job: ResolvedJob, invite: Invite) -> None:
        """Say that this coordinator leads, and what is trained; keep the invite to hand out."""
        await control.publish(PRESENCE, Presence(online=True, session=secrets.token_hex(8)))
        await control.publish(JOB, job)
        # A broker of its own may still hold the last life's phase, which would send new nodes away.
        await control.publish(PHASE, Phase(name="waiting", text="the coordinator is starting"))
        write_atomically(self._folder / "invite", invite.encode() + "\n", private=True)

    async def _open_broker(self, stack: contextlib.AsyncExitStack, ends: Endpoints, invite: Invite) -> None:
        options = self._options
        if options.broker == "embedded":
            await stack.enter_async_context(embedded_broker.embedded(options.listen, ends.broker, invite.password()))

    async def _doors(self, invite: Invite) -> tuple[str, ...]:
        """Return the addresses at which to enter the swarm's network, beside this coordinator itself."""
        others = tuple(door for door in invite.doors if self._identity.peer_id not in door)
        doors = await open_doors(others)
        if self._first is not None and not doors:
            raise UserError(f"nobody of the swarm answers at {', '.join(others)}: start the standby while it is led")
        return doors

    async def _stand_by(self, invite: Invite, job: ResolvedJob, post: Post) -> bool:
        """Wait until this coordinator is to lead; True if another one has led before."""
        mine = next((s.card.broker for s in invite.standbys if s.card.peer == self._identity.peer_id), invite.broker)
        urls = dict.fromkeys([invite.broker, *(standby.card.broker for standby in invite.standbys)])
        if self._options.broker == "embedded":
            urls.pop(mine)
        addresses = [BrokerAddress.of(invite, url) for url in urls]
        control = ControlPlane(
            addresses[0], self._swarm, invite.coordinators, post, secrets.token_hex(8), addresses[1:]
        )
        standby = Standby(self._folder, self._identity.peer_id, invite, job, control)
        first = self._first is None
        if not first:
            log.info("standing by: to lead when no coordinator was heard of for %.0f s", TIMEOUTS.takeover)
        async with asyncio.TaskGroup() as tasks:
            connection = tasks.create_task(control.run())
            await standby.until_needed(TIMEOUTS.first_look if first else TIMEOUTS.takeover)
            connection.cancel()
        if standby.followed:
            log.warning("nobody leads any more: taking over")
        return standby.followed

    def _own_broker(self, ends: Endpoints) -> str:
        return f"mqtt://{ends.announced_broker}" if self._options.broker == "embedded" else self._options.broker

    def _draft_invite(self, ends: Endpoints) -> Invite:
        address, ca = self._own_broker(ends), None
        split_broker_url(address)
        if self._options.broker_ca is not None:
            try:
                ca = self._options.broker_ca.read_text(encoding="ascii")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"--broker-ca {self._options.broker_ca}: {error}") from None
        return Invite(
            swarm=self._swarm,
            coordinator=self._identity.peer_id,
            dht=(f"/p2p/{self._identity.peer_id}",),
            broker=address,
            secret=self._secret,
            broker_ca=ca,
            standbys=tuple(
                AppointedStandby.appoint(StandbyCard.decode(card), self._swarm, self._identity)
                for card in self._options.cards
            ),
        )

    async def _serve(self, plane: DataPlane, archive: CheckpointCollector) -> None:
        shards = ShardFolder(self._folder / "tokens")
        await plane.serve(SHARDS, lambda stream: serve_shards(stream, shards.find))
        await plane.serve(STATE, lambda stream: serve_state(stream, archive))
        await plane.serve(CHECKPOINT, archive.take)

    async def _reach_broker(self, control: ControlPlane, address: BrokerAddress) -> None:
        try:
            async with asyncio.timeout(TIMEOUTS.broker_login):
                await control.connected.wait()
        except TimeoutError:
            raise UserError(
                f"the broker at {address} does not let the coordinator in "
                f"({control.last_error or 'no answer'}): check --broker, its password and its certificate"
            ) from None


async def _follow(path: Path, planner: Planner) -> None:
    """Take up what the owner writes to the file of a forced plan, until cancelled."""

    def written() -> int:
        return path.stat().st_mtime_ns if path.exists() else 0

    seen = written()
    while True:
        await asyncio.sleep(DHT_LOOK_SECONDS)
        if (now := written()) not in (0, seen):
            seen = now
            try:
                planner.force(Plan.load(path))
            except UserError as error:
                log.warning("%s: the plan before stays", error)


def _secret(path: Path) -> str:
    """Return the swarm's secret, 32 hex digits, made on first use (mode 600)."""
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    secret = secrets.token_hex(16)
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")
    return secret


def card(folder: Path, options: ServeOptions) -> StandbyCard:
    """Return the card with which a coordinator with the state dir `folder` is appointed as a standby.

    Raises:
        UserError: a port is taken, or others could not reach it.
    """
    ends = Endpoints.choose(folder, options)
    identity = Identity.load_or_create(folder / "key")
    host, _, _ = ends.announced_broker.rpartition(":")
    broker_url = f"mqtt://{ends.announced_broker}" if options.broker == "embedded" else options.broker
    return StandbyCard(peer=identity.peer_id, broker=broker_url, dht=announced(host, ends.data, identity.peer_id))
