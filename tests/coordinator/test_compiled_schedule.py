"""The search's order of compute is the runtime's, and its routes serve every micro-batch."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES
from dtfm_coordinator.allocator.simulator.compiled_schedule import (
    BACKWARD,
    FORWARD,
    KINDS,
    WEIGHT,
    Ints,
    Pace,
    order_actions,
    plain_pace,
)
from dtfm_coordinator.allocator.simulator.heap import pop, push
from dtfm_coordinator.allocator.simulator.slot_routes import assign_shares, route_micro_batches
from dtfm_protocol.job.job_file import ScheduleName
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_pace import Pacing
from dtfm_protocol.plan.schedule import most_between, most_in_flight, most_waiting, orders


@st.composite
def shared_out(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Peers of up to six stages, and their micro-batches."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    micro_batches = draw(st.integers(max(counts), 24))
    shares: list[int] = []
    for count in counts:
        speeds = np.array(draw(st.lists(st.floats(0.05, 1), min_size=count, max_size=count)))
        shares += assign_shares(speeds, micro_batches).tolist()
    return counts, shares


@given(shared_out(), st.sampled_from(SCHEDULES), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=400, deadline=None)
def test_slots_compute_in_the_order_in_which_the_runtime_will(
    drawn: tuple[list[int], list[int]], schedule: ScheduleName, seed: int, has_pace: bool
) -> None:
    counts, shares = (np.array(values) for values in drawn)
    routes, crossed, pairs = route_micro_batches(counts, shares)
    split, plan = schedule == "zero-bubble", plan_of(len(counts), routes, schedule)
    pace = plain_pace(counts, shares, len(pairs), split)
    if has_pace and schedule != "gpipe":
        pace = drawn_pace(seed, len(shares), len(pairs))
        plan = plan.model_copy(update={"pacing": as_pacing(plan, pace, pairs, split)})
    made = order_actions(routes, crossed, counts, shares, SCHEDULES.index(schedule), pace)
    for slot in range(len(shares)):
        wanted = orders(plan)[f"s{slot}"]
        own = made.actions[made.starts[slot] : made.starts[slot + 1]].tolist()
        mine = [(("forward", "backward", "weight")[action % KINDS], action // KINDS) for action in own]
        assert mine == [(action.kind, action.micro_batch) for action in wanted]
        kept = (made.peaks[slot], made.flights[slot], made.waits[slot])
        assert kept == (most_in_flight(wanted), most_between(wanted), most_waiting(wanted))


def plan_of(stages: int, routes: Ints, schedule: ScheduleName) -> Plan:
    return Plan.read(
        {
            "stages": [(stage, stage + 1) for stage in range(stages)],
            "routes": [[f"s{slot}" for slot in route] for route in routes.tolist()],
            "schedule": schedule,
        },
        "plan",
    )


def drawn_pace(seed: int, slots: int, pairs: int) -> Pace:
    """Durations with many ties or few, links from free to slower than all compute, few or many in flight."""
    rng = np.random.default_rng(seed)
    took = rng.integers(1, rng.choice([2, 4, 1000]), size=(KINDS, slots))
    transfer, delay = (rng.integers(0, rng.choice([1, 3, 1000]), size=(2, pairs)) for _ in range(2))
    in_flight = rng.integers(1, rng.choice([2, 5, 25]), size=slots)
    return Pace(took, transfer, delay, in_flight, in_flight + rng.integers(0, 4, size=slots))


def as_pacing(plan: Plan, pace: Pace, pairs: Ints, split: bool) -> Pacing:
    """The same pace as the plan has it, whose peers and pairs stand in another order."""
    slots = [int(peer[1:]) for peer in plan.peers]
    number = {(f"s{here}", f"s{there}"): place for place, (here, there) in enumerate(pairs.tolist())}
    places = [number[pair] for pair in plan.pairs]
    return Pacing(
        forward=tuple(pace.took[FORWARD, slots].tolist()),
        backward=tuple(pace.took[BACKWARD, slots].tolist()),
        weight=tuple(pace.took[WEIGHT, slots].tolist()) if split else (),
        in_flight=tuple(pace.in_flight[slots].tolist()),
        kept=tuple(pace.kept[slots].tolist()),
        ahead=tuple(pace.transfer[FORWARD, places].tolist()),
        ahead_delay=tuple(pace.delay[FORWARD, places].tolist()),
        back=tuple(pace.transfer[BACKWARD, places].tolist()),
        back_delay=tuple(pace.delay[BACKWARD, places].tolist()),
    )


@given(shared_out())
@settings(max_examples=150, deadline=None)
def test_routes_keep_to_the_shares_and_to_few_pairs(drawn: tuple[list[int], list[int]]) -> None:
    counts, shares = (np.array(values) for values in drawn)
    routes, crossed, pairs = route_micro_batches(counts, shares)
    assert Counter(routes.ravel().tolist()) == dict(enumerate(shares.tolist()))
    for boundary in range(len(counts) - 1):
        used = {(int(a), int(b)) for a, b in routes[:, boundary : boundary + 2]}
        assert len(used) <= counts[boundary] + counts[boundary + 1] - 1
        assert (pairs[crossed[:, boundary]] == routes[:, boundary : boundary + 2]).all()


def test_equal_shares_make_pipelines() -> None:
    routes, _, pairs = route_micro_batches(np.array([2, 2, 2]), np.array([3] * 6))
    assert sorted(map(tuple, np.unique(routes, axis=0).tolist())) == [(0, 2, 4), (1, 3, 5)]
    assert pairs.tolist() == [[0, 2], [1, 3], [2, 4], [3, 5]]


def test_a_stage_alternates_between_its_peers() -> None:
    routes, _, _ = route_micro_batches(np.array([2]), np.array([4, 2]))
    assert routes[:, 0].tolist() == [0, 1, 0, 0, 1, 0]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.integers(0, 40))
def test_shares_are_whole_follow_speed_and_leave_nobody_out(speeds: list[float], extra: int) -> None:
    micro_batches = len(speeds) + extra
    counts = assign_shares(np.array(speeds), micro_batches).tolist()
    assert sum(counts) == micro_batches
    assert min(counts) >= 1
    by_speed = [count for _, count in sorted(zip(speeds, counts, strict=True))]
    assert all(slow <= fast + 1 for slow, fast in pairwise(by_speed))


@pytest.mark.parametrize(
    ("speeds", "wanted"), [([1.0, 1.0, 2.0], [2, 2, 4]), ([1.0, 3.0], [2, 6]), ([5.0, 0.01], [7, 1])]
)
def test_shares_go_by_largest_remainder(speeds: list[float], wanted: list[int]) -> None:
    assert assign_shares(np.array(speeds), 8).tolist() == wanted


@given(st.lists(st.floats(0, 100) | st.sampled_from([1.0, 2.0]), max_size=40))
def test_the_heap_gives_the_earliest_first_and_of_those_the_lowest_number(values: list[float]) -> None:
    times, numbers, size = np.empty(50), np.empty(50, dtype=np.int64), 0
    for number, value in enumerate(values):
        size = push(times, numbers, size, value, number)
    taken = []
    while size:
        time, number, size = pop(times, numbers, size)
        taken.append((time, number))
    assert taken == sorted((value, number) for number, value in enumerate(values))
