"""Protobuf by value, and beside the real one: nothing that a peer sends does more than to be refused."""

import asyncio

import pytest
from hivemind.proto import p2pd_pb2

from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.libp2p_messages import packed, read_with_length, unpacked, varint, with_length

LIMIT = 4096


def reader(data: bytes) -> asyncio.StreamReader:
    made = asyncio.StreamReader()
    made.feed_data(data)
    made.feed_eof()
    return made


def test_fields_survive_their_coding() -> None:
    fields: dict[int, int | bytes] = {1: 0, 2: b"\x00" * 300, 3: 2**63, 5: 100, 15: 127, 16: b""}
    assert unpacked(packed(fields)) == fields
    assert unpacked(b"\x09" + bytes(8) + b"\x15" + bytes(4)) == {1: bytes(8), 2: bytes(4)}


def test_a_message_with_a_repeated_field_is_what_the_real_protobuf_writes() -> None:
    for addresses in ([], [b"a"], [b"a", b"", b"b" * 1000]):
        real = p2pd_pb2.PeerInfo(id=b"me", addrs=addresses).SerializeToString()
        assert packed({1: b"me", 2: addresses}) == real
        assert unpacked(real) == {1: b"me"} | ({2: addresses[-1]} if addresses else {})


@pytest.mark.parametrize(
    "data",
    [
        varint(LIMIT + 1),
        b"\xff\xff\xff\xff\x01",
        b"\x02\x12\x05",
        b"\x01\x80",
        b"\x02\x0c\x00",
        varint(12) + b"\x08" + b"\xff" * 11,
    ],
    ids=["long", "endless length", "short field", "short key", "unknown kind", "endless number"],
)
async def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        unpacked(await read_with_length(reader(data).readexactly, LIMIT))


async def test_a_message_that_claims_to_be_huge_is_not_read() -> None:
    with pytest.raises(Refused, match="2097151 bytes"):
        await read_with_length(reader(b"\xff\xff\x7f" + b"x" * 100).readexactly, LIMIT)
    assert await read_with_length(reader(with_length(b"y" * 300)).readexactly, LIMIT) == b"y" * 300
