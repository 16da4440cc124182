"""What frames tell of links: the fastest run of each peer, in Gbit/s, since it was last asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_node.engine.link_rates import (
    AT_ONCE_SECONDS,
    FIRST_WINDOW,
    LEAST_BYTES,
    LEAST_SECONDS,
    OPENING,
    LinkRates,
    opening_seconds,
)

MEGABYTE = 1_000_000


def test_nobody_has_sent_anything_at_first() -> None:
    assert LinkRates().take() == {}


def test_a_frames_rate_is_its_bytes_over_its_seconds_in_gigabits() -> None:
    inflow = LinkRates()
    inflow.run("a").came(125 * MEGABYTE, 1.0, 1.0)
    inflow.run("b").came(MEGABYTE, 1.0, 0.08)
    assert inflow.take() == pytest.approx({"a": 1.0, "b": 0.1})


def test_the_fastest_run_of_each_peer_counts() -> None:
    inflow = LinkRates()
    for seconds in (0.5, 0.1, 0.2):
        inflow.run("a").came(MEGABYTE, 1.0, seconds)
    inflow.run("b").came(MEGABYTE, 1.0, 0.4)
    assert inflow.take() == pytest.approx({"a": 0.08, "b": 0.02})


def test_what_was_taken_is_not_told_again() -> None:
    inflow = LinkRates()
    inflow.run("a").came(MEGABYTE, 1.0, 0.1)
    inflow.take()
    assert inflow.take() == {}
    inflow.run("a").came(MEGABYTE, 1.0, 0.8)
    assert inflow.take() == pytest.approx({"a": 0.01})


def test_small_frames_tell_nothing() -> None:
    inflow = LinkRates()
    inflow.run("a").came(LEAST_BYTES - 1, 1.0, 1.0)
    inflow.run("b").came(0, 1.0, 0.0)
    assert inflow.take() == {}
    inflow.run("a").came(LEAST_BYTES, 1.0, 1.0)
    assert inflow.take() == pytest.approx({"a": LEAST_BYTES * 8e-9})


def test_a_frame_that_took_no_time_has_a_rate_nevertheless() -> None:
    inflow = LinkRates()
    inflow.run("a").came(MEGABYTE, 1.0, 0.0)
    inflow.run("b").came(MEGABYTE, 1.0, LEAST_SECONDS)
    found = inflow.take()
    assert found["a"] == found["b"] == pytest.approx(MEGABYTE * 8e-9 / LEAST_SECONDS)


def test_frames_that_a_lost_packet_has_held_up_are_no_faster_than_their_link() -> None:
    inflow = LinkRates()
    run = inflow.run("a")
    run.came(MEGABYTE, 1.0, 4.0)  # its missing part has come a round trip late; three more wait behind it
    for _ in range(3):
        run.came(MEGABYTE, 0.0, 0.0)
    assert inflow.take() == pytest.approx({"a": 0.008})
    run.came(MEGABYTE, AT_ONCE_SECONDS, 1.0)
    run.came(MEGABYTE, 2 * AT_ONCE_SECONDS, 0.5)
    assert inflow.take() == pytest.approx({"a": 0.016})


def test_frames_of_two_streams_are_no_run() -> None:
    inflow = LinkRates()
    inflow.run("a").came(MEGABYTE, 1.0, 4.0)
    inflow.run("a").came(MEGABYTE, 0.0, 1.0)
    assert inflow.take() == pytest.approx({"a": 0.008})


def test_a_window_doubles_each_round_trip() -> None:
    assert opening_seconds(0, 0.1) == 0.0
    for trips in range(1, 12):
        sent = FIRST_WINDOW * sum(2**trip for trip in range(trips))
        assert opening_seconds(sent, 0.1) == pytest.approx(0.1 * trips)


def test_frames_that_come_while_the_window_opens_tell_nothing() -> None:
    """A fast link far away: its line is idle for most of the time that so few bytes take."""
    inflow = LinkRates()
    opening = opening_seconds(MEGABYTE, 0.2)
    inflow.run("a", 0.2).came(MEGABYTE, 1.0, 0.99 * OPENING * opening)
    assert inflow.take() == {}
    inflow.run("a", 0.2).came(MEGABYTE, 1.0, 1.01 * OPENING * opening)
    assert inflow.take() == pytest.approx({"a": MEGABYTE * 8e-9 / (1.01 * OPENING * opening)})


def test_frames_of_a_run_tell_something_once_all_of_it_has_taken_long_enough() -> None:
    inflow = LinkRates()
    run = inflow.run("a", 0.1)
    run.came(MEGABYTE, 1.0, 0.5)
    assert inflow.take() == {}
    for _ in range(4):
        run.came(MEGABYTE, 0.0, 0.5)
    assert inflow.take() == pytest.approx({"a": 0.016})


frames = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**9), st.floats(0, 1e4)), max_size=30)


@given(came=frames)
def test_no_frame_was_faster_than_what_is_told_and_one_was_as_fast(came: list[tuple[str, int, float]]) -> None:
    inflow = LinkRates()
    for frame in came:
        peer, size, seconds = frame
        inflow.run(peer).came(size, 1.0, seconds)
    found = inflow.take()
    for peer in "abc":
        own = [size * 8e-9 / max(s, LEAST_SECONDS) for who, size, s in came if who == peer and size >= LEAST_BYTES]
        assert found.get(peer) == (pytest.approx(max(own)) if own else None)
