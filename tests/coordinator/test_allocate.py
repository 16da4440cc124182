"""The allocator as `serve` and `plan` call it."""

from dataclasses import replace

import numpy as np
import pytest

from dtfm_coordinator.allocator import allocate as allocating
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand, memory_needed
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import Workload, pose, predict
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Planning, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import actions_of, most_between
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from tests.coordinator.swarms import drawn_view, workload

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
        latency_ms=rng.uniform(5, 20, (nodes, nodes)),
        bandwidth_gbps=gbps * rng.uniform(0.5, 2, (nodes, nodes)),
    )


def planned(view: View, planning: Planning | None = None, demand: ModelDemand = DEMAND, **limits: object) -> Plan:
    limits = {"evaluations": 300} | limits
    plan = allocate(view, Workload(demand, 12, planning or Planning()), **limits)  # type: ignore[arg-type]
    assert Plan.read(plan.model_dump(), "plan") == plan
    assert sorted([*plan.peers, *plan.idle]) == sorted(view.ids)
    assert plan.layers == demand.layers
    assert len(plan.routes) == 12
    assert plan.cost is not None
    assert plan.cost.kind == "makespan"
    parts = (plan.cost.data_parallel, plan.cost.pipeline, plan.cost.compute or 0, plan.cost.optimizer or 0)
    assert plan.cost.total == pytest.approx(sum(parts))
    assert "\n" not in plan.reason
    return plan


def test_fast_links_make_replicas_and_slow_links_keep_one_peer_alone() -> None:
    assert len(planned(swarm(4, gbps=100)).stages) == 1
    assert len(planned(swarm(4, gbps=100)).peers) == 4
    assert planned(swarm(4, gbps=0.001)).peers == ("n0",)


def test_the_reason_names_the_shape_its_seconds_and_the_next_best() -> None:
    plan = planned(swarm(4))
    assert plan.cost is not None
    assert f": {plan.cost.total:.3g} s a step predicted; " in plan.reason
    assert plan.reason.startswith(f"{len(plan.stages)} stage")


def test_memory_forces_stages_apart_and_is_never_overrun() -> None:
    small = DEMAND.memory_bytes(0, 3, 2) * 1.01
    plan = planned(swarm(2, memory=(small, small)))
    assert plan.stages == ((0, 3), (3, 6))
    uneven = planned(swarm(3, memory=(small / 2, small, small)))
    assert uneven.stage_of("n0") is None or uneven.stages[uneven.stage_of("n0")][1] <= 6
    assert len(uneven.peers) >= 2


def test_a_model_that_fits_nowhere_is_refused_with_what_it_needs_and_what_there_is() -> None:
    with pytest.raises(UserError, match=r"the smallest stage needs \d+ MB .* largest peer has 2 MB") as refused:
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
    assert (plan.schedule, str(plan.wire), len(plan.idle)) == ("gpipe", "bf16", 1)
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


def test_a_search_that_begins_with_another_ones_plan_does_no_worse_and_takes_a_part_of_its_time() -> None:
    view, work = drawn_view(12, 3), workload(8)
    good, poor = allocate(view, work, evaluations=30_000), allocate(view, work, evaluations=1)
    assert good.cost is not None
    assert poor.cost is not None
    assert good.cost.total < poor.cost.total
    again = allocate(view, work, evaluations=1, begun=good)
    assert again.cost is not None
    assert again.cost.total <= good.cost.total * (1 + 1e-9)
    gone = allocate(
        view, work, evaluations=1, begun=good, available=[peer for peer in view.ids if peer != good.peers[0]]
    )
    assert good.peers[0] not in gone.peers
    seconds = []
    for begun in (None, good):
        ticks = iter(range(10**9))
        found = allocate(view, work, begun=begun, clock=lambda ticks=ticks: next(ticks) / 100)  # type: ignore[misc]
        seconds.append(found.seconds or 0.0)
    assert seconds[1] < 0.5 * seconds[0]


