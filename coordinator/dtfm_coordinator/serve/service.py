"""Service of a job: opens the three planes, hands out the invite, and lets the controller lead."""

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator.allocator.job_demand import kept_requirements
from dtfm_coordinator.lead.controller import Controller
from dtfm_coordinator.lead.lead_context import LeadContext
from dtfm_coordinator.lead.planner import Planner
from dtfm_coordinator.membership.known_peers import KnownPeers
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import DAY_SECONDS, Invited
from dtfm_coordinator.membership.tcp_check import open_doors
from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_coordinator.serve import key_replacement, mosquitto_files
from dtfm_coordinator.serve.embedded_broker import EmbeddedBroker
from dtfm_coordinator.serve.endpoints import Endpoints
from dtfm_coordinator.serve.enrolment_desk import LEDGER_LOOK_SECONDS, EnrolmentDesk
from dtfm_coordinator.serve.entrance import entrance
from dtfm_coordinator.serve.mosquitto_files import write_mosquitto_files
from dtfm_coordinator.serve.standby import Standby
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, SHARDS, STATE, serve_shards, serve_state
from dtfm_protocol.control.coordinator_lookup import look_for_new_keys
from dtfm_protocol.control.messages import JOB, MEMBERSHIP, PHASE, PRESENCE, MembershipNews, Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane, split_broker_url
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import MOST_AUTHORITIES, Admission
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.open_planes import open_planes
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.freshness_files import FreshnessFile, message_counter
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.dialling import rule_around
from dtfm_protocol.transport.multiaddress import announced
from dtfm_protocol.wire.stream import DataPlane

FIRST_INVITE_USES, FIRST_INVITE_DAYS = 100, 30.0
"""Nodes that may enter with the invite that `serve` prints, and days within which they may."""
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
    lan: bool = False
    """Whether addresses inside this machine's own network are dialled when peers announce them."""


