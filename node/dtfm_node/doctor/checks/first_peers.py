"""Check of the way to the other peers: TCP to the doors (addresses in the invite at which the DHT can be entered), the
libp2p peers behind them, and the DHT that they keep."""

import asyncio
import contextlib
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from dtfm_node.doctor.findings import Finding, bad, counted, good, warn
from dtfm_node.doctor.host_lookup import OTHER_PROGRAM, Host, closed_because, host_and_port, visit
from dtfm_node.doctor.outside_view import FAULTS, Clock, clock, observed, relays
from dtfm_protocol.discovery.dht import HivemindDiscovery, go_by
from dtfm_protocol.discovery.registry import Discovery, Registry
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.transport.ip_addresses import kind_of
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.wire.stream import Unreachable

GROUP = "swarm"
DOOR_LIMIT = 16
FIRST_PEER_SECONDS = 6.0
DHT_SECONDS = 8.0
DHT_CLOCK_SECONDS = 1.0
"""By so much clocks may differ before the DHT is read by the other one."""
_OTHER = re.compile(r"remote key matches (\w{1,128})")


@dataclass(frozen=True)
class FirstPeer:
    """A door: one of the invite's addresses at which the DHT can be entered, and what came of a TCP connection."""

    address: str
    peer: str
    host: Host


@dataclass(frozen=True)
class DhtMember:
    """A peer of which a record is in the DHT."""

    peer: str
    age: float
    """Seconds since the peer wrote its record."""
    version: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class AddressObservation:
    """An IP address and port at which a peer sees this machine."""

    peer: str
    at: str
    """IP address of the peer itself on that connection; "": not known."""
    ip: str
    port: int


@dataclass
class FirstPeersObservation:
    """Facts seen of the other peers. It is filled piece by piece, so that something is left when the time is over."""

    doors: list[FirstPeer] = field(default_factory=list)
    is_member: bool = True
    """Whether this machine shows a credential; else it is told little."""
    daemon_fault: str = ""
    """Reason why this machine's own libp2p daemon did not run; "": it did."""
    connected: list[str] = field(default_factory=list)
    """Peer ids of the doors whose peers have proven to be the ones that the invite names."""
    others: dict[str, str] = field(default_factory=dict)
    """Peer id that was found in the place of a door's peer, by the id that the invite names."""
    faults: dict[str, str] = field(default_factory=dict)
    """Reason why libp2p did not connect to a door's peer, by its peer id."""
    clocks: dict[str, Clock] = field(default_factory=dict)
    """Clocks of the peers whose DHT node answers, by peer id."""
    members: list[DhtMember] | None = None
    """Peers that the DHT lists; None: it was not read."""
    dht_fault: str = ""
    observations: list[AddressObservation] = field(default_factory=list)
    relays: list[str] = field(default_factory=list)
    """Peer ids of those that would relay connections to this machine."""


async def connect_to_all(invite: Invite) -> list[FirstPeer]:
    """Connect to every door by TCP, and return what came of it."""
    found = [(address, door) for address in invite.doors[:DOOR_LIMIT] if (door := host_and_port(address)) is not None]
    hosts = await asyncio.gather(*(visit(host, port) for _, (host, port, _) in found))
    return [FirstPeer(address, peer, host) for (address, (_, _, peer)), host in zip(found, hosts, strict=True)]


async def enter(seen: FirstPeersObservation, plane: LibP2PDataPlane, coordinators: Collection[str]) -> None:
    """Prove which peers are behind the open doors, and ask them for the time and for this machine's address.

    Args:
        seen: is filled.
        plane: this machine's plane.
        coordinators: peers that relay to every member, though they do not say so to others.
    """
    ways: dict[str, list[str]] = {}
    for door in seen.doors:
        if door.host.open:
            ways.setdefault(door.peer, []).append(door.address)
    await asyncio.gather(*(_connect(seen, plane, peer, tuple(addresses)) for peer, addresses in ways.items()))
    if not seen.is_member:
        seen.relays += [peer for peer in seen.connected if peer in coordinators]
    await asyncio.gather(*(_ask(seen, plane, peer) for peer in seen.connected))


