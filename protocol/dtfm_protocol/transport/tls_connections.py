"""The TLS 1.3 connections from peer to peer, whose two ends have proven that they are members of the swarm.

However a connection comes about, from here or from there, or from both sides at once, its ends show their credentials
and prove the keys in them before a word is said, and then agree on the service that the stream is for.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from pydantic import Field

from dtfm_protocol.bounds import Port
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.schema import Schema
from dtfm_protocol.transport.certificates import Trust
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule
from dtfm_protocol.transport.dialling import addresses_to_dial
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.front_door import DoorLimits, FrontDoor, Visitor
from dtfm_protocol.transport.incoming_streams import answer, counted
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.transport.simultaneous_open import SimultaneousOpen
from dtfm_protocol.transport.sockets import connected_to
from dtfm_protocol.transport.tls_stream import PIECE_BYTES, TlsStream
from dtfm_protocol.wire.stream import Handler, StreamClosed, Unreachable, Way

HOST_LIMIT = 16
"""Hosts that an `Endpoint` may name."""
_YES, _NO = b"\x01", b"\x00"


class Endpoint(Schema):
    """The hosts and the port at which a peer takes direct connections."""

    hosts: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=HOST_LIMIT)]
    port: Port


class NoWay(Exception):
    """The reason why no direct stream came about; `connected`: whether somebody did answer at an address."""

    def __init__(self, why: str, *, connected: bool = False) -> None:
        super().__init__(why)
        self.connected = connected


@contextlib.asynccontextmanager
async def opening(stream: TlsStream, seconds: float) -> AsyncIterator[None]:
    """End `stream` where the block, a part of opening it, fails. Raises NoWay for what the other end fails in."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (StreamClosed, Refused, TimeoutError) as error:
        stream.abort()
        raise NoWay(str(error) or "no answer", connected=True) from None
    except BaseException:
        stream.abort()
        raise


