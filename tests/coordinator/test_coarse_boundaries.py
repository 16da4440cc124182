"""Boundaries in a coarser wire: only where links are slow, only where the job says so, and each is worth it."""

from dataclasses import replace

import numpy as np
import pytest

from dtfm_coordinator.allocator import final_choice
from dtfm_coordinator.allocator import workload as workloads
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.coarse_boundaries import (
    WORTH,
    coarse_words,
    over_wires,
    settled,
    weighed,
    wires_to_try,
    with_wires,
)
from dtfm_coordinator.allocator.paced_plan import in_flight_of, paced
from dtfm_coordinator.allocator.problem.model_demand import memory_needed
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import Workload, pose, predict
from dtfm_protocol.job.job_file import Planning, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from tests.coordinator.swarms import DEMAND, drawn_view

FINE, COARSE = Wire(activations="bf16", gradients="bf16"), Wire(activations="int8", gradients="int8")
FAST, SLOW = 10.0, 0.02
"""Gbit/s."""


def chain(*gbps: float, up_gbps: float | None = None) -> View:
    """Equal peers in a row with these links between neighbours, so slow between others that no plan has those."""
    count = len(gbps) + 1
    bandwidth = np.full((count, count), 1e-4)
    for before, rate in enumerate(gbps):
        bandwidth[before, before + 1] = bandwidth[before + 1, before] = rate
    speed = LayerSeconds(forward=0.004, backward=0.008)
    return View(
        nodes=tuple(NodeView(id=f"p{number}", layer_seconds=speed, up_gbps=up_gbps) for number in range(count)),
        latency_ms=np.full((count, count), 1.0),
        bandwidth_gbps=bandwidth,
    )


def work_of(view: View, **planning: object) -> Workload:
    """A job of a stage for each peer."""
    wanted = {"wire": "bf16", "slow_wire": "int8", "stages": len(view.ids), "replicas": 1, "schedule": "1f1b"}
    return Workload(DEMAND, 16, Planning.model_validate(wanted | planning))


def planned(view: View, work: Workload, **limits: object) -> Plan:
    plan = allocate(view, work, **({"evaluations": 400} | limits))  # type: ignore[arg-type]
    assert Plan.read(plan.model_dump(), "plan") == plan
    assert plan.wire == FINE
    assert plan.cost is not None
    assert plan.cost.total == pytest.approx(predict(view, work, plan).cost.total)
    return plan


def coarse_pairs(plan: Plan) -> set[frozenset[str]]:
    """The pairs of peers on both sides of coarse boundaries."""
    return {
        frozenset((before, after))
        for route in plan.routes
        for before, after, wire in zip(route, route[1:], plan.boundaries, strict=False)
        if wire == COARSE
    }


@pytest.mark.parametrize("in_flight", ["least", "auto"])
def test_only_the_slow_boundary_is_coarse(in_flight: str) -> None:
    view = chain(FAST, SLOW, FAST)
    plan = planned(view, work_of(view, in_flight=in_flight))
    assert coarse_pairs(plan) == {frozenset(("p1", "p2"))}
    assert set(plan.boundaries) == {FINE, COARSE}
    assert ", 1 of 3 boundaries in int8" in plan.reason
    fine = planned(view, work_of(view, in_flight=in_flight, slow_wire="none"))
    assert fine.boundaries == ()
    assert "boundaries" not in fine.reason
    assert plan.cost is not None
    assert fine.cost is not None
    assert plan.cost.total < (1 - WORTH) * fine.cost.total


@pytest.mark.parametrize("in_flight", ["least", "auto"])
def test_no_boundary_is_coarse_where_links_are_fast(in_flight: str) -> None:
    view = chain(FAST, FAST, FAST)
    assert planned(view, work_of(view, in_flight=in_flight)).boundaries == ()


def test_slow_boundaries_are_coarse_together_where_none_of_them_alone_helps() -> None:
    """Each holds up the step as long as the others do."""

    def seconds(wires: tuple[Wire, ...]) -> float:
        return (1.0 if FINE in wires[:2] else 0.6) / (1 - WORTH) ** wires.count(COARSE)

    both = (FINE, COARSE)
    assert settled((FINE,) * 3, both, seconds) == (FINE,) * 3
    assert settled((COARSE,) * 3, both, seconds) == (COARSE, COARSE, FINE)
    view = chain(SLOW, SLOW, SLOW)
    work = replace(work_of(view, schedule="gpipe"), micro_batches=64)
    posed = pose(view, work, view.ids)
    layout = Layout.of(posed, [[0], [1], [2], [3]])
    assert layout is not None
    alone = layout.cost(over_wires(work, posed, (COARSE, FINE, FINE))).total
    assert alone > (1 - WORTH) * layout.cost(posed).total
    assert wires_to_try(work, posed, layout) == ((COARSE,) * 3,)
    assert planned(view, work).boundaries == (COARSE,) * 3


@pytest.mark.parametrize("tried", [(), ((COARSE,) * 3,)], ids=["none", "all"])
def test_the_exact_simulator_has_the_last_word_on_each_boundary(
    monkeypatch: pytest.MonkeyPatch, tried: tuple[tuple[Wire, ...], ...]
) -> None:
    monkeypatch.setattr(final_choice, "wires_to_try", lambda work, problem, layout: tried)
    view = chain(FAST, SLOW, FAST)
    assert coarse_pairs(planned(view, work_of(view))) == {frozenset(("p1", "p2"))}


