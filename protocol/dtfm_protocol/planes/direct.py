"""The data plane's short way: TLS 1.3 over TCP from peer to peer, where one can reach the other; libp2p for the rest.

Through libp2p a tensor passes two more processes. Here it passes none: a stream is a TCP connection of its own, whose
two ends have proven the keys that their peer ids carry. Peers meet over libp2p, which proves their peer ids, and give
each other the certificates that they will show and the addresses at which they listen (`Endpoint`). Two that meet over
a relay, and cannot connect, try to open the connection from both sides (`punch`); its two ends prove the same.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated

from pydantic import Field, ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity import Identity, short
from dtfm_protocol.logs import log
from dtfm_protocol.planes.addresses import hosts_of
from dtfm_protocol.planes.certificates import CERTIFICATE_LIMIT, Trust
from dtfm_protocol.planes.data import Handler, Stream, StreamClosed, Unreachable, Way, read_message, write_message
from dtfm_protocol.planes.direct_stream import PIECE_BYTES, DirectStream
from dtfm_protocol.planes.libp2p import LibP2PDataPlane, answer
from dtfm_protocol.planes.punch import OUTSIDE_LIMIT, PUNCH, PUNCH_SECONDS, SEEN, Hole, Outside
from dtfm_protocol.planes.sockets import connected_to, listener_at
from dtfm_protocol.schema import Schema

DIRECT = "direct"
"""The libp2p service at which two peers tell each other how to connect."""
CONNECT_SECONDS = 2.0
"""For a TCP connection, to all of a peer's addresses at once."""
HANDSHAKE_SECONDS = 10.0
"""For what follows until a stream is open: TLS and the service's name. A busy machine is slow to answer."""
DETOUR_SECONDS = 60.0
"""How long a peer that could not be connected to is not tried again."""
PENDING_LIMIT = 64
"""Connections that have not proven a key yet; one more, and the oldest has to go."""
HOST_LIMIT = 16
ENDPOINT_LIMIT = 16 << 10
"""Bytes of the largest `Endpoint` message."""
_ACCEPT_PAUSE_SECONDS = 0.5
_YES, _NO = b"\x01", b"\x00"


class Endpoint(Schema):
    """Where a peer takes direct connections, and the certificate that it shows on them."""

    hosts: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=HOST_LIMIT)]
    port: Annotated[int, Field(ge=1, le=65535)]
    certificate: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=2 * CERTIFICATE_LIMIT)]
    """DER, in hexadecimal digits."""


