"""The data plane on libp2p, through the daemon that `libp2p_daemon` starts and ends."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.compat.hivemind import client_in, ignore_late_answers
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport import libp2p_daemon
from dtfm_protocol.transport.circuit_relay import GUEST, HOP, STOP, CircuitRelay
from dtfm_protocol.transport.multiaddress import announced, binary, by_peer, is_local
from dtfm_protocol.wire.stream import Bytes, Handler, Stream, StreamClosed, Unreachable, Way

CLOSE_SECONDS = 1.0
DAEMON_SHUTDOWN_SECONDS = 3.0
RELAY_SECONDS = 5.0
"""Seconds that the start waits for a relay, and that pass between attempts to be the guest of one that is away."""
ADDRESS_LIMIT = 16
"""Addresses that a peer publishes."""
RELAY_ADDRESS_LIMIT = 4
"""Addresses over relays that a peer publishes, of all its addresses."""
_CIRCUIT = "/p2p-circuit"
_CHUNK = 1 << 18
T = TypeVar("T", bound=Stream)


class LibP2PStream:
    """A libp2p stream; the daemon has proven the other end's peer id."""

    def __init__(
        self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way = "direct"
    ) -> None:
        self.peer = peer
        self.way = way
        self._reader = reader
        self._writer = writer

    async def read(self, size: int) -> Bytes:
        """Read exactly `size` bytes, as `Stream.read`."""
        try:
            if size <= _CHUNK:
                return await self._reader.readexactly(size)
            # In pieces as they come: `readexactly` would let the reader's buffer grow to the whole size.
            buffer = bytearray(size)
            view, filled = memoryview(buffer), 0
            while filled < size:
                piece = await self._reader.read(min(size - filled, _CHUNK))
                if not piece:
                    raise StreamClosed(f"{short(self.peer)} closed the stream")
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
            return buffer
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            raise StreamClosed(f"{short(self.peer)} closed the stream") from None

    async def write(self, *buffers: Bytes) -> None:
        """Send all of `buffers` to the daemon, as `Stream.write`."""
        try:
            for buffer in buffers:
                self._writer.write(buffer)
            await self._writer.drain()
        except (ConnectionError, OSError, RuntimeError):
            raise StreamClosed(f"{short(self.peer)} closed the stream") from None

    async def forward(self, other: Stream) -> None:
        """Send what comes on this stream to `other`, as `Pipe.forward`."""
        while True:
            try:
                piece = await self._reader.read(_CHUNK)
            except OSError:
                return
            if not piece:
                return
            await other.write(piece)

    def pace(self, bytes_per_second: float) -> None:
        """Do nothing: the socket is the daemon's, which cannot pace. As `Stream.pace`."""

    def delivered(self) -> float | None:
        """Return None: the socket is the daemon's. As `Stream.delivered`."""
        return None

    def queued(self) -> float | None:
        """Return None: the socket is the daemon's. As `Stream.queued`."""
        return None

    async def close(self) -> None:
        """End the stream, as `Stream.close`."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()  # the other side does not read: what is still buffered is lost on it
        except asyncio.CancelledError:
            self._writer.transport.abort()
            raise
        except (ConnectionError, OSError):
            pass


class LibP2PDataPlane:
    """A data plane of one peer of the libp2p network. Create it with `running`."""

    def __init__(
        self,
        p2p: Any,
        announce: tuple[str, ...],
        name_service: Callable[[str], str],
        daemon: asyncio.subprocess.Process,
        relays: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.p2p = p2p
        self.guest_of: set[str] = set()
        """Relays over which this peer can be reached now."""
        self.guest = asyncio.Event()
        """Event that is set while this peer can be reached over a relay."""
        self._daemon = daemon
        self._relays = relays
        """Addresses of the relays that this peer may have, by relay."""
        self._introduced: dict[str, tuple[str, ...]] = {}
        self._ways: dict[str, Way] = {}
        self.peer_id = str(p2p.peer_id)
        self._name_service = name_service
        self._announce = announce
        self._handlers: set[asyncio.Task[None]] = set()
        self._stays: list[asyncio.Task[None]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        identity: Identity,
        name_service: Callable[[str], str],
        *,
        listen: str = "0.0.0.0",
        port: int = 0,
        announce: str | None = None,
        bootstrap: tuple[str, ...] = (),
        relay: bool = False,
    ) -> AsyncIterator["LibP2PDataPlane"]:
        """Start a daemon with `identity`, listening on `listen`:`port`; end it, and its sockets, on leaving.

        Args:
            name_service: gives the libp2p protocol of a service; only members of the swarm know it.
            announce: host or HOST:PORT at which others reach this peer, e.g. a forwarded port.
            bootstrap: multiaddresses of peers to enter the network by; those of them that are relays relay to this one.
            relay: whether this peer is a relay.

        Raises:
            UserError: the daemon does not start, with what it said.
        """
        at = announced(announce, port, identity.peer_id)
        async with libp2p_daemon.running(identity, listen, port, at, bootstrap) as (daemon, folder):
            p2p: Any = None
            try:
                p2p = await client_in(folder).replicate(Multiaddr(f"/unix{libp2p_daemon.socket_of(folder)}"))
                ignore_late_answers(p2p)
                # On loopback there is nobody who could not connect.
                plane = cls(p2p, at, name_service, daemon, {} if relay or is_local(listen) else by_peer(bootstrap))
                try:
                    if relay:
                        await plane._be_relay()
                    await plane._find_relays()
                    yield plane
                finally:
                    for task in [*plane._handlers, *plane._stays]:
                        task.cancel()
                    await asyncio.gather(*plane._stays, return_exceptions=True)
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
        relayed = self._relayed(self.peer_id, self.guest_of)[:RELAY_ADDRESS_LIMIT]
        return (*(outside or found)[: ADDRESS_LIMIT - len(relayed)], *relayed)

    def _relayed(self, peer: str, relays: Collection[str]) -> tuple[str, ...]:
        """List the addresses of a guest of `relays`."""
        return tuple(
            f"{address}{_CIRCUIT}/p2p/{peer}"
            for name, known in self._relays.items()
            if name in relays
            for address in known
        )

    async def introduce(self, peer: str, addresses: tuple[str, ...]) -> None:
        """Tell the daemon where `peer` can be reached, and connect to it, as `DataPlane.introduce`."""
        self._introduced[peer] = addresses
        await self._connect(peer, addresses)

    async def _connect(self, peer: str, addresses: tuple[str, ...]) -> None:
        try:
            where = [binary(address.removesuffix(f"/p2p/{peer}")) for address in addresses]
            await self.p2p._client.connect(PeerID.from_base58(peer), where)
        except (P2PDaemonError, ValueError, OSError) as error:
            raise Unreachable(f"{short(peer)} cannot be reached at {', '.join(addresses)}: {error}") from None

    def way(self, peer: str) -> Way | None:
        """Return the way of the newest stream that was opened to `peer`, as `DataPlane.way`."""
        return self._ways.get(peer)

    def heard(self, peer: str) -> float:
        """Return minus infinity: the daemon does not say. As `DataPlane.heard`."""
        return -math.inf

    async def open(self, peer: str, service: str) -> LibP2PStream:
        """Open a stream to a service of `peer`, as `DataPlane.open`."""
        stream = await self._open(peer, self._name_service(service))
        self._ways[peer] = stream.way
        return stream

    async def _open(self, peer: str, name: str) -> LibP2PStream:
        try:
            return await self._call(peer, name)
        except Unreachable:
            if await self._connected(peer):
                raise  # it does not offer the service
            # The daemon forgets soon where a peer can be reached, and has no way to ask for its relays.
            known = *self._introduced.get(peer, ()), *self._relayed(peer, set(self._relays) - {peer})
            if not known:
                raise
            await self._connect(peer, known)
            return await self._call(peer, name)

    async def _call(self, peer: str, protocol: str) -> LibP2PStream:
        """Open a stream to a libp2p protocol of `peer`.

        Raises:
            Unreachable: there is no route to the peer, or it does not speak the protocol.
        """
        try:
            return _stream(*await self.p2p.call_binary_stream_handler(PeerID.from_base58(peer), protocol))
        except (P2PDaemonError, ValueError, OSError, asyncio.IncompleteReadError) as error:
            raise Unreachable(f"{short(peer)} cannot be reached: {error}") from None

    async def _connected(self, peer: str) -> bool:
        return any(str(other.peer_id) == peer for other in await self.p2p.list_peers())

    async def _be_relay(self) -> None:
        """Serve as a relay for members."""
        relay = CircuitRelay(lambda peer: self._call(peer, STOP))
        await self.serve(GUEST, relay.take_guest)
        await self._listen(HOP, relay.answer)

    async def _find_relays(self) -> None:
        """Become the guest of relays and stay it; returns when there is one, or none that is there."""
        first: dict[str, asyncio.Event] = {relay: asyncio.Event() for relay in self._relays}
        self._stays = [asyncio.create_task(self._stay(relay, tried)) for relay, tried in first.items()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELAY_SECONDS):
                for tried in first.values():
                    await tried.wait()
                    if self.guest.is_set():
                        break

    async def _stay(self, relay: str, tried: asyncio.Event) -> None:
        """Stay the guest of `relay`, again whenever that has ended, until cancelled."""
        while True:
            try:
                await self.introduce(relay, self._relays[relay])
                stream = await self.open(relay, GUEST)
                try:
                    await stream.read(1)
                    self.guest_of.add(relay)
                    self.guest.set()
                    tried.set()
                    await stream.read(1)  # until the relay, or the way to it, is gone
                finally:
                    self.guest_of.discard(relay)
                    if not self.guest_of:
                        self.guest.clear()
                    await stream.close()
            except (Unreachable, StreamClosed) as error:
                log.debug("no guest of the relay %s: %s", short(relay), error)
            tried.set()
            await asyncio.sleep(RELAY_SECONDS)

    async def serve(self, service: str, handler: Handler) -> None:
        """Answer streams to `service`, as `DataPlane.serve`."""
        await self._listen(self._name_service(service), handler)

    async def _listen(self, protocol: str, handler: Callable[[LibP2PStream], Awaitable[None]]) -> None:
        """Answer streams to a libp2p protocol."""

        async def take(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._handlers.add(task)
                task.add_done_callback(self._handlers.discard)
            await answer(handler, _stream(info, reader, writer))

        await self.p2p.add_binary_stream_handler(protocol, take)


def _stream(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> LibP2PStream:
    """Make the stream of which the daemon says `info`: the other end, and the address of the connection below."""
    return LibP2PStream(str(info.peer_id), reader, writer, "relayed" if _CIRCUIT in str(info.addr) else "direct")


async def answer(handler: Callable[[T], Awaitable[None]], stream: T) -> None:
    """Hand a stream that a peer has opened to `handler`; nothing that goes wrong with it goes further."""
    try:
        await handler(stream)
    except StreamClosed:
        pass
    except Refused as error:
        log.warning("refused a stream of %s: %s", short(stream.peer), error)
    except asyncio.CancelledError:
        pass  # the plane is closing, and nobody awaits this task
    except Exception:  # noqa: BLE001 - a bug in one handler must not end the daemon; it is logged whole
        log.exception("a stream of %s failed here", short(stream.peer))
    finally:
        await stream.close()
