"""Parts of the all-reduces sized to links: never slower than equal ones, and as good as any that can be found."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.all_reduces.sized_parts import LEAST_TIMES, MOST_TIMES, by_links, sizings, whole_parts
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.problem.model_demand import memory_needed
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import reductions
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from tests.coordinator.swarms import DEMAND, drawn_view

SPEED = LayerSeconds(forward=0.01, backward=0.02)


def alone(view: View) -> Plan:
    """Data parallel alone, one micro-batch each."""
    return Plan(stages=((0, DEMAND.layers),), routes=tuple((peer,) for peer in view.ids))


def alone_of(names: str) -> Plan:
    """The same of peers by name."""
    return Plan(stages=((0, DEMAND.layers),), routes=tuple((peer,) for peer in names))


def work_of(view: View, parts: str = "auto") -> Workload:
    planning = Planning.model_validate({"parts": parts, "stages": 1, "replicas": len(view.ids)})
    return Workload(DEMAND, len(view.ids), planning)


def star(uplinks: list[float | None]) -> View:
    """Peers with these uplinks, Gbit/s, and links of 1 Gbit/s without delay."""
    nodes = tuple(
        NodeView(id=f"p{number}", layer_seconds=SPEED, up_gbps=uplink) for number, uplink in enumerate(uplinks)
    )
    shape = (len(nodes), len(nodes))
    return View(nodes=nodes, latency_ms=np.zeros(shape), bandwidth_gbps=np.full(shape, 1.0))


def test_on_equal_links_all_sum_equally_much() -> None:
    view = star([None] * 5)
    plan, cost = by_links(view, work_of(view), alone(view))
    assert plan.parts is None
    assert cost == predict(view, work_of(view), alone(view)).cost


def test_a_peer_with_a_slow_line_sums_next_to_nothing() -> None:
    """A tenth of the others' uplink: with equal parts it would send its own to all."""
    view = star([1.0, 1.0, 1.0, 1.0, 0.1])
    plan, cost = by_links(view, work_of(view), alone(view))
    assert plan.parts is not None
    (parts,) = plan.parts.stages
    assert parts[4] < 0.05 * WHOLE
    equal = predict(view, work_of(view), alone(view)).cost
    assert cost.data_parallel < 0.7 * equal.data_parallel
    assert predict(view, work_of(view), plan).cost == cost


def test_who_is_in_the_middle_sums_all_where_there_is_little_to_sum() -> None:
    """The others are 200 ms from each other, and 50 ms from it: their own parts would be the last, however small."""
    delay = np.array([[0, 50, 50], [50, 0, 200], [50, 200, 0]], dtype=float)
    nodes = tuple(NodeView(id=name, layer_seconds=SPEED) for name in "abc")
    view = View(nodes=nodes, latency_ms=delay, bandwidth_gbps=np.full((3, 3), 10.0))
    plan, cost = by_links(view, work_of(view), alone(view))
    (one,) = reductions(plan, tied=False)
    assert one.owners == (0,)
    assert predict(view, work_of(view), alone(view)).cost.data_parallel > cost.data_parallel + 0.25


@pytest.mark.parametrize("short", [0, 1])
def test_nobody_sums_more_than_its_memory_holds(short: int) -> None:
    """Of whoever sums all, both others' gradients come at once."""
    delay = np.array([[0, 50, 50], [50, 0, 200], [50, 200, 0]], dtype=float)
    all_of_it = alone_of("abc").model_copy(update={"parts": SummedParts(stages=((WHOLE, 0, 0),))})
    equal, needed = (memory_needed(plan, DEMAND) for plan in (alone_of("abc"), all_of_it))
    assert needed["a"] > equal["a"]
    assert {peer: needed[peer] for peer in "bc"} == {peer: equal[peer] for peer in "bc"}
    nodes = tuple(NodeView(id=name, layer_seconds=SPEED, memory_bytes=needed["a"] - short) for name in "abc")
    view = View(nodes=nodes, latency_ms=delay, bandwidth_gbps=np.full((3, 3), 10.0))
    plan, _ = by_links(view, work_of(view), alone(view))
    owners = reductions(plan, tied=False)[0].owners
    assert (owners == (0,)) == (short == 0)
    assert all(bytes_ <= needed["a"] - short for bytes_ in memory_needed(plan, DEMAND).values())


@pytest.mark.parametrize("seed", range(6))
def test_no_other_parts_of_three_holders_are_much_better(seed: int) -> None:
    """All in steps of a sixteenth, each played exactly."""
    view = drawn_view(3, seed, limited=seed % 2 == 1)
    work, plan = work_of(view), alone(view)
    _, found = by_links(view, work, plan)
    every = [(a, b, 16 - a - b) for a, b in product(range(17), repeat=2) if a + b <= 16]
    best = min(
        predict(
            view,
            work,
            plan.model_copy(update={"parts": SummedParts(stages=(tuple(part * WHOLE // 16 for part in parts),))}),
        ).cost.total
        for parts in every
    )
    assert found.total <= 1.03 * best


@given(nodes=st.integers(2, 10), seed=st.integers(0, 1000), limited=st.booleans())
@settings(max_examples=40, deadline=None)
def test_sized_parts_are_never_slower_than_equal_ones_and_add_up(nodes: int, seed: int, limited: bool) -> None:
    view = drawn_view(nodes, seed, limited=limited)
    work = work_of(view)
    plan, cost = by_links(view, work, alone(view))
    assert cost.total <= predict(view, work, alone(view)).cost.total
    assert Plan.model_validate(plan.model_dump()) == plan
    for other in sizings(view, work, alone(view), {}):
        assert other.parts is not None
        (one,) = other.parts.stages
        assert sum(one) == WHOLE
        assert max(one) <= 1.1 * WHOLE * MOST_TIMES / nodes + 1


def test_shares_become_whole_parts_that_add_up_and_the_least_become_nothing() -> None:
    assert whole_parts(None) == ()
    assert whole_parts(np.array([1 / 3, 1 / 3, 1 / 3])) == (21846, 21845, 21845)
    assert whole_parts(np.array([0.5, 0.5 - LEAST_TIMES / 4, LEAST_TIMES / 4]))[2] == 0
    assert sum(whole_parts(np.array([0.5, 0.5 - LEAST_TIMES / 4, LEAST_TIMES / 4]))) == WHOLE


def test_a_job_that_lets_it_has_parts_by_links_and_one_that_does_not_has_none() -> None:
    view = star([1.0, 1.0, 1.0, 0.1])
    plan = allocate(view, work_of(view), evaluations=50)
    assert plan.parts is not None
    assert "gradients summed by links" in plan.reason
    assert plan.cost is not None
    assert plan.cost.total == predict(view, work_of(view), plan).cost.total
    equal = allocate(view, work_of(view, "equal"), evaluations=50)
    assert equal.parts is None
    assert equal.cost is not None
    assert plan.cost.total < equal.cost.total
    again = allocate(view, work_of(view), evaluations=50, in_force=plan)
    assert again.parts == plan.parts
    moved = allocate(view, work_of(view, "equal"), evaluations=50, in_force=plan)
    assert "sum equally much" in moved.reason
