"""The search for a link's rate, on links that are arithmetic."""

import math
from collections.abc import Callable

import pytest

from dtfm_node.links.rate_search import FIRST_BYTES, LAST_BYTES, LAST_SECONDS, PIECE_BYTES, RateSearch


def searched(
    rate: float,
    round_trip: float,
    *,
    again: bool = False,
    window: float = math.inf,
    tells: bool = True,
    quick: bool = False,
    others: Callable[[int], float] = lambda number: 0.0,
) -> tuple[float, float, int]:
    """What is found of a link of `rate` bytes a second, in how many seconds and transfers.

    Args:
        window: bytes a second that TCP sends at most, whatever the link carries.
        tells: whether the sender's kernel knows of queues.
        others: share of the link that other traffic takes during a transfer, by its number from 1.
    """
    search, elapsed, transfers = RateSearch(round_trip, again=again, quick=quick), 0.0, 0
    opened = 14e3  # TCP's first window, which doubles with each round trip
    while search.rate is None:
        assert 0 < search.size <= LAST_BYTES
        seconds, queue, left = 0.0, 0.0, float(search.size - PIECE_BYTES)
        taken = others(transfers + 1)
        free = rate * (1 - taken)
        while left > 0:
            pushed = min(search.pace, window, opened / round_trip)
            sent = min(left, pushed * round_trip)
            seconds += sent / min(free, pushed)
            queue += sent / free - sent / max(free, pushed) if pushed > free else 0.0
            left -= sent
            opened = min(2 * opened, 1e9)
        queued = queue if tells and search.asks_for_queue(seconds) else None
        elapsed += seconds + round_trip
        transfers += 1
        search.came(seconds, queued, elapsed, shared=taken > 0)
    assert search.is_least == (taken > 0)
    return search.rate, elapsed, transfers


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("round_trip", [0.0005, 0.02, 0.3])
@pytest.mark.parametrize("rate", [2e4, 2.5e5, 2.5e6, 2.5e7])
def test_it_finds_what_a_link_carries_in_bounded_time(rate: float, round_trip: float, again: bool, tells: bool) -> None:
    found, seconds, _ = searched(rate, round_trip, again=again, tells=tells)
    assert found == pytest.approx(rate, rel=0.01)
    assert seconds < LAST_SECONDS + 8


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("rate", [1.5e5, 2.5e6])
def test_a_transfer_that_has_shared_a_line_is_made_again(rate: float, quick: bool) -> None:
    _, _, alone = searched(rate, 0.02, quick=quick)
    found, _, transfers = searched(rate, 0.02, quick=quick, others=lambda number: 0.6 if number == alone else 0.0)
    assert found == pytest.approx(rate, rel=0.02)
    assert transfers > alone


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("rate", [1.5e5, 2.5e6])
def test_what_shares_its_line_all_the_time_is_a_least_in_bounded_time(rate: float, quick: bool) -> None:
    found, seconds, _ = searched(rate, 0.02, quick=quick, others=lambda number: 0.6)
    assert found == pytest.approx(0.4 * rate, rel=0.05)
    assert seconds < (8 if quick else LAST_SECONDS + 8)


@pytest.mark.parametrize("round_trip", [0.0005, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("rate", [2e4, 1.5e5, 6e5, 2.5e6])
def test_a_first_figure_comes_within_seconds(rate: float, round_trip: float) -> None:
    found, seconds, transfers = searched(rate, round_trip, quick=True)
    assert found == pytest.approx(rate, rel=0.01)
    assert seconds < max(FIRST_BYTES / rate, 1.5 + 4 * round_trip) + 2 * round_trip
    assert transfers <= searched(rate, round_trip)[2]


def test_a_slow_link_takes_one_transfer_where_training_waits_for_it() -> None:
    assert [searched(2.5e4, 0.02, again=again)[2] for again in (True, False)] == [1, 2]


def test_where_no_queue_is_ever_seen_what_came_counts_in_the_end() -> None:
    found, seconds, _ = searched(1e6, 0.02, window=2.5e5)
    assert found == pytest.approx(2.5e5, rel=0.01)
    assert 8 < seconds < LAST_SECONDS
