"""Hole punching: a stream to a peer to whom nobody can connect, over a connection that both open at the same time."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from pydantic import ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.simultaneous_open import OUTSIDE_LIMIT, OutsideAddress, SimultaneousOpen
from dtfm_protocol.transport.tls_connections import NoWay, TlsConnections, opening
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable, read_message, write_message

PUNCH = "punch"
"""The libp2p service at which two peers tell each other where they are seen, and start."""
SEEN = "seen"
"""The direct service that tells where its caller is seen."""
_YES = b"\x01"


class HolePuncher:
    """The two sides of hole punching: it opens streams to such peers, and answers those that open one to this peer."""

    def __init__(
        self,
        connections: TlsConnections,
        mirrors: tuple[str, ...],
        meet: Callable[[str], Awaitable[Stream]],
        look: Callable[[str, SimultaneousOpen], Awaitable[TlsStream]],
    ) -> None:
        """Keep what is needed; nothing happens by itself.

        Args:
            connections: prove whom a connection is with, and make streams of it.
            mirrors: peers that can tell this one how it is seen from outside.
            meet: opens a stream to a peer's `PUNCH` over a relay.
            look: opens a stream to a mirror's `SEEN` from a hole.
        """
        self._connections, self._mirrors, self._meet, self._look = connections, mirrors, meet, look
        self._limits = connections.limits
        self._meetings: Counter[str] = Counter()

    async def open(self, peer: str, service: str) -> TlsStream:
        """Open a stream to `service` of `peer` over a connection that both sides open.

        Raises:
            NoWay: no connection comes about.
            Unreachable: the peer does not offer the service.
        """
        try:
            meeting = await self._meet(peer)
        except Unreachable as error:
            raise NoWay(str(error)) from None
        try:
            with SimultaneousOpen() as hole:
                async with self._seen(hole) as here:
                    async with asyncio.timeout(self._limits.handshake):
                        await write_message(meeting, here)
                        there = self._may_be_met(await read_message(meeting, OutsideAddress, OUTSIDE_LIMIT))
                    async with hole.meeting(there) as found:
                        stream = await self._first(peer, service, found)
                        with contextlib.suppress(StreamClosed):
                            await meeting.write(_YES)  # so that the other side need not find it out as well
                        return stream
        except (StreamClosed, Refused, OSError) as error:  # a TimeoutError is an OSError
            if isinstance(error, Unreachable):
                raise
            raise NoWay(str(error) or "no answer") from None
        finally:
            await meeting.close()

    def _may_be_met(self, there: OutsideAddress) -> OutsideAddress:
        """Return the address that the other side gave. Raises NoWay where it is not dialled on another's word."""
        if not self._connections.dials.allows(there.host):
            raise NoWay(f"{there.host} is inside this machine's own network, which the swarm is not")
        return there

    async def _first(self, peer: str, service: str, found: "asyncio.Queue[socket.socket]") -> TlsStream:
        """Open a stream over the first connection that proves to be with `peer`.

        Raises:
            TimeoutError: no such connection comes.
            Unreachable: `peer` does not offer the service.
        """
        async with asyncio.timeout(self._limits.punch) as limit:
            while True:
                connection = await found.get()
                limit.reschedule(asyncio.get_running_loop().time() + self._limits.handshake)
                with contextlib.suppress(NoWay):
                    return await self._connections.over(connection, peer, service, "punched")

    async def answer(self, meeting: Stream) -> bool:
        """Answer a peer's `open`, and return whether a connection came about; it is then like one that was accepted."""
        meetings, limits = self._meetings, self._limits
        if meetings.total() >= limits.meetings or meetings[meeting.peer] >= limits.peer_meetings:
            raise Refused("too many connections to be opened from both sides at once")
        self._meetings[meeting.peer] += 1
        try:
            return await self._meets(meeting)
        finally:
            self._meetings[meeting.peer] -= 1
            self._meetings += Counter()  # without who has none

    async def _meets(self, meeting: Stream) -> bool:
        succeeded = False
        try:
            async with asyncio.timeout(2 * self._limits.handshake + self._limits.punch):
                there = self._may_be_met(await read_message(meeting, OutsideAddress, OUTSIDE_LIMIT))
                with SimultaneousOpen() as hole:
                    async with self._seen(hole) as here, hole.meeting(there) as found:
                        await write_message(meeting, here)
                        taking = asyncio.create_task(self._take(found))
                        try:
                            # The other side closes the meeting when it has a stream, and says so, or has given up.
                            succeeded = await meeting.read(1) == _YES
                        finally:
                            taking.cancel()
        except (StreamClosed, NoWay, OSError) as error:  # a TimeoutError is an OSError
            log.debug("no connection with %s from both sides: %s", short(meeting.peer), error)
        return succeeded

    async def _take(self, found: "asyncio.Queue[socket.socket]") -> None:
        while True:
            self._connections.admit(await found.get(), "punched")

    @contextlib.asynccontextmanager
    async def _seen(self, hole: SimultaneousOpen) -> AsyncIterator[OutsideAddress]:
        """Find out how connections from `hole` are seen from outside; routers keep to it as long as the block lasts.

        Raises:
            NoWay: nobody can tell.
        """
        for mirror in self._mirrors:
            try:
                stream = await self._look(mirror, hole)
                async with opening(stream, self._limits.handshake):
                    seen = await read_message(stream, OutsideAddress, OUTSIDE_LIMIT)
            except (NoWay, Unreachable) as error:
                log.debug("%s does not tell how this peer is seen from outside: %s", short(mirror), error)
                continue
            try:
                yield seen
            finally:
                stream.abort()
            return
        raise NoWay("nobody tells how this peer is seen from outside")

    async def show(self, stream: Stream) -> None:
        """Tell the peer at the other end of a stream how it is seen from here."""
        assert isinstance(stream, TlsStream)  # this service is not offered over libp2p
        host, port = stream.remote
        try:
            seen = OutsideAddress(host=host.removeprefix("::ffff:"), port=port)
        except ValidationError:
            raise Refused(f"{host} is no IPv4 address") from None
        await write_message(stream, seen)
        await stream.read(1)  # until it has no more use for the connection