class Coordinator:
    """Coordinator of one served job: its identity, its desk, its planes."""

    def __init__(self, job: Job, folder: Path, options: ServeOptions) -> None:
        self._job, self._folder, self._options = job, folder, options
        self._forced = Plan.load(options.plan) if options.plan else None
        self._identity = Identity.load_or_create(folder / key_replacement.KEY)
        self._first = Invite.decode(options.standby) if options.standby is not None else None
        """Invite of the swarm for which this coordinator stands by; None: it is the first one itself."""
        if self._first is not None:
            self._check_appointed(self._first)
        self._swarm = _swarm_id(folder) if self._first is None else self._first.swarm
        if self._first is None and key_replacement.is_due(folder):
            self._replace_key()

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
        ends = Endpoints.choose(folder, options)
        while await self._live(job, planner, ends, ready):
            log.info("going on with the new key, as %s", self._identity.peer_id)

    async def _live(self, job: ResolvedJob, planner: Planner, ends: Endpoints, ready: Callable[[str], None]) -> bool:
        """Serve under one key until the job is done, or the owner has asked for another; whether that is there now."""
        options, folder, ledger = self._options, self._folder, LedgerFile(self._folder)
        archive = CheckpointCollector(CheckpointStore(folder / "checkpoints"), job, self._swarm)
        invite = self._first or self._draft_invite(ends, ledger)
        admission = self._admission(invite)
        desk = EnrolmentDesk(self._identity, admission, ledger)
        coordinators = admission.coordinators
        if self._first is not None:
            await look_for_new_keys(invite, coordinators)
        post = Post(self._swarm, self._identity, counter=message_counter(folder))
        registry = Registry(self._swarm, post)
        async with contextlib.AsyncExitStack() as stack:
            is_alone = not invite.standbys
            if is_alone:  # then nobody else has the broker, and nodes can come back to it while the rest starts
                await self._open_entrance(stack, ends, invite, desk)
            dials = await rule_around(ends.announced_broker.rpartition(":")[0].strip("[]"), lan=options.lan)
            doors, known = await self._doors(invite, coordinators), await KnownPeers(folder).recall(dials)
            opening = open_planes(
                self._identity,
                admission,
                invite.service,
                registry,
                listen=options.listen,
                dials=dials,
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
            taken_over = not is_alone and await self._stand_by(invite, job, post, desk)
            if not is_alone:
                await self._open_entrance(stack, ends, invite, desk)
            address = BrokerAddress.of(invite, self._identity.peer_id)
            session = secrets.token_hex(8)
            control = ControlPlane(
                address,
                self._swarm,
                coordinators,
                post,
                session,
                identity=self._identity,
                admission=admission,
                heard=FreshnessFile(folder),
            )
            others_news = functools.partial(_merge_others, desk, self._identity.peer_id)
            control.on(MEMBERSHIP, others_news)  # two that lead hear each other where they share a broker
            context = LeadContext(
                job,
                folder,
                self._identity,
                self._swarm,
                coordinators,
                planner,
                archive,
                control,
                discovery,
                registry,
                session,
                dials,
            )
            controller = Controller(
                context,
                options.min_nodes,
                options.exit_when_done,
                without_quorum=options.without_quorum,
                taken_over=taken_over,
            )
            begins = self._first is None and not (folder / "plan.json").exists()
            desk.issue_when(lambda: is_alone or begins or controller.leads())
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(control.run()), tasks.create_task(plane.watch())]
                await self._reach_broker(control, address)
                await self._announce(control, job, invite, session)
                ready(invite.encode())
                desk.when_kicked(controller.kick)
                publish = functools.partial(control.publish, MEMBERSHIP)
                beside = [controller.attend(DHT_LOOK_SECONDS), desk.attend(publish, controller.peers_in_force)]
                if options.plan is not None:
                    beside.append(_follow(options.plan, planner))
                is_replaced = await self._lead(controller, beside)
                if is_replaced:
                    await self._hand_over(desk, publish)
                for task in background:
                    task.cancel()
        return is_replaced

    async def _lead(self, controller: Controller, beside: list[Coroutine[None, None, None]]) -> bool:
        """Lead until the job is done, or the owner has asked for a new key; whether that is so.

        Args:
            controller: leads.
            beside: what goes on meanwhile.
        """
        async with asyncio.TaskGroup() as tasks:
            meanwhile = [tasks.create_task(work) for work in beside]
            leading, due = tasks.create_task(controller.run()), tasks.create_task(self._until_key_is_due())
            await asyncio.wait({leading, due}, return_when=asyncio.FIRST_COMPLETED)
            for task in (leading, due, *meanwhile):
                task.cancel()
        return due.done() and not due.cancelled()

    async def _until_key_is_due(self) -> None:
        """Wait until the owner has asked for a new key; for ever, where this is not the first coordinator."""
        while self._first is not None or not key_replacement.is_due(self._folder):  # noqa: ASYNC110 - by a command
            await asyncio.sleep(LEDGER_LOOK_SECONDS)

    async def _hand_over(self, desk: EnrolmentDesk, publish: Callable[[MembershipNews], Awaitable[None]]) -> None:
        """Put the new key in the place of the old one, and let the old one's last word be that.

        Who does not hear it learns the same from the new key's certificate.
        """
        news = desk.news()
        self._replace_key()
        successor = key_replacement.own_certificate(self._folder, self._identity).hex()
        authorities = (successor, *news.authorities)[:MOST_AUTHORITIES]
        await publish(news.model_copy(update={"authorities": authorities}))

    def _replace_key(self) -> None:
        before = self._identity.peer_id
        self._identity = key_replacement.replace_key(self._folder, self._swarm)
        log.info("the key of %s is deleted: %s has taken its place", short(before), short(self._identity.peer_id))

    async def _announce(self, control: ControlPlane, job: ResolvedJob, invite: Invite, session: str) -> None:
        """Say that this coordinator leads, and what is trained; keep the invite to hand out."""
        await control.publish(PRESENCE, Presence(online=True, session=session))
        await control.publish(JOB, job)
        # A broker of its own may still hold the last life's phase, which would send new nodes away.
        await control.publish(PHASE, Phase(name="waiting", text="the coordinator is starting", session=session))
        write_atomically(self._folder / "invite", invite.encode() + "\n", private=True)

    def _admission(self, invite: Invite) -> Admission:
        """Return whom this coordinator lets in, before it knows of any bans."""
        own = key_replacement.own_certificate(self._folder, self._identity)
        others = (bytes.fromhex(standby.card.certificate) for standby in invite.standbys)
        return Admission(self._swarm, invite.coordinators, own, (own, *others))

    async def _open_entrance(
        self, stack: contextlib.AsyncExitStack, ends: Endpoints, invite: Invite, desk: EnrolmentDesk
    ) -> None:
        """Let newcomers enrol, and members reach the embedded broker; an external one is told who they are."""
        options, rules = self._options, TopicRules(self._swarm, desk.admission.coordinators)
        broker = EmbeddedBroker(rules) if options.broker == "embedded" else None
        if broker is None:
            write_mosquitto_files(self._folder / mosquitto_files.FOLDER, rules, desk.admission.authorities)
        opening = entrance(options.listen, ends.broker, self._identity, desk.admission, desk.enrol, broker)
        await stack.enter_async_context(opening)

    async def _doors(self, invite: Invite, coordinators: Coordinators) -> tuple[str, ...]:
        """Return the addresses at which to enter the swarm's network, beside this coordinator itself."""
        others = tuple(door for door in coordinators.renamed(invite.doors) if self._identity.peer_id not in door)
        doors = await open_doors(others)
        if self._first is not None and not doors:
            raise UserError(f"nobody of the swarm answers at {', '.join(others)}: start the standby while it is led")
        return doors

    async def _stand_by(self, invite: Invite, job: ResolvedJob, post: Post, desk: EnrolmentDesk) -> bool:
        """Wait until this coordinator is to lead; True if another one has led before."""
        is_embedded, me = self._options.broker == "embedded", self._identity.peer_id
        others = (peer for peer in invite.coordinators if peer != me or not is_embedded)
        addresses = list(dict.fromkeys(BrokerAddress.of(invite, peer) for peer in others))
        control = ControlPlane(
            addresses[0],
            self._swarm,
            desk.admission.coordinators,
            post,
            secrets.token_hex(8),
            addresses[1:],
            identity=self._identity,
            admission=desk.admission,
            heard=FreshnessFile(self._folder),
        )
        control.on(MEMBERSHIP, lambda _, news: desk.merge(news))
        standby = Standby(self._folder, self._identity.peer_id, desk.admission.coordinators, invite.swarm, job, control)
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

    def _draft_invite(self, ends: Endpoints, ledger: LedgerFile) -> Invite:
        broker, ca = _external(self._options), None
        if self._options.broker_ca is not None:
            try:
                ca = self._options.broker_ca.read_text(encoding="ascii")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"--broker-ca {self._options.broker_ca}: {error}") from None
        return Invite(
            swarm=self._swarm,
            coordinator=self._identity.peer_id,
            dht=(f"/p2p/{self._identity.peer_id}",),
            entrance=ends.announced_broker,
            broker=broker,
            token=self._first_token(ledger),
            broker_ca=ca,
            standbys=tuple(
                AppointedStandby.appoint(StandbyCard.decode(card), self._swarm, self._identity)
                for card in self._options.cards
            ),
        )

    def _first_token(self, ledger: LedgerFile) -> EntryToken:
        """Return the token of the invite that `serve` prints: the one of the last start as long as that counts."""
        with contextlib.suppress(UserError):
            token = Invite.decode(f"@{self._folder / 'invite'}").token
            known, me = ledger.ledger, self._identity.peer_id
            gone = (
                token.id in known.revoked or known.is_banned("", token.id) or len(known.users(token.id)) >= token.uses
            )
            if not gone and token.by == me and token.expires > time.time() + DAY_SECONDS:
                return token
        expires = int(time.time() + FIRST_INVITE_DAYS * DAY_SECONDS)
        token = EntryToken.issue(self._identity, self._swarm, FIRST_INVITE_USES, expires)
        ledger.append(Invited(token=token.id, uses=token.uses, expires=expires, name="printed by serve"))
        ledger.take_up()
        return token

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


