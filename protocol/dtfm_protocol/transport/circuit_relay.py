"""The relay over which members are reached to whom nobody can connect: one to which everybody can.

It answers circuit relay v2's hop protocol (libp2p/specs, relay/circuit-v2.md) for the members of one swarm and for
nobody else. libp2p's daemon has a relay of its own, which serves everyone and cuts each circuit after two minutes or
128 KiB: the daemon installs that one beside any that its options ask for, and chance decides which of the two answers.
A circuit here ends with one of its peers, or with the relay. What passes through is encrypted from end to end.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

import base58

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import public_key_of, short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.incoming_streams import counted
from dtfm_protocol.transport.libp2p_messages import Fields, packed, read_with_length, unpacked, with_length
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable

HOP = "/libp2p/circuit/relay/0.2.0/hop"
"""The protocol in which a peer asks for a circuit."""
STOP = "/libp2p/circuit/relay/0.2.0/stop"
"""The protocol in which the relay offers a circuit to the other peer; libp2p's daemon answers it."""
GUEST = "relay"
"""The service that makes a member a guest: as long as its stream lives, it may ask for circuits and be asked for."""
CIRCUIT_LIMIT = 256
"""Circuits that one peer may have at a time: one for each peer with which it talks, and a few that are about to end."""
STRANGER_LIMIT = 64
"""Streams of peers that are no guests on which a request is waited for."""
RESERVATION_SECONDS = 3600
MESSAGE_LIMIT = 4096
"""Bytes of the largest message of the protocol."""

_RESERVE, _CONNECT, _STATUS = 0, 1, 2
_STOP_CONNECT, _STOP_STATUS = 0, 1
OK, REFUSED, LIMIT_EXCEEDED, CONNECTION_FAILED, NO_RESERVATION, MALFORMED = 100, 200, 201, 203, 204, 400


class Pipe(Stream, Protocol):
    """A stream that can be joined to another one."""

    async def forward(self, other: Stream) -> None:
        """Send what comes on this stream to `other`, until this one ends.

        Raises:
            StreamClosed: `other` has ended.
        """


class CircuitRelay:
    """A relay of circuits between a swarm's members."""

    def __init__(
        self,
        offer: Callable[[str], Awaitable[Pipe]],
        clock: Callable[[], float] = time.time,
        *,
        circuits: int = CIRCUIT_LIMIT,
        strangers: int = STRANGER_LIMIT,
        request: float = TIMEOUTS.circuit_request,
    ) -> None:
        """Make a relay without guests.

        Args:
            offer: opens a stream to a peer's STOP protocol.
            clock: returns seconds since 1970.
            circuits: the most circuits of one peer at a time.
            strangers: the most streams of peers that are no guests on which a request is waited for.
            request: seconds that the relay waits for each message until a circuit stands.
        """
        self._circuit_limit, self._stranger_limit, self._request = circuits, strangers, request
        self._offer, self._clock = offer, clock
        self._guests: Counter[str] = Counter()
        self._circuits: Counter[str] = Counter()
        self._strangers = 0

    async def take_guest(self, stream: Stream) -> None:
        """Answer a stream of GUEST: relay to and for the peer as long as its stream lives."""
        with counted(self._guests, stream.peer):
            await stream.write(b"\x01")
            await stream.read(1)

    async def answer(self, stream: Pipe) -> None:
        """Answer one request of HOP. Anybody may open such a stream, so few who are no guests may keep it waiting."""
        is_guest = stream.peer in self._guests
        if not is_guest and self._strangers >= self._stranger_limit:
            raise StreamClosed("too many strangers ask for circuits at once")
        self._strangers += not is_guest
        try:
            async with asyncio.timeout(self._request):
                request = await _receive(stream)
        except TimeoutError:
            raise StreamClosed("no request came") from None
        finally:
            self._strangers -= not is_guest
        kind = request.get(1)
        if stream.peer not in self._guests:
            await _send(stream, {1: _STATUS, 5: REFUSED})
        elif kind == _RESERVE:
            reservation = packed({1: int(self._clock()) + RESERVATION_SECONDS})
            await _send(stream, {1: _STATUS, 3: reservation, 5: OK})
        elif kind == _CONNECT:
            await self._connect(stream, request)
        else:
            await _send(stream, {1: _STATUS, 5: MALFORMED})

    async def _connect(self, stream: Pipe, request: Fields) -> None:
        try:
            peer = _peer_of(request)
        except Refused:
            await _send(stream, {1: _STATUS, 5: MALFORMED})
            return
        if peer not in self._guests:
            await _send(stream, {1: _STATUS, 5: NO_RESERVATION})
            return
        if max(self._circuits[stream.peer], self._circuits[peer]) >= self._circuit_limit:
            await _send(stream, {1: _STATUS, 5: LIMIT_EXCEEDED})
            return
        with counted(self._circuits, stream.peer), counted(self._circuits, peer):
            try:
                async with asyncio.timeout(self._request):
                    other = await self._offered(stream.peer, peer)
            except (Unreachable, StreamClosed, Refused, TimeoutError) as error:
                log.debug("no circuit from %s to %s: %s", short(stream.peer), short(peer), error or "no answer")
                await _send(stream, {1: _STATUS, 5: CONNECTION_FAILED})
                return
            try:
                await _send(stream, {1: _STATUS, 5: OK})
                await _join(stream, other)
            finally:
                await other.close()

    async def _offered(self, asking: str, peer: str) -> Pipe:
        """Open a stream to `peer`, which has agreed to a circuit from `asking`."""
        other = await self._offer(peer)
        try:
            # No limit is named: to libp2p such a connection is as good as any.
            await _send(other, {1: _STOP_CONNECT, 2: packed({1: base58.b58decode(asking)})})
            answer = await _receive(other)
            if answer.get(1) != _STOP_STATUS or answer.get(4) != OK:
                raise Refused(f"it answers with status {answer.get(4)!r}")
        except BaseException:
            await other.close()
            raise
        return other


async def _join(one: Pipe, other: Pipe) -> None:
    """Carry bytes both ways until either stream ends."""
    ways = [asyncio.ensure_future(one.forward(other)), asyncio.ensure_future(other.forward(one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


def _peer_of(request: Fields) -> str:
    """Return the peer that a request names.

    Raises:
        Refused: the request names no peer.
    """
    given = request.get(2)
    identity = unpacked(given).get(1) if isinstance(given, bytes) else None
    if not isinstance(identity, bytes):
        raise Refused("a request without a peer")
    peer = base58.b58encode(identity).decode()
    public_key_of(peer)
    return str(peer)


async def _receive(stream: Stream) -> Fields:
    """Receive a message with its length before it. Raises Refused where it is too long, or not protobuf."""
    return unpacked(await read_with_length(stream.read, MESSAGE_LIMIT))


async def _send(stream: Stream, fields: Fields) -> None:
    await stream.write(with_length(packed(fields)))
