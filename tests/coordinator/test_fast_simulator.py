"""The fast form of the simulated step against the exact simulator, which has its own closed forms."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.all_reduces.sized_parts import slot_parts
from dtfm_coordinator.allocator.coarse_boundaries import over_wires, with_wires
from dtfm_coordinator.allocator.paced_plan import paced as with_pace
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES, Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.workload import Workload, pose, predict
from dtfm_protocol.job.job_file import Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from tests.coordinator.swarms import DEMAND, drawn_stages, drawn_view, workload

PARTS = ("compute", "pipeline", "data_parallel", "optimizer")


def drawn(
    seed: int,
    *,
    limited: bool,
    schedule: str,
    wire: str = "fp32",
    tight: bool = False,
    tied: int | None = None,
    frozen: int = 0,
    paced: bool = False,
    times: int = 1,
) -> tuple[View, Workload, Problem, Layout]:
    """A random layout; where `tight`, in memories that make some stages recompute; of a model whose ends share `tied`
    parameters, if they are given, and whose first `frozen` layers are not trained; with `times` as many parameters a
    layer."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(1, 13))
    view = drawn_view(nodes, seed, limited=limited)
    stages = drawn_stages(nodes, int(rng.integers(1, min(nodes, 5) + 1)), seed)
    ends = (
        {} if tied is None else {"embedding_parameters": tied, "head_parameters": 200 + tied, "tied_parameters": tied}
    )
    demand = replace(DEMAND, layer_parameters=tuple(times * count for count in DEMAND.layer_parameters), **ends)
    if frozen:
        kept = tuple(count if layer < frozen else 0 for layer, count in enumerate(demand.layer_parameters))
        before = demand.embedding_parameters - demand.tied_parameters
        demand = replace(demand, frozen_layer_parameters=kept, frozen_embedding_parameters=before)
    work = workload(int(rng.integers(max(map(len, stages)), 30)), demand, schedule=schedule, wire=wire)
    posed = pose(view, work, view.ids, paced=paced)
    layout = Layout.of(posed, stages)
    assert layout is not None
    if paced:
        layout = replace(layout, ahead=tuple(rng.integers(0, 12, size=len(stages)).tolist()))
    if tight:
        posed = posed._replace(memory=rng.uniform(0.05, 0.6, nodes) * 1e9)
    return view, work, posed, layout


def both(
    view: View,
    work: Workload,
    posed: Problem,
    layout: Layout,
    parts_seed: int | None = None,
    wires_seed: int | None = None,
) -> tuple[PredictedSeconds, PredictedSeconds]:
    """Its step by the fast form and exactly; with drawn parts of the all-reduces, and drawn wires of boundaries, where
    there is a seed."""
    wires = () if wires_seed is None else drawn_wires(len(layout.counts) - 1, np.random.default_rng(wires_seed))
    posed = over_wires(work, posed, wires)
    plan = layout.plan(view.ids, SCHEDULES[posed.schedule], work.planning.wire, layout.recomputed(posed))
    plan = with_wires(plan, wires)
    if posed.paced:
        plan = with_pace(view, work, plan, layout.in_flight(posed, view.ids))
    if parts_seed is None:
        return layout.cost(posed), predict(view, work, plan).cost
    plan = plan.model_copy(update={"parts": drawn_parts(plan, np.random.default_rng(parts_seed))})
    slots = slot_parts(plan, [view.ids[peer] for peer in layout.peers])
    return layout.cost(posed, slots), predict(view, work, plan).cost


def drawn_wires(boundaries: int, rng: np.random.Generator) -> tuple[Wire, ...]:
    """Any codecs, each way."""
    codecs = rng.choice(["fp32", "bf16", "fp16", "int8"], size=(boundaries, 2)).tolist()
    return tuple(Wire(activations=ahead, gradients=back) for ahead, back in codecs)


