"""Placements without a search, or by looking at all; views on which neither can be."""

import numpy as np
import pytest

from dtfm_coordinator.allocator.paper import baselines
from dtfm_coordinator.allocator.paper.paper_cost import PaperCostModel, cost_of_pipelines
from dtfm_coordinator.allocator.paper.paper_plan import allocate_paper
from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, paper_network
from dtfm_protocol.errors import UserError
from dtfm_protocol.view.view import NodeView, View


def test_in_order_puts_neighbours_into_one_stage_and_random_repeats_by_seed() -> None:
    assert baselines.in_order(7, 3, 2) == ((0, 2, 4), (1, 3, 5))
    assert baselines.random(9, 2, 4, seed=3) == baselines.random(9, 2, 4, seed=3)
    assert baselines.random(9, 2, 4, seed=3) != baselines.random(9, 2, 4, seed=4)
    with pytest.raises(ValueError, match="need 8 devices, not 7"):
        baselines.in_order(7, 2, 4)


def test_greedy_finds_the_regions_of_the_worldwide_network() -> None:
    view = paper_network(5)
    alpha, beta = view.alpha(), view.beta()
    pipelines = baselines.greedy(alpha, beta, 8, 8, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES)
    assert cost_of_pipelines(alpha, beta, pipelines, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES).total < 49.2185


@pytest.mark.parametrize(("devices", "stages", "replicas"), [(1, 1, 1), (7, 3, 2), (9, 1, 9), (10, 10, 1), (12, 3, 3)])
def test_greedy_uses_each_device_once_and_pairs_its_stages_at_their_best(
    devices: int, stages: int, replicas: int
) -> None:
    rng = np.random.default_rng(devices)
    alpha, beta = rng.random((devices, devices)), rng.uniform(1e6, 9e6, (devices, devices))
    beta[rng.random((devices, devices)) < 0.1] = 0.0
    pipelines = baselines.greedy(alpha, beta, stages, replicas, 1e6, 1e6)
    used = [device for route in pipelines for device in route]
    assert len(set(used)) == len(used) == stages * replicas
    cost = cost_of_pipelines(alpha, beta, pipelines, 1e6, 1e6)
    groups = [list(group) for group in zip(*pipelines, strict=True)]
    best, _ = PaperCostModel(alpha, beta, 1e6, 1e6, replicas).arrange(groups)
    assert cost.total == pytest.approx(best.total)


def view_of(gbps: np.ndarray) -> View:
    nodes = tuple(NodeView(id=f"n{number}") for number in range(len(gbps)))
    return View(nodes=nodes, latency_ms=np.full(gbps.shape, 5.0), bandwidth_gbps=gbps)


def test_an_exhaustive_plan_is_the_optimum_whatever_the_limits() -> None:
    drawn = view_of(np.random.default_rng(4).uniform(0.1, 5, (9, 9)))
    plans = {
        algorithm: allocate_paper(drawn, 3, 1e8, 1e8, algorithm=algorithm, evaluations=1)
        for algorithm in ("exhaustive", "greedy", "random", "in-order")
    }
    costs = {algorithm: plan.cost.total for algorithm, plan in plans.items() if plan.cost is not None}
    assert costs["exhaustive"] <= costs["greedy"] < min(costs["random"], costs["in-order"])
    searched = allocate_paper(drawn, 3, 1e8, 1e8, evaluations=50_000)
    assert searched.cost is not None
    assert searched.cost.total == costs["exhaustive"]


def test_an_exhaustive_plan_is_refused_where_there_are_too_many_placements() -> None:
    for devices, stages, said in (
        (18, 6, "18 nodes have 190,590,400 placements of 6 stages x 3 replicas"),
        (200, 10, r"200 nodes have about 10\^"),
        (14, 14, "proves the order of 12 stages at most, not of 14"),
    ):
        with pytest.raises(UserError, match=said) as refused:
            allocate_paper(view_of(np.ones((devices, devices))), stages, 1e6, 1e6, algorithm="exhaustive")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("algorithm", ["evolutionary", "exhaustive", "greedy", "in-order"])
def test_a_view_that_falls_apart_is_refused_with_the_sizes_of_its_parts(algorithm: str) -> None:
    part = np.array([0, 0, 1, 0, 1, 2, 0, 0])
    apart = view_of((part[:, None] == part).astype(float))
    with pytest.raises(UserError, match="falls apart into 3 parts with 0 Gbit/s between them, of 5, 2, 1 nodes"):
        allocate_paper(apart, 4, 1e6, 1e6, algorithm=algorithm)
    if algorithm != "in-order":
        assert len(allocate_paper(apart, 5, 1e6, 1e6, algorithm=algorithm, evaluations=200).idle) == 3
