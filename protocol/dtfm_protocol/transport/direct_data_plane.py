"""The data plane of a running peer: TLS 1.3 over TCP where one peer can reach the other, libp2p for the rest.

Through libp2p a tensor passes two more processes. Here it passes none: a stream is a TCP connection of its own, whose
two ends have proven that they are members. Peers meet over libp2p, and tell each other the addresses at which they
listen (`Endpoint`). Two that meet over a relay, and cannot connect, try to open the connection from both sides
(`hole_punching`); its two ends prove the same.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.endpoint_exchange import DIRECT, EndpointExchange
from dtfm_protocol.transport.hole_punching import PUNCH, SEEN, HolePuncher
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import hosts_of
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.transport.route import (
    BothSidesTried,
    EndpointLearned,
    Event,
    LookedAgain,
    Move,
    MoveFailed,
    Route,
    StreamOpened,
    StreamWanted,
    on,
)
from dtfm_protocol.transport.simultaneous_open import SimultaneousOpen
from dtfm_protocol.transport.sockets import listener_at
from dtfm_protocol.transport.tls_connections import HOST_LIMIT, Endpoint, NoWay, TlsConnections
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Handler, Stream, Unreachable, Way


class DirectDataPlane:
    """A data plane that reaches peers directly where that is possible, else over libp2p. Create it with `running`."""

    def __init__(
        self,
        libp2p: LibP2PDataPlane,
        identity: Identity,
        admission: Admission,
        listener: socket.socket,
        mirrors: tuple[str, ...],
        limits: DirectLimits,
        dials: DialRule,
        caps: TrafficCaps | None = None,
    ) -> None:
        self.libp2p = libp2p
        self.peer_id = libp2p.peer_id
        self._handlers: dict[str, Handler] = {}
        self._connections = TlsConnections(identity, admission, listener, self._handlers, limits, dials, caps)
        others = tuple(dict.fromkeys(peer for peer in mirrors if peer != self.peer_id))
        self._puncher = HolePuncher(self._connections, others, self._meet, self._look)
        self._handlers[SEEN] = self._puncher.show
        self._routes: dict[str, Route] = {}
        """Routes by peer; of a peer that is not in it nothing is known."""
        self._endpoints = EndpointExchange(
            libp2p, self.endpoint, lambda peer: self._route(peer).endpoint, self._learn, limits.handshake
        )
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        libp2p: LibP2PDataPlane,
        identity: Identity,
        admission: Admission,
        *,
        listen: str = "0.0.0.0",
        port: int = 0,
        mirrors: tuple[str, ...] = (),
        limits: DirectLimits = DirectLimits(),  # noqa: B008 - it is frozen
        dials: DialRule = ANYWHERE,
        caps: TrafficCaps | None = None,
    ) -> AsyncIterator["DirectDataPlane"]:
        """Listen for direct connections; every stream of either side is closed on leaving.

        Args:
            libp2p: a data plane that runs with the same `identity`; it stays open.
            identity: this peer's key.
            admission: this peer's credential, and whom it lets in.
            listen: the address to listen at: the one that `libp2p` listens at.
            port: the port to listen at if there is one and it is free; 0: any.
            mirrors: peers that can tell this one how it is seen from outside.
            limits: how long the plane waits, and how much it takes on at a time.
            dials: decides which addresses that peers give are dialled.
            caps: on what all streams together send and receive, those of `libp2p` too; None: there are none.

        Raises:
            UserError: nothing can listen at `listen`.
        """
        listener = listener_at(listen, port if port < 65536 else 0)
        plane = cls(libp2p, identity, admission, listener, mirrors, limits, dials, caps)
        async with plane._connections.running():
            try:
                await libp2p.serve(DIRECT, plane._endpoints.answer)
                await libp2p.serve(PUNCH, plane._punch)
                yield plane
            finally:
                for task in plane._tasks:
                    task.cancel()
                await asyncio.gather(*plane._tasks, return_exceptions=True)

    @property
    def turned_away(self) -> Tally:
        """Number of connections that were not taken, by reason."""
        return self._connections.turned_away

    async def watch(self) -> None:
        """Wait, until cancelled, for the end of the libp2p daemon, as `LibP2PDataPlane.watch`."""
        await self.libp2p.watch()

    async def addresses(self) -> tuple[str, ...]:
        """Return the multiaddresses at which this peer can be reached, as `DataPlane.addresses`."""
        return await self.libp2p.addresses()

    @property
    def port(self) -> int:
        """Port at which this peer takes direct connections, as `DataPlane.port`."""
        return self._connections.port

    async def introduce(self, peer: str, addresses: tuple[str, ...], port: int | None = None) -> None:
        """Tell where `peer` can be reached, as `DataPlane.introduce`. Where its port is given, and nothing speaks
        against dialling, libp2p meets it when it is needed: then nobody waits for that."""
        hosts, route = hosts_of(addresses)[:HOST_LIMIT], self._route(peer)
        if port is None or not hosts or route.is_relayed or route.detour is not None:
            await self.libp2p.introduce(peer, addresses)
        else:
            self._endpoints.told(peer, addresses, Endpoint(hosts=hosts, port=port))

    async def serve(self, service: str, handler: Handler) -> None:
        """Answer streams to `service`, direct ones and libp2p's, as `DataPlane.serve`."""
        self._handlers[service] = handler
        await self.libp2p.serve(service, handler)

    def way(self, peer: str) -> Way | None:
        """Return the way of the newest stream that was opened to `peer`, as `DataPlane.way`."""
        return self._route(peer).way

    def heard(self, peer: str) -> float:
        """Return when bytes of `peer` came last over a direct stream that is open, as `DataPlane.heard`."""
        return max((stream.heard for stream in self._connections.streams_with(peer)), default=-math.inf)

    def carried(self, peer: str) -> tuple[int, int]:
        """Return what direct streams with `peer` that are open have carried, as `DataPlane.carried`."""
        return self._connections.carried(peer)

    async def open(self, peer: str, service: str) -> Stream:
        """Open a stream to a service of `peer` by the best way that is known, as `DataPlane.open`."""
        ways: dict[Move, Callable[[str, str], Awaitable[Stream]]] = {
            Move.DIAL: self._open_directly,
            Move.PUNCH: self._puncher.open,
            Move.LIBP2P: self.libp2p.open,  # where this fails too, the peer is away: nothing to remember
        }
        move = self._on(peer, StreamWanted(_now()))
        while move is not None:
            try:
                stream = await ways[move](peer, service)
            except NoWay as error:
                log.debug("no way to %s (%s): %s", short(peer), move.name.lower(), error)
                move = self._on(peer, MoveFailed(move))
            else:
                self._on(peer, StreamOpened(move, stream.way, _now()))
                return stream
        raise Unreachable(f"no way to {short(peer)} is left")

    def _route(self, peer: str) -> Route:
        return self._routes.get(peer, Route())

    def _on(self, peer: str, event: Event) -> Move | None:
        """Note an event in the peer's route; return the way to try next, if the event asks for one."""
        self._routes[peer], moves = on(self._route(peer), event)
        if Move.LOOK_AGAIN in moves:
            self._spawn(self._look_again(peer))
        return next((move for move in moves if move is not Move.LOOK_AGAIN), None)

    async def _look_again(self, peer: str) -> None:
        """Look whether there is a better way to `peer` than the one in use; nobody waits for it."""
        try:
            (await self._open_directly(peer, SEEN, anyway=True)).abort()
        except (NoWay, Unreachable):
            if self._on(peer, LookedAgain(None)) is Move.PUNCH:
                with contextlib.suppress(NoWay, Unreachable):
                    (await self._puncher.open(peer, SEEN)).abort()
                    self._on(peer, LookedAgain(Move.PUNCH))
        else:
            self._on(peer, LookedAgain(Move.DIAL))

    async def _open_directly(
        self, peer: str, service: str, hole: SimultaneousOpen | None = None, *, anyway: bool = False
    ) -> TlsStream:
        """Open a stream to a peer's endpoint; if the one it gave does not hold any more, to the one it gives now.

        Args:
            hole: the hole to connect from; None: any port.
            anyway: whether to try also where only a relay reached the peer, so that libp2p has tried its addresses in
                vain.

        Raises:
            NoWay: only libp2p may reach it.
            Unreachable: the peer does not offer the service.
        """
        if hole is None and self._route(peer).endpoint is None:
            told = self._endpoints.where_told(peer)
            if told is not None and (stream := await self._dial_as_told(peer, told, service)) is not None:
                return stream
        route, fault = self._route(peer), None
        known = route.endpoint
        if known is not None and route.may_dial(anyway=anyway):
            try:
                return await self._connections.dial(peer, known, service, hole)
            except NoWay as error:
                fault = error
        endpoint = await self._endpoints.ask(peer, known)
        if fault is not None and not fault.connected and endpoint == known:
            raise fault
        if not self._route(peer).may_dial(anyway=anyway):
            raise NoWay("only a relay reaches it")
        return await self._connections.dial(peer, endpoint, service, hole)

    async def _dial_as_told(self, peer: str, told: Endpoint, service: str) -> TlsStream | None:
        """Open a stream where others say that a peer takes connections, while it is asked for that itself, which takes
        more round trips; None where it says something else, or only a relay reaches it, or nobody answers there.

        Raises:
            Unreachable: the peer does not offer the service.
        """
        stream: TlsStream | None = None
        dialling = asyncio.create_task(self._connections.dial(peer, told, service))
        asking = self._spawn(self._endpoints.meet(peer))  # goes on, so that the other knows this one's endpoint, too
        try:
            await asyncio.wait({dialling, asking}, return_when=asyncio.FIRST_COMPLETED)
            route = self._route(peer)
            if dialling.done() or (route.endpoint in (None, told) and not route.is_relayed):
                stream = await dialling
        except NoWay as error:
            log.debug("%s is not where others say: %s", short(peer), error)
        finally:
            if stream is None:
                dialling.cancel()
                (late,) = await asyncio.gather(dialling, return_exceptions=True)
                if isinstance(late, TlsStream):
                    late.abort()
        return stream

    def _learn(self, peer: str, endpoint: Endpoint, way: Way, is_asked: bool) -> None:
        """Note where a peer, which libp2p has proven to be it, takes connections."""
        self._on(peer, EndpointLearned(endpoint, way == "relayed", is_asked))

    async def endpoint(self) -> Endpoint:
        """Return where this peer takes direct connections."""
        hosts = hosts_of(await self.libp2p.addresses())
        return Endpoint(hosts=hosts[:HOST_LIMIT], port=self._connections.port)

    async def _meet(self, peer: str) -> Stream:
        """Open a stream on which to agree with `peer` on a connection from both sides."""
        return await self.libp2p.open(peer, PUNCH)

    async def _look(self, mirror: str, hole: SimultaneousOpen) -> TlsStream:
        """Open a stream on which `mirror` tells how it sees a connection from `hole`."""
        return await self._open_directly(mirror, SEEN, hole, anyway=True)

    async def _punch(self, meeting: Stream) -> None:
        """Answer a peer that wants to open a connection from both sides."""
        is_open = await self._puncher.answer(meeting)
        self._on(meeting.peer, BothSidesTried(is_open, _now()))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _now() -> float:
    return asyncio.get_running_loop().time()
