"""MQTT packets: what clients send is read whole or refused, however it is cut, and what is written reads back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.serve.mqtt_packets import (
    CONTROL_LIMIT,
    Acknowledge,
    Connect,
    Disconnect,
    Packet,
    PacketReader,
    Ping,
    Publication,
    Subscribe,
    Unsubscribe,
    connack,
    puback,
    suback,
    unsuback,
)
from dtfm_protocol.errors import Refused

LIMIT = 1 << 20


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    size, length = len(body), b""
    while True:
        size, part = divmod(size, 128)
        length += bytes([part | (128 if size else 0)])
        if not size:
            return bytes([first]) + length + body


def connect(flags: int = 0x02, *fields: bytes, head: bytes = b"\x00\x04MQTT\x04") -> bytes:
    return packet(0x10, head + bytes([flags]) + b"\x00\x0a" + b"".join(fields or (text("me.1"),)))


def read(data: bytes, limit: int = LIMIT) -> list[Packet]:
    return list(PacketReader(limit).feed(data))


WELL = {
    connect(): Connect("me.1", None, 10, None),
    connect(0xC2, text("me.1"), text("me"), text("secret")): Connect("me.1", "me", 10, None),
    connect(0x2E, text("me.1"), text("a/b"), text("gone")): Connect(
        "me.1", None, 10, Publication("a/b", b"gone", True)
    ),
    packet(0x30, text("a/b") + b"hello"): Publication("a/b", b"hello"),
    packet(0x3B, text("a/b") + b"\x00\x07hello"): Publication("a/b", b"hello", retain=True, id=7),
    packet(0x30, text("a/b") + bytes(70_000)): Publication("a/b", bytes(70_000)),
    packet(0x40, b"\x00\x07"): Acknowledge(7),
    packet(0x82, b"\x00\x01" + text("a/+") + b"\x01" + text("b") + b"\x00"): Subscribe(1, ("a/+", "b")),
    packet(0xA2, b"\x00\x02" + text("b")): Unsubscribe(2, ("b",)),
    packet(0xC0, b""): Ping(),
    packet(0xE0, b""): Disconnect(),
}  # fmt: skip


@pytest.mark.parametrize(("data", "meant"), WELL.items(), ids=[type(meant).__name__ for meant in WELL.values()])
def test_what_a_client_sends_is_read(data: bytes, meant: Packet) -> None:
    assert read(data) == [meant]


@given(st.lists(st.sampled_from(list(WELL)), max_size=6), st.data())
def test_it_is_read_the_same_however_it_is_cut(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = PacketReader(LIMIT)
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [one for piece in pieces for one in reader.feed(piece)] == [WELL[one] for one in sent]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "not a packet that a client sends"),
        (b"\x00\x00", "not a packet"),
        (b"\xf0\x00", "not a packet"),
        (connack(), "not a packet"),
        (packet(0x80, b"\x00\x01" + text("a") + b"\x00"), "not a packet"),
        (b"\x10\xff\xff\xff\xff", "whose length is none"),
        (b"\x10\xff\xff\xff\x7f", "268435455 bytes, more than"),  # before a byte of it has come
        (b"\x30\xff\xff\xff\x7f", "268435455 bytes, more than"),
        (packet(0x82, bytes(CONTROL_LIMIT + 1))[:8], f"{CONTROL_LIMIT + 1} bytes, more than {CONTROL_LIMIT}"),
        (packet(0x30, text("a") + bytes(LIMIT)), f"more than {LIMIT}"),
        (packet(0x34, text("a") + b"\x00\x01"), "exactly once"),
        (packet(0x32, text("a") + b"\x00\x00"), "the id 0"),
        (packet(0x32, text("a") + b"\x00"), "cut short"),
        (packet(0x30, b"\x00\x09a"), "cut short"),
        (packet(0x30, text(b"\xff")), "not UTF-8"),
        (packet(0x30, text("a\0b")), "a zero in it"),
        (packet(0x30, text("a" * 600)), "a field of 600 bytes"),
        (packet(0xC0, b"\x00"), "longer than what it says"),
        (packet(0x82, b"\x00\x01"), "names no topic"),
        (packet(0x82, b"\x00\x01" + text("a") + b"\x03"), "level of delivery"),
        (connect(0x00), "outlives its connection"),
        (connect(0x03), "flags are wrong"),
        (connect(0x22), "flags are wrong"),
        (connect(0x16, text("me.1"), text("a"), text("b")), "flags are wrong"),
        (connect(0x42, text("me.1"), text("secret")), "flags are wrong"),
        (connect(head=b"\x00\x04MQTT\x05"), "another protocol"),
        (connect(head=b"\x00\x06MQIsdp\x03"), "another protocol"),
        (connect(0x02, text("me.1"), text("more")), "longer than what it says"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        read(data)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_rubbish_is_refused_or_waited_for(pieces: list[bytes]) -> None:
    reader = PacketReader(4096)
    with contextlib.suppress(Refused):
        for piece in pieces:
            assert all(isinstance(found, Packet) for found in reader.feed(piece))


@given(st.sampled_from(list(WELL)), st.data())
def test_a_packet_that_was_tampered_with_is_another_one_or_refused(packet: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, min(len(packet), 40) - 1))
    changed = packet[:at] + bytes([data.draw(st.integers(0, 255))]) + packet[at + 1 :]
    with contextlib.suppress(Refused):
        assert all(isinstance(found, Packet) for found in read(changed, 100_000))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60), st.binary(max_size=300))
def test_a_message_that_is_written_reads_back(topic: str, payload: bytes) -> None:
    assert read(Publication(topic, payload, True).encode(retained=False)) == [Publication(topic, payload)]
    assert read(Publication(topic, payload).encode(retained=True)) == [Publication(topic, payload, True)]


def test_answers_are_as_the_standard_has_them() -> None:
    assert connack() == b"\x20\x02\x00\x00"
    assert connack(5) == b"\x20\x02\x00\x05"
    assert puback(258) == b"\x40\x02\x01\x02"
    assert suback(258, 2) == b"\x90\x04\x01\x02\x00\x00"
    assert suback(1, 200)[:3] == b"\x90\xca\x01"
    assert unsuback(258) == b"\xb0\x02\x01\x02"
