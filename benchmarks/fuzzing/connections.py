"""Targets among what connections, relays, the DHT and the broker are told."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import base58
import msgpack
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.serializer import MSGPackSerializer

from benchmarks.fuzzing.messages import LINK, signed_body
from benchmarks.fuzzing.swarm_sides import SWARM, SaidBefore, Sides, Writer, at_once, reader_of
from benchmarks.fuzzing.training import ENDS_EARLY
from benchmarks.fuzzing.trial import Target
from dtfm_coordinator.serve.embedded_broker import EmbeddedBroker
from dtfm_coordinator.serve.mqtt_packets import PacketReader
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_node.doctor.outside_view import place_of
from dtfm_protocol.discovery.dht_calls import DhtCalls, node_id_of
from dtfm_protocol.discovery.record_rules import MembersRecords
from dtfm_protocol.discovery.records import Entry, Limits, LinkReport, Profile
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.compat.hivemind import refuse_stale_records
from dtfm_protocol.transport.circuit_relay import CircuitRelay
from dtfm_protocol.transport.dial_rule import DialRule
from dtfm_protocol.transport.dialling import multiaddresses_to_dial
from dtfm_protocol.transport.libp2p_admission import origin_of
from dtfm_protocol.transport.libp2p_messages import packed, unpacked, with_length
from dtfm_protocol.transport.multiaddress import binary, by_peer, hosts_of, tcp_address
from dtfm_protocol.transport.whereabouts import ReachedAt, Whereabouts
from dtfm_protocol.view.view import LayerSeconds
from dtfm_protocol.wire.stream import Unreachable

KNOWN = ("192.0.2.1", "2001:db8::1")


def connection_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    yield from _addresses(sides)
    yield from _relay(sides)
    yield from _dht(sides)
    yield from _broker(sides)


def _addresses(sides: Sides) -> Iterator[Target]:
    peer = sides.liar.peer_id
    texts = (
        f"/ip4/192.0.2.1/tcp/7/p2p/{peer}",
        f"/ip6/2001:db8::1/tcp/7/p2p/{sides.owner.peer_id}/p2p-circuit/p2p/{peer}",
        f"/ip4/192.0.2.1/udp/7/quic/p2p/{peer}",
    )

    def looked_at(data: bytes) -> object:
        text = data.decode(errors="replace")[:256]
        return tcp_address(text), by_peer((text,)), hosts_of((text,)), origin_of(text, peer)

    yield Target("multiaddress", looked_at, tuple(text.encode() for text in texts), ())
    coded = (binary(texts[0]).to_bytes(), binary(texts[1]).to_bytes())
    yield Target("multiaddress, binary", place_of, coded, (ValueError,))
    answer = ReachedAt(addresses=texts[:2]).model_dump_json().encode()
    yield Target("where another peer is", functools.partial(_sought, sides), (answer,), (Unreachable,))
    yield Target(
        "question where a peer is", functools.partial(_asked, sides), (PeerID.from_base58(peer).to_bytes(), b"")
    )


class _Calls:
    """The calls of one peer: they are answered with the same bytes, whatever is asked."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.answers: dict[str, Callable[[str, bytes], Coroutine[Any, Any, bytes]]] = {}

    async def call(self, peer: str, name: str, request: bytes = b"") -> bytes:
        return self.answer

    async def serve(self, name: str, answer: Callable[[str, bytes], Coroutine[Any, Any, bytes]], limit: int) -> None:
        self.answers[name] = answer


def _whereabouts(sides: Sides, calls: _Calls) -> Whereabouts:
    peer = sides.liar.peer_id

    async def own() -> tuple[str, ...]:
        return (f"/ip4/192.0.2.1/tcp/7/p2p/{peer}",)

    async def introduce(peer: str, addresses: tuple[str, ...]) -> None:
        """Do what the plane does before it tells the daemon."""
        numbers = tuple(address for address in addresses if _is_number(address))
        try:
            [binary(one.removesuffix(f"/p2p/{peer}")) for one in await multiaddresses_to_dial(numbers, DialRule())]
            [binary(one.removesuffix(f"/p2p/{peer}")) for one in addresses]
        except ValueError as error:
            raise Unreachable(str(error)) from None

    async def others() -> tuple[str, ...]:
        return (sides.owner.peer_id,)

    return Whereabouts(calls, own, introduce, others)  # type: ignore[arg-type]


def _is_number(address: str) -> bool:
    """Whether an address names its host by number, so that no name is looked up for it."""
    return address.startswith(("/ip4/", "/ip6/")) and all(
        char in "0123456789abcdef.:" for char in address.split("/")[2]
    )


def _sought(sides: Sides, data: bytes) -> None:
    sides.wait(_whereabouts(sides, _Calls(data)).find(sides.liar.peer_id))