def test_peers_that_cannot_reach_each_other_are_not_put_together() -> None:
    apart = swarm(4, gbps=0.0)
    assert len(planned(apart).peers) == 1
    with pytest.raises(UserError, match="cannot reach each other"):
        planned(apart, Planning(stages=2))


def test_the_plan_carries_the_exact_cost_of_its_own_step() -> None:
    view = swarm(5)
    plan = planned(view)
    exact = predict(view, Workload(DEMAND, 12, Planning()), plan).cost
    assert plan.cost is not None
    assert plan.cost.total == exact.total
    assert plan.history[-1][1] == exact.total


@pytest.mark.parametrize("seed", range(4))
def test_the_search_does_no_worse_than_every_placement_of_a_small_swarm(seed: int) -> None:
    view, work = swarm(5, speeds=(1, 1.7, 0.6, 1.2, 0.8), seed=seed), Workload(DEMAND, 8, Planning())
    every = allocate(view, work, algorithm="exhaustive")
    found = allocate(view, work, seed=seed, evaluations=40_000)
    assert every.cost is not None
    assert found.cost is not None
    assert found.cost.total <= every.cost.total * (1 + 1e-9)
    for algorithm in ("greedy", "random", "in-order"):
        other = allocate(view, work, seed=seed, algorithm=algorithm)
        assert other.cost is not None
        assert other.cost.total >= found.cost.total


@pytest.mark.parametrize(("nodes", "seed"), [(8, 1), (12, 0), (12, 7)])
def test_a_short_search_does_no_worse_than_the_placements_that_it_starts_from(nodes: int, seed: int) -> None:
    """Where uplinks bind and the schedule is open: what is best by 1F1B and the fast form need not be."""
    view, work = drawn_view(nodes, seed, limited=True), workload(16, schedule="auto")
    greedy = allocate(view, work, algorithm="greedy")
    found = allocate(view, work, evaluations=1500)
    assert greedy.cost is not None
    assert found.cost is not None
    assert found.cost.total <= greedy.cost.total


def test_exhaustive_refuses_what_would_take_days() -> None:
    with pytest.raises(UserError, match=r"--algorithm exhaustive: there are .* placements, more than"):
        planned(swarm(12), algorithm="exhaustive")


# The plan in force


def test_the_plan_in_force_stays_while_nothing_better_pays_back() -> None:
    view = swarm(6, seed=1)
    plan = planned(view, evaluations=20_000)
    again = planned(view, evaluations=20_000, in_force=plan, seed=1)
    assert again.routes == plan.routes
    assert again.stages == plan.stages
    assert again.reason.startswith("the plan in force stays: ")


def slowed(view: View, peer: int, factor: float) -> View:
    """The view with one peer's links slower."""
    gbps = view.bandwidth_gbps.copy()
    gbps[peer, :] /= factor
    gbps[:, peer] /= factor
    return View(nodes=view.nodes, latency_ms=view.latency_ms, bandwidth_gbps=gbps)


def test_a_better_plan_is_taken_when_it_pays_back_within_the_horizon_and_not_sooner() -> None:
    view = swarm(6, seed=1)
    plan = planned(view, evaluations=20_000)
    worse = slowed(view, view.ids.index(plan.peers[-1]), 20)
    moved = planned(worse, Planning(horizon=1e6), evaluations=20_000, in_force=plan)
    assert moved.routes != plan.routes
    assert "; the plan in force takes " in moved.reason
    assert "pays back in" in moved.reason
    stays = planned(worse, Planning(horizon=1e6), evaluations=20_000, in_force=plan, standstill=1e9)
    assert (stays.routes, stays.stages) == (plan.routes, plan.stages)
    kept = planned(worse, Planning(horizon=1e-3), evaluations=20_000, in_force=plan)
    # No state moves, though shares and pairs may change, and who holds all layers may serve fewer, which costs nothing.
    assert "moving takes 0 s" in kept.reason


