"""Chains that are grown peer by peer, and the search that begins with them."""

import itertools
import time
from collections.abc import Iterable

import numpy as np
import pytest
from benchmarks.large_jobs import job

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.shapes import feasible_shapes
from dtfm_coordinator.allocator.problem.moving_cost import standing
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.grown_chains import grown
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.layout_evolution import Evolution
from dtfm_coordinator.allocator.search.promising_shapes import ranked
from dtfm_coordinator.allocator.search.starts import Stages
from dtfm_coordinator.allocator.workload import pose
from dtfm_lab.networks.catalogue import network

EVALUATIONS = 3000


def posed(number: int, nodes: int = 64) -> Problem:
    """A job of 1.2 billion parameters on homes: no peer holds it alone."""
    view = network("home", nodes, number)
    return pose(view, job(32, now=True), view.ids, "1f1b", paced=True)


def seconds_of(problem: Problem, stages: Stages) -> float:
    layout = Layout.of(problem, stages)
    return np.inf if layout is None else layout.cost(problem).total


def soonest(problem: Problem, placements: Iterable[Stages]) -> tuple[float, Stages]:
    return min(((seconds_of(problem, stages), stages) for stages in placements), default=(np.inf, []))


@pytest.mark.parametrize("number", range(3))
def test_among_many_peers_the_few_with_fast_links_are_found(number: int) -> None:
    """The search looks at fewer layouts than there are pairs, and none of these is better than what it finds."""
    problem = posed(number)
    search = Evolution(
        problem, standing(problem, {}, np.inf), Budget(None, EVALUATIONS, time.monotonic), 0, any_depth=True,
        any_counts=True,
    )  # fmt: skip
    search.run(ranked(feasible_shapes(64, problem.layers, 32, job(32, now=True).planning), problem), [])
    pairs = ([[one], [other]] for one in range(64) for other in range(64) if one != other)
    assert search.history[-1][1] <= soonest(problem, pairs)[0]


def test_each_chain_is_the_one_before_and_the_best_other_peer_at_the_best_place() -> None:
    problem = posed(1, 12)
    chains = grown(problem, lambda placements: soonest(problem, placements), [], lambda: True)
    assert [len(one) for one in chains] == list(range(2, 2 + len(chains)))
    for shorter, longer in itertools.pairwise(chains):
        fresh = next(place for place, members in enumerate(longer) if members not in shorter)
        assert [members for members in longer if members in shorter] == shorter
        others = ([*shorter[:fresh], [peer], *shorter[fresh:]] for peer in range(12) if [peer] not in shorter)
        assert seconds_of(problem, longer) == soonest(problem, others)[0]


def test_growth_ends_where_it_is_told_to_or_two_more_peers_made_nothing_better() -> None:
    problem, asked = posed(1, 12), iter([True, True, False])
    assert len(grown(problem, lambda placements: soonest(problem, placements), [], lambda: next(asked))) == 2
    chains = grown(problem, lambda placements: soonest(problem, placements), [], lambda: True)
    seconds = [seconds_of(problem, stages) for stages in chains]
    assert len(seconds) == problem.layers or min(seconds[-2:]) >= min(seconds[:-2])


def test_where_no_pair_holds_the_model_a_known_chain_is_grown() -> None:
    problem = posed(1, 12)
    small = problem._replace(memory=problem.memory / 1.6)
    known = [[peer] for peer in np.argsort(-small.memory)[:4].tolist()]
    chains = grown(
        small, lambda placements: soonest(small, placements), [(seconds_of(small, known), known)], lambda: True
    )
    assert chains[0] == known
    assert all(len(one) == len(two) + 1 for two, one in itertools.pairwise(chains))
    assert grown(small, lambda placements: soonest(small, placements), [], lambda: True) == []