@pytest.mark.parametrize("seed", range(8))
def test_each_coarse_boundary_is_worth_it_by_the_exact_simulator(seed: int) -> None:
    """Uplinks are limited in half of them: there the fast form is not exact."""
    view = drawn_view(6, seed, limited=seed % 2 == 1, gbps=0.01)
    work = work_of(view, stages=4, replicas="auto", in_flight=("least", "auto")[seed // 2 % 2])
    plan = planned(view, work)
    least = weighed(plan, predict(view, work, plan).cost.total)
    for boundary in range(len(plan.boundaries)):
        other = COARSE if plan.boundaries[boundary] == FINE else FINE
        wires = (*plan.boundaries[:boundary], other, *plan.boundaries[boundary + 1 :])
        changed = with_wires(plan, wires)
        if plan.pacing is not None:
            changed = paced(view, work, changed, in_flight_of(plan))
        # In flight may be more with other wires, and less than the search had, once tightened.
        slack = 1.02 if plan.pacing is not None else 1.0 + 1e-9
        assert weighed(changed, predict(view, work, changed).cost.total) * slack >= least
    work_alone = replace(work, planning=work.planning.model_copy(update={"slow_wire": "none"}))
    layout = Layout.of_plan(plan, view.ids)
    assert layout is not None
    assert wires_to_try(work_alone, pose(view, work_alone, view.ids, "1f1b"), layout) == ()


@pytest.mark.parametrize("seed", range(12))
def test_a_step_with_coarse_boundaries_allowed_is_no_longer_than_without(seed: int) -> None:
    """However short the search: it ends once without, and once with them, and the shorter step counts."""
    view = drawn_view(7, seed, gbps=0.02)
    alone, either = (
        allocate(view, work_of(view, stages="auto", replicas="auto", slow_wire=slow), seed, evaluations=150)
        for slow in ("none", "int8")
    )
    assert alone.cost is not None
    assert either.cost is not None
    assert either.cost.total <= alone.cost.total


def test_orders_are_made_for_the_messages_of_each_boundary() -> None:
    view = chain(FAST, SLOW, FAST)
    plan = planned(view, work_of(view, in_flight="auto"))
    assert plan.pacing is not None
    slow = [plan.pairs.index(pair) for pair in plan.pairs if set(pair) == {"p1", "p2"}]
    (ahead, back), (fine, _) = DEMAND.message_bytes(COARSE), DEMAND.message_bytes(FINE)
    for at in range(len(plan.pairs)):
        rate = (SLOW if at in slow else FAST) * 1.25e8
        assert plan.pacing.ahead[at] == pytest.approx((ahead if at in slow else fine) / rate * 1e6, abs=1)
        assert plan.pacing.back[at] == pytest.approx((back if at in slow else fine) / rate * 1e6, abs=1)


@pytest.mark.parametrize("seed", [3, 6, 11, 25, 28])
def test_memory_holds_what_orders_for_the_chosen_wires_keep(seed: int) -> None:
    """Other messages make other orders, which may keep more: in these swarms what was found first does not fit."""
    drawn, rng = drawn_view(5, seed, gbps=0.01), np.random.default_rng(seed)
    nodes = [one.model_copy(update={"memory_bytes": int(rng.uniform(0.05, 0.35) * 1e9)}) for one in drawn.nodes]
    view = drawn.model_copy(update={"nodes": tuple(nodes)})
    plan = planned(view, work_of(view, stages="auto", replicas="auto", in_flight="auto", schedule="zero-bubble"))
    needed = memory_needed(plan, DEMAND)
    assert all(needed[one.id] <= (one.memory_bytes or 0) for one in nodes if one.id in needed)


def test_a_plan_that_takes_long_to_simulate_has_coarse_boundaries_by_the_fast_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workloads, "EXACT_TRANSFERS", 0)
    view = chain(FAST, SLOW, FAST)
    assert coarse_pairs(planned(view, work_of(view))) == {frozenset(("p1", "p2"))}


def test_a_plan_in_force_goes_on_as_long_as_the_job_allows_its_boundaries() -> None:
    view = chain(FAST, SLOW, FAST)
    work = work_of(view)
    plan = planned(view, work)
    assert planned(view, work, in_force=plan).boundaries == plan.boundaries
    for slow_wire in ("none", "fp16"):
        planning = work.planning.model_copy(update={"slow_wire": slow_wire})
        now = planned(view, replace(work, planning=planning), in_force=plan)
        assert now.boundaries == ()
        assert "the plan in force cannot go on (the job's slow_wire is another)" in now.reason


def test_a_wire_of_two_codecs_is_coarse_where_the_slow_one_takes_fewer_bytes() -> None:
    view = chain(FAST, SLOW, FAST)
    work = work_of(view, wire={"activations": "int8", "gradients": "fp32"}, slow_wire="fp16")
    plan = allocate(view, work, evaluations=400)
    assert set(plan.boundaries) == {work.planning.wire, Wire(activations="int8", gradients="fp16")}
    assert "1 of 3 boundaries in int8 activations, fp16 gradients" in plan.reason
    assert coarse_words(plan) in plan.reason


def test_a_problem_over_wires_has_their_bytes_and_further_boundaries_theirs() -> None:
    view = chain(FAST, FAST)
    work = work_of(view)
    posed = pose(view, work, view.ids)
    ahead, back = DEMAND.message_bytes(COARSE)
    sizes = over_wires(work, posed, (FINE, COARSE)).boundary_bytes
    assert sizes[:, 1].tolist() == [ahead, back]
    assert (sizes[:, [0, 2, 3]] == posed.boundary_bytes[:, [0, 2, 3]]).all()
    assert posed.boundary_bytes[:, 0].tolist() == list(DEMAND.message_bytes(FINE))
