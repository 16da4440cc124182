"""The lower bound: never above what a placement costs, and close on networks of clusters."""

import numpy as np
import pytest

from dtfm_coordinator.allocator.paper.evolutionary_search import search
from dtfm_lab.bounds.paper_bound import lower_bound
from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, paper_network

SHAPES = [(6, 2, 3), (8, 4, 2), (8, 2, 4), (9, 3, 3), (10, 3, 3), (6, 6, 1), (7, 1, 5), (12, 4, 3), (7, 2, 3)]


@pytest.mark.parametrize(("devices", "stages", "replicas"), SHAPES)
def test_no_placement_undercuts_the_bound(devices: int, stages: int, replicas: int) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        alpha, beta = rng.random((devices, devices)), 10 ** rng.uniform(6, 8, (devices, devices))
        if seed % 3:
            alpha, beta = (alpha + alpha.T) / 2, np.minimum(beta, beta.T)
        if seed % 4 == 0:  # clusters
            cluster = rng.integers(0, 3, devices)
            beta = np.where(cluster[:, None] == cluster, 30 * beta, beta)
        if seed % 5 == 0:
            beta[rng.random((devices, devices)) < 0.1] = 0.0
        activations, gradients = 10 ** rng.uniform(5, 8, 2)
        found = search(
            alpha,
            beta,
            stages=stages,
            replicas=replicas,
            activation_bytes=activations,
            gradient_bytes=gradients,
            evaluations=500_000,
        )
        assert found.proven
        bound = lower_bound(alpha, beta, stages, replicas, activations, gradients)
        slack = 1 + 1e-9
        assert bound.total <= found.cost.total * slack
        assert bound.data_parallel <= found.cost.data_parallel * slack
        assert bound.pipeline <= found.cost.pipeline * slack
        assert bound.total >= (bound.data_parallel + bound.pipeline) / slack


@pytest.mark.parametrize(("case", "total"), [(1, 3.4398), (2, 31.6341), (3, 16.0868)])
def test_the_best_known_placements_of_the_papers_first_networks_are_optimal(case: int, total: float) -> None:
    view = paper_network(case)
    bound = lower_bound(view.alpha(), view.beta(), 8, 8, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES)
    assert bound.total == pytest.approx(total, abs=1e-4)
