"""The lower bound of the simulated step: never above what any plan takes, and not idle talk."""

import numpy as np
import pytest

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.workload import pose
from dtfm_lab.bounds.step_bound import lower_bound
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from tests.coordinator.swarms import drawn_view, workload


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("seed", "nodes"), [(0, 5), (1, 5), (2, 4), (3, 4), (4, 4), (5, 4)])
def test_no_placement_of_a_small_swarm_undercuts_it(seed: int, nodes: int, limited: bool) -> None:
    view, work = drawn_view(nodes, seed, limited=limited), workload(6)
    for algorithm in ("exhaustive", "evolutionary"):
        plan = allocate(view, work, seed, algorithm=algorithm, evaluations=5000)
        assert plan.cost is not None
        assert lower_bound(pose(view, work, view.ids)) <= plan.cost.total


def test_equal_peers_on_free_links_reach_it() -> None:
    peers = 4
    view = View(
        nodes=tuple(
            NodeView(id=f"n{number}", layer_seconds=LayerSeconds(forward=1.0, backward=2.0)) for number in range(peers)
        ),
        latency_ms=np.zeros((peers, peers)),
        bandwidth_gbps=np.full((peers, peers), 1e9),
    )
    work = workload(8)
    plan = allocate(view, work, evaluations=2000)
    assert plan.cost is not None
    assert plan.cost.total == pytest.approx(lower_bound(pose(view, work, view.ids)), rel=1e-3)


def test_what_fits_nowhere_has_no_bound() -> None:
    view, work = drawn_view(3, 0), workload(6)
    posed = pose(view, work, view.ids)
    assert np.isinf(lower_bound(posed._replace(memory=np.full(3, 1e3))))