def test_a_plan_that_would_pay_back_too_late_is_named_and_not_taken() -> None:
    view = swarm(2, gbps=0.02, speeds=(1, 1.3), seed=5)
    both = planned(view, Planning(stages=2, replicas=1))
    turned = both.renamed({"n0": "n1", "n1": "n0"})
    kept = planned(view, Planning(stages=2, replicas=1, horizon=1e-3), in_force=turned)
    assert kept.routes == turned.routes
    assert kept.reason.startswith("the plan in force stays: ")
    assert "nothing was found whose move pays back within" in kept.reason
    assert kept.cost is not None
    assert kept.cost.total == predict(view, Workload(DEMAND, 12, Planning()), turned).cost.total


def test_a_plan_whose_peer_left_is_replaced_by_one_that_moves_little() -> None:
    view = swarm(6, seed=1)
    plan = planned(view, Planning(replicas=2), evaluations=5000)
    left = [peer for peer in view.ids if peer != plan.peers[0]]
    new = planned(view.part(left), Planning(horizon=0.01), evaluations=20_000, in_force=plan)
    assert "; the plan in force cannot go on (a peer of it is gone): state moves for " in new.reason
    assert new.layers == 6


def test_a_plan_in_force_of_another_model_is_refused() -> None:
    view = swarm(3)
    other = planned(view, demand=replace(DEMAND, layer_parameters=(200_000,) * 4))
    with pytest.raises(UserError, match="the plan in force has 4 layers and the model 6"):
        planned(view, in_force=other)


def test_a_chain_of_the_best_peers_is_found_where_links_are_very_unequal() -> None:
    view = network("home", 64, 0)
    work = Workload(replace(DEMAND, layer_flops=2.0 * 200_000 * 512), 256, Planning())
    one_each = allocate(view, replace(work, planning=Planning(replicas=1)), evaluations=3000).cost
    free = allocate(view, work, evaluations=3000).cost
    assert one_each is not None
    assert free is not None
    assert free.total < 1.5 * one_each.total


def test_state_is_counted_where_it_moves_and_free_where_it_lies() -> None:
    from dtfm_coordinator.allocator.problem.moving_cost import moving_seconds, standing

    view, work = swarm(3, seed=2), Workload(DEMAND, 12, Planning())
    posed = pose(view, work, view.ids)
    layout = Layout.of(posed, [[0], [1]])
    assert layout is not None
    peers, counts, _, layers = layout.arrays()
    spans = {0: (0, 3), 1: (3, 6)}
    assert layout.layers == (3, 3)
    here = standing(posed, spans, 100.0)
    assert moving_seconds(posed, here, peers, counts, layers) == 0.0
    moved = np.array([0, 2])
    wanted = 3 * 200_000 * DEMAND.table.state_bytes / posed.beta[1, 2]
    assert moving_seconds(posed, here, moved, counts, layers) == pytest.approx(wanted)
    nobody = standing(posed, {0: (0, 3)}, 100.0)
    assert moving_seconds(posed, nobody, moved, counts, layers) == pytest.approx(
        3 * 200_000 * DEMAND.table.state_bytes / nobody.archive
    )


def test_weights_that_are_not_trained_move_with_their_layers() -> None:
    trained = DEMAND.moved_layer_bytes
    assert trained == 200_000 * DEMAND.table.state_bytes
    adapted = replace(DEMAND, frozen_layer_parameters=(199_000,) * 6, frozen_layer_bytes=(200_000,) * 6)
    assert adapted.moved_layer_bytes == 1000 * DEMAND.table.state_bytes + 200_000


def test_a_head_as_heavy_as_layers_moves_layers_to_the_first_stage() -> None:
    plan = planned(swarm(2, gbps=10), Planning(stages=2), demand=replace(DEMAND, head_layers=2.0))
    assert plan.stages == ((0, 4), (4, 6))


# The schedule, where it is open


