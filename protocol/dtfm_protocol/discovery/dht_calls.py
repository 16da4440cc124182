"""The DHT's calls between members: hivemind's requests and answers, each after its sender's credential.

hivemind has an authoriser of its own for them. That one is not told whom libp2p has proven to be the other end, so it
needs signatures, nonces and clocks that agree; and it sees a request only when all of it has been parsed.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgpack
from google.protobuf.message import DecodeError
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import timed_storage

from dtfm_protocol.discovery.record_rules import CLOCK_SECONDS
from dtfm_protocol.errors import Refused
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.member_calls import CallFailed
from dtfm_protocol.transport.whereabouts import MOST_ID_BYTES
from dtfm_protocol.wire.stream import Unreachable

REQUEST_LIMITS = {"DHTProtocol.rpc_ping": 1 << 10, "DHTProtocol.rpc_find": 4 << 10, "DHTProtocol.rpc_store": 1 << 20}
"""Bytes of the largest request of each kind."""
STORE_BYTES = 512 << 10
"""Bytes of records above which a request to store them is divided: hivemind sends whoever is new all that it is to keep
at once. One shelf of profiles has less in a swarm of 5,000."""
MOST_KEYS = 64
"""Keys that one request looks up; this program asks for one, or for its own shelves."""
MOST_RECORDS = 2048
"""Keys that one request stores."""
MOST_NEIGHBOURS = 20
"""Peers that an answer may name for each key: a bucket of the routing table."""
MOST_NAMED = 4096
"""Peers of which it is remembered who has named them."""
LONGEST_SECONDS = TIMEOUTS.links_lifetime + CLOCK_SECONDS
"""Seconds for which any record is kept."""
_DICTIONARY = 0x50
"""Code by which hivemind marks a dictionary of records in MessagePack."""
Handler = Callable[[Any, P2PContext], Awaitable[Any]]


def node_id_of(peer: str) -> DHTID:
    """Return the place of `peer` in the DHT's key space: by its peer id, so that nobody has many, or chooses one."""
    return DHTID.generate(source=f"peer {peer}")


class DhtCalls:
    """The part of hivemind's P2P client that its DHT uses, on calls between members."""

    def __init__(self, plane: LibP2PDataPlane) -> None:
        """Serve nothing yet; the calls are those of `plane`."""
        self.peer_id = plane.p2p.peer_id
        self._plane, self._p2p, self._calls = plane, plane.p2p, plane.calls
        self._named_by: dict[str, str] = {}

    async def get_visible_maddrs(self, latest: bool = False) -> Any:
        """Return this peer's addresses, as hivemind's `P2P`."""
        return await self._p2p.get_visible_maddrs(latest=latest)

    async def add_protobuf_handler(self, name: str, handler: Handler, request_type: Any, **_: Any) -> None:
        """Answer members' calls of `name`, as hivemind's `P2P`."""

        async def answer(peer: str, data: bytes) -> bytes:
            request = _parsed(request_type, data)
            check_request(peer, request)
            context = P2PContext(handle_name=name, local_id=self.peer_id, remote_id=PeerID.from_base58(peer))
            return bytes((await handler(request, context)).SerializeToString())

        await self._calls.serve(name, answer, REQUEST_LIMITS[name])

    async def remove_protobuf_handler(self, name: str, **_: Any) -> None:
        """Answer no more calls of `name`, as hivemind's `P2P`."""
        await self._calls.end(name)

    async def call_protobuf_handler(self, peer: PeerID, name: str, request: Any, response_type: Any) -> Any:
        """Call another member, as hivemind's `P2P`. Raises Refused or Unreachable."""
        whole = None
        for part in divided(request):
            response = _parsed(response_type, await self._call(str(peer), name, part.SerializeToString()))
            check_response(str(peer), response)
            self._note(str(peer), response)
            if whole is None:
                whole = response
            else:
                whole.store_ok.extend(response.store_ok)
        return whole

    def _note(self, peer: str, response: Any) -> None:
        """Note who has named whom, and can say where that is."""
        for result in getattr(response, "results", ()):
            for other in result.nearest_peer_ids:
                self._named_by[str(PeerID(other))] = peer
        while len(self._named_by) > MOST_NAMED:
            self._named_by.pop(next(iter(self._named_by)))

    async def _call(self, peer: str, name: str, data: bytes) -> bytes:
        """Call another member; where it is not known where that is, ask who has named it, and others."""
        try:
            return await self._calls.call(peer, name, data)
        except CallFailed:
            raise
        except Unreachable:
            await self._plane.whereabouts.find(peer, self._named_by.get(peer))
            return await self._calls.call(peer, name, data)


