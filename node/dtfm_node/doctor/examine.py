"""Examination of everything: runs all looks side by side, each within its time, and has what they saw judged.

No fault of one stops another.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from dtfm_node.control.enrolment_client import EnrolmentClient
from dtfm_node.doctor.checks import (
    broker,
    clock_offset,
    first_peers,
    invite_text,
    ipv6,
    leftovers,
    ports,
    reachability,
    resources,
    versions,
)
from dtfm_node.doctor.doctor_options import DoctorOptions
from dtfm_node.doctor.findings import Finding, bad, warn
from dtfm_node.doctor.host_lookup import Host, host_and_port, visit
from dtfm_node.doctor.job_needs import Need, need_of
from dtfm_protocol.control.coordinator_lookup import look_for_new_keys
from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.state_dir import is_live
from dtfm_protocol.transport.dialling import rule_around
from dtfm_protocol.transport.ip_addresses import kind_of, own_addresses
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import announced, announced_port

T = TypeVar("T")
Membership = tuple[Identity, Admission]
"""A peer's key, and its credential."""

PEER_SECONDS = 4.0
PEER_LIMIT = 3
"""Number of nodes, beside the doors' peers, that are asked at which address they see this machine."""


@dataclass(frozen=True, kw_only=True)
class LookLimits:
    """Seconds that looks may take; what is under way then is given up, and what was seen until then is judged."""

    total: float = 24.0
    """All of them together: with reading the libraries before and tidying up after, half a minute."""
    broker: float = 16.0
    """Each broker."""
    swarm: float = 20.0
    """All about the other peers."""
    device: float = 20.0
    """This machine."""
    need: float = 18.0
    """What the job needs; less where the broker has taken long."""


@dataclass
class Ways:
    """Ways by which others may reach this machine. It is filled piece by piece, as for `FirstPeersObservation`."""

    port: int
    mapped: tuple[str, ...] = ()
    """IP addresses of the router that lead to this machine."""
    announce: Host | None = None
    announce_fault: str = ""


