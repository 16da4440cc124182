"""Course of a step over slots: routes, the order of compute and its pace, and which stages must recompute."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import ZERO_BUBBLE, Problem
from dtfm_coordinator.allocator.simulator.compiled_schedule import Pace, SlotOrders, order_actions, plain_pace
from dtfm_coordinator.allocator.simulator.slot_memory import most_layers
from dtfm_coordinator.allocator.simulator.slot_pace import measured_pace
from dtfm_coordinator.allocator.simulator.slot_routes import route_micro_batches

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ROUNDS = 4
"""Times, at most, that orders are made for stages which recompute because of the orders before."""


class Course(NamedTuple):
    """Course of a step. Where a plan has no pace, all but `again` and `fits` follow from counts and shares alone."""

    routes: Ints
    """Slot of every micro-batch at every stage, shape (M, K)."""
    crossed: Ints
    """Number, in `pairs`, of the pair of slots that each micro-batch crosses at each boundary, shape (M, K - 1)."""
    pairs: Ints
    """Pairs of slots between which micro-batches go, shape (P, 2)."""
    pace: Pace
    orders: SlotOrders
    again: Bools
    """Whether each stage recomputes, because a peer's memory would not hold it otherwise, shape (K,)."""
    fits: bool
    """Whether the memory of all peers holds their stages and what is in flight."""


def _no_course() -> Course:
    flat, table = np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.int64)
    pace, orders = Pace(table, table, table, flat, flat), SlotOrders(flat, flat, flat, flat, flat)
    return Course(table, table, table, pace, orders, np.empty(0, dtype=np.bool_), False)


no_course = compiled_inside(_no_course)
"""Return `NO_COURSE`, for compiled functions."""
NO_COURSE = _no_course()
"""A course without a route: `course_of` makes one from the start."""


@compiled
def course_of(
    problem: Problem, peers: Ints, counts: Ints, shares: Ints, layers: Ints, ahead: Ints, before: Course
) -> Course:
    """Return the course of a layout's step; `ahead` is of no meaning where `problem.paced` is not set.

    One function on purpose: what it calls is compiled once more into each that calls it.

    Args:
        peers: number of the peer in each slot, shape (slots,).
        counts: number of peers of each stage, shape (K,).
        shares: number of micro-batches of each slot, shape (slots,).
        layers: number of layers of each stage, shape (K,).
        ahead: micro-batches more in flight of each stage's peers, shape (K,).
        before: any course of these counts and shares, of which what follows from those alone is taken; or `NO_COURSE`.
    """
    routes, crossed, pairs, pace, orders = before.routes, before.crossed, before.pairs, before.pace, before.orders
    fresh = len(routes) == 0
    if fresh:
        routes, crossed, pairs = route_micro_batches(counts, shares)
    again = np.zeros(len(counts), dtype=np.bool_)
    rounds = 0
    while True:
        if problem.paced:
            pace = measured_pace(problem, peers, counts, shares, layers, ahead, again, pairs)
        elif fresh:
            pace = plain_pace(counts, shares, len(pairs), problem.schedule == ZERO_BUBBLE)
        if problem.paced or fresh:
            orders = order_actions(routes, crossed, counts, shares, problem.schedule, pace)
        anew, kept = most_layers(problem, peers, counts, orders)
        wanted = again.copy()
        for stage in range(len(counts)):
            wanted[stage] = again[stage] or layers[stage] > kept[stage]
        if not problem.paced:
            again = wanted  # the order is the same whether stages recompute or not
        settled, fits = True, True
        for stage in range(len(counts)):
            settled = settled and wanted[stage] == again[stage]
            fits = fits and layers[stage] <= (anew[stage] if again[stage] else kept[stage])
        rounds += 1
        if settled or rounds == ROUNDS:
            return Course(routes, crossed, pairs, pace, orders, again, fits)
        again = wanted
