"""What is asked of the libp2p daemon beside streams: who is connected, and to end a connection.

hivemind's client does the same, but leaves the sockets of what fails or is cancelled to the garbage collector.
"""

from typing import Any

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2


async def connected_peers(p2p: Any) -> list[tuple[str, str]]:
    """Return each peer that is connected to the daemon, and the multiaddress of the other end; "": not known.

    Raises:
        EOFError: the daemon ends.
        OSError: it has ended.
        P2PDaemonError: it refuses.
    """
    answer = await _asked(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
    found = [PeerInfo.from_protobuf(one) for one in answer.peers]
    return [(str(one.peer_id), str(next(iter(one.addrs), ""))) for one in found]


async def disconnect(p2p: Any, peer: str) -> None:
    """End all connections of the daemon with `peer`. Raises as `connected_peers`."""
    whom = p2pd_pb2.DisconnectRequest(peer=PeerID.from_base58(peer).to_bytes())
    await _asked(p2p, p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=whom))


async def _asked(p2p: Any, request: Any) -> Any:
    reader, writer = await p2p._client.control.daemon_connector.open_connection()
    try:
        await write_pbmsg(writer, request)
        answer = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, answer)
    finally:
        writer.close()
    raise_if_failed(answer)
    return answer
