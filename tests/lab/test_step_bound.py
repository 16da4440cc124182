"""The lower bound of the simulated step: never above what any plan takes, and not idle talk."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.bucket_cut import BucketCut, BucketsOf
from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds, ModelDemand, memory_needed
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES
from dtfm_coordinator.allocator.simulator.simulator import simulate
from dtfm_coordinator.allocator.workload import pose, predict
from dtfm_lab.bounds import step_bound
from dtfm_lab.bounds.least_ways import least_ways
from dtfm_lab.bounds.stage_prices import all_reduce_seconds, exchange_seconds
from dtfm_lab.bounds.step_bound import data_parallel_bound, least_bound, lower_bound
from dtfm_protocol.job.job_file import Planning, ScheduleName
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_pace import Pacing
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.plan.reductions import Reduction
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from tests.coordinator.swarms import drawn_view, workload

LAYER, LARGE_LAYER = 200_000, 20_000_000
"""Parameters of a layer: the gradients of large ones take several buckets."""
ROUNDING = 1 - 1e-9


def drawn_demand(rng: np.random.Generator, layer: int = LAYER) -> ModelDemand:
    """A model of few layers, on which every kind of bound binds now and then: tied or not, some of it frozen."""
    layers, tied = int(rng.integers(1, 6)), int(rng.choice([0, 60_000, 600_000])) * (layer // LAYER)
    is_frozen, has_frozen_ends = rng.random(layers) < rng.choice([0.0, 0.0, 0.5]), rng.random() < 0.2
    frozen = tuple(int(layer * one) for one in is_frozen)
    ends = max(tied, 60_000)
    return ModelDemand(
        layer_parameters=(layer,) * layers,
        embedding_parameters=ends,
        head_parameters=ends + 200,
        tied_parameters=tied,
        frozen_layer_parameters=frozen,
        frozen_layer_bytes=tuple(4 * count for count in frozen),
        frozen_embedding_parameters=ends * has_frozen_ends,
        frozen_head_parameters=(ends + 200) * has_frozen_ends,
        message_values=int(rng.choice([1_000, 100_000, 2_000_000])),
        layer_activation_bytes=10_000_000,
        head_layers=float(rng.choice([0.0, 0.7, 2.0])),
    )


def drawn_swarm(rng: np.random.Generator) -> View:
    """A few peers, unequal or alike, on links that are slow or fast, far or near, or limited by lines."""
    view = drawn_view(
        int(rng.integers(1, 7)),
        int(rng.integers(1 << 30)),
        limited=rng.random() < 0.3,
        gbps=float(rng.choice([0.01, 0.1, 10.0])),
    )
    nodes = view.nodes
    if rng.random() < 0.4:
        alike = LayerSeconds(forward=0.01, backward=0.02, weight=float(rng.choice([0.002, 0.01])), optimizer=0.001)
        nodes = tuple(node.model_copy(update={"layer_seconds": alike}) for node in nodes)
    delays = view.latency_ms * float(rng.choice([0.0, 0.1, 1.0, 5.0]))
    cut = rng.random(delays.shape) < rng.choice([0.0, 0.0, 0.1])
    return View(nodes=nodes, latency_ms=delays, bandwidth_gbps=np.where(cut, 0.0, view.bandwidth_gbps))


def room_for(rng: np.random.Generator, view: View, plan: Plan, demand: ModelDemand) -> View:
    """The view with memory for the plan, or for little more."""
    needed = memory_needed(plan, demand)
    memory = {name: needed.get(name, 1e7) * float(rng.choice([1.0, 1.0, 1.3])) for name in view.ids}
    nodes = tuple(node.model_copy(update={"memory_bytes": memory[node.id]}) for node in view.nodes)
    return View(nodes=nodes, latency_ms=view.latency_ms, bandwidth_gbps=view.bandwidth_gbps)


def drawn_plan(
    rng: np.random.Generator,
    peers: tuple[str, ...],
    layers: int,
    micro_batches: int,
    schedule: ScheduleName,
    planning: Planning,
) -> Plan:
    """Any plan that the owner's choices allow: stages, replicas, routes, what is in flight, parts and trees of the
    all-reduce, wires of boundaries, and recomputation."""
    stages = int(rng.integers(1, min(len(peers), layers) + 1))
    used = int(rng.integers(stages, len(peers) + 1)) if rng.random() < 0.6 else stages
    order = [peers[number] for number in rng.permutation(len(peers))[:used]]
    stage_of = [*range(stages), *rng.integers(stages, size=used - stages).tolist()]
    groups = [[peer for peer, own in zip(order, stage_of, strict=True) if own == stage] for stage in range(stages)]
    ends = [0, *np.sort(1 + rng.choice(max(1, layers - 1), stages - 1, replace=False)).tolist(), layers]
    in_turn = rng.random() < 0.5
    routes = tuple(
        tuple(group[index % len(group) if in_turn else int(rng.integers(len(group)))] for group in groups)
        for index in range(micro_batches)
    )
    plan = Plan(stages=tuple(pairwise(ends)), routes=routes, schedule=schedule)
    changes: dict[str, object] = {"recompute": tuple(range(stages)) if rng.random() < 0.1 else ()}
    if schedule != "gpipe" and rng.random() < 0.5:
        ones, free = (1,) * len(plan.peers), (0,) * len(plan.pairs)
        changes["pacing"] = Pacing(
            forward=ones,
            backward=ones,
            weight=ones if schedule == "zero-bubble" else (),
            in_flight=(int(rng.integers(1, micro_batches + 1)),) * len(ones),
            kept=(micro_batches,) * len(ones),
            ahead=free,
            ahead_delay=free,
            back=free,
            back_delay=free,
        )
    if planning.slow_wire != "none" and rng.random() < 0.7:
        either = (planning.wire, planning.coarse_wire)
        changes["boundaries"] = tuple(either[int(rng.integers(2))] for _ in range(stages - 1))
    if planning.parts == "auto" and rng.random() < 0.7:
        counts = [len(plan.replicas(stage)) for stage in range(stages)]
        own = tuple(drawn_parts(rng, count) for count in counts)
        changes["parts"] = SummedParts(
            stages=own, shared=drawn_parts(rng, counts[0] + counts[-1]) if stages > 1 else ()
        )
        if rng.random() < 0.6:
            changes["trees"] = ReductionTrees(
                stages=tuple(drawn_trees(rng, count) for count in counts),
                shared=drawn_trees(rng, counts[0] + counts[-1]) if stages > 1 else (),
            )
    return plan.model_copy(update=changes)


def drawn_parts(rng: np.random.Generator, holders: int) -> tuple[int, ...]:
    """Parts of which some may be nothing."""
    sizes = rng.integers(0, 4, size=holders)
    sizes[rng.integers(holders)] += 1
    parts = sizes * WHOLE // sizes.sum()
    parts[np.argmax(parts)] += WHOLE - parts.sum()
    return tuple(parts.tolist())


def drawn_trees(rng: np.random.Generator, holders: int) -> tuple[tuple[int, ...], ...]:
    """A tree for the part of each of the holders, who join it in any order."""
    trees = []
    for owner in range(holders):
        joined, tree = [owner], [owner] * holders
        for place in rng.permutation(holders).tolist():
            if place != owner:
                tree[place] = joined[int(rng.integers(len(joined)))]
                joined.append(place)
        trees.append(tuple(tree))
    return tuple(trees)


def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the bound take all swarms for large ones."""
    monkeypatch.setattr(step_bound, "is_small", lambda problem: False)