def far(ms: float, memory: tuple[float, float] | None = None) -> View:
    """Two equal peers whose messages take no time but this delay."""
    layer = LayerSeconds(forward=0.01, backward=0.02)
    nodes = tuple(
        NodeView(id=name, layer_seconds=layer, memory_bytes=own)
        for name, own in zip("ab", memory or (None, None), strict=True)
    )
    return View(nodes=nodes, latency_ms=np.full((2, 2), ms), bandwidth_gbps=np.full((2, 2), 1000.0))


TWO = {"stages": 2, "replicas": 1}


def seconds_by(view: View, schedule: str, demand: ModelDemand = DEMAND) -> float:
    cost = planned(view, Planning(schedule=schedule, **TWO), demand).cost  # type: ignore[arg-type]
    assert cost is not None
    return cost.total


@pytest.mark.parametrize(("ms", "best"), [(0.0, "zero-bubble"), (200.0, "gpipe")])
def test_an_open_schedule_becomes_the_one_with_the_shortest_step(ms: float, best: str) -> None:
    view = far(ms)
    plan = planned(view, Planning(**TWO))
    assert plan.schedule == best
    assert plan.reason.startswith(f"2 stages x 1 peer, {best}: ")
    assert "; 2 x 1 by " in plan.reason
    totals = {schedule: seconds_by(view, schedule) for schedule in ("1f1b", "zero-bubble", "gpipe")}
    assert plan.cost is not None
    assert plan.cost.total == pytest.approx(min(totals.values()))
    assert totals[best] == min(totals.values())


def test_1f1b_is_taken_where_memory_allows_no_more_and_where_none_is_better() -> None:
    # The second stage has room for one micro-batch: a split backward would keep two.
    exact = (DEMAND.memory_bytes(0, 3, 2), DEMAND.memory_bytes(3, 6, 1))
    short = planned(far(0.0, exact), Planning(**TWO))
    assert (short.schedule, short.recompute) == ("1f1b", ())
    roomy = (exact[0], DEMAND.memory_bytes(3, 6, 2))
    assert planned(far(0.0, roomy), Planning(**TWO)).schedule == "zero-bubble"
    assert planned(swarm(4, gbps=100), Planning(stages=1)).schedule == "1f1b"


def test_gpipe_is_not_taken_where_its_activations_do_not_fit() -> None:
    # Layers that keep their inputs alone anyhow: recomputing saves nothing.
    demand = replace(DEMAND, layer_activation_bytes=DEMAND.input_bytes)
    two = demand.memory_bytes(0, 3, 2)
    plan = planned(far(200.0, (two, two)), Planning(**TWO), demand)
    assert plan.schedule != "gpipe"
    assert planned(far(200.0), Planning(**TWO), demand).schedule == "gpipe"


def test_a_fixed_schedule_is_kept_and_not_named() -> None:
    plan = planned(far(200.0), Planning(schedule="1f1b", **TWO))
    assert plan.schedule == "1f1b"
    assert plan.reason.startswith("2 stages x 1 peer: ")
    assert "1f1b" not in plan.reason


def test_a_plan_in_force_may_have_any_schedule_where_it_is_open() -> None:
    view = far(200.0)
    plan = planned(view, Planning(schedule="gpipe", **TWO))
    kept = planned(view, Planning(**TWO), in_force=plan)
    assert (kept.schedule, kept.routes) == ("gpipe", plan.routes)
    assert kept.reason.startswith("the plan in force stays: ")
    moved = planned(view, Planning(schedule="1f1b", **TWO), in_force=plan)
    assert moved.schedule == "1f1b"
    assert "cannot go on (the job's schedule or wire is another)" in moved.reason
    coded = planned(view, Planning(wire=Wire(gradients="bf16"), **TWO), in_force=plan)
    assert "cannot go on (the job's schedule or wire is another)" in coded.reason


# Recomputing


