"""The paper's cost, against exhaustive references."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.foundations.links import Matrix
from dtfm_coordinator.allocator.paper.hamiltonian_path import LARGEST_EXACT, length, shortest_path
from dtfm_coordinator.allocator.paper.matching import MatchingRoom, least_both_ways, match_both_ways, settle
from dtfm_coordinator.allocator.paper.paper_cost import PaperCostModel, cost_of_pipelines
from dtfm_lab.networks.paper_networks import ACTIVATION_BYTES, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, paper_network

A, G = 3e6, 5e6


def network(devices: int, seed: int, symmetric: bool, unreachable: float = 0.0) -> tuple[Matrix, Matrix]:
    rng = np.random.default_rng(seed)
    alpha, beta = rng.random((devices, devices)), rng.uniform(1e6, 9e6, (devices, devices))
    beta[rng.random((devices, devices)) < unreachable] = 0.0
    if symmetric:
        alpha, beta = (alpha + alpha.T) / 2, np.minimum(beta, beta.T)
    return alpha, beta


def brute_force(alpha: Matrix, beta: Matrix, groups: np.ndarray) -> float:
    """The cost formulas read off word by word, over every pairing and every order."""

    def seconds(i: int, j: int, size: float) -> float:
        return float(alpha[i, j] + size / beta[i, j]) if beta[i, j] > 0 else np.inf

    def data_parallel(group: np.ndarray) -> float:
        return max(sum(2 * seconds(d, e, G / len(group)) for e in group if e != d) for d in group)

    def edge(one: np.ndarray, other: np.ndarray) -> float:
        return min(
            max(seconds(i, j, A) for i, j in zip(one, mates, strict=True))
            + max(seconds(j, i, A) for i, j in zip(one, mates, strict=True))
            for mates in permutations(other)
        )

    edges = [[edge(one, other) for other in groups] for one in groups]
    orders = permutations(range(len(groups)))
    path = min(sum(edges[here][there] for here, there in pairwise(order)) for order in orders)
    return max(map(data_parallel, groups)) + path


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("stages", "replicas"), [(1, 4), (2, 1), (2, 4), (3, 3), (4, 2), (5, 1)])
@pytest.mark.parametrize("unreachable", [0.0, 0.15])
def test_a_partition_costs_what_every_pairing_and_order_at_its_best_costs(
    stages: int, replicas: int, symmetric: bool, unreachable: float
) -> None:
    for seed in range(3):
        alpha, beta = network(stages * replicas, seed, symmetric, unreachable)
        groups = np.random.default_rng(seed).permutation(stages * replicas).reshape(stages, replicas)
        cost, pipelines = PaperCostModel(alpha, beta, A, G, replicas).arrange(groups.tolist())
        assert cost.total == pytest.approx(brute_force(alpha, beta, groups))
        assert cost == cost_of_pipelines(alpha, beta, pipelines, A, G)
        assert {frozenset(stage) for stage in zip(*pipelines, strict=True)} == {frozenset(g) for g in groups.tolist()}


@given(size=st.integers(1, 5), seed=st.integers(0, 10**6), levels=st.integers(1, 9), stop=st.integers(0, 20).map(float))
@settings(max_examples=150, deadline=None)
def test_matchings_have_the_smallest_bottlenecks_whatever_they_are_repaired_from(
    size: int, seed: int, levels: int, stop: float
) -> None:
    rng = np.random.default_rng(seed)
    forward, backward = rng.integers(0, levels, (2, size, size)).astype(float)
    forward[rng.random((size, size)) < 0.2] = np.inf
    rows, pairs = np.arange(size), np.stack([forward, backward])
    pairings = [np.array(pairing) for pairing in permutations(rows)]
    room, cap = MatchingRoom.of_size(size), float(rng.integers(0, levels))

    def matched(mate: np.ndarray) -> list[tuple[int, int]]:
        assert sorted(mate) == list(range(size))
        return [(row, mate[row]) for row in range(size)]

    capped = np.where(backward <= cap, forward, np.inf)
    mate = rng.permutation(size)
    value = settle(forward, backward, cap, mate, room, np.inf)
    assert value == min(capped[rows, pairing].max() for pairing in pairings)
    assert max(capped[pair] for pair in matched(mate)) == value

    mate = rng.permutation(size)
    value = match_both_ways(pairs, False, mate, room, np.inf)
    best = min(forward[rows, pairing].max() + backward[rows, pairing].max() for pairing in pairings)
    assert value == best
    if best < np.inf:
        assert best == sum(max(seconds[pair] for pair in matched(mate)) for seconds in (forward, backward))

    # With a limit: exact within it, and more than it beyond.
    value = match_both_ways(pairs, False, rng.permutation(size), room, stop)
    assert value == best if best <= stop else value > stop
    both = match_both_ways(pairs[::-1].copy(), True, rng.permutation(size), room, np.inf)
    assert both == 2 * min(backward[rows, pairing].max() for pairing in pairings)

    # What is known without a matching is never more, and more than a limit only where the matching is.
    assert least_both_ways(pairs, False, room, np.inf) <= best
    assert least_both_ways(pairs[::-1].copy(), True, room, np.inf) <= both
    assert least_both_ways(pairs, False, room, stop) <= best


@given(size=st.integers(1, 4), seed=st.integers(0, 10**6), ulps=st.integers(-2, 2))
@settings(max_examples=300, deadline=None)
def test_matchings_end_where_a_limit_is_a_rounding_away_from_what_they_cost(size: int, seed: int, ulps: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = rng.integers(1, 8, (2, size, size)) / 10  # sums of which are rounded
    pairs[1, rng.random((size, size)) < 0.1] = np.inf
    rows = np.arange(size)
    costs = [pairs[0][rows, pairing].max() + pairs[1][rows, pairing].max() for pairing in map(list, permutations(rows))]
    stop = float(rng.choice(costs))
    for _ in range(abs(ulps)):
        stop = float(np.nextafter(stop, np.copysign(np.inf, ulps)))
    value = match_both_ways(pairs, False, rng.permutation(size), MatchingRoom.of_size(size), stop)
    assert value == min(costs) if value <= stop else min(costs) >= stop * (1 - 1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_a_short_path_is_the_shortest(count: int) -> None:
    for seed in range(5):
        cost = np.random.default_rng(seed).random((count, count))
        cost += cost.T
        order = shortest_path(cost, np.arange(count))
        assert sorted(order) == list(range(count))
        best = min(sum(cost[here, there] for here, there in pairwise(each)) for each in permutations(range(count)))
        assert length(cost, order) == pytest.approx(best)


def test_a_long_path_is_no_longer_than_the_nearest_neighbour_one_and_visits_all_once() -> None:
    for seed in range(3):
        points = np.random.default_rng(seed).random((LARGEST_EXACT + 8, 2))
        cost = np.linalg.norm(points[:, None] - points[None], axis=2)
        order = shortest_path(cost, np.random.default_rng(seed).permutation(len(points)))
        assert sorted(order) == list(range(len(points)))
        here, greedy, left = 0, 0.0, set(range(1, len(points)))
        while left:
            there = min(left, key=lambda other: cost[here, other])
            greedy, here = greedy + cost[here, there], there
            left.remove(there)
        assert length(cost, order) <= greedy + 1e-12


def test_a_path_finds_the_one_order_without_dear_edges() -> None:
    for count in (5, LARGEST_EXACT + 3):
        cost = np.full((count, count), 1e6)
        secret = np.random.default_rng(count).permutation(count)
        for here, there in pairwise(secret):
            cost[here, there] = cost[there, here] = 1.0
        order = shortest_path(cost, np.arange(count))
        assert order.tolist() in (secret.tolist(), secret[::-1].tolist())


@pytest.mark.parametrize(
    ("activation_bytes", "total"), [(ACTIVATION_BYTES, 51.500), (AUTHORS_ACTIVATION_BYTES, 49.218)]
)
def test_one_pipeline_a_region_worldwide_costs_what_the_paper_and_its_authors_report(
    activation_bytes: float, total: float
) -> None:
    view = paper_network(5)
    pipelines = np.arange(64).reshape(8, 8)
    assert {view.nodes[device].region for device in pipelines[3]} == {"Tokyo"}
    groups = pipelines.T.tolist()
    cost, _ = PaperCostModel(view.alpha(), view.beta(), activation_bytes, GRADIENT_BYTES, 8).arrange(groups)
    assert cost.total == pytest.approx(total, abs=5e-4)


@pytest.mark.parametrize("case", [1, 2, 3, 4, 5])
def test_the_papers_networks_are_symmetric_and_have_64_devices(case: int) -> None:
    view = paper_network(case)
    assert len(view.nodes) == 64
    assert np.array_equal(view.alpha(), view.alpha().T)
    assert np.array_equal(view.beta(), view.beta().T)
