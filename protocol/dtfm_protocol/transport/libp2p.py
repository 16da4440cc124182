"""The data plane on libp2p, through the daemon that `libp2p_daemon` starts and ends.

The daemon proves peer ids, and lets anybody connect. So every stream and call begins with the credentials of its ends,
and who does not show one is disconnected (`doorkeeper`).
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.compat.hivemind import client_in, ignore_late_answers
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport import libp2p_daemon
from dtfm_protocol.transport.circuit_relay import GUEST, HOP, STOP, CircuitRelay
from dtfm_protocol.transport.daemon_control import connected_peers
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule
from dtfm_protocol.transport.dialling import dial_before_relays, multiaddresses_to_dial
from dtfm_protocol.transport.doorkeeper import DoorWatch
from dtfm_protocol.transport.incoming_streams import answer
from dtfm_protocol.transport.libp2p_admission import MemberAdmittance
from dtfm_protocol.transport.libp2p_limits import StreamLimits
from dtfm_protocol.transport.libp2p_stream import LibP2PStream, stream_of
from dtfm_protocol.transport.member_calls import PROOF, MemberCalls
from dtfm_protocol.transport.member_news import NewsExchange
from dtfm_protocol.transport.member_stream import MemberStream
from dtfm_protocol.transport.multiaddress import announced, binary, by_peer, is_local
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.transport.relay_guest import RelayGuest
from dtfm_protocol.transport.whereabouts import Whereabouts
from dtfm_protocol.wire.stream import Handler, Unreachable, Way

DAEMON_SHUTDOWN_SECONDS = 3.0
CALL_OVERHEAD = 1 << 10
"""Bytes that a call has beside what hivemind counts."""
ADDRESS_LIMIT = 16
"""Addresses that a peer publishes."""
RELAY_ADDRESS_LIMIT = 4
"""Addresses over relays that a peer publishes, of all its addresses."""


class LibP2PDataPlane:
    """A data plane of one peer of the libp2p network. Create it with `running`."""

    def __init__(
        self,
        p2p: Any,
        admission: Admission,
        announce: tuple[str, ...],
        name_service: Callable[[str], str],
        daemon: asyncio.subprocess.Process,
        relays: Mapping[str, tuple[str, ...]],
        doors: Mapping[str, tuple[str, ...]],
        relay_retry: float,
        limits: StreamLimits,
        dials: DialRule,
        caps: TrafficCaps | None = None,
    ) -> None:
        self.p2p = p2p
        self.calls = MemberCalls(p2p._client, admission, name_service, limits)
        """Calls to other members, and theirs to this one."""
        self.whereabouts = Whereabouts(self.calls, self.addresses, self.introduce, self._acquaintances)
        self.news = NewsExchange(self.calls, admission, self._acquaintances, limits.news)
        """What members tell each other of who is one."""
        self.streams = MemberAdmittance(admission, limits, caps)
        """Streams with other members."""
        self._dials = dials
        self.coordinators = admission.coordinators
        """Who may lead now; relays, and those to enter by, change with them."""
        self.relays = RelayGuest(relays, self.introduce, self.open, relay_retry, self.coordinators)
        self._daemon = daemon
        self._is_member, self._doors = admission.is_member, doors
        self._introduced: dict[str, tuple[str, ...]] = {}
        self._ways: dict[str, Way] = {}
        self.peer_id = str(p2p.peer_id)
        self._name_service = name_service
        self._announce = announce
        self._handlers: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        identity: Identity,
        admission: Admission,
        name_service: Callable[[str], str],
        *,
        listen: str = "0.0.0.0",
        port: int = 0,
        announce: str | None = None,
        bootstrap: tuple[str, ...] = (),
        relay: bool = False,
        relay_retry: float = TIMEOUTS.relay_retry,
        limits: StreamLimits = StreamLimits(),  # noqa: B008 - it is frozen
        dials: DialRule = ANYWHERE,
        caps: TrafficCaps | None = None,
    ) -> AsyncIterator["LibP2PDataPlane"]:
        """Start a daemon with `identity`, listening on `listen`:`port`; end it, and its sockets, on leaving.

        Args:
            identity: this peer's key.
            admission: this peer's credential, and whom it lets in; who is a member no more loses its streams.
            name_service: gives the libp2p protocol of a service; everybody can ask the daemon for those.
            announce: host or HOST:PORT at which others reach this peer, e.g. a forwarded port.
            bootstrap: multiaddresses of peers to enter the network by; those of them that are relays relay to this one.
            relay: whether this peer is a relay.
            relay_retry: seconds that the start waits for a relay, and between attempts (`Timeouts.relay_retry`).
            limits: how long the plane waits for proof, and how much it takes on at a time.
            dials: decides to which addresses peers are introduced. The daemon also dials addresses that it hears of
                from other peers' daemons, and asks nobody.
            caps: on what all streams together send and receive; None: there are none. The daemon's own messages are
                not counted.

        Raises:
            UserError: the daemon does not start, with what it said.
        """
        at = announced(announce, port, identity.peer_id)
        async with libp2p_daemon.running(identity, listen, port, at, bootstrap) as (daemon, folder):
            p2p: Any = None
            try:
                p2p = await client_in(folder).replicate(Multiaddr(f"/unix{libp2p_daemon.socket_of(folder)}"))
                ignore_late_answers(p2p)
                # What has more, the daemon would not refuse, but close the connection over which all calls go.
                p2p._client.control.persistent_conn_max_msg_size = libp2p_daemon.MESSAGE_LIMIT - CALL_OVERHEAD
                # On loopback there is nobody who could not connect.
                relays = {} if relay or is_local(listen) else by_peer(bootstrap)
                doors = by_peer(bootstrap)
                plane = cls(p2p, admission, at, name_service, daemon, relays, doors, relay_retry, limits, dials, caps)
                watch = DoorWatch(
                    p2p, daemon.pid, admission.is_member, lambda peer: plane.calls.call(peer, PROOF), limits
                )
                door, news = asyncio.create_task(watch.run()), asyncio.create_task(plane.news.run())
                try:
                    await plane.calls.serve(PROOF, _nothing, limit=0)
                    await plane.whereabouts.serve()
                    await plane.news.serve()
                    if relay:
                        await plane._be_relay()
                    async with plane.relays.staying():
                        yield plane
                finally:
                    for task in (door, news, *plane._handlers):
                        task.cancel()
                    await asyncio.gather(door, news, return_exceptions=True)
            finally:
                if p2p is not None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(DAEMON_SHUTDOWN_SECONDS):
                            await p2p.shutdown()

    async def watch(self) -> None:
        """Wait, until cancelled, for the end of the daemon, which must not come.

        Raises:
            UserError: the libp2p daemon has ended.
        """
        code = await self._daemon.wait()
        raise UserError(f"the libp2p daemon of this process has ended (code {code}): start this program again")

    async def addresses(self) -> tuple[str, ...]:
        """Return the multiaddresses at which this peer can be reached, as `DataPlane.addresses`."""
        if self._announce:
            return self._announce
        found = [str(address) for address in await self.p2p.get_visible_maddrs(latest=True)]
        outside = [address for address in found if "/127.0.0.1/" not in address and "/::1/" not in address]
        relayed = self.relays.addresses(self.peer_id)[:RELAY_ADDRESS_LIMIT]
        return (*(outside or found)[: ADDRESS_LIMIT - len(relayed)], *relayed)

    @property
    def port(self) -> int | None:
        """None: the daemon takes all connections. As `DataPlane.port`."""
        return None

    async def introduce(self, peer: str, addresses: tuple[str, ...], port: int | None = None) -> None:
        """Tell the daemon where `peer` can be reached, and connect to it, as `DataPlane.introduce`."""
        self._introduced[peer] = addresses
        await self._connect(peer, addresses)

    async def _connect(self, peer: str, addresses: tuple[str, ...]) -> None:
        allowed = await multiaddresses_to_dial(addresses, self._dials)
        if addresses and not allowed:
            raise Unreachable(
                f"{short(peer)} is announced at {', '.join(addresses)}, inside this machine's own network, which the "
                "swarm is not: not dialled without --lan"
            )
        await dial_before_relays(partial(self._dial, peer), allowed)

    async def _dial(self, peer: str, addresses: tuple[str, ...]) -> None:
        """Have the daemon connect to `peer` at any of these addresses.

        Raises:
            Unreachable: it does not.
        """
        try:
            where = [binary(address.removesuffix(f"/p2p/{peer}")) for address in addresses]
            await self.p2p._client.connect(PeerID.from_base58(peer), where)
        except (P2PDaemonError, ValueError, OSError) as error:
            raise Unreachable(f"{short(peer)} cannot be reached at {', '.join(addresses)}: {error}") from None

    @property
    def doors(self) -> Mapping[str, tuple[str, ...]]:
        """The peers by which this one has come in, or who has taken their places, and their addresses."""
        addresses = (address for known in self._doors.values() for address in known)
        return by_peer(self.coordinators.renamed(addresses))

    def way(self, peer: str) -> Way | None:
        """Return the way of the newest stream that was opened to `peer`, as `DataPlane.way`."""
        return self._ways.get(peer)

    def heard(self, peer: str) -> float:
        """Return minus infinity: the daemon does not say. As `DataPlane.heard`."""
        return -math.inf

    def carried(self, peer: str) -> tuple[int, int]:
        """Return 0 and 0: the sockets are the daemon's. As `DataPlane.carried`."""
        return 0, 0

    async def open(self, peer: str, service: str) -> MemberStream:
        """Open a stream to a service of `peer`, as `DataPlane.open`."""
        stream = await self.streams.opened(*await self._open(peer, self._name_service(service)))
        self._ways[peer] = stream.way
        return stream

    async def _open(self, peer: str, name: str) -> "_Opened":
        try:
            return await self._call(peer, name)
        except Unreachable:
            if await self._connected(peer):
                raise  # it does not offer the service
            await self._reconnect(peer)
            return await self._call(peer, name)

    async def _reconnect(self, peer: str) -> None:
        """Connect to a peer to which the daemon knows no way any more: it forgets soon where a peer can be reached, and
        has no way to ask for its relays. A relay comes last, for all that follows would take it.

        Raises:
            Unreachable: there is no way.
        """
        known = *self._introduced.get(peer, ()), *self.doors.get(peer, ())
        if known:
            with contextlib.suppress(Unreachable):
                await self._connect(peer, known)
                return
        try:
            await self.whereabouts.find(peer)
        except Unreachable:
            relayed = self.relays.may_reach(peer)
            if not relayed:
                raise
            await self._connect(peer, relayed)

    async def _call(self, peer: str, protocol: str) -> "_Opened":
        """Open a stream to a libp2p protocol of `peer`; return what the daemon says of it, and the stream.

        Raises:
            Unreachable: there is no route to the peer, or it does not speak the protocol.
        """
        try:
            opened: _Opened = await self.p2p.call_binary_stream_handler(PeerID.from_base58(peer), protocol)
            return opened
        except (P2PDaemonError, ValueError, OSError, asyncio.IncompleteReadError) as error:
            raise Unreachable(f"{short(peer)} cannot be reached: {error}") from None

    async def _acquaintances(self) -> list[str]:
        """Return the members to whom this peer is connected, those by whom it came in first."""
        connected = [peer for peer, _ in await connected_peers(self.p2p) if self._is_member(peer)]
        doors = self.doors
        return sorted(connected, key=lambda peer: peer not in doors)

    async def _connected(self, peer: str) -> bool:
        return any(str(other.peer_id) == peer for other in await self.p2p.list_peers())

    async def _be_relay(self) -> None:
        """Serve as a relay for members."""

        async def offer(peer: str) -> LibP2PStream:
            return stream_of(*await self._call(peer, STOP))

        async def take(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answer(relay.answer, stream_of(info, reader, writer))

        relay = CircuitRelay(offer)
        await self.serve(GUEST, relay.take_guest)
        await self._listen(HOP, take)

    async def serve(self, service: str, handler: Handler) -> None:
        """Answer streams to `service`, as `DataPlane.serve`."""

        async def take(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.streams.take(info, reader, writer, handler)

        await self._listen(self._name_service(service), take)

    async def _listen(self, protocol: str, take: "_Take") -> None:
        """Answer streams to a libp2p protocol."""

        async def taken(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._handlers.add(task)
                task.add_done_callback(self._handlers.discard)
            with contextlib.suppress(asyncio.CancelledError):  # the plane is closing, and nobody awaits this task
                await take(info, reader, writer)

        await self.p2p.add_binary_stream_handler(protocol, taken)


_Opened = tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]
"""What the daemon says of a stream, and its two ends here."""
_Take = Callable[[Any, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _nothing(peer: str, request: bytes) -> bytes:
    """Answer with the credential alone, which comes before every answer."""
    return b""
