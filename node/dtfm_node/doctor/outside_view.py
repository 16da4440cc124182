"""What a libp2p peer tells about this machine: where it sees it, its clock, whether it connects back, or relays.

Two protocols of libp2p's own, which every `p2pd` serves: identify (specs/identify, IdentifyMessage) and AutoNAT v1
(specs/autonat/autonat-v1.md), whose messages are protobuf with a length before them.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Literal

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto import dht_pb2
from hivemind.utils.multiaddr import Multiaddr

from dtfm_node.doctor.tcp_look import door_of
from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.circuit_relay import GUEST
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.wire.protobuf import packed, read_with_length, unpacked, with_length
from dtfm_protocol.wire.stream import Unreachable

IDENTIFY = "/ipfs/id/1.0.0"
AUTONAT = "/libp2p/autonat/1.0.0"
PING = "DHTProtocol.rpc_ping"
MESSAGE_LIMIT = 64 << 10
ASK_SECONDS = 4.0
DIAL_BACK_SECONDS = 8.0
"""A peer that gets through says so within a few round trips; one that does not keeps trying for longer than this."""

_OBSERVED = 4
"""The field of identify's message that has the address at which the peer sees this machine."""
_TYPE, _DIAL, _RESPONSE, _TYPE_DIAL = 1, 2, 3, 0
_PEER, _ID, _ADDRESSES = 1, 1, 2
_STATUS, _TEXT = 1, 2
"""The fields of AutoNAT's messages: of one, of its dial, of the peer in it, and of the response."""

Reached = Literal["yes", "no", "refused", "not offered"]
"""Whether a peer could connect back; refused: it would not try."""

FAULTS = (P2PDaemonError, ValueError, OSError, EOFError, Refused, RuntimeError)
"""What asking a peer can fail in; a TimeoutError is an OSError."""


@dataclass(frozen=True)
class Clock:
    """A peer's clock beside this machine's."""

    ahead: float
    """Seconds."""
    error: float
    """Half the round trip: so far off `ahead` may be."""


async def clock(plane: LibP2PDataPlane, peer: str) -> Clock:
    """Ask a peer's DHT node for the time; that it answers shows that it is one. Raises one of FAULTS."""
    async with asyncio.timeout(ASK_SECONDS):
        begun = time.time()
        response = await plane.p2p.call_protobuf_handler(
            PeerID.from_base58(peer), PING, dht_pb2.PingRequest(), dht_pb2.PingResponse
        )
        ended = time.time()
    return Clock(float(response.dht_time) - (begun + ended) / 2, (ended - begun) / 2)


async def observed(plane: LibP2PDataPlane, peer: str) -> tuple[str, int] | None:
    """The address and port at which a peer sees this machine; None through a relay. Raises one of FAULTS."""
    async with asyncio.timeout(ASK_SECONDS):
        _, reader, writer = await plane.p2p.call_binary_stream_handler(PeerID.from_base58(peer), IDENTIFY)
        try:
            message = unpacked(await read_with_length(reader.readexactly, MESSAGE_LIMIT))
        finally:
            writer.close()
    seen_at = message.get(_OBSERVED)
    return place_of(seen_at) if isinstance(seen_at, bytes) and seen_at else None


def place_of(address: bytes) -> tuple[str, int] | None:
    """IP address and port of a multiaddress; None of one that has a name, or leads through a relay.

    Raises:
        ValueError: it is none.
    """
    try:
        text = str(Multiaddr(address))
    except (TypeError, OverflowError) as error:  # its parser's, beside ValueErrors
        raise ValueError(f"no multiaddress: {error}") from None
    door = door_of(text) if text.startswith(("/ip4/", "/ip6/")) else None
    return door[:2] if door is not None else None


async def dial_back(plane: LibP2PDataPlane, peer: str, addresses: tuple[str, ...]) -> tuple[Reached, str]:
    """Have a peer connect to this machine at one of `addresses`, and what it says of that. Raises one of FAULTS."""
    me = PeerID.from_base58(plane.peer_id)
    offered = [Multiaddr(address).to_bytes() for address in addresses]
    request = packed({_TYPE: _TYPE_DIAL, _DIAL: packed({_PEER: packed({_ID: me.to_bytes(), _ADDRESSES: offered})})})
    try:
        _, reader, writer = await plane.p2p.call_binary_stream_handler(PeerID.from_base58(peer), AUTONAT)
    except P2PDaemonError as error:
        if "protocols not supported" in str(error):
            return "not offered", ""
        raise
    try:
        writer.write(with_length(request))
        await writer.drain()
        async with asyncio.timeout(DIAL_BACK_SECONDS):
            message = unpacked(await read_with_length(reader.readexactly, MESSAGE_LIMIT))
    except TimeoutError:
        return "no", f"it was still trying after {DIAL_BACK_SECONDS:g} s"
    finally:
        writer.close()
    given = message.get(_RESPONSE)
    response = unpacked(given) if isinstance(given, bytes) else {}
    status, text = response.get(_STATUS, 0), response.get(_TEXT)
    reached: dict[int | bytes, Reached] = {0: "yes", 100: "no"}
    return reached.get(status, "refused"), text.decode(errors="replace") if isinstance(text, bytes) else ""


async def relays(plane: LibP2PDataPlane, peer: str) -> bool:
    """Whether a peer would relay to this machine. Raises one of FAULTS."""
    async with asyncio.timeout(ASK_SECONDS):
        try:
            stream = await plane.open(peer, GUEST)
        except Unreachable:
            return False  # it does not offer that
        try:
            return await stream.read(1) != b""
        finally:
            await stream.close()
