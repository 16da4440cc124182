"""What stands in for links that nobody measured: near what they are, and never in place of what was measured."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.missing_links import estimated_bandwidth, estimated_latency
from dtfm_protocol.view.view import GBIT, View

PEERS = 60


def holed(matrix: Matrix, missing: float, seed: int = 0) -> Matrix:
    gaps = np.random.default_rng(seed).random(matrix.shape) < missing
    return np.where(gaps | np.eye(len(matrix), dtype=bool), np.nan, matrix)


def nowhere(peers: int) -> list[str | None]:
    return [None] * peers


def unlimited(peers: int) -> Matrix:
    return np.full(peers, np.inf)


def misses(estimate: Matrix, truth: Matrix, given: Matrix) -> Matrix:
    """Relative errors where nothing was measured."""
    gaps = np.isnan(given) & ~np.eye(len(truth), dtype=bool)
    wrong: Matrix = np.abs(estimate[gaps] / truth[gaps] - 1)
    return wrong


@given(
    count=st.integers(1, 9),
    seed=st.integers(0, 999),
    missing=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    regions=st.lists(st.sampled_from([None, "x", "y"]), min_size=9, max_size=9),
    dead=st.sampled_from([0.0, 0.2, 1.0]),
    limit=st.sampled_from([np.inf, 0.5]),
)
@settings(max_examples=200, deadline=None)
def test_estimates_are_whole_and_leave_what_was_measured(
    count: int, seed: int, missing: float, regions: list[str | None], dead: float, limit: float
) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0.1, 9, (count, count))
    truth[rng.random((count, count)) < dead] = 0.0
    measured = holed(truth, missing, seed)
    limits = np.full(count, limit)
    known = ~np.isnan(measured)
    for estimate in (
        estimated_latency(measured, regions[:count]).values,
        estimated_bandwidth(measured, regions[:count], limits, limits).values,
    ):
        assert np.isfinite(estimate).all()
        assert (estimate >= 0).all()
        np.testing.assert_array_equal(estimate[known], measured[known])
        np.testing.assert_array_equal(estimate.diagonal(), 0)
    guessed = ~known & ~np.eye(count, dtype=bool)
    speeds = estimated_bandwidth(measured, regions[:count], limits, limits).values
    assert (speeds[guessed] <= limit).all()
    assert (speeds[guessed] > 0).all()


def test_a_complete_view_is_taken_as_it_is() -> None:
    matrix = np.random.default_rng(0).random((5, 5))
    np.fill_diagonal(matrix, 0)
    np.testing.assert_array_equal(estimated_latency(matrix, nowhere(5)).values, matrix)
    np.testing.assert_array_equal(estimated_bandwidth(matrix, nowhere(5), np.zeros(5), np.zeros(5)).values, matrix)


def test_where_regions_tell_links_apart_their_medians_stand_in() -> None:
    """By ordered pair, with the region's own figure within it."""
    member = np.arange(PEERS) % 3
    table = np.array([[1.0, 20, 30], [40, 2, 60], [70, 80, 3]])
    truth = table[member[:, None], member]
    regions = ["xyz"[place] for place in member]
    given = holed(truth, 0.9)
    given[3, 0] = 555.0  # one that was disturbed moves no median
    for estimate in (
        estimated_latency(given, regions).values,
        estimated_bandwidth(given, regions, unlimited(PEERS), unlimited(PEERS)).values,
    ):
        gaps = np.isnan(given) & ~np.eye(PEERS, dtype=bool)
        np.testing.assert_allclose(estimate[gaps], truth[gaps], rtol=1e-9)


def test_with_few_links_the_regions_median_is_asked_first() -> None:
    given = np.array([[np.nan, np.nan, 7, 9], [np.nan] * 4, [1, np.nan, np.nan, np.nan], [np.nan] * 4])
    estimate = estimated_latency(given, ["x", "x", "y", "y"]).values
    assert estimate[1, 2] == estimate[1, 3] == 8
    assert estimate[3, 1] == 1