async def _connect(seen: FirstPeersObservation, plane: LibP2PDataPlane, peer: str, addresses: tuple[str, ...]) -> None:
    try:
        async with asyncio.timeout(FIRST_PEER_SECONDS):
            await plane.introduce(peer, addresses)
    except TimeoutError:
        seen.faults[peer] = f"no answer for {FIRST_PEER_SECONDS:g} s"
    except Unreachable as error:
        other = _OTHER.search(str(error))
        if other is not None:
            seen.others[peer] = other[1]
        else:
            seen.faults[peer] = str(error).rpartition("] ")[2]
    else:
        seen.connected.append(peer)


async def _ask(seen: FirstPeersObservation, plane: LibP2PDataPlane, peer: str) -> None:
    if seen.is_member:
        try:
            seen.clocks[peer] = await clock(plane, peer)
        except FAULTS as error:
            seen.dht_fault = str(error) or "no answer"
        with contextlib.suppress(*FAULTS):
            if await relays(plane, peer):
                seen.relays.append(peer)
    await look_back(seen, plane, peer)


async def look_back(seen: FirstPeersObservation, plane: LibP2PDataPlane, peer: str) -> None:
    """Ask a connected peer at which address it sees this machine, and add the answer to `seen`."""
    with contextlib.suppress(*FAULTS):  # one that does not tell is no fault of this machine
        place = await observed(plane, peer)
        if place is not None:
            seen.observations.append(AddressObservation(peer, await _address_of(plane, peer), *place))


async def _address_of(plane: LibP2PDataPlane, peer: str) -> str:
    for info in await plane.p2p.list_peers():
        if str(info.peer_id) == peer:
            found = [door for address in info.addrs if (door := host_and_port(str(address))) is not None]
            return found[0][0] if found else ""
    return ""


async def read_dht(
    seen: FirstPeersObservation, plane: LibP2PDataPlane, invite: Invite, identity: Identity, admission: Admission
) -> None:
    """List the peers of the DHT in `seen`, by the clock of the peers that keep it."""
    if not seen.clocks:
        return
    ahead = next(iter(seen.clocks.values())).ahead
    if abs(ahead) > DHT_CLOCK_SECONDS:
        go_by(lambda: ahead)
    post = Post(invite.swarm, identity)
    registry = Registry(invite.swarm, post)
    bootstrap = tuple(door.address for door in seen.doors if door.peer in seen.clocks and door.host.open)
    try:
        running = HivemindDiscovery.running(plane, identity, admission, registry, bootstrap)
        async with asyncio.timeout(DHT_SECONDS), running as discovery:
            tap = _Tap(discovery)
            profiles = await registry.profiles(tap)
    except TimeoutError:
        seen.dht_fault = f"no answer for {DHT_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - hivemind raises many kinds, and none may end the other checks
        seen.dht_fault = str(error) or type(error).__name__
    else:
        written = {peer: _written(post, data) for peer, data in tap.found.items() if peer in profiles}
        seen.members = [
            DhtMember(peer, time.time() + ahead - written[peer], profile.version, profile.addresses)
            for peer, profile in profiles.items()
        ]


class _Tap:
    """A `Discovery` that passes everything on to `inner`, and remembers the signed records that were collected."""

    def __init__(self, inner: Discovery) -> None:
        self._inner = inner
        self.found: dict[str, bytes] = {}

    async def publish(self, key: str, record: bytes, seconds: float) -> bool:
        """Publish a record by `inner`."""
        return await self._inner.publish(key, record, seconds)

    async def collect(self, key: str) -> dict[str, bytes]:
        """Collect records by `inner`, and remember them in `found` by their subkey."""
        found = await self._inner.collect(key)
        self.found |= found
        return found

    async def greet(self) -> None:
        """Greet by `inner`."""
        await self._inner.greet()


