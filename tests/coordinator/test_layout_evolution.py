"""The search over whole layouts: what the owner fixes stays fixed in all that it keeps."""

import time

import numpy as np
import pytest
from benchmarks.large_jobs import job

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.problem.moving_cost import standing
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