class Examination:
    """One look at everything; `findings` is what came of it."""

    def __init__(
        self,
        text: str,
        options: DoctorOptions,
        progress: Callable[[str], None],
        limits: LookLimits = LookLimits(),
        membership: Membership | None = None,
    ) -> None:
        """Look at nothing yet.

        Args:
            text: the invite.
            options: options with which the node is to join.
            progress: is told what is looked at.
            limits: seconds that looks may take.
            membership: key and credential with which this machine has entered the swarm; None: those of the state dir.
                Where there are none either, what is for members alone is not looked at.
        """
        self._limits, self._membership = limits, membership
        self._options, self._progress = options, progress
        self._invite, said = invite_text.look(text)
        if membership is None and self._invite is not None:
            self._membership = _membership_of(self._invite, options.state_dir)
        self.findings: list[Finding] = [said]
        self._unfinished: list[Finding] = []
        self._under_way: list[str] = []

    async def run(self) -> None:
        """Look at everything, and put what was found in `findings`."""
        options = self._options
        # Before this machine's own libp2p daemon starts: it takes its port, and sweeps what killed nodes left.
        listen, port = self._listen(), options.port or announced_port(options.announce)
        free, left = ports.look(listen, port), leftovers.look(options.state_dir)
        need, others = None, list[str]()
        async with asyncio.TaskGroup() as tasks:
            looking = resources.look(options.state_dir, options.device)
            here = tasks.create_task(self._within("this machine", self._limits.device, looking))
            if self._invite is not None:
                known = Coordinators(self._invite.swarm, self._invite.coordinators)
                self._invite = await look_for_new_keys(self._invite, known)
                seen, ways = first_peers.FirstPeersObservation(), Ways(port)
                need = await self._look_around(self._invite, seen, ways, listen, 0 if free[0].fault else port)
                others = [member.version for member in seen.members or []]
        has = here.result()
        if left.process is None:  # a node that runs here has its port, of course
            self._judge("ports", lambda: ports.judge(free))
        self._judge("leftovers", lambda: leftovers.judge(left))
        if has is not None:
            self._judge("this machine", lambda: resources.judge(has, need))
        self._judge("versions", lambda: versions.judge(*versions.look()))
        self._judge("versions", lambda: versions.judge_others(version("dtfm"), others))
        self.findings += self._unfinished

    async def _look_around(
        self, invite: Invite, seen: first_peers.FirstPeersObservation, ways: Ways, listen: str, port: int
    ) -> Need | None:
        """Go out to the coordinator and to the peers, both at once, and return what the job needs, if that is known
        then."""
        own = own_addresses()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._ask_coordinator(invite))
            visiting = self._visit(invite, seen, ways, listen, port)
            tasks.create_task(self._within("the other peers", self._limits.swarm, visiting))
        brokers, need = asking.result()
        hosts = [*(door.host for door in seen.doors), *(one.host for one in brokers)]
        self._judge("the coordinator's broker", lambda: broker.judge(brokers))
        self._judge("the other peers", lambda: first_peers.judge(seen, invite.coordinators))
        self._judge("the clock", lambda: _judge_clock(seen, brokers, invite))
        self._judge("ways to this machine", lambda: self._judge_reach(own, seen, ways))
        self._judge("IPv6", lambda: ipv6.judge(own, hosts))
        return need

    def _judge_reach(self, own: tuple[str, ...], seen: first_peers.FirstPeersObservation, ways: Ways) -> list[Finding]:
        announce = self._options.announce
        found = reachability.judge(
            own,
            ways.port,
            seen.observations,
            ways.mapped,
            seen.relays,
            announced=announce is not None,
            local=self._is_local(),
        )
        if announce is not None:
            found.append(reachability.judge_announce(announce, ways.announce, ways.announce_fault))
        return found

    async def _ask_coordinator(self, invite: Invite) -> tuple[list[broker.BrokerObservation], Need | None]:
        """Look at the coordinator's brokers, and at what its job needs."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limits.total
        addresses = (BrokerAddress.of(invite), *BrokerAddress.others(invite))
        looks = (
            self._within("the coordinator's broker", self._limits.broker, broker.look(invite, one, self._membership))
            for one in addresses
        )
        brokers = [found for found in await asyncio.gather(*looks) if found is not None]
        job = next((one.job for one in brokers if one.job is not None), None)
        if job is None:
            return brokers, None
        return brokers, await self._within(
            "what the job needs", min(self._limits.need, end - loop.time()), need_of(job)
        )

    async def _visit(
        self, invite: Invite, seen: first_peers.FirstPeersObservation, ways: Ways, listen: str, port: int
    ) -> None:
        """Join the swarm's network as a peer for a moment, a stranger if this machine is no member, and fill `seen` and
        `ways`."""
        identity, admission = self._membership or _as_stranger(invite)
        seen.is_member = self._membership is not None
        announce = self._options.announce
        try:
            announced(announce, port, identity.peer_id)
        except UserError as error:
            announce, ways.announce_fault = None, str(error)
        seen.doors = await first_peers.connect_to_all(invite)
        try:
            dials = await rule_around(BrokerAddress.of(invite).host, lan=self._options.lan)
            running = LibP2PDataPlane.running(
                identity, admission, invite.service, listen=listen, port=port, announce=announce, dials=dials
            )
            async with running as plane:
                ways.port = port or _port_of(await plane.addresses())
                await first_peers.enter(seen, plane, invite.coordinators)
                async with asyncio.TaskGroup() as tasks:
                    if seen.is_member:
                        tasks.create_task(self._look_at_members(invite, seen, plane, (identity, admission)))
                    tasks.create_task(self._look_at_ways(ways, plane, announce))
        except UserError as error:
            seen.daemon_fault = str(error)

    async def _look_at_members(
        self, invite: Invite, seen: first_peers.FirstPeersObservation, plane: LibP2PDataPlane, who: Membership
    ) -> None:
        """Read the DHT, and ask some of the nodes that it lists at which address they see this machine."""
        await first_peers.read_dht(seen, plane, invite, *who)
        others = [member for member in seen.members or [] if member.peer not in seen.connected]
        await asyncio.gather(*(_meet(seen, plane, member) for member in others[:PEER_LIMIT]))

    async def _look_at_ways(self, ways: Ways, plane: LibP2PDataPlane, announce: str | None) -> None:
        """Look for ways that lead here, and attempt at the announced one."""
        if announce is not None:
            door = host_and_port(announced(announce, ways.port, plane.peer_id)[0])
            if door is not None:
                ways.announce = await visit(*door[:2])
        else:
            own = own_addresses()
            doors_here = [door for address in await plane.addresses() if (door := host_and_port(address)) is not None]
            ways.mapped = tuple(host for host, _, _ in doors_here if host not in own and kind_of(host) != "loopback")

    def _is_local(self) -> bool:
        """Whether the swarm is on this machine alone; as `join` tells it."""
        return self._invite is not None and all("/127.0.0.1/" in address for address in self._invite.dht)

    def _listen(self) -> str:
        """Return the IP address at which `join` would listen: loopback for a swarm on this machine alone, else every
        interface."""
        return self._options.listen or ("127.0.0.1" if self._is_local() else "0.0.0.0")

    async def _within(self, name: str, seconds: float, looking: Awaitable[T]) -> T | None:
        """Return what `looking` comes to; where it fails or takes longer than `seconds`, None, with a finding that says
        so."""
        with self._shown(name):
            try:
                async with asyncio.timeout(seconds):
                    return await looking
            except TimeoutError:
                late = f"looking at {name} was given up after {seconds:.3g} s"
                self._unfinished.append(
                    warn("doctor", "time", late, "look again when this machine and its network have less to do")
                )
            except UserError as error:
                self._unfinished.append(bad("doctor", name, str(error), "change that, and look again"))
            except Exception as error:  # noqa: BLE001 - one check that fails must not stop the others
                self._unfinished.append(_failed("looking at", name, error))
        return None

    def _judge(self, name: str, judging: Callable[[], list[Finding]]) -> None:
        """Add the findings of `judging`; where that fails, a finding that says so."""
        try:
            self.findings += judging()
        except Exception as error:  # noqa: BLE001 - as above
            self._unfinished.append(_failed("judging", name, error))

    @contextlib.contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        self._under_way.append(name)
        self._progress(", ".join(self._under_way))
        try:
            yield
        finally:
            self._under_way.remove(name)
            self._progress(", ".join(self._under_way))


def _membership_of(invite: Invite, folder: Path | None) -> Membership | None:
    """Return the key and the credential in a node's state folder; None where there are none, or the node runs."""
    if folder is None or not (folder / "credential.json").exists() or is_live(folder):
        return None
    identity = Identity.load_or_create(folder / "key")
    admission = EnrolmentClient(invite, identity, folder).known()
    return None if admission is None else (identity, admission)