def _written(post: Post, data: bytes) -> float:
    try:
        return post.open(data, "record").at
    except Refused:  # it was opened before
        return 0.0


def judge(seen: FirstPeersObservation, coordinators: tuple[str, ...]) -> list[Finding]:
    """Judge the doors and the DHT: one peer that answers is enough to enter by; the others are there for when it is
    gone."""
    if seen.daemon_fault:
        return [
            *_judge_doors(seen, coordinators),
            bad(
                GROUP,
                "libp2p",
                f"libp2p does not run on this machine: {seen.daemon_fault}",
                "install hivemind anew (pip install --force-reinstall hivemind), where no virus scanner stops its p2pd",
            ),
        ]
    found = _judge_doors(seen, coordinators)
    if seen.connected:  # one that answers is enough
        found = [warn(one.group, one.name, one.seen, one.todo) if one.todo else one for one in found]
        found += _judge_dht(seen)
    return found


def _judge_doors(seen: FirstPeersObservation, coordinators: tuple[str, ...]) -> list[Finding]:
    found = []
    for peer in dict.fromkeys(door.peer for door in seen.doors):
        doors = [door for door in seen.doors if door.peer == peer]
        name = f"coordinator {short(peer)}" if peer in coordinators else f"peer {short(peer)}"
        found += _judge_peer(seen, peer, name, doors)
    if not found:
        found.append(
            bad(
                GROUP,
                "doors",
                "the invite names no TCP address at which the DHT could be entered",
                "ask the swarm's owner for a new invite",
            )
        )
    return found


def _judge_peer(seen: FirstPeersObservation, peer: str, name: str, doors: list[FirstPeer]) -> list[Finding]:
    ways = [door.host for door in doors if door.host.open]
    if not ways:
        public = [door.host for door in doors if any(kind_of(one.host) == "global" for one in door.host.attempts)]
        what, todo = closed_because((public or [door.host for door in doors])[0])
        more = f" ({len(doors)} addresses were tried)" if len(doors) > 1 else ""
        return [bad(GROUP, name, what + more, todo)]
    took = min(attempt.seconds for host in ways for attempt in host.open)
    many = f", at {len(ways)} of {len(doors)} addresses" if len(doors) > 1 else ""
    at = f"{ways[0]}{many}"
    if peer in seen.others:
        return [
            bad(
                GROUP,
                name,
                f"at {at} is another peer ({short(seen.others[peer])}) than the invite names",
                "ask the swarm's owner for the newest invite: the coordinator's identity or address has changed",
            )
        ]
    if peer in seen.faults:
        return [
            bad(
                GROUP,
                name,
                f"what takes connections at {at} does not speak libp2p: {seen.faults[peer]}",
                OTHER_PROGRAM,
            )
        ]
    if peer in seen.connected:
        return [good(GROUP, name, f"is the one of the invite, at {at}; connected in {1000 * took:.0f} ms")]
    return [good(GROUP, name, f"takes connections at {at}, in {1000 * took:.0f} ms; libp2p was not tried")]


def _judge_dht(seen: FirstPeersObservation) -> list[Finding]:
    if not seen.is_member:
        return [good(GROUP, "DHT", "it is for members alone, and this machine is none yet: it was not looked at")]
    if seen.members is None:
        return [
            bad(
                GROUP,
                "DHT",
                f"it cannot be read: {seen.dht_fault or 'there was no time'}",
                "look again in a minute; if it stays so, ask the swarm's owner to restart the coordinator",
            )
        ]
    if not seen.members:
        return [good(GROUP, "DHT", "it answers; no node is listed yet")]
    ages = [member.age for member in seen.members]
    old = f"written {min(ages):.0f} s ago" if len(ages) == 1 else f"written {min(ages):.0f} to {max(ages):.0f} s ago"
    return [good(GROUP, "DHT", f"it answers, and lists {counted(len(ages), 'node')}, with records {old}")]