def test_a_stage_recomputes_where_its_peers_memory_is_short_and_only_there() -> None:
    exact = (DEMAND.memory_bytes(0, 3, 2), DEMAND.memory_bytes(3, 6, 1))
    choice = Planning(schedule="1f1b", **TWO)
    assert planned(far(0.0, exact), choice).recompute == ()
    short = planned(far(0.0, (exact[0] - 1, exact[1])), choice)
    assert (short.stages, short.recompute) == (((0, 3), (3, 6)), (0,))
    assert short.cost is not None
    # Twelve micro-batches of three more forwards on one of the stages.
    assert short.cost.compute == pytest.approx(12 * 3 * 0.04)
    assert short.cost.total == predict(far(0.0), Workload(DEMAND, 12, choice), short).cost.total


def test_a_plan_in_force_goes_on_as_it_is_or_not_at_all() -> None:
    exact = (DEMAND.memory_bytes(0, 3, 2), DEMAND.memory_bytes(3, 6, 1))
    choice = Planning(schedule="1f1b", **TWO)
    plan = planned(far(0.0, exact), choice)
    shrunk = planned(far(0.0, (exact[0] - 1, exact[1])), choice, in_force=plan)
    assert shrunk.recompute == (0,)
    assert "cannot go on (it no longer fits in its peers' memory)" in shrunk.reason


def test_unknown_speeds_are_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocating, "compile_now", lambda say: pytest.fail("compiled, which may take minutes"))
    view = swarm(2)
    bare = View(
        nodes=tuple(NodeView(id=node) for node in view.ids),
        latency_ms=view.latency_ms,
        bandwidth_gbps=view.bandwidth_gbps,
    )
    with pytest.raises(UserError, match=r"no node has layer_seconds, or flops .* give at least one node flops"):
        allocate(bare, Workload(DEMAND, 12, Planning()), evaluations=1)


def test_more_is_in_flight_where_that_hides_a_delay_and_the_job_lets_it() -> None:
    """1F1B waits for messages there and back, 400 ms, longer than the work on a micro-batch."""
    view, seconds = far(200.0), {}
    for chosen in ("least", "auto"):
        plan = planned(view, Planning(schedule="1f1b", in_flight=chosen, **TWO))  # type: ignore[arg-type]
        assert plan.cost is not None
        assert (plan.pacing is not None) == plan.follows_durations == (chosen == "auto")
        assert ("micro-batches in flight to hide links" in plan.reason) == (chosen == "auto")
        seconds[chosen] = plan.cost.total
    assert seconds["auto"] < 0.7 * seconds["least"]


@pytest.mark.parametrize("is_enough", [True, False])
def test_other_orders_alone_are_gone_over_to_where_they_save_enough(
    is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, choice = far(200.0), Planning(schedule="1f1b", in_flight="auto", horizon=1e6, **TWO)
    best = planned(view, choice)
    before = best.model_copy(update={"pacing": None})
    assert best.pacing is not None
    monkeypatch.setattr(allocating, "ORDERS_SAVE", 0.02 if is_enough else 0.9)
    found = planned(view, choice, in_force=before)
    assert found.is_placed_as(before)
    assert found.is_laid_out_as(best if is_enough else before)
    assert ("too little less to stand still for" in found.reason) != is_enough


def test_what_is_in_flight_fits_in_memory_and_nobody_keeps_more_than_it_is_worth() -> None:
    four = (DEMAND.memory_bytes(0, 3, 4), DEMAND.memory_bytes(3, 6, 4))
    plan = planned(far(200.0, four), Planning(schedule="1f1b", in_flight="auto", **TWO))
    assert plan.pacing is not None
    for peer, needed in memory_needed(plan, DEMAND).items():
        assert needed <= four["ab".index(peer)]
    assert plan.pacing.in_flight == tuple(most_between(actions_of(plan, peer)) for peer in plan.peers)
    near = planned(far(0.0), Planning(schedule="1f1b", in_flight="auto", **TWO))
    assert near.pacing is None
