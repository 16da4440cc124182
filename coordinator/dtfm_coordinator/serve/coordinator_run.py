"""Run of a coordinator under one key: it opens its planes, stands by while another one leads, and leads."""

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dtfm_coordinator.leader.controller import Controller
from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.membership.known_peers import KnownPeers
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.reachable_addresses import still_reachable
from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_coordinator.serve import mosquitto_files
from dtfm_coordinator.serve.announced_address import look_at_announced
from dtfm_coordinator.serve.beginning import STANDING_BY, Beginning
from dtfm_coordinator.serve.boards.board_feed import BoardFeed
from dtfm_coordinator.serve.boards.opened_boards import open_boards
from dtfm_coordinator.serve.embedded_broker import EmbeddedBroker
from dtfm_coordinator.serve.endpoints import Endpoints, host_of
from dtfm_coordinator.serve.enrolment_desk import EnrolmentDesk
from dtfm_coordinator.serve.entrance import entrance
from dtfm_coordinator.serve.first_invite import draft_invite, keep_invite
from dtfm_coordinator.serve.forced_plan import follow_forced_plan
from dtfm_coordinator.serve.member_desk import member_desk
from dtfm_coordinator.serve.notices.notice_sender import NoticeSender
from dtfm_coordinator.serve.own_key import OwnKey
from dtfm_coordinator.serve.serve_options import ServeOptions
from dtfm_coordinator.serve.standby import Standby
from dtfm_coordinator.serve.standby_words import StandbyView, standby_health
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.checkpoint.base_pieces import FOLDER as BASE_FOLDER
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.base_transfers import BASE, serve_base
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, SHARDS, STATE, serve_shards, serve_state
from dtfm_protocol.control.coordinator_lookup import look_for_new_keys
from dtfm_protocol.control.messages import JOB, MEMBERSHIP, PHASE, PRESENCE, MembershipNews, Phase, Presence
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.job.job_file import Sharing
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.open_planes import Planes, open_planes
from dtfm_protocol.process.freshness_files import FreshnessFile, message_counter
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.dial_rule import DialRule
from dtfm_protocol.transport.dialling import rule_around
from dtfm_protocol.wire.stream import DataPlane

DHT_LOOK_SECONDS = 0.5
"""How often the DHT is read."""


@dataclass(frozen=True)
class ServedJob:
    """What a coordinator serves and with what, whatever its key."""

    swarm: str
    """Id of the swarm."""
    job: ResolvedJob
    planner: Planner
    folder: Path
    """State folder."""
    options: ServeOptions
    ends: Endpoints
    sharing: Sharing = Sharing()  # noqa: RUF009 - it is frozen
    joined: Invite | None = None
    """Invite of the swarm for which this coordinator stands by; None: it is the swarm's first one itself."""
    beginning: Beginning | None = None
    """What is told of the service until it leads; None: nobody is told."""