def divided(request: Any) -> Iterator[Any]:
    """Divide a request to store more than STORE_BYTES; any other one stays as it is."""
    if not hasattr(request, "values") or sum(map(len, request.values)) <= STORE_BYTES:
        yield request
        return
    part, size = type(request)(peer=request.peer), 0
    columns = ("keys", "subkeys", "values", "expiration_time", "in_cache")
    for row in zip(*(getattr(request, column) for column in columns), strict=True):
        bytes_of_row = sum(len(cell) for cell in row[:3])
        if size and size + bytes_of_row > STORE_BYTES:
            yield part
            part, size = type(request)(peer=request.peer), 0
        for column, cell in zip(columns, row, strict=True):
            getattr(part, column).append(cell)
        size += bytes_of_row
    yield part


def check_request(peer: str, request: Any) -> None:
    """Check a request of `peer`, a protobuf of hivemind's.

    Raises:
        Refused: it asks for too much, is not whole, or gives itself another place than its own.
    """
    keys, most = getattr(request, "keys", ()), MOST_RECORDS if hasattr(request, "values") else MOST_KEYS
    if len(keys) > most:
        raise Refused(f"a request with more than {most} keys")
    if any(len(key) != DHTID.HASH_NBYTES for key in keys):
        raise Refused("a request with a key that is none")
    if hasattr(request, "values"):
        _check_records(request)
    _check_place(peer, request.peer)


def check_response(peer: str, response: Any) -> None:
    """Check what `peer` answers, a protobuf of hivemind's.

    Raises:
        Refused: it gives itself or others another place than their own, or names too many.
    """
    _check_place(peer, response.peer)
    latest = timed_storage.get_dht_time() + LONGEST_SECONDS
    for result in getattr(response, "results", ()):
        if not 0 <= result.expiration_time <= latest:
            raise Refused("an answer that would end the search")
        if result.type == dht_pb2.FOUND_DICTIONARY:
            _check_dictionary(result.value)
        if not len(result.nearest_node_ids) == len(result.nearest_peer_ids) <= MOST_NEIGHBOURS:
            raise Refused("an answer with too many neighbours")
        for node, other in zip(result.nearest_node_ids, result.nearest_peer_ids, strict=True):
            if len(other) > MOST_ID_BYTES or node != node_id_of(str(PeerID(other))).to_bytes():
                raise Refused("an answer with a neighbour in a place that is not its own")


def _check_records(request: Any) -> None:
    """Check that a request to store has all of each record. Raises Refused where it has not."""
    columns = (request.keys, request.subkeys, request.values, request.expiration_time, request.in_cache)
    if len({len(column) for column in columns}) != 1:
        raise Refused("a request to store records of which parts are missing")
    for subkey, value in zip(request.subkeys, request.values, strict=True):
        if subkey == DHTProtocol.IS_DICTIONARY:
            _check_dictionary(value)


def _check_dictionary(data: bytes) -> None:
    """Check that `data` is a dictionary of records as hivemind writes it, before hivemind reads it: it reads values
    within values by recursion, which ends the process where there are some hundred. Raises Refused where it is not.
    """
    try:
        outer = msgpack.unpackb(data)  # what is of hivemind's own types stays bytes
        parts = msgpack.unpackb(outer.data) if isinstance(outer, msgpack.ExtType) and outer.code == _DICTIONARY else ()
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        raise Refused("no dictionary of records") from None
    match parts:
        case [int() | float() | None, int() | float(), [*rows]] if all(map(_is_row, rows)):
            return
    raise Refused("no dictionary of records")


def _is_row(row: Any) -> bool:
    """Whether this is an entry of a dictionary of records: its subkey, its value, and when it expires."""
    match row:
        case [str(), bytes(), int() | float()]:
            return True
    return False


def _check_place(peer: str, node: Any) -> None:
    if node.node_id not in (b"", node_id_of(peer).to_bytes()):
        raise Refused("a peer in a place of the DHT that is not its own")


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Refused("no message of the DHT") from None
