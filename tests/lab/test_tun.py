"""What a packet from a TUN device is on the wire, and for whom: headers as the kernel writes them, by hand."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_lab.emulation.hosts import address
from dtfm_lab.emulation.tun import HEADER_BYTES, LARGEST_PACKET, destination, wire_bytes

TCP4, TCP4_ECN = 1, 0x81
HEADERS = 52
"""IPv4's twenty bytes and TCP's with timestamps."""


def packet(
    size: int, kind: int = 0, headers: int = 0, segment: int = 0, to: str = "10.77.0.1", version: int = 4
) -> bytes:
    """An IP packet of `size` bytes after its `virtio_net_hdr`."""
    before = struct.pack("=BBHHHH", 1, kind, headers, segment, 20, 16)
    assert len(before) == HEADER_BYTES
    parts = bytes(int(part) for part in to.split("."))
    ip = bytes([version << 4 | 5]) + bytes(15) + parts
    return before + (ip + bytes(max(0, size - len(ip))))[:size]


@pytest.mark.parametrize("size", [20, 52, 576, 1500])
def test_a_packet_that_is_not_cut_is_as_long_as_it_is(size: int) -> None:
    assert wire_bytes(packet(size)) == size
    assert wire_bytes(packet(size, headers=HEADERS)) == size
    assert wire_bytes(packet(size, kind=TCP4, headers=HEADERS, segment=0)) == size


@pytest.mark.parametrize(
    ("payload", "segments"),
    [(1, 1), (1447, 1), (1448, 1), (1449, 2), (2896, 2), (2897, 3), (14480, 10), (65483, 46)],
)
def test_a_packet_that_is_to_be_cut_has_headers_for_each_segment(payload: int, segments: int) -> None:
    for kind in (TCP4, TCP4_ECN):
        size = wire_bytes(packet(HEADERS + payload, kind=kind, headers=HEADERS, segment=1448))
        assert size == payload + segments * HEADERS


@given(payload=st.integers(1, 65000), segment=st.integers(1, 9000), headers=st.integers(40, 120))
def test_the_wire_carries_what_cutting_by_hand_gives(payload: int, segment: int, headers: int) -> None:
    cut = [headers + min(segment, payload - begin) for begin in range(0, payload, segment)]
    assert wire_bytes(packet(headers + payload, kind=TCP4, headers=headers, segment=segment)) == sum(cut)


def test_headers_alone_are_one_packet() -> None:
    assert wire_bytes(packet(HEADERS, kind=TCP4, headers=HEADERS, segment=1448)) == HEADERS


@pytest.mark.parametrize("number", [0, 1, 100, 253, 254, 255, 256, 600])
def test_a_hosts_address_says_its_number_from_one_on(number: int) -> None:
    assert destination(packet(100, to=address(number))) == number + 1


def test_addresses_of_hosts_differ() -> None:
    assert len({address(number) for number in range(1000)}) == 1000


def test_what_is_not_ipv4_or_too_short_is_for_nobody() -> None:
    assert destination(packet(100, version=6)) is None
    assert destination(b"") is None
    assert destination(packet(19)) is None
    assert destination(packet(20)) == 1


def test_the_largest_packet_has_room_for_all_that_ip_can_say() -> None:
    assert LARGEST_PACKET >= HEADER_BYTES + 65535
