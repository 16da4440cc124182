"""What a libp2p peer tells about this machine: where it sees it, its clock, whether it relays.

Where it sees it comes by a protocol of libp2p's own, which every `p2pd` serves: identify (specs/identify,
IdentifyMessage), whose messages are protobuf with a length before them.
"""

import asyncio
import time
from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto import dht_pb2
from hivemind.utils.multiaddr import Multiaddr

from dtfm_node.doctor.host_lookup import host_and_port
from dtfm_protocol.discovery.dht_calls import DhtCalls
from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.circuit_relay import GUEST
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.libp2p_messages import read_with_length, unpacked
from dtfm_protocol.wire.stream import Unreachable

IDENTIFY = "/ipfs/id/1.0.0"
PING = "DHTProtocol.rpc_ping"
MESSAGE_LIMIT = 64 << 10
ASK_SECONDS = 4.0

_OBSERVED = 4
"""The field of identify's message that has the address at which the peer sees this machine."""

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
        calls = DhtCalls(plane)
        response = await calls.call_protobuf_handler(
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
    door = host_and_port(text) if text.startswith(("/ip4/", "/ip6/")) else None
    return door[:2] if door is not None else None


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