class DirectDataPlane:
    """A peer that is reached directly where that is possible, and over libp2p. Create it with `running`."""

    def __init__(
        self, libp2p: LibP2PDataPlane, identity: Identity, listener: socket.socket, mirrors: tuple[str, ...]
    ) -> None:
        self.libp2p = libp2p
        self.peer_id = libp2p.peer_id
        self.turned_away: Counter[str] = Counter()
        """Why connections were not taken, and how often."""
        self._listener = listener
        self._trust = Trust(identity)
        self._staging = memoryview(bytearray(PIECE_BYTES))  # used between two awaits only, so one does for all streams
        self._mirrors = tuple(dict.fromkeys(peer for peer in mirrors if peer != self.peer_id))
        self._handlers: dict[str, Handler] = {SEEN: self._show}
        self._endpoints: dict[str, Endpoint] = {}
        """Of peers that have introduced themselves."""
        self._detours: dict[str, float] = {}
        """Peers that could not be connected to, and until when that is not questioned, in the loop's seconds."""
        self._relayed: set[str] = set()
        """Peers with which there is no connection but over a relay."""
        self._punched: set[str] = set()
        """Of the peers that cannot be connected to, those with which it succeeds from both sides."""
        self._ways: dict[str, Way] = {}
        self._introducing: dict[str, asyncio.Lock] = {}
        self._pending: dict[DirectStream, None] = {}
        self._streams: set[DirectStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        libp2p: LibP2PDataPlane,
        identity: Identity,
        *,
        listen: str = "0.0.0.0",
        port: int = 0,
        mirrors: tuple[str, ...] = (),
    ) -> AsyncIterator["DirectDataPlane"]:
        """Listen for direct connections; every stream of either side is closed on leaving.

        Args:
            libp2p: running with the same `identity`; it stays open.
            listen: the address to listen at: the one that `libp2p` listens at.
            port: the port to listen at if there is one and it is free; 0: any.
            mirrors: peers that can tell this one how it is seen from outside.

        Raises:
            UserError: nothing can listen at `listen`.
        """
        listener = listener_at(listen, port if port < 65536 else 0)
        plane = cls(libp2p, identity, listener, mirrors)
        try:
            plane._spawn(plane._accept())
            await libp2p.serve(DIRECT, plane._introduced)
            await libp2p.serve(PUNCH, plane._punch)
            yield plane
        finally:
            for task in plane._tasks:
                task.cancel()
            await asyncio.gather(*plane._tasks, return_exceptions=True)
            listener.close()
            for stream in list(plane._streams):
                stream.abort()

    async def watch(self) -> None:
        """See `LibP2PDataPlane.watch`."""
        await self.libp2p.watch()

    async def addresses(self) -> tuple[str, ...]:
        """See `DataPlane.addresses`."""
        return await self.libp2p.addresses()

    async def introduce(self, peer: str, addresses: tuple[str, ...]) -> None:
        """See `DataPlane.introduce`."""
        await self.libp2p.introduce(peer, addresses)

    async def serve(self, service: str, handler: Handler) -> None:
        """See `DataPlane.serve`."""
        self._handlers[service] = handler
        await self.libp2p.serve(service, handler)

    def way(self, peer: str) -> Way | None:
        """See `DataPlane.way`."""
        return self._ways.get(peer)

    async def open(self, peer: str, service: str) -> Stream:
        """See `DataPlane.open`."""
        stream = await self._open(peer, service)
        self._ways[peer] = stream.way
        return stream

    async def _open(self, peer: str, service: str) -> Stream:
        loop = asyncio.get_running_loop()
        until = self._detours.get(peer)
        if until is None:
            try:
                return await self._open_directly(peer, service)
            except _NoWay as error:
                log.debug("no direct way to %s: %s", short(peer), error)
        elif until <= loop.time():
            self._detours[peer] = loop.time() + DETOUR_SECONDS
            self._spawn(self._look_again(peer))
        stream: Stream | None = None
        if peer in self._punched or (until is None and peer in self._relayed):
            try:
                stream = await self._open_punched(peer, service)
                self._punched.add(peer)
            except _NoWay as error:
                self._punched.discard(peer)
                log.debug("no connection with %s from both sides: %s", short(peer), error)
        if stream is None:
            stream = await self.libp2p.open(
                peer, service
            )  # where this fails too, the peer is away: nothing to remember
        if peer not in self._detours:
            self._detours[peer] = loop.time() + DETOUR_SECONDS
            if peer in self._relayed:
                self._spawn(self._look_again(peer))
        return stream

    async def _look_again(self, peer: str) -> None:
        """See whether there is a better way to `peer` than the one in use, which nobody waits for."""
        try:
            (await self._open_directly(peer, SEEN, anyway=True)).abort()
        except (_NoWay, Unreachable):
            if peer in self._relayed and peer not in self._punched:
                with contextlib.suppress(_NoWay, Unreachable):
                    (await self._open_punched(peer, SEEN)).abort()
                    self._punched.add(peer)
        else:
            self._detours.pop(peer, None)
            self._punched.discard(peer)
            self._relayed.discard(peer)

    async def _open_directly(
        self, peer: str, service: str, hole: Hole | None = None, *, anyway: bool = False
    ) -> DirectStream:
        """Open a stream to a peer's endpoint; if the one it gave does not hold any more, to the one it gives now.

        Args:
            hole: to connect from.
            anyway: try also where only a relay reached the peer, so that libp2p has tried its addresses in vain.

        Raises:
            _NoWay: only libp2p may reach it.
            Unreachable: it does not offer the service.
        """
        known, fault = self._endpoints.get(peer), None
        if known is not None and (anyway or peer not in self._relayed):
            try:
                return await self._dial(peer, known, service, hole)
            except _NoWay as error:
                fault = error
        endpoint = await self._ask(peer, known)
        if fault is not None and not fault.connected and endpoint == known:
            raise fault
        if peer in self._relayed and not anyway:
            raise _NoWay("only a relay reaches it")
        return await self._dial(peer, endpoint, service, hole)

    async def _ask(self, peer: str, outdated: Endpoint | None) -> Endpoint:
        """Exchange endpoints over libp2p, unless somebody else just has.

        Raises:
            _NoWay: the peer cannot or does not do that.
        """
        async with self._introducing.setdefault(peer, asyncio.Lock()):
            if peer in self._endpoints and self._endpoints[peer] is not outdated:
                return self._endpoints[peer]
            try:
                stream = await self.libp2p.open(peer, DIRECT)
                try:
                    async with asyncio.timeout(HANDSHAKE_SECONDS):
                        await write_message(stream, await self._endpoint())
                        self._learn(stream, await read_message(stream, Endpoint, ENDPOINT_LIMIT))
                finally:
                    await stream.close()
            except (ConnectionError, Refused, TimeoutError) as error:
                raise _NoWay(str(error) or "no answer") from None
            return self._endpoints[peer]

    async def _introduced(self, stream: Stream) -> None:
        """The other side of `_ask`."""
        endpoint = await read_message(stream, Endpoint, ENDPOINT_LIMIT)
        if self._endpoints.get(stream.peer) != endpoint:
            self._learn(stream, endpoint)
            self._detours.pop(stream.peer, None)
        await write_message(stream, await self._endpoint())

    async def _endpoint(self) -> Endpoint:
        """This peer's own."""
        hosts = hosts_of(await self.libp2p.addresses())
        port = int(self._listener.getsockname()[1])
        return Endpoint(hosts=hosts[:HOST_LIMIT], port=port, certificate=self._trust.certificate.hex())

    def _learn(self, stream: Stream, endpoint: Endpoint) -> None:
        """Trust the certificate of a peer whose peer id libp2p has proven on `stream`."""
        self._trust.admit(stream.peer, bytes.fromhex(endpoint.certificate))
        self._endpoints[stream.peer] = endpoint
        if stream.way == "relayed":
            self._relayed.add(stream.peer)
        else:
            self._relayed.discard(stream.peer)

    async def _open_punched(self, peer: str, service: str) -> DirectStream:
        """Open a stream over a connection that both sides open.

        Raises:
            _NoWay: it does not come about.
            Unreachable: the peer does not offer the service.
        """
        try:
            meeting = await self.libp2p.open(peer, PUNCH)
        except Unreachable as error:
            raise _NoWay(str(error)) from None
        try:
            with Hole() as hole:
                async with self._seen(hole) as here:
                    async with asyncio.timeout(HANDSHAKE_SECONDS):
                        await write_message(meeting, here)
                        there = await read_message(meeting, Outside, OUTSIDE_LIMIT)
                    async with hole.meeting(there) as found:
                        stream = await self._first_punched(peer, service, found)
                        with contextlib.suppress(StreamClosed):
                            await meeting.write(_YES)  # so that the other side need not find it out as well
                        return stream
        except (StreamClosed, Refused, OSError) as error:  # a TimeoutError is an OSError
            if isinstance(error, Unreachable):
                raise
            raise _NoWay(str(error) or "no answer") from None
        finally:
            await meeting.close()

    async def _first_punched(self, peer: str, service: str, found: "asyncio.Queue[socket.socket]") -> DirectStream:
        """A stream over the first connection that proves to be with `peer`.

        Raises:
            TimeoutError: none comes.
            Unreachable: `peer` does not offer the service.
        """
        async with asyncio.timeout(PUNCH_SECONDS) as limit:
            while True:
                connection = await found.get()
                limit.reschedule(asyncio.get_running_loop().time() + HANDSHAKE_SECONDS)
                stream = self._stream(connection, self._trust.client, server_side=False, way="punched")
                with contextlib.suppress(_NoWay):
                    await self._prove(stream, peer)
                    return await self._request(stream, service)

    async def _punch(self, meeting: Stream) -> None:
        """The other side of `_open_punched`: like a connection that was accepted, but for how it comes about."""
        succeeded = False
        try:
            async with asyncio.timeout(2 * HANDSHAKE_SECONDS + PUNCH_SECONDS):
                there = await read_message(meeting, Outside, OUTSIDE_LIMIT)
                with Hole() as hole:
                    async with self._seen(hole) as here, hole.meeting(there) as found:
                        await write_message(meeting, here)
                        taking = asyncio.create_task(self._take_punched(found))
                        try:
                            # The other side closes the meeting when it has a stream, and says so, or has given up.
                            succeeded = await meeting.read(1) == _YES
                        finally:
                            taking.cancel()
        except (StreamClosed, _NoWay, OSError) as error:  # a TimeoutError is an OSError
            log.debug("no connection with %s from both sides: %s", short(meeting.peer), error)
        if meeting.peer in self._relayed:
            (self._punched.add if succeeded else self._punched.discard)(meeting.peer)
            self._detours.setdefault(meeting.peer, asyncio.get_running_loop().time() + DETOUR_SECONDS)

    async def _take_punched(self, found: "asyncio.Queue[socket.socket]") -> None:
        while True:
            self._admit(await found.get(), "punched")

    @contextlib.asynccontextmanager
    async def _seen(self, hole: Hole) -> AsyncIterator[Outside]:
        """How connections from `hole` are seen from outside; routers keep to it as long as the block lasts.

        Raises:
            _NoWay: nobody can tell.
        """
        for mirror in self._mirrors:
            try:
                stream = await self._open_directly(mirror, SEEN, hole, anyway=True)
                async with _opening(stream):
                    seen = await read_message(stream, Outside, OUTSIDE_LIMIT)
            except (_NoWay, Unreachable) as error:
                log.debug("%s does not tell how this peer is seen from outside: %s", short(mirror), error)
                continue
            try:
                yield seen
            finally:
                stream.abort()
            return
        raise _NoWay("nobody tells how this peer is seen from outside")

    async def _show(self, stream: Stream) -> None:
        """Tell a peer how it is seen."""
        assert isinstance(stream, DirectStream)  # this service is not offered over libp2p
        host, port = stream.remote
        try:
            seen = Outside(host=host.removeprefix("::ffff:"), port=port)
        except ValidationError:
            raise Refused(f"{host} is no IPv4 address") from None
        await write_message(stream, seen)
        await stream.read(1)  # until it has no more use for the connection

    async def _dial(self, peer: str, endpoint: Endpoint, service: str, hole: Hole | None = None) -> DirectStream:
        """Open a stream to `service` at `endpoint`.

        Raises:
            _NoWay: nobody there, or not `peer`, or it does not know this peer.
            Unreachable: it does not offer the service.
        """
        return await self._request(await self._first(peer, endpoint, hole), service)

    async def _request(self, stream: DirectStream, service: str) -> DirectStream:
        """Ask for `service` on a connection to a peer. Raises as `_dial`."""
        name = service.encode()
        async with _opening(stream):
            await stream.write(bytes([len(name)]), name)
            if await stream.read(1) != _YES:
                raise Unreachable(f"{short(stream.peer)} does not offer {service}")
        return stream

    async def _first(self, peer: str, endpoint: Endpoint, hole: Hole | None = None) -> DirectStream:
        """A connection to the first of the hosts that proves to be `peer`; all are tried at once."""
        attempts = [asyncio.create_task(self._connect(peer, host, endpoint.port, hole)) for host in endpoint.hosts]
        faults = [_NoWay("no connection to any of its addresses")]
        found: DirectStream | None = None
        try:
            for attempt in asyncio.as_completed(attempts):
                try:
                    found = await attempt
                    return found
                except _NoWay as fault:
                    faults.append(fault)
            raise max(faults, key=lambda fault: fault.connected)
        finally:
            for task in attempts:
                task.cancel()
            for other in await asyncio.gather(*attempts, return_exceptions=True):
                if isinstance(other, DirectStream) and other is not found:
                    other.abort()

    async def _connect(self, peer: str, host: str, port: int, hole: Hole | None = None) -> DirectStream:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await (connected_to(host, port) if hole is None else hole.connect(host, port))
        except (OSError, ValueError) as error:  # a ValueError: no host has such a name; a TimeoutError is an OSError
            raise _NoWay(f"{host} port {port}: {error or 'no answer'}") from None
        stream = self._stream(connection, self._trust.client, server_side=False)
        await self._prove(stream, peer)
        return stream

    async def _prove(self, stream: DirectStream, peer: str) -> None:
        """Have the other end prove that it is `peer`. Raises _NoWay where it is not."""
        async with _opening(stream):
            host, port = stream.remote
            stream.peer = self._trust.owner(await stream.handshake())
            if stream.peer != peer:
                raise Refused(f"{host} port {port} is {short(stream.peer)}'s")

    async def _accept(self) -> None:
        """Take connections, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no file descriptor left, or the other end gave up before it was taken
                self._turn_away(f"not accepted: {error.strerror}")
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket, way: Way = "direct") -> None:
        """Let whoever has connected prove a key."""
        if len(self._pending) >= PENDING_LIMIT:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort()
        stream = self._stream(connection, self._trust.server, server_side=True, way=way)
        self._pending[stream] = None
        self._spawn(self._take(stream))

    async def _take(self, stream: DirectStream) -> None:
        """Find out who has connected and for which service, and let its handler have the stream."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                stream.peer = self._trust.owner(await stream.handshake())
                self._pending.pop(stream, None)
                (size,) = await stream.read(1)
                handler = self._handlers.get(bytes(await stream.read(size)).decode(errors="replace"))
                await stream.write(_NO if handler is None else _YES)
            if handler is None:
                raise Refused("a service that is not offered")
        except (StreamClosed, Refused, TimeoutError) as error:
            self._turn_away("the other end left" if isinstance(error, StreamClosed) else str(error) or "too slow")
            stream.abort()
        else:
            await answer(handler, stream)
        finally:
            self._pending.pop(stream, None)

    def _turn_away(self, why: str) -> None:
        """Count a connection that comes to nothing; each reason is named once, for anybody can cause many."""
        if not self.turned_away[why]:
            log.debug("turned a direct connection away: %s", why)
        self.turned_away[why] += 1

    def _stream(
        self, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool, way: Way = "direct"
    ) -> DirectStream:
        discard = self._streams.discard
        stream = DirectStream(connection, context, self._staging, discard, server_side=server_side, way=way)
        self._streams.add(stream)
        return stream

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _NoWay(Exception):
    """No direct stream came about; `connected` where somebody did answer at an address."""

    def __init__(self, why: str, *, connected: bool = False) -> None:
        super().__init__(why)
        self.connected = connected


@contextlib.asynccontextmanager
async def _opening(stream: DirectStream) -> AsyncIterator[None]:
    """A part of opening `stream`, which ends where the part fails. Raises _NoWay for what the other end fails in."""
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            yield
    except (StreamClosed, Refused, TimeoutError) as error:
        stream.abort()
        raise _NoWay(str(error) or "no answer", connected=True) from None
    except BaseException:
        stream.abort()
        raise
