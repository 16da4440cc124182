"""From placements to plans: every layer held, no memory overrun, shares and layers that follow speed."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.problem.model_demand import (
    ModelDemand,
    apart_of,
    host_memory_needed,
    layer_seconds,
    memory_needed,
    optimizer_seconds,
    stage_seconds,
)
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES, Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import pose
from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import ScheduleName, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import BUCKET_BYTES
from dtfm_protocol.plan.schedule import most_in_flight, most_waiting, orders
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from dtfm_protocol.wire.codecs import payload_bytes
from tests.coordinator.swarms import workload

DEMAND = ModelDemand(
    layer_parameters=(1000,) * 12,
    embedding_parameters=300,
    head_parameters=310,
    tied_parameters=300,
    message_values=64,
    layer_activation_bytes=50,
)


def posed(
    speeds: list[float],
    micro_batches: int = 8,
    demand: ModelDemand = DEMAND,
    memory: list[float] | None = None,
    **planning: object,
) -> Problem:
    """Peers that do `speeds` layers a second, on equal links."""
    view = View(
        nodes=tuple(
            NodeView(
                id=f"p{number}",
                layer_seconds=LayerSeconds(forward=0.25 / speed, backward=0.75 / speed),
                memory_bytes=memory[number] if memory else None,
            )
            for number, speed in enumerate(speeds)
        ),
        latency_ms=np.full((len(speeds), len(speeds)), 10.0),
        bandwidth_gbps=np.full((len(speeds), len(speeds)), 0.01),
    )
    return pose(view, workload(micro_batches, demand, **planning), view.ids)


def laid_out(problem: Problem, stages: list[list[int]]) -> Layout:
    layout = Layout.of(problem, stages)
    assert layout is not None
    return layout


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[float], list[list[int]], int]:
    """Speeds of up to 12 peers, dealt to one to five stages unevenly, and micro-batches enough for all."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    numbers = iter(range(sum(counts)))
    stages = [[next(numbers) for _ in range(count)] for count in counts]
    speeds = [draw(st.floats(0.2, 5)) for _ in range(sum(counts))]
    return speeds, stages, draw(st.integers(max(counts), 20))


@given(placements(), st.sampled_from(SCHEDULES))
@settings(max_examples=80, deadline=None)
def test_every_layout_serves_each_micro_batch_once_and_holds_each_layer_once(
    placement: tuple[list[float], list[list[int]], int], schedule: ScheduleName
) -> None:
    speeds, stages, micro_batches = placement
    layout = laid_out(posed(speeds, micro_batches, schedule=schedule), stages)
    names = [f"p{number}" for number in range(len(speeds))]
    plan = layout.plan([*names, "spare"], schedule, Wire())
    assert Plan.read(plan.model_dump(), "the plan") == plan
    assert len(plan.routes) == micro_batches
    assert plan.layers == 12
    assert min(end - first for first, end in plan.stages) >= 1
    assert plan.idle == ("spare",)
    for stage, peers in enumerate(stages):
        assert set(plan.replicas(stage)) == {names[peer] for peer in peers}
    assert plan.shares() == {names[peer]: share for peer, share in zip(layout.peers, layout.shares, strict=True)}


@given(placements())
@settings(max_examples=50, deadline=None)
def test_a_plan_read_back_is_the_same_layout_but_for_the_order_of_its_peers(
    placement: tuple[list[float], list[list[int]], int],
) -> None:
    speeds, stages, micro_batches = placement
    problem = posed(speeds, micro_batches)
    layout = laid_out(problem, stages)
    names = [f"p{number}" for number in range(len(speeds))]
    again = Layout.of_plan(layout.plan(names, "1f1b", Wire()), names)
    assert again is not None
    assert (again.counts, again.layers) == (layout.counts, layout.layers)
    assert set(zip(again.peers, again.shares, strict=True)) == set(zip(layout.peers, layout.shares, strict=True))
    if len(set(layout.shares)) == 1:
        assert again.cost(problem).total == pytest.approx(layout.cost(problem).total)


def test_a_plan_with_a_peer_that_is_gone_is_no_layout() -> None:
    plan = laid_out(posed([1.0, 1.0]), [[0], [1]]).plan(["a", "b"], "1f1b", Wire())
    assert Layout.of_plan(plan, ["a", "c"]) is None


