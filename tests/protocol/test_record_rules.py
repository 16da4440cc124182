"""What a peer keeps and believes of the DHT's records and calls, without a DHT."""

import contextlib
import functools
import time
import tracemalloc
from dataclasses import replace

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.serializer import MSGPackSerializer

from dtfm_protocol.discovery.dht_calls import STORE_BYTES, check_request, check_response, divided, node_id_of
from dtfm_protocol.discovery.record_rules import MembersRecords, places_of
from dtfm_protocol.discovery.records import Entry, LinkReport
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.compat.hivemind import refuse_stale_records
from tests.harness.membership import OWNER, STRANGERS, SWARM, coordinator_of, member_of, stranger

KEEPER = coordinator_of(OWNER)
HOUR = 3600.0
UNTIL = 1e10


def rules(identity: Identity = OWNER, admission: Admission = KEEPER) -> MembersRecords:
    return MembersRecords(Registry(SWARM, Post(SWARM, identity)), identity, admission)


def draft(identity: Identity, peer: str | None = None, lives: float = 100.0, fill: int = 0) -> DHTRecord:
    """A record of links as hivemind hands it to the validator for signing."""
    registry = Registry(SWARM, Post(SWARM, identity))
    data = Post(SWARM, identity).seal("record", Entry(record=LinkReport(links={}), until=UNTIL)) + b" " * fill
    peer = peer or identity.peer_id
    key = DHTID.generate(source=registry.key("links", peer)).to_bytes()
    return DHTRecord(key, msgpack.packb(peer), msgpack.packb(data), time.time() + lives)


def stored(identity: Identity, admission: Admission, record: DHTRecord | None = None) -> DHTRecord:
    """The same as it is sent to others."""
    record = record or draft(identity)
    return replace(record, value=rules(identity, admission).sign_value(record))


def test_a_members_record_is_believed_and_comes_out_as_it_went_in() -> None:
    member, admission = member_of(OWNER)
    plain = draft(member)
    record = stored(member, admission, plain)
    for keeper in (rules(), rules(*member_of(OWNER)), rules(member, admission)):
        assert keeper.validate(record)
        assert keeper.strip_value(record) == plain.value


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_strangers_record_is_not(kind: str) -> None:
    who = stranger(kind)
    keeper = coordinator_of(OWNER)
    keeper.ban(who.bans)
    assert not rules(admission=keeper).validate(stored(who.identity, who.admission))


def test_what_is_changed_elsewhere_too_large_or_lives_too_long_is_not_believed() -> None:
    member, admission = member_of(OWNER)
    other, _ = member_of(OWNER)
    good, keeper = stored(member, admission), rules()
    assert keeper.validate(good)
    profile, links = places_of(Registry(SWARM, Post(SWARM, OWNER)), member.peer_id)
    assert good.key == links.key
    for bad in (
        replace(good, key=profile.key),  # of another kind
        replace(good, key=bytes(20)),
        replace(good, key=places_of(Registry(SWARM, Post(SWARM, OWNER)), other.peer_id)[1].key),
        replace(good, subkey=msgpack.packb(other.peer_id)),
        replace(good, subkey=msgpack.packb(1)),
        replace(good, subkey=b"\xc1"),
        replace(good, subkey=b""),
        replace(good, subkey=msgpack.packb("x" * 1000)),
        replace(good, expiration_time=good.expiration_time + 1),  # kept for longer than its writer says
        replace(good, value=good.value[:-1]),
        replace(good, value=b""),
        replace(good, value=bytes(1 << 20)),
        stored(member, admission, draft(member, lives=HOUR)),
        stored(member, admission, draft(member, lives=float("inf"))),
        stored(member, admission, draft(member, lives=float("nan"))),
        stored(member, admission, draft(member, fill=300 << 10)),
        stored(other, admission, draft(member)),  # signed with another key than that of the credential
        stored(member, admission, draft(member, peer=other.peer_id)),
    ):
        assert not keeper.validate(bad), bad
    for index in range(2 + len(admission.certificate), len(good.value), 7):  # in a certificate, padding may change
        changed = bytearray(good.value)
        changed[index] ^= 1
        assert not keeper.validate(replace(good, value=bytes(changed)))


def test_refusals_are_counted_by_cause_however_many_there_are() -> None:
    keeper = rules()
    for _ in range(200):
        who = stranger("another coordinator's")
        keeper.validate(stored(who.identity, who.admission))
    assert keeper._registry.dropped == {Cause.MEMBER: 200}


def test_a_peer_has_one_place_in_the_dht_by_its_peer_id() -> None:
    member, other = (Identity.generate().peer_id for _ in range(2))
    own, foreign = (dht_pb2.NodeInfo(node_id=node_id_of(peer).to_bytes()) for peer in (member, other))
    for node in (own, dht_pb2.NodeInfo()):
        check_request(member, dht_pb2.PingRequest(peer=node))
        check_response(member, dht_pb2.PingResponse(peer=node))
    with pytest.raises(Refused):
        check_request(member, dht_pb2.PingRequest(peer=foreign))
    with pytest.raises(Refused):
        check_response(member, dht_pb2.PingResponse(peer=foreign))


def test_an_answer_names_so_many_neighbours_in_their_own_places_and_ends_no_search() -> None:
    member = Identity.generate().peer_id
    others = [PeerID.from_base58(Identity.generate().peer_id) for _ in range(21)]
    places = [node_id_of(str(other)).to_bytes() for other in others]
    ids = [other.to_bytes() for other in others]

    def answer(nodes: list[bytes], peers: list[bytes], expires: float = 0.0) -> object:
        result = dht_pb2.FindResult(nearest_node_ids=nodes, nearest_peer_ids=peers, expiration_time=expires)
        return dht_pb2.FindResponse(results=[result])

    check_response(member, answer(places[:20], ids[:20], time.time() + 600))
    for nodes, peers, expires in (
        (places, ids, 0.0),
        (places[:2], ids[:1], 0.0),
        (places[:1], ids[1:2], 0.0),
        (places[:1], [bytes(1 << 20)], 0.0),
        ([], [], time.time() + HOUR),
        ([], [], float("inf")),
        ([], [], float("nan")),
    ):
        with pytest.raises(Refused):
            check_response(member, answer(nodes, peers, expires))