@pytest.mark.parametrize(("seed", "is_many"), [*((seed, False) for seed in range(6)), (6, True), (7, True)])
def test_no_drawn_plan_undercuts_it_and_some_reach_it(
    seed: int, is_many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_many:
        many(monkeypatch)
    rng, nearest = np.random.default_rng(seed), np.inf
    for number in range(12):
        layer = LARGE_LAYER if number % 3 == 0 else LAYER
        view, demand, micro_batches = drawn_swarm(rng), drawn_demand(rng, layer), int(rng.integers(1, 9))
        slow_wire, parts = rng.choice(["none", "int8"]), rng.choice(["equal", "auto"])
        for schedule in SCHEDULES:
            work = workload(micro_batches, demand, schedule=schedule, slow_wire=slow_wire, parts=parts)
            bound = least_bound(view, work)
            for _ in range(20):
                plan = drawn_plan(rng, view.ids, demand.layers, micro_batches, schedule, work.planning)
                took = predict(view, work, plan).cost.total
                assert bound * ROUNDING <= took, (view, work, plan)
                nearest = min(nearest, took / bound)
                if len(plan.stages) == 1:
                    assert data_parallel_bound(pose(view, work, view.ids, schedule)) * ROUNDING <= took
    assert nearest < 1.01


@pytest.mark.parametrize(("seed", "is_many"), [*((seed, False) for seed in range(6)), (6, True), (7, True)])
def test_no_plan_that_memory_just_holds_undercuts_it(seed: int, is_many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers are alike: else some plans keep less than what the search counts, which takes all for the largest."""
    if is_many:
        many(monkeypatch)
    rng = np.random.default_rng(seed)
    for number in range(18 if is_many else 60):
        demand, micro_batches = drawn_demand(rng), int(rng.integers(1, 17))
        demand = replace(
            demand,
            frozen_layer_parameters=(),
            frozen_layer_bytes=(),
            layer_activation_bytes=int(rng.choice([100_000, 10_000_000])),
        )
        schedule = SCHEDULES[number % 3]
        work = workload(micro_batches, demand, schedule=schedule)
        free = drawn_swarm(rng)
        plan = drawn_plan(rng, free.ids, demand.layers, micro_batches, schedule, work.planning)
        view = room_for(rng, free, plan, demand)
        assert least_bound(view, work) * ROUNDING <= predict(view, work, plan).cost.total, (view, work, plan)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_that_a_search_finds_undercuts_it(seed: int) -> None:
    """Half of the swarms have memory for their part of the model and little more, which makes them pipelines."""
    rng = np.random.default_rng(seed)
    for number in range(6):
        layers, micro_batches = int(rng.integers(4, 9)), int(rng.choice([2, 4, 8, 16]))
        demand = replace(
            drawn_demand(rng),
            layer_parameters=(LAYER,) * layers,
            frozen_layer_parameters=(),
            frozen_layer_bytes=(),
            layer_activation_bytes=1_000,
            message_values=int(rng.choice([1_000, 30_000, 200_000])),
        )
        view = drawn_swarm(rng)
        if number % 2:
            held = -(-layers // len(view.ids)) + int(rng.integers(0, 2))
            room = 16 * (held * LAYER + demand.embedding_parameters + demand.head_parameters) + 5 * demand.input_bytes
            nodes = tuple(node.model_copy(update={"memory_bytes": 1.02 * room}) for node in view.nodes)
            view = View(nodes=nodes, latency_ms=view.latency_ms, bandwidth_gbps=view.bandwidth_gbps)
        for schedule in SCHEDULES:
            work = workload(micro_batches, demand, schedule=schedule, in_flight="auto", parts="auto")
            plan = allocate(view, work, seed, evaluations=300)
            assert plan.cost is not None
            assert least_bound(view, work) * ROUNDING <= plan.cost.total, (view, work, plan)


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("seed", "nodes"), [(0, 5), (1, 5), (2, 4), (3, 4), (4, 4), (5, 4)])
def test_no_placement_of_a_small_swarm_undercuts_it(seed: int, nodes: int, limited: bool) -> None:
    view = drawn_view(nodes, seed, limited=limited)
    for algorithm in ("exhaustive", "evolutionary"):
        for schedule in SCHEDULES:
            work = workload(6, schedule=schedule, in_flight="auto", parts="auto")
            plan = allocate(view, work, seed, algorithm=algorithm, evaluations=2000)
            assert plan.cost is not None
            assert least_bound(view, work) <= plan.cost.total


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("gbps", [0.001, 0.1])
def test_an_all_reduce_takes_the_last_peer_as_long_as_it_says(replicas: int, gbps: float) -> None:
    """The first peer is done last, long after the others, which then have its parts of theirs."""
    names, delay = tuple(f"n{number}" for number in range(replicas)), 0.1
    view = View(
        nodes=tuple(NodeView(id=name, layer_seconds=LayerSeconds(forward=1, backward=1)) for name in names),
        latency_ms=np.full((replicas, replicas), 1e3 * delay),
        bandwidth_gbps=np.full((replicas, replicas), gbps),
    )
    plan = Plan(stages=((0, 1),), routes=tuple((name,) for name in names))
    seconds = {name: ActionSeconds(100.0 if name == names[0] else 0.1, 0.1) for name in names}
    posed, size = pose(view, workload(replicas), names), 4e8

    def played(changed: Plan, buckets: BucketsOf) -> float:
        """Seconds from when the first peer begins its last action."""
        return simulate(changed, Links.of(view), seconds, (1.0, 1.0), [size], buckets=buckets).committed - 100.0

    def cut(one: Reduction, whole: float) -> BucketCut:
        """Eight buckets, one after the other, of which the first is final at once."""
        return BucketCut((whole / 8,) * 8, 1, ((0.0, *(1.0,) * 7),))

    equal = exchange_seconds(posed, least_ways(posed), np.array([size]), replicas, replicas)[0]
    assert equal <= played(plan, cut) <= (equal + 3 * delay) * 1.05 + 0.1
    # Whoever has its parts owned by others, and all under way at once, sends each byte once and awaits its total.
    least = all_reduce_seconds(posed, least_ways(posed), np.array([size]), replicas)[0]
    assert least <= played(
        plan.model_copy(update={"parts": SummedParts(stages=((WHOLE, *(0,) * (replicas - 1)),))}), cut
    )


def test_it_knows_which_peers_have_which_links() -> None:
    """Three of four peers are needed, two have slow lines: one of these has to send by its own."""
    lines = (0.002, 0.002, 1.0, 1.0)
    view = View(
        nodes=tuple(
            NodeView(
                id=f"n{number}",
                memory_bytes=16 * 1.5e6 + 1e6,
                up_gbps=line,
                down_gbps=1.0,
                layer_seconds=LayerSeconds(forward=0.01, backward=0.02),
            )
            for number, line in enumerate(lines)
        ),
        latency_ms=np.full((4, 4), 10.0),
        bandwidth_gbps=np.full((4, 4), 1.0),
    )
    demand = ModelDemand(
        layer_parameters=(1_000_000,) * 3,
        embedding_parameters=0,
        head_parameters=0,
        message_values=50_000,
        layer_activation_bytes=1_000,
    )
    work = workload(8, demand, schedule="1f1b")
    best = allocate(view, work, algorithm="exhaustive").cost
    assert best is not None
    assert best.total * 0.99 <= least_bound(view, work) * ROUNDING <= best.total


@pytest.mark.parametrize("is_many", [False, True])
def test_it_holds_for_coarse_boundaries_where_the_job_has_them(is_many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer has memory for both layers, and what crosses the slow link between them takes longer than all else."""
    if is_many:
        many(monkeypatch)
    view = View(
        nodes=tuple(
            NodeView(id=name, memory_bytes=2.5e7, layer_seconds=LayerSeconds(forward=0.01, backward=0.02))
            for name in ("n0", "n1")
        ),
        latency_ms=np.zeros((2, 2)),
        bandwidth_gbps=np.full((2, 2), 0.01),
    )
    demand = ModelDemand(
        layer_parameters=(1_000_000,) * 2,
        embedding_parameters=0,
        head_parameters=0,
        message_values=100_000,
        layer_activation_bytes=1_000,
    )
    fine, coarse = (workload(4, demand, schedule="1f1b", slow_wire=slow) for slow in ("none", "int8"))
    plan = Plan(
        stages=((0, 1), (1, 2)), routes=(view.ids,) * 4, boundaries=(coarse.planning.coarse_wire,), schedule="1f1b"
    )
    took = predict(view, coarse, plan).cost.total
    assert least_bound(view, coarse) * ROUNDING <= took < least_bound(view, fine)


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
    assert plan.cost.total == pytest.approx(least_bound(view, work), rel=1e-2)


def test_a_pipeline_of_equal_stages_comes_near_it() -> None:
    """No peer has memory for more than one layer: the bound knows the bubbles, and that messages take their time."""
    peers, micro_batches = 4, 8
    view = View(
        nodes=tuple(
            NodeView(id=f"n{number}", memory_bytes=3e7, layer_seconds=LayerSeconds(forward=0.01, backward=0.02))
            for number in range(peers)
        ),
        latency_ms=np.full((peers, peers), 20.0),
        bandwidth_gbps=np.full((peers, peers), 1e3),
    )
    demand = ModelDemand(
        layer_parameters=(1_000_000,) * peers,
        embedding_parameters=0,
        head_parameters=0,
        message_values=10,
        layer_activation_bytes=10,
    )
    work = workload(micro_batches, demand)
    bound = lower_bound(pose(view, work, view.ids, "gpipe"))
    stages = tuple((layer, layer + 1) for layer in range(peers))
    took = predict(view, work, Plan(stages=stages, routes=(view.ids,) * micro_batches, schedule="gpipe")).cost.total
    assert took == pytest.approx(bound, rel=0.05)


def test_what_fits_nowhere_has_no_bound() -> None:
    view, work = drawn_view(3, 0), workload(6)
    posed = pose(view, work, view.ids)
    assert np.isinf(lower_bound(posed._replace(memory=np.full(3, 1e3))))