def test_layers_follow_the_speed_of_their_stage_and_leave_room_for_the_head() -> None:
    assert laid_out(posed([1.0, 2.0]), [[0], [1]]).layers == (4, 8)
    assert laid_out(posed([1.0, 1.0]), [[0], [1]]).layers == (6, 6)
    assert laid_out(posed([1.0, 1.0], demand=replace(DEMAND, head_layers=4.0)), [[0], [1]]).layers == (8, 4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_peer_gets_more_than_its_memory_holds(schedule: ScheduleName) -> None:
    small = DEMAND.memory_bytes(0, 2, 8)
    problem = posed([5.0, 1.0, 1.0], memory=[small, 1e9, 1e9], schedule=schedule)
    layout = laid_out(problem, [[0], [1], [2]])
    plan = layout.plan(["a", "b", "c"], schedule, Wire())
    assert memory_needed(plan, DEMAND)["a"] <= small
    assert layout.fits(problem)
    assert not replace_layers(layout, (10, 1, 1)).fits(problem)


AWAY = replace(DEMAND, table=state_table("adamw", "fp32", "optimizer"))


@pytest.mark.parametrize(("memory", "host"), [(1.0, 0.5), (0.5, 1.0), (0.6, 0.6), (2.0, 0.25)])
def test_a_peer_with_two_memories_gets_no_more_layers_than_fit_in_either(memory: float, host: float) -> None:
    """Beside a peer whose memory is one, and has room for all."""
    device, beside = AWAY.memory_bytes(0, 12, 8, apart=True), AWAY.host_bytes(0, 12)
    layer = LayerSeconds(forward=0.25, backward=0.75)
    view = View(
        nodes=(
            NodeView(id="gpu", layer_seconds=layer, memory_bytes=memory * device, host_bytes=host * beside),
            NodeView(id="cpu", layer_seconds=layer, memory_bytes=2.0 * (device + beside)),
        ),
        latency_ms=np.full((2, 2), 10.0),
        bandwidth_gbps=np.full((2, 2), 0.01),
    )
    problem = pose(view, workload(8, AWAY), view.ids)
    fitting = []
    for layers in range(1, 12):
        plan = Plan(stages=((0, layers), (layers, 12)), routes=(("gpu", "cpu"),) * 8)
        layout = Layout.of_plan(plan, view.ids)
        assert layout is not None
        own = memory_needed(plan, AWAY, apart_of(view.nodes))["gpu"] <= memory * device
        away = host_memory_needed(plan, AWAY, apart_of(view.nodes))["gpu"] <= host * beside
        assert layout.fits(problem) == (own and away)
        fitting.append(own and away)
    assert any(fitting)
    assert memory > 1 or not all(fitting)


SHORT = replace(DEMAND, layer_activation_bytes=9000, head_bytes=4000, logits_gradient_bytes=1000)


def needed_bytes(plan: Plan, stage: int, peer: str, layers: int, recompute: bool) -> int:
    """Of a peer, if its stage had so many layers."""
    ends = {0: (0, layers), len(plan.stages) - 1: (12 - layers, 12)}
    first, end = ends.get(stage, (1, 1 + layers)) if len(plan.stages) > 1 else (0, 12)
    actions = orders(plan)[peer]
    return SHORT.memory_bytes(
        first, end, most_in_flight(actions), waiting=most_waiting(actions), recompute=recompute,
        reduced=plan.wire.gradients if len(plan.replicas(stage)) > 1 else None,
    )  # fmt: skip


@given(placements(), st.sampled_from(SCHEDULES), st.sampled_from(["fp32", "int8"]), st.integers(0, 999))
@settings(max_examples=150, deadline=None)
def test_stages_recompute_exactly_where_a_peers_memory_is_short_and_no_split_does_without(
    placement: tuple[list[float], list[list[int]], int], schedule: ScheduleName, wire: str, memories: int
) -> None:
    speeds, stages, micro_batches = placement
    memory = np.random.default_rng(memories).uniform(1e5, 5e5, len(speeds)).tolist()
    problem = posed(speeds, micro_batches, SHORT, memory, schedule=schedule, wire=wire)
    layout = Layout.of(problem, stages)
    if layout is None:
        return
    names = [f"p{number}" for number in range(len(speeds))]
    plan = layout.plan(names, schedule, Wire.model_validate(wire), layout.recomputed(problem))
    needed, there = memory_needed(plan, SHORT), dict(zip(names, memory, strict=True))
    assert all(needed[peer] <= there[peer] for peer in plan.peers)
    for stage, (first, end) in enumerate(plan.stages):
        plain = [needed_bytes(plan, stage, peer, end - first, False) for peer in plan.replicas(stage)]
        short = any(size > there[peer] for size, peer in zip(plain, plan.replicas(stage), strict=True))
        assert (stage in plan.recompute) == short
    if plan.recompute and len(stages) > 1:

        def fits(stage: int, layers: int) -> bool:
            return all(needed_bytes(plan, stage, peer, layers, False) <= there[peer] for peer in plan.replicas(stage))

        most = [sum(fits(stage, layers) for layers in range(1, 11)) for stage in range(len(stages))]
        assert sum(most) < 12 or min(most) == 0


def test_a_byte_too_few_makes_a_stage_recompute() -> None:
    exact = [SHORT.memory_bytes(0, 6, 2), SHORT.memory_bytes(6, 12, 1)]
    for missing, recompute in ((0, ()), (1, (0,))):
        problem = posed([1.0, 1.0], demand=SHORT, memory=[exact[0] - missing, exact[1]], schedule="1f1b")
        layout = laid_out(problem, [[0], [1]])
        assert (layout.layers, layout.recomputed(problem)) == ((6, 6), recompute)
    # A second forward for each of six layers, on each of eight micro-batches.
    without, anew = (layout.cost(posed([1.0, 1.0], demand=SHORT)).compute, layout.cost(problem).compute)
    assert anew - without == pytest.approx(8 * 6 * 0.25)


@pytest.mark.parametrize("layer", [1000, 1_000_000, 10_000_000], ids=["small", "nearly all", "a part"])
def test_a_byte_too_few_for_what_replicas_reduce_makes_them_recompute(layer: int) -> None:
    """Whether all of their gradients may be under way at a time, or a part."""
    demand = replace(SHORT, layer_parameters=(layer,) * 12)
    exact = demand.memory_bytes(0, 12, 1, reduced="fp32")
    for missing, recompute in ((0, ()), (1, (0,))):
        problem = posed([1.0, 1.0], demand=demand, memory=[exact - missing] * 2, schedule="1f1b")
        assert laid_out(problem, [[0, 1]]).recomputed(problem) == recompute


def test_what_a_stage_that_recomputes_keeps() -> None:
    kept = SHORT.memory_bytes(0, 6, 3)
    shared = 2 * 4 * 300  # first and last stage have buckets of what they share under way, both ways
    assert kept == 16 * SHORT.parameters(0, 6) + 3 * 6 * 9000 + 2 * 64 * 4 + shared
    anew = SHORT.memory_bytes(0, 6, 3, recompute=True)
    assert anew == 16 * SHORT.parameters(0, 6) + 3 * 6 * 64 * 4 + 9000 + 2 * 64 * 4 + shared
    assert SHORT.memory_bytes(3, 6, 3) == 16 * SHORT.parameters(3, 6) + 3 * 3 * 9000 + 2 * 64 * 4
    # What weights' gradients wait for is there again once it is recomputed; on the last stage the logits' gradient too.
    assert SHORT.memory_bytes(0, 6, 3, waiting=2, recompute=True) == anew + 2 * 6 * 9000
    last = SHORT.memory_bytes(6, 12, 3)
    assert last == 16 * SHORT.parameters(6, 12) + 3 * 6 * 9000 + 4000 + 2 * 64 * 4 + shared
    assert SHORT.memory_bytes(6, 12, 3, waiting=2) == last + 2 * 1000
    # A single stage receives nothing; replicas have buckets of all their gradients under way; int8 keeps its error.
    held = 12 * 9000 + 4000
    assert SHORT.memory_bytes(0, 12, 1, reduced="bf16") == (16 + 2 * 4) * SHORT.parameters(0, 12) + held
    assert SHORT.memory_bytes(0, 12, 1, reduced="int8") == (20 + 2 * 4) * SHORT.parameters(0, 12) + held
    large = replace(SHORT, layer_parameters=(10_000_000,) * 12)
    assert large.memory_bytes(0, 12, 1, reduced="fp32") - large.memory_bytes(0, 12, 1) == 2 * 2 * BUCKET_BYTES


def test_messages_and_gradients_have_the_bytes_of_their_codecs() -> None:
    demand = replace(DEMAND, message_values=300)
    for wire, ahead, back, gradients in (
        ("fp32", 1200, 1200, 4.0),
        ("bf16", 600, 600, 2.0),
        ("fp16", 604, 604, 2.0),
        ("int8", 312, 312, 1.03125),
        ({"activations": "int8", "gradients": "fp16"}, 312, 604, 2.0),
    ):
        coded = Wire.model_validate(wire)
        assert demand.message_bytes(coded) == (ahead, back)
        # Of the 300 parameters that both ends share the two reduce the gradients together; one stage has them alone.
        assert demand.gradient_bytes(0, 6, coded) == gradients * 6000
        assert demand.gradient_bytes(6, 12, coded) == gradients * 6010
        assert demand.gradient_bytes(3, 6, coded) == gradients * 3000
        assert demand.gradient_bytes(0, 12, coded) == gradients * 12_310
        assert demand.tied_gradient_bytes(coded) == gradients * 300
        problem = posed([1.0], demand=demand, wire=wire)
        assert (problem.ahead_bytes, problem.back_bytes) == (ahead, back)
        assert problem.gradient_before[-1] == gradients * 12_000
        assert [payload_bytes(codec, (3, 100)) for codec in (coded.activations, coded.gradients)] == [ahead, back]


def replace_layers(layout: Layout, layers: tuple[int, ...]) -> Layout:
    return Layout(layout.peers, layout.counts, layout.shares, layers)


def test_what_fits_nowhere_is_no_layout() -> None:
    assert Layout.of(posed([1.0, 1.0], memory=[1e3, 1e3]), [[0], [1]]) is None


def test_more_stages_than_layers_and_more_peers_than_micro_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="12 layers cannot make 13 stages"):
        Layout.of(posed([1.0] * 13), [[number] for number in range(13)])
    with pytest.raises(ValueError, match="2 micro-batches cannot keep 3 peers busy"):
        Layout.of(posed([1.0] * 3, micro_batches=2), [[0, 1, 2]])


