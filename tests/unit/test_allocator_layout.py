"""From placements to plans: every micro-batch is served, every layer held, no memory overrun."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.demand import ModelDemand, layer_seconds
from dtfm_coordinator.allocator.layout import DoesNotFit, Stages, Swarm, in_flight, lay_out
from dtfm_coordinator.allocator.makespan import Links
from dtfm_coordinator.allocator.routes import interleaved, routes, shares
from dtfm_protocol.errors import UserError
from dtfm_protocol.model.memory import BYTES_PER_PARAMETER
from dtfm_protocol.plan import Plan
from dtfm_protocol.view import LayerSeconds, NodeView

DEMAND = ModelDemand(
    layer_parameters=(1000,) * 12,
    embedding_parameters=300,
    head_parameters=310,
    tied_parameters=300,
    message_values=64,
    layer_activation_bytes=50,
)


def swarm(speeds: dict[str, float], micro_batches: int = 8, demand: ModelDemand = DEMAND, **changes: object) -> Swarm:
    """Peers that do `speeds` layers a second, on equal links."""
    count = len(speeds)
    values: dict[str, object] = {
        "demand": demand,
        "links": Links(
            {peer: row for row, peer in enumerate(speeds)},
            np.full((count, count), 0.01),
            np.full((count, count), 1e6),
            np.full(count, np.inf),
        ),
        "layer_seconds": {
            peer: LayerSeconds(forward=0.25 / speed, backward=0.75 / speed) for peer, speed in speeds.items()
        },
        "memory": dict.fromkeys(speeds, float("inf")),
        "micro_batches": micro_batches,
        "schedule": "1f1b",
        "wire": "fp32",
    }
    return Swarm(**(values | changes))  # type: ignore[arg-type]


@st.composite
def placements(draw: st.DrawFn) -> tuple[dict[str, float], Stages, int]:
    """Speeds of up to 12 peers, dealt to one to five stages unevenly, and micro-batches enough for all."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    names = iter(f"p{number}" for number in range(sum(counts)))
    stages = tuple(tuple(next(names) for _ in range(count)) for count in counts)
    speeds = {peer: draw(st.floats(0.2, 5)) for peers in stages for peer in peers}
    return speeds, stages, draw(st.integers(max(counts), 20))