class TlsConnections:
    """The direct connections of this peer: it opens streams over its own, and takes those of others at a listener."""

    def __init__(
        self,
        identity: Identity,
        admission: Admission,
        listener: socket.socket,
        handlers: Mapping[str, Handler],
        limits: DirectLimits,
        dials: DialRule = ANYWHERE,
        caps: TrafficCaps | None = None,
    ) -> None:
        """Take the listener over; connections are taken within `running`.

        Args:
            identity: this peer's key, which it proves on every connection.
            admission: this peer's credential, and whom it lets in; who is a member no more loses its streams.
            listener: a listening socket; closed in the end.
            handlers: the handler of each service; the mapping may change.
            limits: how long to wait, and how much to take on.
            dials: decides which addresses that peers give are dialled.
            caps: on what all streams together send and receive; None: there are none.
        """
        self.dials, self._caps = dials, caps
        self.trust = Trust(identity, admission)
        self.limits, self._admission = limits, admission
        self._listener, self._handlers = listener, handlers
        self._door = FrontDoor(listener, _door_limits(limits), self._take)
        self._staging = memoryview(bytearray(PIECE_BYTES))  # used between two awaits only, so one does for all streams
        self._streams: set[TlsStream] = set()
        self._taken: Counter[str] = Counter()
        admission.when_changed(self._part)
        admission.when_kicked(self._part_from)

    @property
    def port(self) -> int:
        """The port at which connections are taken."""
        return int(self._listener.getsockname()[1])

    @property
    def pending(self) -> int:
        """Number of connections whose other ends have not proven yet that they are members."""
        return self._door.pending

    @property
    def turned_away(self) -> Tally:
        """Number of connections that were not taken, by reason."""
        return self._door.turned_away

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take connections as long as the block lasts; then every stream is closed."""
        taking = asyncio.create_task(self._door.run())
        try:
            yield
        finally:
            taking.cancel()
            await asyncio.wait([taking])
            await self._door.end()
            self._listener.close()
            for stream in list(self._streams):
                stream.abort()

    async def dial(
        self, peer: str, endpoint: Endpoint, service: str, hole: SimultaneousOpen | None = None
    ) -> TlsStream:
        """Open a stream to `service` at `endpoint`.

        Raises:
            NoWay: nobody there, or not `peer`, or one of the two takes the other for no member.
            Unreachable: the peer does not offer the service.
        """
        return await self._request(await self._first(peer, endpoint, hole), service)

    async def over(self, connection: socket.socket, peer: str, service: str, way: Way) -> TlsStream:
        """Open a stream to `service` over a connection that has come about. Raises as `dial`."""
        stream = self._stream(connection, self.trust.client, server_side=False, way=way)
        await self._prove(stream, peer)
        return await self._request(stream, service)

    async def _request(self, stream: TlsStream, service: str) -> TlsStream:
        """Ask for `service` on a connection to a peer. Raises as `dial`."""
        name = service.encode()
        async with opening(stream, self.limits.handshake):
            await stream.write(bytes([len(name)]), name)
            if await stream.read(1) != _YES:
                raise Unreachable(f"{short(stream.peer)} does not offer {service}")
        return stream

    async def _first(self, peer: str, endpoint: Endpoint, hole: SimultaneousOpen | None = None) -> TlsStream:
        """Connect to the first of the hosts that proves to be `peer`; all are tried at once."""
        attempts = [asyncio.create_task(self._connect(peer, host, endpoint.port, hole)) for host in endpoint.hosts]
        faults = [NoWay("no connection to any of its addresses")]
        found: TlsStream | None = None
        try:
            for attempt in asyncio.as_completed(attempts):
                try:
                    found = await attempt
                    return found
                except NoWay as fault:
                    faults.append(fault)
            raise max(faults, key=lambda fault: fault.connected)
        finally:
            for task in attempts:
                task.cancel()
            for other in await asyncio.gather(*attempts, return_exceptions=True):
                if isinstance(other, TlsStream) and other is not found:
                    other.abort()

    async def _connect(self, peer: str, host: str, port: int, hole: SimultaneousOpen | None = None) -> TlsStream:
        try:
            async with asyncio.timeout(self.limits.connect):
                allowed = await addresses_to_dial(host, self.dials)
                if not allowed:
                    raise NoWay(f"{host} is inside this machine's own network, which the swarm is not: not dialled")
                ip = allowed[0]
                connection = await (connected_to(ip, port) if hole is None else hole.connect(ip, port))
        except (OSError, ValueError) as error:  # a ValueError: no host has such a name; a TimeoutError is an OSError
            raise NoWay(f"{host} port {port}: {error or 'no answer'}") from None
        stream = self._stream(connection, self.trust.client, server_side=False)
        await self._prove(stream, peer)
        return stream

    async def _prove(self, stream: TlsStream, peer: str) -> None:
        """Check that the other end is `peer` and has proven it. Raises NoWay where it is not."""
        async with opening(stream, self.limits.handshake):
            host, port = stream.remote
            stream.peer = self.trust.owner(await stream.handshake())
            if stream.peer != peer:
                raise Refused(f"{host} port {port} is {short(stream.peer)}'s")

    def admit(self, connection: socket.socket, way: Way = "direct") -> None:
        """Take a connection that has come about: let the other end prove a key, and serve it."""
        self._door.admit(connection, way)

    async def _take(self, visitor: Visitor) -> None:
        """Find out who has connected and for which service, and let its handler have the stream."""
        stream = self._stream(visitor.connection, self.trust.server, server_side=True, way=visitor.way)
        try:
            async with asyncio.timeout(self.limits.handshake):
                stream.peer = self.trust.owner(await stream.handshake())
            self._door.proven(visitor)
            await self._serve(stream)
        except (StreamClosed, Refused, TimeoutError) as error:
            self._door.turn_away("the other end left" if isinstance(error, StreamClosed) else str(error) or "too slow")
        finally:
            stream.abort()

    async def _serve(self, stream: TlsStream) -> None:
        """Let the service that a member asks for have its stream, unless the member has too many.

        Raises:
            Refused: it has, or the service is not offered.
            StreamClosed: it is gone before it has asked.
            TimeoutError: it does not ask.
        """
        if self._taken[stream.peer] >= self.limits.peer_streams:
            raise Refused("too many streams of one peer")
        with counted(self._taken, stream.peer):
            async with asyncio.timeout(self.limits.handshake):
                (size,) = await stream.read(1)
                handler = self._handlers.get(bytes(await stream.read(size)).decode(errors="replace"))
                await stream.write(_NO if handler is None else _YES)
            if handler is None:
                raise Refused("a service that is not offered")
            await answer(handler, stream)

    def _part(self) -> None:
        """End the streams of all who are members no more."""
        for peer in {stream.peer for stream in self._streams}:
            if peer and not self._admission.is_member(peer):
                self._part_from(peer)

    def _part_from(self, peer: str) -> None:
        """End the streams with one peer."""
        for stream in self.streams_with(peer):
            stream.abort()

    def streams_with(self, peer: str) -> list[TlsStream]:
        """Return the streams with one peer that are open."""
        return [stream for stream in self._streams if stream.peer == peer]

    def carried(self, peer: str) -> tuple[int, int]:
        """Return the bytes that have got to `peer`, and that have come from there, as `DataPlane.carried`."""
        told = [progress for stream in self.streams_with(peer) if (progress := stream.progress())]
        return sum(one.delivered for one in told), sum(one.received for one in told)

    def _stream(
        self, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool, way: Way = "direct"
    ) -> TlsStream:
        discard = self._streams.discard
        buffer = self._caps.down.receive_buffer() if self._caps is not None else None
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        stream = TlsStream(
            connection, context, self._staging, discard, server_side=server_side, way=way, caps=self._caps
        )
        self._streams.add(stream)
        return stream


def _door_limits(limits: DirectLimits) -> DoorLimits:
    return DoorLimits(
        limits.handshake, limits.pending, limits.pending_of_one, silence=limits.silence, rates=limits.rates
    )