def test_a_tied_matrix_is_counted_once_on_one_stage_and_twice_on_two() -> None:
    assert DEMAND.parameters(0, 12) == 12_000 + 300 + 310 - 300
    assert DEMAND.parameters(0, 6) + DEMAND.parameters(6, 12) == 12_000 + 300 + 310
    exact = DEMAND.table.parameter_bytes * DEMAND.parameters(0, 12) + 8 * 12 * 50
    assert Layout.of(posed([1.0], memory=[exact], schedule="gpipe"), [[0]]) is not None
    assert Layout.of(posed([1.0], memory=[exact - 1], schedule="gpipe"), [[0]]) is None


def test_what_is_not_trained_is_counted_as_its_weights_alone() -> None:
    """Every layer by the largest, which is one that is trained, unless none is."""
    one, all_of_them = (
        replace(
            DEMAND,
            frozen_layer_parameters=(1000,) * count + (0,) * (12 - count),
            frozen_layer_bytes=(4000,) * count + (0,) * (12 - count),
            tied_parameters=0,
        )
        for count in (1, 12)
    )
    beside, kept = 16 * 610, 8 * 12 * 50
    assert one.memory_bytes(0, 12, 8) == 4 * 1000 + 16 * 11_000 + beside + kept
    for demand, exact in (
        (one, 16 * 12_000 + beside + kept),
        (all_of_them, 4 * 12_000 + beside + kept),
        (replace(all_of_them, frozen_layer_bytes=(1100,) * 12), 1100 * 12 + beside + kept),  # in int8, with scales
        (
            replace(all_of_them, frozen_embedding_parameters=300, frozen_embedding_bytes=1200),
            4 * 12_300 + 16 * 310 + kept,
        ),
        (
            replace(
                all_of_them,
                layer_parameters=(1010,) * 12,  # with adapters
                frozen_embedding_parameters=300,
                frozen_embedding_bytes=1200,
                frozen_head_parameters=310,
                frozen_head_bytes=1240,
                frozen_tied_bytes=1200,
                tied_parameters=300,
            ),
            4 * 12_310 + 16 * 120 + kept,
        ),
    ):
        assert demand.memory_bytes(0, 12, 8) <= exact
        assert Layout.of(posed([1.0], demand=demand, memory=[exact], schedule="gpipe"), [[0]]) is not None
        assert Layout.of(posed([1.0], demand=demand, memory=[exact - 1], schedule="gpipe"), [[0]]) is None