@given(placements(), st.sampled_from(["1f1b", "gpipe"]))
@settings(max_examples=80, deadline=None)
def test_every_layout_serves_each_micro_batch_once_and_holds_each_layer_once(
    placement: tuple[dict[str, float], Stages, int], schedule: str
) -> None:
    speeds, stages, micro_batches = placement
    plan = lay_out(swarm(speeds, micro_batches, schedule=schedule), stages, idle=("spare",))
    assert Plan.read(plan.model_dump(), "the plan") == plan
    assert len(plan.routes) == micro_batches
    assert plan.layers == 12
    assert min(end - first for first, end in plan.stages) >= 1
    assert plan.idle == ("spare",)
    for stage, peers in enumerate(stages):
        assert set(plan.replicas(stage)) == set(peers)
        assert sum(plan.shares()[peer] for peer in peers) == micro_batches


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.integers(0, 40))
def test_shares_are_whole_follow_speed_and_leave_nobody_out(speeds: list[float], extra: int) -> None:
    total = len(speeds) + extra
    counts = shares(speeds, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    for (speed, count), (other, others_count) in pairwise(zip(speeds, counts, strict=True)):
        assert count >= others_count or speed <= other
    with pytest.raises(ValueError, match="cannot keep"):
        shares(speeds, len(speeds) - 1)


def test_shares_go_by_largest_remainder() -> None:
    assert shares([3, 1], 8) == (6, 2)
    assert shares([5, 3, 2], 9) == (4, 3, 2)  # quotas 4.5, 2.7, 1.8
    assert shares([100, 1, 1], 4) == (2, 1, 1)


def test_a_stage_alternates_between_its_peers() -> None:
    assert interleaved([2, 2]) == (0, 1, 0, 1)
    assert interleaved([4, 2]) == (0, 1, 0, 0, 1, 0)


def test_equal_shares_follow_the_pipelines_of_the_placement() -> None:
    plan = lay_out(swarm(dict.fromkeys("abcdef", 1.0), 6), (("a", "b"), ("c", "d"), ("e", "f")))
    assert plan.pipelines == (("a", "c", "e"), ("b", "d", "f"))
    assert plan.stages == ((0, 4), (4, 8), (8, 12))


def test_unequal_shares_are_routed_over_the_cheapest_links() -> None:
    cost = np.array([[1.0, 9.0, 9.0], [9.0, 1.0, 1.0]])
    chosen = Counter(routes([(4, 8), (4, 4, 4)], [cost]))
    assert chosen == {(0, 0): 4, (1, 1): 4, (1, 2): 4}


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_routes_keep_to_the_shares_and_avoid_pairs_that_cannot_talk(data: st.DataObject) -> None:
    total = data.draw(st.integers(4, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    counts = [shares(rng.uniform(0.2, 3, size).tolist(), total) for size in rng.integers(1, 5, 3)]
    costs = [rng.random((len(before), len(after))) for before, after in pairwise(counts)]
    found = routes(counts, costs)
    for stage, share in enumerate(counts):
        served = Counter(route[stage] for route in found)
        assert [served[index] for index in range(len(share))] == list(share)


def test_layers_follow_the_speed_of_their_stage_and_leave_room_for_the_head() -> None:
    assert lay_out(swarm({"fast": 2.0, "slow": 1.0}), (("fast",), ("slow",))).stages == ((0, 8), (8, 12))
    assert lay_out(swarm(dict.fromkeys("abc", 1.0)), (("a",), ("b", "c"))).stages == ((0, 4), (4, 12))
    heavy = ModelDemand(
        layer_parameters=(1,) * 12,
        embedding_parameters=1,
        head_parameters=1,
        message_values=1,
        layer_activation_bytes=0,
        head_layers=4.0,
    )
    assert lay_out(swarm(dict.fromkeys("ab", 1.0), demand=heavy), (("a",), ("b",))).stages == ((0, 8), (8, 12))


def test_no_peer_gets_more_than_its_memory_holds() -> None:
    stages: Stages = (("a",), ("b",))
    memory = {"a": BYTES_PER_PARAMETER * (300 + 3000) + 3 * 2 * 50, "b": 1e9}
    plan = lay_out(swarm({"a": 1.0, "b": 1.0}, memory=memory), stages)
    assert plan.stages == ((0, 3), (3, 12))
    held = in_flight(plan)
    assert held == {"a": 2, "b": 1}
    assert DEMAND.memory_bytes(0, 3, held["a"]) == memory["a"]
    # All forwards first keep all eight micro-batches, and a layer less fits.
    assert lay_out(swarm({"a": 1.0, "b": 1.0}, memory=memory, schedule="gpipe"), stages).stages == ((0, 2), (2, 12))
    with pytest.raises(DoesNotFit):
        lay_out(swarm({"a": 1.0, "b": 1.0}, memory=memory | {"b": 1e5}), stages)


def test_more_stages_than_layers_is_refused() -> None:
    peers = [f"p{number}" for number in range(13)]
    with pytest.raises(ValueError, match="12 layers cannot make 13 stages"):
        lay_out(swarm(dict.fromkeys(peers, 1.0)), tuple((peer,) for peer in peers))


def test_a_tied_matrix_is_counted_once_on_one_stage_and_twice_on_two() -> None:
    assert DEMAND.parameters(0, 12) == 12_000 + 310
    assert DEMAND.parameters(0, 6) + DEMAND.parameters(6, 12) == 12_000 + 310 + 300


def test_speeds_come_from_measurements_else_from_flops_else_from_the_slowest() -> None:
    measured = LayerSeconds(forward=1.0, backward=3.0)
    nodes = [
        NodeView(id="measured", layer_seconds=measured, flops=2e12),
        NodeView(id="slow", layer_seconds=LayerSeconds(forward=5.0, backward=9.0)),
        NodeView(id="twice", flops=4e12),
        NodeView(id="unknown"),
    ]
    speeds = layer_seconds(nodes, DEMAND)
    assert speeds["measured"] == measured
    assert speeds["twice"] == LayerSeconds(forward=0.5, backward=1.5)
    assert speeds["unknown"] == speeds["slow"]
    with pytest.raises(UserError, match="no peer's speed is known"):
        layer_seconds(nodes[2:], DEMAND)
