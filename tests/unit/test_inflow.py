"""What frames tell of links: the fastest of each peer, in Gbit/s, since it was last asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_node.engine.inflow import LEAST_BYTES, LEAST_SECONDS, Inflow

MEGABYTE = 1_000_000


def test_nobody_has_sent_anything_at_first() -> None:
    assert Inflow().take() == {}


def test_a_frames_rate_is_its_bytes_over_its_seconds_in_gigabits() -> None:
    inflow = Inflow()
    inflow.came("a", 125 * MEGABYTE, 1.0)
    inflow.came("b", MEGABYTE, 0.08)
    assert inflow.take() == pytest.approx({"a": 1.0, "b": 0.1})


def test_the_fastest_frame_of_each_peer_counts() -> None:
    inflow = Inflow()
    for seconds in (0.5, 0.1, 0.2):
        inflow.came("a", MEGABYTE, seconds)
    inflow.came("b", MEGABYTE, 0.4)
    assert inflow.take() == pytest.approx({"a": 0.08, "b": 0.02})


def test_what_was_taken_is_not_told_again() -> None:
    inflow = Inflow()
    inflow.came("a", MEGABYTE, 0.1)
    inflow.take()
    assert inflow.take() == {}
    inflow.came("a", MEGABYTE, 0.8)
    assert inflow.take() == pytest.approx({"a": 0.01})


def test_small_frames_tell_nothing() -> None:
    inflow = Inflow()
    inflow.came("a", LEAST_BYTES - 1, 1.0)
    inflow.came("b", 0, 0.0)
    assert inflow.take() == {}
    inflow.came("a", LEAST_BYTES, 1.0)
    assert inflow.take() == pytest.approx({"a": LEAST_BYTES * 8e-9})


def test_a_frame_that_took_no_time_has_a_rate_nevertheless() -> None:
    inflow = Inflow()
    inflow.came("a", MEGABYTE, 0.0)
    inflow.came("b", MEGABYTE, LEAST_SECONDS)
    found = inflow.take()
    assert found["a"] == found["b"] == pytest.approx(MEGABYTE * 8e-9 / LEAST_SECONDS)


frames = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**9), st.floats(0, 1e4)), max_size=30)


@given(came=frames)
def test_no_frame_was_faster_than_what_is_told_and_one_was_as_fast(came: list[tuple[str, int, float]]) -> None:
    inflow = Inflow()
    for frame in came:
        inflow.came(*frame)
    found = inflow.take()
    for peer in "abc":
        own = [size * 8e-9 / max(s, LEAST_SECONDS) for who, size, s in came if who == peer and size >= LEAST_BYTES]
        assert found.get(peer) == (pytest.approx(max(own)) if own else None)
