"""Places that are fitted to a few round trips: they tell the others, and how far off they are."""

import numpy as np
import pytest

from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.matrix_completion import MeasuredPairs
from dtfm_protocol.view.missing_links import FLOOR_MS, UNKNOWN_DELAY, estimated_bandwidth, estimated_latency
from dtfm_protocol.view.network_coordinates import placed
from dtfm_protocol.view.spread import COVERED

PEERS = 40


def a_world(seed: int) -> Matrix:
    """Homes in a plane, each with a way of its own to the exchange; milliseconds."""
    rng = np.random.default_rng(seed)
    places, heights = rng.uniform(0, 100, (PEERS, 2)), rng.uniform(1, 15, PEERS)
    delays = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1)) + heights[:, None] + heights[None]
    np.fill_diagonal(delays, 0.0)
    return np.asarray(delays, dtype=np.float64)


def of_each(measured: int, truth: Matrix, seed: int) -> Matrix:
    """What is known where each has measured so many others, both ways being half a round trip."""
    rng, known = np.random.default_rng(seed), np.full(truth.shape, np.nan)
    for peer in range(len(truth)):
        for other in rng.permutation([other for other in range(len(truth)) if other != peer])[:measured]:
            known[peer, other] = known[other, peer] = truth[peer, other]
    return known


@pytest.mark.parametrize("seed", range(3))
def test_a_few_round_trips_of_each_peer_tell_all_the_others(seed: int) -> None:
    truth = a_world(seed)
    known = of_each(8, truth, seed)
    found = placed(MeasuredPairs.among(known, ~np.isnan(known)))
    gaps = np.isnan(known) & ~np.eye(PEERS, dtype=bool)
    wrong = np.abs(found / np.where(gaps, truth, 1.0) - 1)[gaps]
    assert np.median(wrong) < 0.05
    assert np.quantile(wrong, 0.95) < 0.3
    np.testing.assert_allclose(found, found.T)


def test_nine_in_ten_delays_are_within_the_spread_that_is_stated_and_no_wide_one() -> None:
    within, spreads = [], []
    for seed in range(5):
        truth = a_world(seed)
        known = of_each(6, truth, seed)
        found, spread = estimated_latency(known, [None] * PEERS)
        gaps = np.isnan(known) & ~np.eye(PEERS, dtype=bool)
        within.append(np.abs(found - truth)[gaps] <= spread * (found[gaps] + FLOOR_MS))
        spreads.append(spread)
    assert np.concatenate(within).mean() >= COVERED
    assert np.median(spreads) < 0.6


def test_delays_without_any_order_are_said_to_be_uncertain() -> None:
    rng = np.random.default_rng(0)
    truth = np.exp(rng.uniform(0, 5, (PEERS, PEERS)))
    assert estimated_latency(of_each(6, truth, 0), [None] * PEERS).spread > 0.8


def test_of_too_few_links_nothing_is_claimed() -> None:
    known = np.full((4, 4), np.nan)
    known[0, 1] = known[1, 0] = 5.0
    assert estimated_latency(known, [None] * 4).spread == UNKNOWN_DELAY


def test_a_peer_that_was_never_measured_is_as_far_as_the_median() -> None:
    known = of_each(8, a_world(0), 0)
    known[3] = known[:, 3] = np.nan
    found = placed(MeasuredPairs.among(known, ~np.isnan(known)))
    assert found[3, 5] == found[5, 3] == pytest.approx(np.nanmedian(known))


def test_rates_that_go_with_delays_are_found_by_them() -> None:
    """As between regions, of which nobody says which is whose."""
    rng = np.random.default_rng(1)
    region = rng.integers(0, 5, PEERS)
    table = rng.permutation(np.linspace(5, 90, 25)).reshape(5, 5)
    delays = (table + table.T)[region[:, None], region[None]]
    np.fill_diagonal(delays, 0.0)
    truth = 100.0 / np.maximum(1.0, delays)
    known = of_each(5, truth, 2)
    unlimited = np.full(PEERS, np.inf)
    found, spread = estimated_bandwidth(known, [None] * PEERS, unlimited, unlimited, delays)
    gaps = np.isnan(known) & ~np.eye(PEERS, dtype=bool)
    assert np.median(np.abs(found / truth - 1)[gaps]) < 0.02
    assert np.mean(np.abs(np.log(found[gaps] / truth[gaps])) <= np.log(spread) + 1e-9) >= 0.85