def drawn_parts(plan: Plan, rng: np.random.Generator) -> SummedParts:
    """Unlike parts for all; about a third of the holders sum nothing."""

    def parts(count: int) -> tuple[int, ...]:
        sizes = rng.uniform(0.1, 1.0, count) * (rng.uniform(size=count) > 0.3)
        found = np.floor(sizes / max(sizes.sum(), 1e-9) * WHOLE).astype(int)
        found[int(rng.integers(count))] += WHOLE - found.sum()
        return tuple(found.tolist())

    counts = [len(plan.replicas(stage)) for stage in range(len(plan.stages))]
    return SummedParts(
        stages=tuple(map(parts, counts)), shared=parts(counts[0] + counts[-1]) if len(counts) > 1 else ()
    )


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(40))
def test_without_limits_a_peer_both_agree_exactly(seed: int, schedule: str, tight: bool) -> None:
    wire = ("fp32", "bf16", "fp16", "int8")[seed % 4]
    fast, exact = both(*drawn(seed, limited=False, schedule=schedule, wire=wire, tight=tight))
    for part in PARTS:
        assert getattr(fast, part) == pytest.approx(getattr(exact, part), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("seed", range(40))
def test_both_agree_exactly_on_orders_made_for_the_links(seed: int, schedule: str, tight: bool) -> None:
    """Which are made of microseconds by each of the two: those of the plan must be those that the search has seen."""
    fast, exact = both(*drawn(seed, limited=False, schedule=schedule, tight=tight, paced=True))
    for part in PARTS:
        assert getattr(fast, part) == pytest.approx(getattr(exact, part), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("seed", range(40))
def test_both_agree_exactly_on_boundaries_of_unlike_wires(seed: int, schedule: str, paced: bool) -> None:
    layout = drawn(seed, limited=False, schedule=schedule, wire="bf16", tight=seed % 2 == 1, paced=paced)
    fast, exact = both(*layout, wires_seed=seed)
    for part in PARTS:
        assert getattr(fast, part) == pytest.approx(getattr(exact, part), rel=1e-9, abs=1e-12)


@given(
    seed=st.integers(0, 10_000),
    schedule=st.sampled_from(SCHEDULES),
    tied=st.sampled_from([0, 1_000, 200_000, 5_000_000]),
    frozen=st.sampled_from([0, 0, 1, 5, 12]),
)
@settings(max_examples=100, deadline=None)
def test_both_agree_exactly_on_what_first_and_last_stage_share_and_on_what_is_not_trained(
    seed: int, schedule: str, tied: int, frozen: int
) -> None:
    fast, exact = both(*drawn(seed, limited=False, schedule=schedule, tied=tied, frozen=frozen))
    for part in PARTS:
        assert getattr(fast, part) == pytest.approx(getattr(exact, part), rel=1e-9, abs=1e-12)


@given(
    seed=st.integers(0, 10_000),
    schedule=st.sampled_from(SCHEDULES),
    tied=st.sampled_from([None, 0, 3_000_000, 60_000_000]),
    frozen=st.sampled_from([0, 0, 3]),
    times=st.sampled_from([5, 12, 60]),
)
@settings(max_examples=100, deadline=None)
def test_both_agree_exactly_on_gradients_of_many_buckets(
    seed: int, schedule: str, tied: int | None, frozen: int, times: int
) -> None:
    frozen = 0 if tied is None else frozen
    fast, exact = both(*drawn(seed, limited=False, schedule=schedule, tied=tied, frozen=frozen, times=times))
    for part in PARTS:
        assert getattr(fast, part) == pytest.approx(getattr(exact, part), rel=1e-9, abs=1e-12)


def test_with_limits_a_peer_it_is_close_on_many_buckets_too() -> None:
    pairs = [both(*drawn(seed, limited=True, schedule=SCHEDULES[seed % 3], times=12)) for seed in range(60)]
    ratios = np.array([fast.total / exact.total for fast, exact in pairs])
    assert ratios.min() > 0.8
    assert ratios.max() < 1.25
    assert 0.97 < np.median(ratios) < 1.03


@given(
    seed=st.integers(0, 10_000),
    parts=st.integers(0, 10_000),
    schedule=st.sampled_from(SCHEDULES),
    tied=st.sampled_from([None, 0, 200_000, 5_000_000]),
    frozen=st.sampled_from([0, 0, 5, 12]),
)
@settings(max_examples=100, deadline=None)
def test_both_agree_exactly_whoever_sums_how_much(
    seed: int, parts: int, schedule: str, tied: int | None, frozen: int
) -> None:
    frozen = 0 if tied is None else frozen
    fast, exact = both(*drawn(seed, limited=False, schedule=schedule, tied=tied, frozen=frozen), parts_seed=parts)
    for part in PARTS:
        assert getattr(fast, part) == pytest.approx(getattr(exact, part), rel=1e-9, abs=1e-12)


OTHER_TIMING = """
from dtfm_protocol.plan import reductions
reductions.SHARED_TIMING = reductions.SHARED_TIMING._replace(**{changed!r})
from tests.coordinator.test_fast_simulator import SCHEDULES, both, drawn
for seed in range(12):
    for tied, times in ((200_000, 1), (3_000_000, 12), (60_000_000, 5)):
        fast, exact = both(*drawn(seed, limited=False, schedule=SCHEDULES[seed % 3], tied=tied, times=times))
        assert abs(fast.total - exact.total) < 1e-9 * exact.total, (seed, tied, fast, exact)
"""


@pytest.mark.process
@pytest.mark.parametrize("changed", [{"priority": -1}, {"begins": "after actions"}], ids=["priority", "begins"])
def test_both_follow_another_timing_of_what_is_shared(changed: dict[str, object]) -> None:
    """In a process of its own, not compiled: the timing is compiled in."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_TIMING.format(changed=changed)],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_a_tied_matrix_makes_a_step_longer_by_its_exchange() -> None:
    """One peer on each of two stages, 100 Mbit/s, 10 ms: half of the matrix goes each way, and then its sum."""
    nodes = tuple(NodeView(id=name, layer_seconds=LayerSeconds(forward=0.01, backward=0.02)) for name in "ab")
    view = View(nodes=nodes, latency_ms=np.full((2, 2), 10.0), bandwidth_gbps=np.full((2, 2), 0.1))
    seconds = []
    for tied in (0, 60_000):
        work = workload(1, replace(DEMAND, tied_parameters=tied))
        posed = pose(view, work, view.ids)
        layout = Layout.of(posed, [[0], [1]])
        assert layout is not None
        fast, exact = both(view, work, posed, layout)
        assert fast.total == pytest.approx(exact.total, rel=1e-9)
        seconds.append(exact.total)
    # 120 kB take 9.6 ms and the delay, twice; the last stage's part is there before the first one is done.
    assert seconds[1] - seconds[0] == pytest.approx(2 * (120_000 * 8 / 1e8) + 2 * 0.010, abs=1e-9)


def test_some_stages_of_those_recompute_and_some_do_not() -> None:
    layouts = [drawn(seed, limited=False, schedule="1f1b", tight=True)[2:] for seed in range(40)]
    recomputing = sum(len(layout.recomputed(posed)) for posed, layout in layouts)
    assert 0.2 < recomputing / sum(len(layout.counts) for _, layout in layouts) < 0.8


def test_with_limits_a_peer_the_fast_form_is_close_and_ranks_alike() -> None:
    pairs = [both(*drawn(seed, limited=True, schedule=SCHEDULES[seed % 3])) for seed in range(120)]
    ratios = np.array([fast.total / exact.total for fast, exact in pairs])
    assert ratios.min() > 0.8
    assert ratios.max() < 1.1
    assert 0.97 < np.median(ratios) < 1.03
    ranks = np.argsort(np.argsort([[cost.total for cost in pair] for pair in pairs], axis=0), axis=0)
    assert np.corrcoef(ranks.T)[0, 1] > 0.98


def test_with_limits_a_peer_it_is_close_on_a_large_tied_matrix_too() -> None:
    """On steps of which its exchange is most."""
    pairs = [both(*drawn(seed, limited=True, schedule=SCHEDULES[seed % 3], tied=5_000_000)) for seed in range(60)]
    ratios = np.array([fast.total / exact.total for fast, exact in pairs])
    assert ratios.min() > 0.88
    assert ratios.max() < 1.25  # what the last stage has early queues there before its own, and here shares the line
    assert 0.98 < np.median(ratios) < 1.02


def test_an_unreachable_pair_costs_infinity() -> None:
    view, work = drawn_view(2, 0), workload(4)
    cut = View(nodes=view.nodes, latency_ms=view.latency_ms, bandwidth_gbps=np.array([[0.0, 1.0], [0.0, 0.0]]))
    posed = pose(cut, work, cut.ids)
    for stages in ([[0], [1]], [[0, 1]]):
        layout = Layout.of(posed, stages)
        assert layout is not None
        assert np.isinf(layout.cost(posed).total)
    alone = Layout.of(posed, [[0]])
    assert alone is not None
    assert np.isfinite(alone.cost(posed).total)


@pytest.mark.parametrize("stages", [[[0, 1], [2, 3], [4]], [[0, 1], [2, 3], [4, 5]]])
@pytest.mark.parametrize("tied", [0, 60_000])
def test_a_pair_that_cannot_talk_in_the_middle_costs_infinity_too(stages: list[list[int]], tied: int) -> None:
    view, work = drawn_view(6, 0), workload(16)
    gbps = view.bandwidth_gbps.copy()
    gbps[1, 3] = 0.0
    cut = View(nodes=view.nodes, latency_ms=view.latency_ms, bandwidth_gbps=gbps)
    posed = pose(cut, work, cut.ids)._replace(tied_gradients=float(tied), layers=12)
    layout = Layout.of(posed, stages)
    assert layout is not None
    assert (1, 3) in {(layout.peers[one], layout.peers[other]) for one, other in layout.course(posed).pairs.tolist()}
    assert np.isinf(layout.cost(posed).total)