def _asked(sides: Sides, data: bytes) -> object:
    calls = _Calls(b"an answer")
    where = _whereabouts(sides, calls)
    at_once(where.serve())
    (answer,) = calls.answers.values()
    return at_once(answer(sides.liar.peer_id, data[:64]))


def _relay(sides: Sides) -> Iterator[Target]:
    liar, node = sides.liar.peer_id, sides.node.peer_id
    message = packed({1: 1, 2: packed({1: base58.b58decode(node), 2: [b"one", b"two"]}), 5: 100})
    yield Target("message of libp2p", unpacked, (message,))
    reserve, connect = with_length(packed({1: 0})), with_length(message)
    agrees = with_length(packed({1: 1, 4: 100}))

    async def relayed(said: bytes, other: bytes) -> None:
        async def offer(peer: str) -> SaidBefore:
            return SaidBefore(peer, other)

        relay = CircuitRelay(offer)
        relay._guests.update((liar, node))
        await relay.answer(SaidBefore(liar, said))

    yield Target("relay's request", lambda data: sides.wait(relayed(data, agrees)), (reserve, connect), ENDS_EARLY)
    yield Target("relay's other end", lambda data: sides.wait(relayed(connect, data)), (agrees,), ENDS_EARLY)


class _Plane:
    """As much of a libp2p plane as the DHT's calls use."""

    def __init__(self, sides: Sides, calls: _Calls) -> None:
        self.calls, self.p2p = calls, self
        self.peer_id = PeerID.from_base58(sides.node.peer_id)


def _dht(sides: Sides) -> Iterator[Target]:
    refuse_stale_records()
    liar = sides.liar.peer_id

    def rules() -> MembersRecords:
        """Return the rules of a peer that has heard nothing yet."""
        return MembersRecords(Registry(SWARM, sides.posts[sides.node.peer_id]), sides.node, sides.admission())

    profile = Profile(
        device="cpu", flops={"fp32": 1e11}, layer_seconds=LayerSeconds(forward=0.1, backward=0.2), memory_bytes=1e9,
        addresses=(f"/ip4/192.0.2.1/tcp/7/p2p/{liar}",), version="0.1", session="one",
    )  # fmt: skip
    links = LinkReport(links={sides.node.peer_id: LINK}, limits=Limits(up_gbps=1.0), probed=3)
    for kind, record in (("profile", profile), ("links", links)):
        body = Entry(record=record, until=1e10).model_dump_json().encode()
        yield Target(f"record of {kind}, signed", functools.partial(_recorded, sides, rules(), kind), (body,))
    stored = _record(sides, sides.posts[liar].seal("record", Entry(record=links, until=1e10)), "links")
    one, other = rules(), rules()
    yield Target("record's value", lambda data: _valid(one, stored.key, stored.subkey, data, stored), (stored.value,))
    yield Target("record's owner", lambda data: _valid(other, stored.key, data, stored.value, stored), (stored.subkey,))
    yield from _dht_calls(sides, rules(), stored)


def _valid(rules: MembersRecords, key: bytes, subkey: bytes, value: bytes, like: DHTRecord) -> None:
    """Have a record judged. Raises Refused where it is not believed, which itself says so by False."""
    if not rules.validate(DHTRecord(key, subkey, value, like.expiration_time)):
        raise Refused("not believed")


def _record(sides: Sides, sealed: bytes, kind: str) -> DHTRecord:
    """Return a record of the liar's as others are asked to store it."""
    registry = Registry(SWARM, sides.posts[sides.liar.peer_id])
    key = DHTID.generate(source=registry.key(kind, sides.liar.peer_id)).to_bytes()
    admission = sides.admission()
    admission.certificate = sides.certificate
    plain = DHTRecord(key, msgpack.packb(sides.liar.peer_id), msgpack.packb(sealed), get_dht_time() + 100)
    value = MembersRecords(registry, sides.liar, admission).sign_value(plain)
    return DHTRecord(key, plain.subkey, value, plain.expiration_time)


def _recorded(sides: Sides, rules: MembersRecords, kind: str, data: bytes) -> None:
    stored = _record(sides, signed_body(sides.liar, "record", data), kind)
    _valid(rules, stored.key, stored.subkey, stored.value, stored)


