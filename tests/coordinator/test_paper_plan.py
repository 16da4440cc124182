"""`dtfm-coordinator plan --cost paper`: plans by the paper's communication cost alone."""

from itertools import permutations

import pytest

from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.allocator.paper.paper_cost import cost_of_pipelines
from dtfm_coordinator.allocator.paper.paper_plan import allocate_paper
from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, paper_network
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View
from tests.coordinator.swarms import drawn_view


def paper(view: View, stages: int, **changes: object) -> Plan:
    arguments = {"activation_bytes": 1e6, "gradient_bytes": 1e6, "evaluations": 500} | changes
    return allocate_paper(view, stages, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["evolutionary", "random", "in-order"])
def test_a_paper_plan_costs_what_it_says_as_written(algorithm: str) -> None:
    view = drawn_view(11, 2)
    plan = paper(view, 3, algorithm=algorithm, seed=1)
    assert Plan.read(plan.model_dump(), "plan") == plan
    assert plan.stages == ((0, 1), (1, 2), (2, 3))
    assert len(plan.routes) == 3
    assert len(plan.idle) == 2
    pipelines = [[view.ids.index(peer) for peer in route] for route in plan.routes]
    cost = cost_of_pipelines(view.alpha(), view.beta(), pipelines, 1e6, 1e6)
    assert plan.cost is not None
    assert (plan.cost.kind, plan.cost.total, plan.cost.data_parallel, plan.cost.pipeline) == (
        "paper",
        cost.total,
        cost.data_parallel,
        cost.pipeline,
    )
    assert plan.history[-1][1] == cost.total


def test_a_small_paper_plan_is_the_best_of_all_placements() -> None:
    view = drawn_view(5, 4)
    plan = paper(view, 2)
    everything = (
        cost_of_pipelines(view.alpha(), view.beta(), (devices[:2], devices[2:4]), 1e6, 1e6).total
        for devices in permutations(range(5))
    )
    assert plan.cost is not None
    assert plan.cost.total == pytest.approx(min(everything))


def test_the_worldwide_network_is_placed_as_well_as_the_authors_report_and_far_better_than_in_order() -> None:
    sizes = {"activation_bytes": AUTHORS_ACTIVATION_BYTES, "gradient_bytes": GRADIENT_BYTES}
    costs = [
        plan.cost.total
        for algorithm in ("evolutionary", "in-order", "random")
        if (plan := paper(paper_network(5), 8, algorithm=algorithm, **sizes)).cost
    ]
    assert costs[0] <= 49.2185
    assert min(costs[1:]) > 1.5 * costs[0]


def test_paper_plans_refuse_what_cannot_be() -> None:
    with pytest.raises(NotEnoughNodes, match="4 stages need at least 4 nodes and the view has 3"):
        paper(drawn_view(3, 0), 4)
    for algorithm in ("evolutionary", "in-order"):
        with pytest.raises(UserError, match="0 Gbit/s"):
            paper(drawn_view(4, 0, gbps=0.0), 2, algorithm=algorithm)
    with pytest.raises(UserError, match="there is no algorithm 'magic'"):
        paper(drawn_view(4, 0), 2, algorithm="magic")