def test_what_is_not_trained_is_neither_reduced_nor_moved() -> None:
    frozen = replace(DEMAND, frozen_layer_parameters=(1000,) * 6 + (0,) * 6, frozen_embedding_parameters=0)
    wire = Wire()
    assert frozen.gradient_bytes(0, 6, wire) == DEMAND.gradient_bytes(0, 6, wire) - 4 * 6000
    assert frozen.gradient_bytes(6, 12, wire) == DEMAND.gradient_bytes(6, 12, wire)
    assert frozen.trained_layer_parameters == (0,) * 6 + (1000,) * 6
    assert list(posed([1.0], demand=frozen).gradient_before[[6, 12]]) == [0.0, 4 * 6000]


def test_speeds_come_from_measurements_else_from_flops_else_from_the_slowest() -> None:
    measured = LayerSeconds(forward=1.0, backward=2.0, optimizer=0.5)
    nodes = [
        NodeView(id="measured", layer_seconds=measured, flops=2e12),
        NodeView(id="slow", layer_seconds=LayerSeconds(forward=5.0, backward=9.0)),
        NodeView(id="flops", flops=4e12),
        NodeView(id="nothing"),
    ]
    speeds = layer_seconds(nodes, DEMAND)
    assert (speeds["flops"].forward, speeds["flops"].backward) == (0.5, 1.0)
    assert (speeds["nothing"].forward, speeds["nothing"].backward) == (5.0, 9.0)
    assert {peer: seconds.optimizer for peer, seconds in speeds.items()} == dict.fromkeys(speeds, 0.5)
    by_flops = layer_seconds([NodeView(id="a", flops=1e12)], replace(DEMAND, layer_flops=1e12))
    assert (by_flops["a"].forward, by_flops["a"].backward) == (1.0, 2.0)
    with pytest.raises(UserError, match="no peer's speed is known"):
        layer_seconds(nodes[3:], DEMAND)


