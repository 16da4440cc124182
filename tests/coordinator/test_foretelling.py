"""Foretelling of long steps from short ones."""

import time

import numpy as np
import pytest
from benchmarks.large_jobs import job

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.search.foretelling import Foretelling
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import pose
from dtfm_lab.networks.catalogue import network

MANY = 512
"""Micro-batches of a step that is foretold."""


@pytest.mark.parametrize(("paced", "most"), [(False, 1.1), (True, 1.3)])
@pytest.mark.parametrize("name", ["spot", "worldwide"])
@pytest.mark.parametrize("counts", [(8, 8), (16, 16, 16, 16), (32, 32)])
def test_a_long_step_of_many_peers_takes_about_what_is_foretold(
    counts: tuple[int, ...], name: str, paced: bool, most: float
) -> None:
    """Short steps are mostly fill, drain and reduction, and tell too little of what more micro-batches take."""
    view = network(name, sum(counts), 0)
    problem = pose(view, job(MANY, now=paced), view.ids, "1f1b", paced=paced)
    ends = np.cumsum(counts)[:-1]
    stages = [part.tolist() for part in np.split(np.arange(sum(counts)), ends)]
    layout = Layout.of(problem, stages)
    assert layout is not None
    foretold = Foretelling(problem, Budget(None, 10, time.monotonic)).seconds(stages)
    assert 1 / most < foretold / layout.cost(problem).total < most


def test_a_step_that_is_short_is_played_whole() -> None:
    view = network("regional", 4, 0)
    problem = pose(view, job(16, now=False), view.ids, "1f1b")
    stages, budget = [[0], [1], [2], [3]], Budget(None, 10, time.monotonic)
    layout = Layout.of(problem, stages)
    assert layout is not None
    assert Foretelling(problem, budget).seconds(stages) == layout.cost(problem).total
    assert budget.spent_evaluations == 1
