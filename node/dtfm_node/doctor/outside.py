"""What a libp2p peer tells about this machine: where it sees it, its clock, whether it connects back, or relays.

Two protocols of libp2p's own, which every `p2pd` serves: identify (specs/identify, IdentifyMessage) and AutoNAT v1
(specs/autonat/autonat-v1.md), whose messages are protobuf with a length before them.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto import dht_pb2
from hivemind.utils.multiaddr import Multiaddr

from dtfm_node.doctor.wire import door_of
from dtfm_protocol.planes.data import Unreachable
from dtfm_protocol.planes.libp2p import LibP2PDataPlane
from dtfm_protocol.planes.relay import GUEST

IDENTIFY = "/ipfs/id/1.0.0"
AUTONAT = "/libp2p/autonat/1.0.0"
PING = "DHTProtocol.rpc_ping"
MESSAGE_LIMIT = 64 << 10
ASK_SECONDS = 4.0
DIAL_BACK_SECONDS = 8.0
"""A peer that gets through says so within a few round trips; one that does not keeps trying for longer than this."""

Reached = Literal["yes", "no", "refused", "not offered"]
"""Whether a peer could connect back; refused: it would not try."""

FAULTS = (P2PDaemonError, ValueError, OSError, EOFError, DecodeError, RuntimeError)
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
            message = _Identify.FromString(await _read(reader))
        finally:
            writer.close()
    return place_of(message.observed) if message.observed else None


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
    request = _AutoNat(type=0, dial={"peer": {"id": me.to_bytes(), "addrs": offered}}).SerializeToString()
    try:
        _, reader, writer = await plane.p2p.call_binary_stream_handler(PeerID.from_base58(peer), AUTONAT)
    except P2PDaemonError as error:
        if "protocols not supported" in str(error):
            return "not offered", ""
        raise
    try:
        writer.write(_length(len(request)) + request)
        await writer.drain()
        async with asyncio.timeout(DIAL_BACK_SECONDS):
            response = _AutoNat.FromString(await _read(reader)).response
    except TimeoutError:
        return "no", f"it was still trying after {DIAL_BACK_SECONDS:g} s"
    finally:
        writer.close()
    status: dict[int, Reached] = {0: "yes", 100: "no"}
    return status.get(response.status, "refused"), str(response.text)


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


async def _read(reader: asyncio.StreamReader) -> bytes:
    """One message with its length before it."""
    length = 0
    for shift in range(0, 21, 7):
        (byte,) = await reader.readexactly(1)
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if length > MESSAGE_LIMIT:
        raise ValueError(f"a message of {length} bytes")
    return await reader.readexactly(length)


def _length(size: int) -> bytes:
    """A protobuf varint."""
    found = bytearray()
    while size >= 0x80:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*found, size])


def _messages() -> tuple[Any, Any]:
    """The classes of the two protocols' messages, of the fields that matter here."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="dtfm_doctor.proto", package="dtfm_doctor", syntax="proto2")
    number, data, text, message = kinds.TYPE_UINT32, kinds.TYPE_BYTES, kinds.TYPE_STRING, kinds.TYPE_MESSAGE
    for name, fields in {
        "Identify": [("observed", 4, data, "")],
        "Peer": [("id", 1, data, ""), ("addrs", 2, data, "")],
        "Dial": [("peer", 1, message, "Peer")],
        "Response": [("status", 1, number, ""), ("text", 2, text, "")],
        "AutoNat": [("type", 1, number, ""), ("dial", 2, message, "Dial"), ("response", 3, message, "Response")],
    }.items():
        described = file.message_type.add(name=name)
        for field, place, kind, of in fields:
            label = kinds.LABEL_REPEATED if field == "addrs" else kinds.LABEL_OPTIONAL
            described.field.add(
                name=field, number=place, type=kind, label=label, type_name=f".dtfm_doctor.{of}" if of else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    identify, autonat = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"dtfm_doctor.{name}"))
        for name in ("Identify", "AutoNat")
    )
    return identify, autonat


_Identify, _AutoNat = _messages()