def _merge_others(desk: EnrolmentDesk, me: str, sender: str, news: MembershipNews) -> None:
    if sender != me:
        desk.merge(news)


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


def _swarm_id(folder: Path) -> str:
    """Return the id of the swarm whose coordinator has this state folder, random at the first start."""
    path = folder / "swarm"
    if not path.exists():
        write_atomically(path, secrets.token_hex(8) + "\n")
    return path.read_text(encoding="ascii").strip()


def _external(options: ServeOptions) -> str | None:
    """Return the address of an external broker; None: the embedded one is used. Raises UserError where it is none."""
    if options.broker == "embedded":
        return None
    split_broker_url(options.broker)
    return options.broker


def card(folder: Path, options: ServeOptions) -> StandbyCard:
    """Return the card with which a coordinator with the state dir `folder` is appointed as a standby.

    Raises:
        UserError: a port is taken, or others could not reach it.
    """
    ends = Endpoints.choose(folder, options)
    identity = Identity.load_or_create(folder / "key")
    host, _, _ = ends.announced_broker.rpartition(":")
    return StandbyCard(
        peer=identity.peer_id,
        certificate=authority_certificate(identity).hex(),
        entrance=ends.announced_broker,
        broker=_external(options),
        dht=announced(host, ends.data, identity.peer_id),
    )