def test_delays_that_are_sums_are_found_with_most_missing() -> None:
    rng = np.random.default_rng(1)
    truth = rng.uniform(2, 40, PEERS)[:, None] + rng.uniform(2, 40, PEERS)[None, :]
    given = holed(truth, 0.6)
    wrong = misses(estimated_latency(given, nowhere(PEERS)).values, truth, given)
    assert wrong.mean() < 0.001
    assert np.quantile(wrong, 0.99) < 0.01  # the few extremes are cut to the range of what was measured


def test_bandwidths_that_are_products_are_found_with_most_missing() -> None:
    rng = np.random.default_rng(2)
    truth = np.exp(rng.uniform(-3, 1, PEERS))[:, None] * np.exp(rng.uniform(-1, 1, PEERS))[None, :]
    given = holed(truth, 0.6)
    estimate = estimated_bandwidth(given, nowhere(PEERS), unlimited(PEERS), unlimited(PEERS)).values
    wrong = misses(estimate, truth, given)
    assert wrong.mean() < 0.001
    assert np.quantile(wrong, 0.99) < 0.01


@pytest.mark.parametrize("missing", [0.5, 0.7, 0.8])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("asymmetry", [1.0, 5.0, 0.2])
def test_bandwidths_between_homes_are_found_with_most_missing(missing: float, noise: float, asymmetry: float) -> None:
    """The smaller of one's uplink and the other's downlink, which no product fits; regions say nothing of it."""
    rng = np.random.default_rng(3)
    up = np.exp(rng.uniform(np.log(0.01), np.log(1), PEERS))
    down = up * asymmetry ** rng.random(PEERS)
    truth = np.minimum(up[:, None], down[None, :])
    given = holed(truth * np.exp(noise * rng.standard_normal(truth.shape)), missing)
    regions = [str(place) for place in rng.integers(0, 8, PEERS)]
    wrong = misses(estimated_bandwidth(given, regions, unlimited(PEERS), unlimited(PEERS)).values, truth, given)
    assert np.median(wrong) < 0.001 + noise
    assert wrong.mean() < 0.02 + noise


def test_per_peer_limits_cap_what_was_not_measured() -> None:
    up, down = np.array([np.inf, 0.5, np.inf]), np.array([0.25, np.inf, np.inf])
    given = np.array([[0, 2, 2], [np.nan, 0, np.nan], [2, np.nan, 0]])
    wanted = [[0, 2, 2], [0.25, 0, 0.5], [2, 2, 0]]
    np.testing.assert_allclose(estimated_bandwidth(given, nowhere(3), up, down).values, wanted)


def test_links_that_slow_lines_limit_say_nothing_of_others_and_lines_that_are_known_leave_little_doubt() -> None:
    """A quarter sits behind slow lines; of the others neighbours have fast links, and the rest slower ones."""
    site = np.arange(PEERS) % 4
    near, slow = site[:, None] == site[None, :], (site[:, None] == 0) | (site[None, :] == 0)
    truth = np.where(slow, 0.05, np.where(near, 10.0, 1.0))
    lines = np.where(site == 0, 0.05, np.inf)
    given = holed(np.triu(truth) + np.triu(truth).T, 0.9)
    estimate = estimated_bandwidth(given, nowhere(PEERS), lines, lines, np.where(near, 0.5, 15.0))
    assert misses(estimate.values, truth, given).max() < 0.01
    assert estimate.spread < 1.2


def test_between_homes_whose_lines_are_known_links_carry_what_these_do() -> None:
    """Few links are measured, most with ends slower than the lines that are asked for."""
    rng = np.random.default_rng(4)
    up, down = np.exp(rng.uniform(-6, 0, PEERS)), np.exp(rng.uniform(-4, 0, PEERS))
    truth = np.minimum(up[:, None], down[None, :])
    given = holed(truth, 0.96)
    estimate = estimated_bandwidth(given, nowhere(PEERS), up, down, rng.uniform(1, 200, (PEERS, PEERS)))
    assert misses(estimate.values, truth, given).max() < 0.01
    assert estimate.spread < 1.2