def _dht_calls(sides: Sides, rules: MembersRecords, stored: DHTRecord) -> Iterator[Target]:
    """Yield requests to a peer of the DHT and answers of one, up to hivemind's own handlers."""
    liar = sides.liar.peer_id
    node = dht_pb2.NodeInfo(node_id=node_id_of(liar).to_bytes())
    whole = DictionaryDHTValue()
    whole.store(liar, stored.value, stored.expiration_time)
    store = dht_pb2.StoreRequest(
        keys=[stored.key] * 2,
        subkeys=[stored.subkey, DHTProtocol.IS_DICTIONARY],
        values=[stored.value, MSGPackSerializer.dumps(whole)],
        expiration_time=[stored.expiration_time] * 2,
        in_cache=[False] * 2,
        peer=node,
    )
    find = dht_pb2.FindRequest(keys=[stored.key, bytes(20)], peer=node)
    ping = dht_pb2.PingRequest(peer=node)
    near = Identity.generate().peer_id
    found = dht_pb2.FindResult(
        type=dht_pb2.FOUND_DICTIONARY,
        value=MSGPackSerializer.dumps(whole),
        expiration_time=stored.expiration_time,
        nearest_node_ids=[node_id_of(near).to_bytes()],
        nearest_peer_ids=[PeerID.from_base58(near).to_bytes()],
    )
    dht = _Dht(sides, rules)
    for name, request in (("ping", ping), ("store", store), ("find", find)):
        asked = functools.partial(dht.asked, f"DHTProtocol.rpc_{name}")
        yield Target(f"DHT's request to {name}", asked, (request.SerializeToString(),))
    answers = dht_pb2.FindResponse(results=[found], peer=node)
    yield Target("DHT's answer", functools.partial(dht.answered, stored.key), (answers.SerializeToString(),))


class _Dht:
    """A peer of the DHT that keeps what it is asked to keep."""

    def __init__(self, sides: Sides, rules: MembersRecords) -> None:
        self._sides, self._calls = sides, _Calls()
        plane: Any = _Plane(sides, self._calls)
        self._dht_calls, own = DhtCalls(plane), node_id_of(sides.node.peer_id)
        self._protocol = sides.wait(
            DHTProtocol.create(
                self._dht_calls, own, bucket_size=20, depth_modulo=5, num_replicas=20, wait_timeout=1.0,
                record_validator=rules,
            )
        )  # fmt: skip

    def asked(self, name: str, data: bytes) -> object:
        """Answer a member's request."""
        return self._sides.wait(self._alone(self._calls.answers[name](self._sides.liar.peer_id, data)))

    def answered(self, key: bytes, data: bytes) -> object:
        """Look a key up at a member, which answers this."""
        self._calls.answer = data
        peer, request = PeerID.from_base58(self._sides.liar.peer_id), dht_pb2.FindRequest(keys=[key])
        name, kind = "DHTProtocol.rpc_find", dht_pb2.FindResponse
        self._sides.wait(self._dht_calls.call_protobuf_handler(peer, name, request, kind))  # raises what is refused
        return self._sides.wait(self._alone(self._protocol.call_find(peer, [DHTID.from_bytes(key)])))

    async def _alone(self, work: Awaitable[Any]) -> Any:
        """Await `work`, and end the calls to others that it has begun."""
        begun, loop = list[asyncio.Task[Any]](), asyncio.get_running_loop()

        def begin(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
            begun.append(asyncio.Task(work, loop=loop, **options))
            return begun[-1]

        loop.set_task_factory(begin)
        try:
            return await work
        finally:
            loop.set_task_factory(None)
            for task in begun:
                task.cancel()


def _broker(sides: Sides) -> Iterator[Target]:
    liar = sides.liar.peer_id
    root = f"dtfm/{SWARM}"
    will = _text(f"{root}/presence/{liar}") + _text("gone")
    connect = _packet(b"\x10", _text("MQTT") + b"\x04\x86\x00\x3c" + _text(f"{liar}.a") + will + _text(liar))
    publish = _packet(b"\x33", _text(f"{root}/presence/{liar}") + b"\x00\x07" + b"a message")
    subscribe = _packet(b"\x82", b"\x00\x01" + _text(f"{root}/plan") + b"\x01" + _text(f"{root}/presence/+") + b"\x00")
    rest = _packet(b"\xa2", b"\x00\x02" + _text(f"{root}/plan")) + b"\xc0\x00" + b"\x40\x02\x00\x07" + b"\xe0\x00"
    said = connect + subscribe + publish + rest
    yield Target("packets of MQTT", lambda data: list(PacketReader(1 << 16).feed(data)), (said, connect, publish))
    rules = TopicRules(SWARM, [sides.owner.peer_id])

    def served(data: bytes) -> None:
        broker, writer = EmbeddedBroker(rules, clock=lambda: 0.0), Writer()
        sides.wait(broker.serve(liar, reader_of(data, sides.loop), writer))  # type: ignore[arg-type]
        if broker.sessions:
            raise AssertionError("a session is left behind")

    yield Target("session of the broker", served, (said, connect + publish), ())


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def _packet(kind: bytes, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while True:
        size, part = divmod(size, 128)
        length.append(part | (0x80 if size else 0))
        if not size:
            return kind + bytes(length) + body