class CoordinatorRun:
    """Run of a coordinator under one key."""

    def __init__(self, served: ServedJob, key: OwnKey) -> None:
        """Open nothing before `run`.

        Raises:
            UserError: an option cannot be used, or the state folder cannot be read or written.
        """
        self._served, self._key, self._identity = served, key, key.identity
        self._swarm, self._folder, self._options = served.swarm, served.folder, served.options
        self._ledger = ledger = LedgerFile(self._folder)
        self._archive = CheckpointCollector(CheckpointStore(self._folder / "checkpoints"), served.job, self._swarm)
        self._invite = served.joined or draft_invite(
            self._options, served.ends, self._swarm, self._identity, self._folder, ledger
        )
        self._admission = self._everybody()
        self._coordinators = self._admission.coordinators
        self._desk = EnrolmentDesk(self._identity, self._admission, ledger)
        self._post = Post(self._swarm, self._identity, counter=message_counter(self._folder))
        self._registry = Registry(self._swarm, self._post)
        self._is_alone = not self._invite.standbys
        self._session = secrets.token_hex(8)

    def _everybody(self) -> Admission:
        """Return whom this coordinator lets in, before it knows of any bans."""
        own = self._key.certificate
        others = (bytes.fromhex(standby.card.certificate) for standby in self._invite.standbys)
        return Admission(self._swarm, self._invite.coordinators, own, (own, *others))

    async def run(self, ready: Callable[[str], None]) -> bool:
        """Serve until the job is done, or the owner has asked for another key; whether that is there now.

        Args:
            ready: called with the invite once nodes can join.

        Raises:
            UserError: a port is taken, the broker or the swarm is out of reach, or a run cannot go on.
        """
        if self._served.joined is not None:
            await look_for_new_keys(self._invite, self._coordinators)
        async with contextlib.AsyncExitStack() as stack:
            if self._is_alone:  # then nobody else has the broker, and nodes can come back to it while the rest starts
                await self._open_entrance(stack)
            dials = await rule_around(host_of(self._served.ends.announced_broker), lan=self._options.lan)
            planes = await self._open_planes(stack, dials)
            await self._serve_data(planes.data)
            if self._served.joined is None:
                self._invite = self._invite.model_copy(update={"dht": await planes.data.addresses()})
            taken_over = not self._is_alone and await self._stand_by()
            if not self._is_alone:
                await self._open_entrance(stack)
            address = BrokerAddress.of(self._invite, self._identity.peer_id)
            control = self._control(self._session, address)
            control.on(MEMBERSHIP, self._merge)  # two that lead hear each other where they share a broker
            controller = self._controller(control, planes, dials, taken_over=taken_over)
            begins = self._served.joined is None and not (self._folder / "plan.json").exists()
            self._desk.issue_when(lambda: self._is_alone or begins or controller.leads())
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(control.run()), tasks.create_task(planes.data.watch())]
                await _log_in(control, address)
                await _announce(control, self._served.job, self._session)
                keep_invite(self._folder, self._invite)
                ready(self._invite.encode())
                is_replaced = await self._lead(control, controller)
                for task in background:
                    task.cancel()
        return is_replaced

    async def _open_entrance(self, stack: contextlib.AsyncExitStack) -> None:
        """Let newcomers enrol, and members reach the embedded broker; an external one is told who they are."""
        options, rules, admission = self._options, TopicRules(self._swarm, self._coordinators), self._admission
        broker = EmbeddedBroker(rules) if options.broker == "embedded" else None
        if broker is None:
            mosquitto_files.write_mosquitto_files(self._folder / mosquitto_files.FOLDER, rules, admission.authorities)
        served = self._served
        desk = await stack.enter_async_context(member_desk(self._key, served.swarm, served.job, served.sharing))
        opening = entrance(
            options.listen, served.ends.broker, self._identity, admission, self._desk.enrol, broker, desk=desk.serve
        )
        await stack.enter_async_context(opening)

    async def _open_planes(self, stack: contextlib.AsyncExitStack, dials: DialRule) -> Planes:
        ends = self._served.ends
        doors, known = await self._doors(), await KnownPeers(self._folder).recall(dials)
        opening = open_planes(
            self._identity,
            self._admission,
            self._invite.service,
            self._registry,
            listen=self._options.listen,
            dials=dials,
            port=ends.data,
            direct_port=ends.data + 1 if self._options.port else 0,
            announce=ends.announced_data,
            bootstrap=doors,
            known_peers=known,
            relay=True,
        )
        return await stack.enter_async_context(opening)

    async def _doors(self) -> tuple[str, ...]:
        """Return the addresses at which to enter the swarm's network, beside this coordinator itself."""
        doors = self._coordinators.renamed(self._invite.doors)
        others = tuple(door for door in doors if self._identity.peer_id not in door)
        found = await still_reachable(others)
        if self._served.joined is not None and not found:
            raise UserError(f"nobody of the swarm answers at {', '.join(others)}: start the standby while it is led")
        return found

    async def _serve_data(self, plane: DataPlane) -> None:
        await _serve_beginning(plane, self._folder)
        await plane.serve(STATE, lambda stream: serve_state(stream, self._archive))
        await plane.serve(CHECKPOINT, self._archive.take)

    def _control(self, session: str, address: BrokerAddress, *others: BrokerAddress) -> ControlPlane:
        return ControlPlane(
            address,
            self._swarm,
            self._coordinators,
            self._post,
            session,
            others,
            identity=self._identity,
            admission=self._admission,
            heard=FreshnessFile(self._folder),
        )

    async def _stand_by(self) -> bool:
        """Wait until this coordinator is to lead; True if another one has led before."""
        is_embedded, me = self._options.broker == "embedded", self._identity.peer_id
        others = (peer for peer in self._invite.coordinators if peer != me or not is_embedded)
        addresses = dict.fromkeys(BrokerAddress.of(self._invite, peer) for peer in others)
        control = self._control(secrets.token_hex(8), *addresses)
        control.on(MEMBERSHIP, lambda _, news: self._desk.merge(news))
        standby = Standby(self._folder, me, self._coordinators, self._invite.swarm, self._served.job, control)
        return await standby.follow(is_first=self._served.joined is None, tell=_teller(self._served.beginning))

    def _controller(self, control: ControlPlane, planes: Planes, dials: DialRule, *, taken_over: bool) -> Controller:
        served, options = self._served, self._options
        context = LeadContext(
            served.job,
            self._folder,
            self._identity,
            self._swarm,
            self._coordinators,
            served.planner,
            self._archive,
            control,
            planes.discovery,
            self._registry,
            self._session,
            dials,
            lambda: self._ledger.ledger.names(),
            lambda: self._ledger.ledger.banned_members(),
            *(served.beginning.over() if served.beginning is not None else ()),
        )
        return Controller(
            context,
            options.min_nodes,
            options.exit_when_done,
            without_quorum=options.without_quorum,
            taken_over=taken_over,
        )

    async def _lead(self, control: ControlPlane, controller: Controller) -> bool:
        """Lead until the job is done, or the owner has asked for a new key; whether that has taken its place."""
        self._desk.when_kicked(controller.kick)
        publish = functools.partial(control.publish, MEMBERSHIP)
        beside = [controller.attend(DHT_LOOK_SECONDS), self._desk.attend(publish, controller.peers_in_force)]
        if self._options.plan is not None:
            beside.append(follow_forced_plan(self._options.plan, self._served.planner))
        if self._served.beginning is not None:  # it is served to others
            beside.append(look_at_announced(self._served.ends, self._options, self._identity.peer_id))
        if boards := open_boards(self._options.boards, self._folder, self._swarm, self._served.job.name):
            beside.append(BoardFeed(self._folder, boards).run())
        async with self._telling(controller), asyncio.TaskGroup() as tasks:
            meanwhile = [tasks.create_task(work) for work in beside]
            leading, due = tasks.create_task(controller.run()), tasks.create_task(self._key.until_due())
            await asyncio.wait({leading, due}, return_when=asyncio.FIRST_COMPLETED)
            for task in (leading, due, *meanwhile):
                task.cancel()
        if due.cancelled():
            return False
        await self._key.hand_over(self._desk, publish)
        return True

    def _telling(self, controller: Controller) -> contextlib.AbstractAsyncContextManager[None]:
        """Send notices to the owner within the block, if that is asked for."""
        if self._options.notices is None:
            return contextlib.nullcontext()
        sender = NoticeSender(self._options.notices)
        controller.overviews.tell(sender.look)
        return sender.running(TIMEOUTS.goodbye)

    def _merge(self, sender: str, news: MembershipNews) -> None:
        if sender != self._identity.peer_id:
            self._desk.merge(news)


