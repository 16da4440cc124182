"""The allocator as `serve` and `plan` call it."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from dtfm_coordinator.allocator.allocate import NotEnoughNodes, allocate, allocate_paper
from dtfm_coordinator.allocator.demand import ModelDemand
from dtfm_coordinator.allocator.networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, paper_network
from dtfm_coordinator.allocator.paper_cost import cost_of_pipelines
from dtfm_protocol.errors import UserError
from dtfm_protocol.job import Planning
from dtfm_protocol.plan import Plan
from dtfm_protocol.view import LayerSeconds, NodeView, View

DEMAND = ModelDemand(
    layer_parameters=(200_000,) * 6,
    embedding_parameters=60_000,
    head_parameters=60_200,
    tied_parameters=60_000,
    message_values=100_000,
    layer_activation_bytes=10_000_000,
)


def swarm(
    nodes: int,
    gbps: float = 0.1,
    speeds: tuple[float, ...] | None = None,
    memory: tuple[float, ...] | None = None,
    seed: int = 0,
) -> View:
    rng = np.random.default_rng(seed)
    return View(
        nodes=tuple(
            NodeView(
                id=f"n{index}",
                layer_seconds=LayerSeconds(
                    forward=0.01 / (speeds[index] if speeds else 1), backward=0.02 / (speeds[index] if speeds else 1)
                ),
                memory_bytes=memory[index] if memory else None,
            )
            for index in range(nodes)
        ),
        latency_ms=tuple(map(tuple, rng.uniform(5, 20, (nodes, nodes)).tolist())),
        bandwidth_gbps=tuple(map(tuple, (gbps * rng.uniform(0.5, 2, (nodes, nodes))).tolist())),
    )


def planned(view: View, planning: Planning | None = None, demand: ModelDemand = DEMAND, **limits: object) -> Plan:
    limits = {"evaluations": 300} | limits
    plan = allocate(view, demand, 12, planning or Planning(), **limits)  # type: ignore[arg-type]
    assert Plan.read(plan.model_dump(), "plan") == plan
    assert sorted([*plan.peers, *plan.idle]) == sorted(view.ids)
    assert plan.layers == demand.layers
    assert len(plan.routes) == 12
    assert plan.cost is not None
    assert plan.cost.kind == "makespan"
    assert plan.cost.total == pytest.approx(plan.cost.data_parallel + plan.cost.pipeline + (plan.cost.compute or 0))
    assert "\n" not in plan.reason
    return plan


def test_fast_links_make_replicas_and_slow_links_keep_one_peer_alone() -> None:
    assert len(planned(swarm(4, gbps=100)).stages) == 1
    assert len(planned(swarm(4, gbps=100)).peers) == 4
    assert planned(swarm(4, gbps=0.001)).peers == ("n0",)


def test_the_reason_names_the_shape_its_seconds_and_the_next_best() -> None:
    plan = planned(swarm(4))
    assert plan.cost is not None
    assert f"{plan.cost.total:.3g} s a step predicted; " in plan.reason
    assert plan.reason.split(":")[0] in ("2 stages x 2 peers", "4 stages x 1 peer", "1 stage x 4 peers")


def test_memory_forces_stages_apart_and_is_never_overrun() -> None:
    small = DEMAND.memory_bytes(0, 3, 2) * 1.01
    plan = planned(swarm(2, memory=(small, small)))
    assert plan.stages == ((0, 3), (3, 6))
    uneven = planned(swarm(3, memory=(small / 2, small, small)))
    assert uneven.stage_of("n0") is None or uneven.stages[uneven.stage_of("n0")][1] <= 6
    assert len(uneven.peers) >= 2


def test_a_model_that_fits_nowhere_is_refused_with_what_it_needs_and_what_there_is() -> None:
    with pytest.raises(
        UserError, match=r"the smallest stage needs 0\.0\d+ GB .* largest peer has 0\.002 GB"
    ) as refused:
        planned(swarm(3, memory=(1e6, 2e6, 1e6)))
    assert "\n" not in str(refused.value)
    assert not isinstance(refused.value, NotEnoughNodes)


def test_fewer_nodes_than_the_owner_fixed_are_waited_for() -> None:
    with pytest.raises(NotEnoughNodes, match="waiting for 3 more") as waiting:
        planned(swarm(3), Planning(stages=3, replicas=2))
    assert waiting.value.missing == 3
    with pytest.raises(NotEnoughNodes):
        planned(swarm(3), Planning(stages=4))


def test_the_owners_choices_are_kept() -> None:
    plan = planned(swarm(5), Planning(stages=2, replicas=2, schedule="gpipe", wire="bf16"))
    assert [len(plan.replicas(stage)) for stage in range(2)] == [2, 2]
    assert (plan.schedule, plan.wire, len(plan.idle)) == ("gpipe", "bf16", 1)
    for choice, message in ((Planning(stages=7), "6 layers"), (Planning(replicas=13), "12 micro-batches")):
        with pytest.raises(UserError, match=message):
            planned(swarm(14), choice)


def test_three_peers_share_two_stages_where_a_grid_would_leave_one_idle() -> None:
    plan = planned(swarm(3, gbps=10), Planning(stages=2))
    assert plan.idle == ()
    assert sorted(len(plan.replicas(stage)) for stage in range(2)) == [1, 2]
    assert plan.reason.startswith(("2 stages x 1+2 peers", "2 stages x 2+1 peers"))


def test_a_far_slower_peer_is_given_less_or_nothing() -> None:
    plan = planned(swarm(3, gbps=10, speeds=(1, 1, 0.2)))
    assert plan.shares().get("n2", 0) < min(plan.shares()["n0"], plan.shares()["n1"])


def test_fast_peers_are_not_left_idle_for_slow_ones() -> None:
    plan = planned(swarm(3, gbps=10, speeds=(0.1, 1, 1)), Planning(stages=2, replicas=1))
    assert plan.idle == ("n0",)


def test_only_available_peers_are_used() -> None:
    plan = planned(swarm(4, gbps=10), available={"n1", "n3"})
    assert set(plan.peers) == {"n1", "n3"}
    assert plan.idle == ("n0", "n2")


def test_the_same_seed_and_evaluations_give_the_same_plan() -> None:
    one, other = (planned(swarm(6, seed=3), seed=4, evaluations=1000) for _ in range(2))
    fixed = {"seconds": None, "history": ()}
    assert one.model_copy(update=fixed) == other.model_copy(update=fixed)


def test_a_budget_in_seconds_is_kept_by_the_given_clock() -> None:
    ticks = iter(range(10**9))
    plan = planned(swarm(6), budget=3000.0, evaluations=None, clock=lambda: float(next(ticks)))
    assert plan.seconds is not None
    assert plan.seconds < 4000


def test_peers_that_cannot_reach_each_other_are_not_put_together() -> None:
    apart = swarm(4, gbps=0.0)
    assert len(planned(apart).peers) == 1
    with pytest.raises(UserError, match="cannot reach each other"):
        planned(apart, Planning(stages=2))


def test_a_head_as_heavy_as_layers_moves_layers_to_the_first_stage() -> None:
    plan = planned(swarm(2, gbps=10), Planning(stages=2), demand=replace(DEMAND, head_layers=2.0))
    assert plan.stages == ((0, 4), (4, 6))


# `plan --cost paper`


def paper(view: View, stages: int, **changes: object) -> Plan:
    arguments = {"activation_bytes": 1e6, "gradient_bytes": 1e6, "evaluations": 500} | changes
    return allocate_paper(view, stages, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["evolutionary", "random", "in-order"])
def test_a_paper_plan_costs_what_it_says_as_written(algorithm: str) -> None:
    view = swarm(11, seed=2)
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
    view = swarm(5, seed=4)
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
        paper(swarm(3), 4)
    for algorithm in ("evolutionary", "in-order"):
        with pytest.raises(UserError, match="0 Gbit/s"):
            paper(swarm(4, gbps=0.0), 2, algorithm=algorithm)
    with pytest.raises(UserError, match="there is no algorithm 'magic'"):
        paper(swarm(4), 2, algorithm="magic")