def _as_stranger(invite: Invite) -> Membership:
    """Return a key that is thrown away, and no credential."""
    return Identity.generate(), Admission(invite.swarm, invite.coordinators, b"")


def _failed(what: str, name: str, error: Exception) -> Finding:
    seen = f"{what} {name} failed: {type(error).__name__}: {error}"
    return warn("doctor", name, seen, "send this line to dtfm's developers")


async def _meet(seen: first_peers.FirstPeersObservation, plane: LibP2PDataPlane, member: first_peers.DhtMember) -> None:
    """Connect to a node, and ask it at which address it sees this machine."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(PEER_SECONDS):
            await plane.introduce(member.peer, member.addresses)
            await first_peers.look_back(seen, plane, member.peer)


def _judge_clock(
    seen: first_peers.FirstPeersObservation, brokers: list[broker.BrokerObservation], invite: Invite
) -> list[Finding]:
    """Judge the clock by the coordinator's own peer where it told the time, else by its broker, else by any peer."""
    for peer in invite.coordinators:
        if peer in seen.clocks:
            return clock_offset.judge(seen.clocks[peer].ahead, seen.clocks[peer].error)
    for one in brokers:
        if one.clock_ahead is not None:
            return clock_offset.judge(one.clock_ahead)
    told = next(iter(seen.clocks.values()), None)
    return clock_offset.judge(None) if told is None else clock_offset.judge(told.ahead, told.error)


def _port_of(addresses: tuple[str, ...]) -> int:
    return next((door[1] for address in addresses if (door := host_and_port(address)) is not None), 0)
