"""The search over whole layouts: what the owner fixes stays fixed in all that it keeps."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from benchmarks.large_jobs import job

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.plan_in_force import InForce
from dtfm_coordinator.allocator.problem.moving_cost import standing
from dtfm_coordinator.allocator.search.annealing import anneal
from dtfm_coordinator.allocator.search.hill_climbing import HillClimber
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.layout_evolution import Evolution
from dtfm_coordinator.allocator.search.neighbours import ALIKE, Neighbours, priced
from dtfm_coordinator.allocator.workload import pose, predict
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.view.view import View

FEW_STEPS = 8


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


def move_after_a_fault(name: str, seed: int, evaluations: int) -> tuple[float, float]:
    """Seconds of a step, plus those of moving spread over a horizon of few steps, of the plan that is found when a link
    of another one has become ten times as slow; and of that one."""
    view, work = network(name, 8, 0), job(8, now=False)
    plan = allocate(view, work, 0, evaluations=1500)
    one, other = (view.ids.index(peer) for peer in plan.routes[0][:2])
    gbps = view.bandwidth_gbps.copy()
    gbps[one, other], gbps[other, one] = gbps[one, other] / 10, gbps[other, one] / 10
    worse = View(nodes=view.nodes, latency_ms=view.latency_ms, bandwidth_gbps=gbps)
    stays = predict(worse, work, plan).cost.total
    work = replace(work, planning=work.planning.model_copy(update={"horizon": FEW_STEPS * stays}))
    found = allocate(worse, work, seed, in_force=plan, evaluations=evaluations)
    old = InForce.of(worse, work, pose(worse, work, view.ids, found.schedule), view.ids, plan)
    layout = Layout.of_plan(found, view.ids)
    assert layout is not None
    return predict(worse, work, found).cost.total + old.moving(layout) / FEW_STEPS, stays


@pytest.mark.parametrize("name", ["worldwide", "regional", "home"])
def test_where_a_move_must_soon_pay_back_layouts_near_the_one_in_force_are_found(name: str) -> None:
    """A short search finds about what the best of much longer ones does."""
    best = min(move_after_a_fault(name, seed, 20_000)[0] for seed in range(2))
    for seed in range(4):
        found, stays = move_after_a_fault(name, seed, 3000)
        assert found < 0.9 * stays
        assert found <= 1.05 * best


@pytest.mark.parametrize("any_counts", [False, True])
@pytest.mark.parametrize("any_depth", [False, True])
def test_a_climb_takes_the_best_of_all_single_changes_again_and_again(any_counts: bool, any_depth: bool) -> None:
    view = network("regional", 6, 0)
    problem = pose(view, job(8, now=False), view.ids, "1f1b")
    begun = Layout.of(problem, [[0, 1], [2], [3]])
    assert begun is not None

    def seconds(layout: Layout) -> float:
        return layout.cost(problem).total

    def changed(layout: Layout) -> list[float]:
        all_of_them = Neighbours(layout, 6, paced=False, any_depth=any_depth and any_counts)
        changes = [change for number in range(all_of_them.count) if (change := all_of_them.change(number)) is not None]
        some = [change for change in changes if any_counts or change.counts == layout.counts]
        return [found.seconds for change in some if (found := priced(problem, layout, change)) is not None]

    budget = Budget(None, 100_000, time.monotonic)
    climber = HillClimber(problem, seconds, budget, any_counts=any_counts, any_depth=any_depth)
    climb = [begun, *(layout for _, layout in climber.by_best(seconds(begun), begun, 1.0))]
    assert len(climb) > 2
    for before, after in pairwise(climb):
        assert seconds(after) == pytest.approx(min(changed(before)), rel=1e-5)
    assert min(changed(climb[-1])) >= (1 - 2 * ALIKE) * seconds(climb[-1])
    assert list(climber.by_best(seconds(begun), begun, 0.0)) == [], "no budget is left for it"
    looked = budget.spent_evaluations
    until = (looked + 20) / 100_000
    assert len(list(climber.by_best(seconds(begun), begun, until))) <= 1
    assert budget.spent_evaluations == looked + 20
