"""Frame headers: 36 bytes that say the same on both sides, or are refused."""

import math
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dtfm_protocol.errors import Refused
from dtfm_protocol.frames import HEADER_BYTES, Header, Key, Kind

word = st.integers(0, (1 << 32) - 1)
headers = st.builds(
    Header,
    plan_version=word,
    key=st.builds(Key, kind=st.sampled_from(Kind), step=word, index=word, group=st.integers(0, (1 << 16) - 1)),
    size=st.integers(0, (1 << 64) - 1),
    scale=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
GOOD = Header(3, Key(Kind.PART, 7, 2, 1), 1000, 0.5)


@given(header=headers)
def test_a_header_is_parsed_as_it_was_packed(header: Header) -> None:
    data = header.pack()
    assert len(data) == HEADER_BYTES == 36
    for form in (bytes, bytearray, memoryview):
        assert Header.parse(form(data)) == header


def test_the_layout_is_fixed() -> None:
    wanted = b"DTF1" + bytes([3, 0]) + struct.pack("!HIIIIfQ", 1, 3, 7, 2, 0, 0.5, 1000)
    assert GOOD.pack() == wanted


@given(data=st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES) | st.binary(max_size=80))
@example(data=b"")
def test_random_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Refused):
        Header.parse(data)


@given(rest=st.binary(min_size=HEADER_BYTES - 4, max_size=HEADER_BYTES - 4))
def test_bytes_that_begin_like_a_frame_are_a_header_with_finite_scale_or_refused(rest: bytes) -> None:
    try:
        header = Header.parse(b"DTF1" + rest)
    except Refused:
        return
    assert math.isfinite(header.scale)
    assert header.key.kind in Kind


@given(data=st.data())
def test_a_header_of_any_other_length_is_refused(data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, HEADER_BYTES - 1))
    with pytest.raises(Refused, match=f"a header of {cut} bytes"):
        Header.parse(GOOD.pack()[:cut])
    with pytest.raises(Refused, match=f"a header of {HEADER_BYTES + 1} bytes"):
        Header.parse(GOOD.pack() + b"\0")


@pytest.mark.parametrize("kind", sorted({0, 8, 255} - set(Kind)))
def test_an_unknown_kind_is_named(kind: int) -> None:
    data = bytearray(GOOD.pack())
    data[4] = kind
    with pytest.raises(Refused, match=f"unknown kind {kind}"):
        Header.parse(data)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_is_refused(scale: float) -> None:
    data = GOOD.pack()
    with pytest.raises(Refused, match="not finite"):
        Header.parse(data[:24] + struct.pack("!f", scale) + data[28:])


def test_the_first_byte_is_looked_at() -> None:
    with pytest.raises(Refused, match="does not begin like one"):
        Header.parse(b"E" + GOOD.pack()[1:])
