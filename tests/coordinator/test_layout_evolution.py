"""The search over whole layouts: what the owner fixes stays fixed in all that it keeps."""

import time

import numpy as np
import pytest
from benchmarks.large_jobs import job

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.problem.moving_cost import standing
from dtfm_coordinator.allocator.search.annealing import anneal
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.layout_evolution import Evolution
from dtfm_coordinator.allocator.workload import pose
from dtfm_lab.networks.catalogue import network


@pytest.mark.parametrize("nodes", [12, 20])
def test_a_number_of_replicas_that_the_owner_fixes_is_kept_whatever_the_number_of_stages(nodes: int) -> None:
    view = network("worldwide", nodes, 0)
    problem = pose(view, job(16, now=False), view.ids, "1f1b")
    search = Evolution(
        problem, standing(problem, {}, np.inf), Budget(None, 12_000, time.monotonic), 0, any_depth=True,
        any_counts=False,
    )  # fmt: skip
    search.run([Shape(4, 2)], [])
    found = {layout.counts for layout in search.finalists(100)}
    assert {count for counts in found for count in counts} == {2}
    assert len(found) > 1, "other numbers of stages are looked at"


@pytest.mark.parametrize("screens", [False, True])
@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("largest", [0, 1, 12])
def test_a_descent_changes_the_number_of_stages_where_that_is_open(largest: int, paced: bool, screens: bool) -> None:
    """And what it returns is a whole layout, and costs what it says."""
    view = network("home", 12, 0)
    problem = pose(view, job(32, now=paced), view.ids, "1f1b", paced=paced)
    begun = next(layout for one in range(12) if (layout := Layout.of(problem, [[one], [(one + 1) % 12]])) is not None)
    order = np.array([*begun.peers, *(peer for peer in range(12) if peer not in begun.peers)])
    seconds, order, counts, shares, layers, ahead = anneal(
        problem, standing(problem, {}, np.inf), order, *begun.arrays()[1:], begun.more, True, largest, 0.06, 0.003,
        3000, screens, np.random.default_rng(0),
    )  # fmt: skip
    found = Layout.from_arrays(order[: len(shares)], counts, shares, layers, ahead)
    assert sorted(order.tolist()) == list(range(12))
    assert (layers.sum(), layers.min() > 0) == (problem.layers, True)
    assert [part.sum() for part in np.split(shares, np.cumsum(counts)[:-1])] == [32] * len(counts)
    assert found.cost(problem).total == pytest.approx(seconds, rel=1e-12)
    assert seconds < begun.cost(problem).total
    assert (len(counts) == 2) == (largest == 0)


@pytest.mark.parametrize("name", ["home", "irregular"])
def test_sketches_choose_what_to_play_better_than_chance(name: str) -> None:
    """So many tries of 48 peers lead to shorter steps with them, in the mean over seeds."""
    view = network(name, 48, 0)
    problem = pose(view, job(96, now=False), view.ids, "1f1b")
    begun = Layout.of(problem, [[peer] for peer in range(8)])
    assert begun is not None

    def found(screens: bool, seed: int) -> float:
        return anneal(
            problem, standing(problem, {}, np.inf), np.arange(48), *begun.arrays()[1:], begun.more, True, 1, 0.06,
            0.003, 400, screens, np.random.default_rng(seed),
        )[0]  # fmt: skip

    with_sketches, without = ([found(screens, seed) for seed in range(5)] for screens in (True, False))
    assert np.mean(with_sketches) < 0.9 * np.mean(without)