def asks_to_store(subkey: bytes = b"", value: bytes = b"", **changes: object) -> dht_pb2.StoreRequest:
    """A request to store one record, in which something is changed."""
    columns = {
        "keys": [bytes(20)],
        "subkeys": [subkey],
        "values": [value],
        "expiration_time": [1.0],
        "in_cache": [True],
    }
    return dht_pb2.StoreRequest(**(columns | changes))


def dictionary(*rows: object, most: object = float("inf"), code: int = 0x50) -> bytes:
    """A dictionary of records as hivemind writes it."""
    return bytes(msgpack.packb(msgpack.ExtType(code, msgpack.packb([most, -1.0, list(rows)]))))


NO_DICTIONARIES = (
    b"",
    b"\xc1",
    msgpack.packb([]),
    msgpack.packb(msgpack.ExtType(0x50, b"\x90")),
    dictionary(code=0x51),
    dictionary(most="a"),
    dictionary(7),
    dictionary(["a", b"b"]),
    dictionary([1, b"b", 1.0]),
    dictionary(["a", "b", 1.0]),
    dictionary(["a", b"", "c"]),
    dictionary(["a", msgpack.ExtType(0x40, b"\x90"), 1.0]),
)


def test_a_request_to_store_has_all_of_each_record() -> None:
    member = Identity.generate().peer_id
    written = DictionaryDHTValue()
    written.store("peer", b"value", time.time() + 100)
    for good in (b"", MSGPackSerializer.dumps(written), dictionary(["a", b"b", 1.0], most=5)):
        check_request(member, asks_to_store(b"\xa1a" if not good else b"", good))
    for bad in (
        asks_to_store(b"s", keys=[bytes(19)]),
        asks_to_store(b"s", keys=[bytes(21)]),
        asks_to_store(b"s", keys=[]),
        asks_to_store(b"s", subkeys=[]),
        asks_to_store(b"s", values=[b"", b""]),
        asks_to_store(b"s", expiration_time=[]),
        asks_to_store(b"s", in_cache=[]),
        *map(functools.partial(asks_to_store, b""), NO_DICTIONARIES),
    ):
        with pytest.raises(Refused):
            check_request(member, bad)
    with pytest.raises(Refused):
        check_request(member, dht_pb2.FindRequest(keys=[b""]))


def test_a_value_that_is_nested_ends_no_process_and_takes_no_memory() -> None:
    """hivemind reads tuples in tuples by recursion, and keeps what is around each: two hundred end its process."""
    member, value = Identity.generate().peer_id, bytes(1 << 19)
    for _ in range(200):
        value = msgpack.packb(msgpack.ExtType(0x40, value))
    nested = dictionary(["a", msgpack.ExtType(0x40, value), 1.0])
    result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=nested)
    tracemalloc.start()
    try:
        with pytest.raises(Refused):
            check_request(member, asks_to_store(value=nested))
        with pytest.raises(Refused):
            check_response(member, dht_pb2.FindResponse(results=[result]))
        assert tracemalloc.get_traced_memory()[1] < 8 * len(nested)
    finally:
        tracemalloc.stop()


def test_what_is_much_to_store_is_sent_in_parts_and_nothing_is_lost() -> None:
    rows = [(bytes([number]) * 20, b"s", bytes([number]) * (100 << 10), float(number), False) for number in range(23)]
    rows.append((bytes(20), b"", bytes(2 * STORE_BYTES), 1.0, True))
    rows.append((bytes(20), b"", b"", 1.0, True))
    names = ("keys", "subkeys", "values", "expiration_time", "in_cache")
    own = dht_pb2.NodeInfo(node_id=bytes(20))
    whole = dht_pb2.StoreRequest(peer=own, **dict(zip(names, zip(*rows, strict=True), strict=True)))
    parts = list(divided(whole))
    assert [len(part.keys) for part in parts] == [5, 5, 5, 5, 3, 1, 1]
    assert all(part.peer == own for part in parts)
    for name in names:
        assert [cell for part in parts for cell in getattr(part, name)] == list(getattr(whole, name))
    small = dht_pb2.FindRequest(keys=[bytes(20)])
    assert list(divided(small)) == [small]


def test_a_record_that_is_stored_over_and_over_takes_no_more_memory() -> None:
    refuse_stale_records()
    storage, expires = DHTLocalStorage(), time.time() + 100
    key = DHTID.generate(source="key")
    assert storage.store_subkey(key, "peer", b"value", expires)
    for number in range(1000):
        assert not storage.store_subkey(key, "peer", b"value", expires + number * 1e-6)
    held = storage.get(key)
    assert held is not None
    assert len(held.value.expiration_heap) == len(storage.expiration_heap) == 1
    assert storage.store_subkey(key, "peer", b"newer", expires + 1)
    assert storage.store_subkey(key, "other", b"value", expires)


def test_rubbish_as_a_record_is_refused_and_nothing_else_happens() -> None:
    keeper, member = rules(), member_of(OWNER)
    good = stored(*member)
    for size in range(0, len(good.value), 5):
        with contextlib.suppress(Refused):
            assert not keeper.validate(replace(good, value=good.value[:size]))
        assert not keeper.validate(replace(good, subkey=good.subkey[:size] if size < len(good.subkey) else b"\xff"))
