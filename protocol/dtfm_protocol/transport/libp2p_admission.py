"""The libp2p streams of one peer with members: those that it opens, and those that it takes once they are proven."""

import asyncio
import weakref
from collections import Counter
from typing import Any

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.transport.incoming_streams import answer, counted
from dtfm_protocol.transport.libp2p_limits import StreamLimits
from dtfm_protocol.transport.libp2p_stream import way_of
from dtfm_protocol.transport.member_stream import MemberStream
from dtfm_protocol.transport.multiaddress import CIRCUIT, tcp_address
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.transport.waiting_room import WaitingRoom, network_of
from dtfm_protocol.wire.stream import Handler, StreamClosed, Unreachable


class MemberAdmittance:
    """The streams of the libp2p plane, each with a member; who is a member no more loses its streams."""

    def __init__(self, admission: Admission, limits: StreamLimits, caps: TrafficCaps | None = None) -> None:
        """Have no streams yet.

        Args:
            admission: this peer's credential, and whom it lets in.
            limits: how long to wait for proof, and how much to take on at a time.
            caps: on what all streams of this peer together send and receive; None: there are none.
        """
        self._caps = caps
        self.turned_away = Tally()
        """Number of streams that were not taken, by reason."""
        self._admission, self._limits = admission, limits
        self._waiting: WaitingRoom[MemberStream] = WaitingRoom(limits.pending, limits.pending_of_one)
        self._streams: weakref.WeakSet[MemberStream] = weakref.WeakSet()
        self._taken: Counter[str] = Counter()
        admission.when_changed(self._part)
        admission.when_kicked(self._part_from)

    async def opened(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> MemberStream:
        """Return a stream that this peer has opened, on which it has said who it is.

        Raises:
            Unreachable: it has ended by now.
        """
        stream = self._stream(info, reader, writer)
        try:
            await stream.show(self._admission.certificate)
        except StreamClosed as error:
            raise Unreachable(str(error)) from None
        return stream

    async def take(
        self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler
    ) -> None:
        """Let `handler` have a stream once its other end has shown that it is a member, and has not too many."""
        stream = self._stream(info, reader, writer)
        crowded_out = self._waiting.enter(stream, origin_of(str(info.addr), stream.peer))
        if crowded_out is not None:
            crowded_out.abort()
        try:
            async with asyncio.timeout(self._limits.proof):
                await stream.prove()
            self._waiting.leave(stream)
            if self._taken[stream.peer] >= self._limits.peer_streams:
                raise Refused("too many streams of one peer")
            with counted(self._taken, stream.peer):
                await stream.show(self._admission.certificate)
                await answer(handler, stream)
        except (StreamClosed, Refused, TimeoutError) as error:
            why = "the other end left" if isinstance(error, StreamClosed) else str(error) or "too slow"
            if self.turned_away.note(why):
                log.debug("turned a libp2p stream away: %s", why)
            stream.abort()
        finally:
            self._waiting.leave(stream)

    def _stream(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> MemberStream:
        stream = MemberStream(str(info.peer_id), reader, writer, way_of(info), self._admission.check, self._caps)
        self._streams.add(stream)
        return stream

    def _part(self) -> None:
        """End the streams of all who are members no more."""
        for stream in list(self._streams):
            if stream.is_proven and not self._admission.is_member(stream.peer):
                stream.abort()

    def _part_from(self, peer: str) -> None:
        """End the streams with one peer."""
        for stream in list(self._streams):
            if stream.peer == peer:
                stream.abort()


def origin_of(address: str, peer: str) -> str:
    """Return from where a peer is connected, as far as one place can be told from others.

    Args:
        address: multiaddress of the connection's other end.
        peer: the peer there.
    """
    at = tcp_address(address)
    return peer if at is None or CIRCUIT in address else network_of(at.host)