def _teller(beginning: Beginning | None) -> Callable[[StandbyView], None]:
    """Return what tells people of a coordinator that stands by."""

    def tell(view: StandbyView) -> None:
        if beginning is not None:
            beginning.show(STANDING_BY, standby_health(view))

    return tell


async def _log_in(control: ControlPlane, address: BrokerAddress) -> None:
    """Wait until the broker has let this coordinator in."""
    try:
        async with asyncio.timeout(TIMEOUTS.broker_login):
            await control.connected.wait()
    except TimeoutError:
        raise UserError(
            f"the broker at {address} does not let the coordinator in "
            f"({control.last_error or 'no answer'}): check --broker, its password and its certificate"
        ) from None


async def _announce(control: ControlPlane, job: ResolvedJob, session: str) -> None:
    """Say that this coordinator leads, and what is trained."""
    await control.publish(PRESENCE, Presence(online=True, session=session, version=product_version()))
    await control.publish(JOB, job)
    # A broker of its own may still hold the last life's phase, which would send new nodes away.
    await control.publish(PHASE, Phase(name="waiting", text="the coordinator is starting", session=session))


async def _serve_beginning(plane: DataPlane, folder: Path) -> None:
    """Give away what a job begins with: its tokens, and pretrained weights."""
    shards, pieces = ShardFolder(folder / "tokens"), PieceFolder(folder / BASE_FOLDER)
    await plane.serve(SHARDS, lambda stream: serve_shards(stream, shards.find))
    await plane.serve(BASE, lambda stream: serve_base(stream, pieces))
