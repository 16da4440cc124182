"""The formulas of docs/reference/cost_model.md, computed by hand as the page says, give what is simulated."""

from dataclasses import replace

import pytest

from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import Workload, pose, predict
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import LayerSeconds, NodeView, View

DEMAND = ModelDemand(
    layer_parameters=(200_000,) * 4,
    embedding_parameters=60_000,
    head_parameters=60_200,
    tied_parameters=60_000,
    message_values=65_536,
    layer_activation_bytes=1,
    head_layers=60_200 / 200_000,
    layer_flops=2 * 200_000 * 512,
)
VIEW = {
    "nodes": [{"id": "a", "flops": 5e9}, {"id": "b", "flops": 4e9}],
    "latency_ms": [[0, 10], [20, 0]],
    "bandwidth_gbps": [[0, 0.05], [0.04, 0]],
}


def test_a_step_by_hand_is_the_simulated_one() -> None:
    plan = Plan(stages=((0, 2), (2, 4)), routes=(("a", "b"),) * 3, schedule="gpipe")
    cost = predict(View.read(VIEW, "view"), Workload(DEMAND, 3, Planning()), plan).cost
    forward = {"a": 2 * 200_000 * 512 / 5e9, "b": 2 * 200_000 * 512 / 4e9}
    ahead, back = 0.05 * 125e6, 0.04 * 125e6
    a_ready = link_free = b_ready = 0.0
    for _ in range(3):
        a_ready += 2 * forward["a"]
        link_free = max(a_ready, link_free) + 4 * 65_536 / ahead
        b_ready = max(b_ready, link_free + 0.010) + (2 + 0.301) * forward["b"]
    link_free = 0.0
    for _ in range(3):
        b_ready += (2 + 0.301) * 2 * forward["b"]
        link_free = max(b_ready, link_free) + 4 * 65_536 / back
        a_ready = max(a_ready, link_free + 0.020) + 2 * 2 * forward["a"]
    half = 4 * 60_000 / 2  # bytes of a part of the shared matrix, of which each of two peers owns one
    part_to_b, part_to_a = a_ready + half / ahead, max(link_free, b_ready) + half / back
    a_summed, b_summed = max(a_ready, part_to_a + 0.020), max(b_ready, part_to_b + 0.010)
    a_held = max(a_summed, max(b_summed, part_to_a) + half / back + 0.020)
    b_held = max(b_summed, max(a_summed, part_to_b) + half / ahead + 0.010)
    commit = max(a_held, b_held + 0.020)
    assert cost.compute == pytest.approx(3 * (2 + 0.301) * 3 * forward["b"])
    assert cost.compute + cost.pipeline == pytest.approx(max(a_ready, b_ready))
    assert cost.total == pytest.approx(commit + 0.010)


def test_the_update_of_a_head_alone_takes_its_part_of_that_of_the_layer_that_was_measured() -> None:
    """No decoder layer is trained: peers have measured one all of which is."""
    demand = replace(
        DEMAND, frozen_layer_parameters=(200_000,) * 4, frozen_embedding_parameters=60_000, tied_parameters=0
    )
    speed = LayerSeconds(forward=1.0, backward=2.0, optimizer=8.0)
    view = View.read(VIEW, "view")
    view = view.model_copy(update={"nodes": tuple(NodeView(id=name, layer_seconds=speed) for name in "ab")})
    plan, work = Plan(stages=((0, 2), (2, 4)), routes=(("a", "b"),), schedule="gpipe"), Workload(demand, 1, Planning())
    cost = predict(view, work, plan).cost
    assert cost.optimizer == pytest.approx(8.0 * 60_200 / 200_000, rel=0.01)
    layout = Layout.of_plan(plan, view.ids)
    assert layout is not None
    assert layout.cost(pose(view, work, view.ids, "gpipe")).optimizer == pytest.approx(cost.optimizer, rel=1e-9)