def test_speeds_by_precision_are_those_of_the_jobs_own() -> None:
    both, lacking = NodeView(id="a", flops={"fp32": 1e12, "bf16": 4e12}), NodeView(id="b", flops={"fp32": 1e12})
    demand = replace(DEMAND, layer_flops=1e12)
    half = replace(demand, precision="bf16")
    assert layer_seconds([both], demand)["a"].forward == 1.0
    assert layer_seconds([both], half)["a"].forward == 0.25
    # Whose speed in the job's precision is not known counts as the slowest of which it is.
    assert layer_seconds([both, lacking], half)["b"].forward == 0.25
    with pytest.raises(UserError, match="in bf16 where they are by precision"):
        layer_seconds([lacking], half)
    measured = LayerSeconds(forward=1.0, backward=3.0)
    known = NodeView(id="c", layer_seconds=measured, flops={"fp32": 1e12, "bf16": 2e12})
    assert layer_seconds([both, known], half)["a"] == LayerSeconds(forward=0.5, backward=1.5, optimizer=0.0)


def test_a_stage_takes_its_layers_and_the_last_one_the_head() -> None:
    plan = laid_out(posed([1.0, 1.0]), [[0], [1]]).plan(["a", "b"], "1f1b", Wire())
    layer = LayerSeconds(forward=1.0, backward=2.0, optimizer=0.1)
    demand = replace(DEMAND, head_layers=0.5)
    seconds = stage_seconds(plan, demand, {"a": layer, "b": layer})
    assert [(one.forward, one.backward) for one in seconds.values()] == [(6.0, 12.0), (6.5, 13.0)]
    updates = optimizer_seconds(plan, demand, {"a": layer, "b": layer})
    assert updates == pytest.approx({"a": 0.63, "b": 0.631})
    for (_, end), (first, _) in pairwise(plan.stages):
        assert end == first