def test_where_links_follow_from_nothing_one_figure_stands_in_for_all() -> None:
    """One that is fitted to few would be too good at some of them, and these a search would take."""
    rng = np.random.default_rng(3)
    truth, delays = np.exp(rng.uniform(-4, 2, (PEERS, PEERS))), rng.uniform(1, 200, (PEERS, PEERS))
    given = holed(truth, 0.95)
    free = unlimited(PEERS)
    estimate = estimated_bandwidth(given, nowhere(PEERS), free, free, delays)
    gaps = np.isnan(given) & ~np.eye(PEERS, dtype=bool)
    assert np.ptp(estimate.values[gaps]) == 0
    assert estimate.values[gaps][0] == pytest.approx(np.nanmedian(given))
    assert estimate.spread > 5


def test_machines_of_one_room_are_told_by_fast_links_that_lead_from_one_to_another() -> None:
    """Where neither regions nor delays tell rooms apart."""
    room = np.random.default_rng(0).integers(4, size=PEERS)
    truth = np.where(room[:, None] == room, 10.0, 0.5)
    given = holed(truth, 0.8)
    estimated = estimated_bandwidth(given, nowhere(PEERS), unlimited(PEERS), unlimited(PEERS))
    assert np.quantile(misses(estimated.values, truth, given), 0.95) < 0.01
    assert estimated.spread < 1.2


def test_where_nothing_is_measured_limits_stand_in_else_a_gigabit_and_no_delay() -> None:
    nothing = [[None] * 3] * 3
    nodes = [{"id": "a", "up_gbps": 0.1}, {"id": "b", "down_gbps": 0.05}, {"id": "c"}]
    view = View.read({"nodes": nodes, "latency_ms": nothing, "bandwidth_gbps": nothing}, "view")
    assert (view.alpha() == 0).all()
    wanted = [[np.inf, 0.05, 0.1], [1, np.inf, 1], [1, 0.05, np.inf]]
    np.testing.assert_allclose(view.beta() / GBIT, wanted)


def test_a_pair_that_cannot_talk_says_nothing_of_the_others() -> None:
    given = np.array([[0, 0.0, np.nan], [0.0, 0, 3], [3, np.nan, 0]])
    estimate = estimated_bandwidth(given, ["x"] * 3, unlimited(3), unlimited(3)).values
    assert estimate[0, 1] == estimate[1, 0] == 0
    assert estimate[0, 2] == estimate[2, 1] == pytest.approx(3)


def test_a_peer_that_was_never_measured_is_taken_to_be_like_most() -> None:
    rng = np.random.default_rng(5)
    up = rng.uniform(1, 2, PEERS)
    given = holed(np.tile(up[:, None], PEERS), 0.3)
    given[7, :] = given[:, 7] = np.nan
    estimate = estimated_bandwidth(given, nowhere(PEERS), unlimited(PEERS), unlimited(PEERS)).values
    assert estimate[7, 8] == pytest.approx(np.median(up), rel=0.1)
    assert estimate[8, 7] == pytest.approx(up[8], rel=1e-3)


def test_a_view_has_one_estimate_whatever_the_order_of_asking() -> None:
    given = holed(np.random.default_rng(6).random((30, 30)), 0.5)
    first, second = (estimated_latency(given, nowhere(30)).values for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_thousands_of_peers_with_a_few_links_each_take_seconds() -> None:
    count = 2000
    rng = np.random.default_rng(7)
    up, down = np.exp(rng.uniform(-3, 0, (2, count)))
    given = np.full((count, count), np.nan)
    for shift in range(1, 41):
        there = (np.arange(count) + 7 * shift * shift) % count
        given[np.arange(count), there] = np.minimum(up, down[there])
    started = time.process_time()
    estimate = estimated_bandwidth(given, [str(place % 900) for place in range(count)], unlimited(count), down).values
    assert time.process_time() - started < 10
    pairs = list(itertools.islice(itertools.permutations(range(0, count, 97), 2), 100))
    wrong = [abs(estimate[here, there] / min(up[here], down[there]) - 1) for here, there in pairs]
    assert np.median(wrong) < 0.01
