"""Frame headers: 28 bytes that say the same on both sides, or are refused."""

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dtfm_protocol.errors import Refused
from dtfm_protocol.wire.frames import HEADER_BYTES, FrameHeader, Key, Kind

SPARE = 5
"""The place of the byte that says nothing."""

word = st.integers(0, (1 << 32) - 1)
headers = st.builds(
    FrameHeader,
    plan_version=word,
    key=st.builds(Key, kind=st.sampled_from(Kind), step=word, index=word, group=st.integers(0, (1 << 16) - 1)),
    size=st.integers(0, (1 << 64) - 1),
)
GOOD = FrameHeader(3, Key(Kind.PART, 7, 2, 1), 1000)


def assert_refused_or_sound(data: bytes) -> None:
    """A header that says all that its bytes say, of the types that it promises; or `Refused` and nothing else."""
    try:
        header = FrameHeader.parse(data)
    except Refused:
        return
    assert header.pack() == data[:SPARE] + b"\0" + data[SPARE + 1 :]
    assert isinstance(header.key.kind, Kind)


@given(header=headers)
def test_a_header_is_parsed_as_it_was_packed(header: FrameHeader) -> None:
    data = header.pack()
    assert len(data) == HEADER_BYTES == 28
    for form in (bytes, bytearray, memoryview):
        assert FrameHeader.parse(form(data)) == header


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_keeps_its_number(kind: Kind) -> None:
    data = FrameHeader(1, Key(kind, 2, 3, 4), 5).pack()
    assert data[4] == kind
    assert FrameHeader.parse(data).key.kind is kind


def test_the_layout_is_fixed() -> None:
    assert GOOD.pack() == b"DTF2" + bytes([3, 0]) + struct.pack("!HIIIQ", 1, 3, 7, 2, 1000)
    assert [kind.name for kind in sorted(Kind)] == [
        "ACTIVATION",
        "GRADIENT",
        "PART",
        "REDUCED",
        "EVALUATION",
        "VOTE",
        "COMMIT",
        "PULSE",
    ]
    assert sorted(Kind) == list(range(1, 9))


def test_votes_commits_and_pulses_carry_no_tensor() -> None:
    assert {kind for kind in Kind if not kind.carries_tensor} == {Kind.VOTE, Kind.COMMIT, Kind.PULSE}


def test_only_the_all_reduce_is_bulk() -> None:
    assert {kind for kind in Kind if kind.is_bulk} == {Kind.PART, Kind.REDUCED}


@given(data=st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES) | st.binary(max_size=80))
@example(data=b"")
def test_random_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Refused):
        FrameHeader.parse(data)


@given(rest=st.binary(min_size=HEADER_BYTES - 4, max_size=HEADER_BYTES - 4))
@settings(max_examples=300)
def test_bytes_that_begin_like_a_frame_are_refused_or_a_header_that_says_the_same(rest: bytes) -> None:
    assert_refused_or_sound(GOOD.pack()[:4] + rest)


@given(
    header=headers,
    places=st.dictionaries(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255), min_size=1, max_size=4),
)
@settings(max_examples=300)
def test_a_header_with_wrong_bytes_is_refused_or_a_header_that_says_the_same(
    header: FrameHeader, places: dict[int, int]
) -> None:
    data = bytearray(header.pack())
    for place, byte in places.items():
        data[place] = byte
    assert_refused_or_sound(bytes(data))


@given(data=st.data())
def test_a_header_of_any_other_length_is_refused(data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, HEADER_BYTES - 1))
    with pytest.raises(Refused, match=f"a header of {cut} bytes"):
        FrameHeader.parse(GOOD.pack()[:cut])
    with pytest.raises(Refused, match=f"a header of {HEADER_BYTES + 1} bytes"):
        FrameHeader.parse(GOOD.pack() + b"\0")


def test_every_unknown_kind_is_refused_by_its_number() -> None:
    data = bytearray(GOOD.pack())
    for kind in set(range(256)) - set(Kind):
        data[4] = kind
        with pytest.raises(Refused, match=f"unknown kind {kind}$"):
            FrameHeader.parse(data)


@pytest.mark.parametrize("place", range(4))
def test_each_of_the_first_bytes_is_looked_at(place: int) -> None:
    """Frames of another version of the protocol begin otherwise."""
    data = bytearray(GOOD.pack())
    data[place] ^= 1
    with pytest.raises(Refused, match="does not begin like one"):
        FrameHeader.parse(data)


def test_a_key_in_words_names_the_bucket_where_there_is_one() -> None:
    assert str(Key(Kind.ACTIVATION, 7, 2)) == "ACTIVATION 2 of step 7"
    assert str(GOOD.key) == "PART 2 of bucket 1 of step 7"
