"""Course of a step over slots: routes, the order of compute and its pace, and which stages must recompute."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled
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


@compiled
def course_of(problem: Problem, peers: Ints, counts: Ints, shares: Ints, layers: Ints, ahead: Ints) -> Course:
    """Return the course of a layout's step; `ahead` is of no meaning where `problem.paced` is not set.

    Args:
    peers: number of the peer in each slot, shape (slots,).
    counts: number of peers of each stage, shape (K,).
    shares: number of micro-batches of each slot, shape (slots,).
    layers: number of layers of each stage, shape (K,).
    ahead: micro-batches more in flight of each stage's peers, shape (K,).
    """
    routes, crossed, pairs = route_micro_batches(counts, shares)
    if problem.paced:
        return _paced(problem, peers, counts, shares, layers, ahead, routes, crossed, pairs)
    pace = plain_pace(counts, shares, len(pairs), problem.schedule == ZERO_BUBBLE)
    orders = order_actions(routes, crossed, counts, shares, problem.schedule, pace)
    return _within_memory(problem, peers, counts, layers, routes, crossed, pairs, pace, orders)


@compiled
def course_like(
    problem: Problem, peers: Ints, counts: Ints, shares: Ints, layers: Ints, ahead: Ints, before: Course
) -> Course:
    """Return the course of a layout whose counts and shares are those of the course `before`; the rest as
    `course_of`."""
    if problem.paced:
        return _paced(problem, peers, counts, shares, layers, ahead, before.routes, before.crossed, before.pairs)
    return _within_memory(
        problem, peers, counts, layers, before.routes, before.crossed, before.pairs, before.pace, before.orders
    )


@compiled
def _within_memory(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    layers: Ints,
    routes: Ints,
    crossed: Ints,
    pairs: Ints,
    pace: Pace,
    orders: SlotOrders,
) -> Course:
    """Return the course whose order is the same whether stages recompute or not."""
    anew, kept = most_layers(problem, peers, counts, orders)
    again = layers > kept
    return Course(routes, crossed, pairs, pace, orders, again, bool((layers <= np.where(again, anew, kept)).all()))


@compiled
def _paced(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    shares: Ints,
    layers: Ints,
    ahead: Ints,
    routes: Ints,
    crossed: Ints,
    pairs: Ints,
) -> Course:
    """Return the course whose order goes by what actions take, and so by which stages recompute."""
    again = np.zeros(len(counts), dtype=np.bool_)
    rounds = 0
    while True:
        pace = measured_pace(problem, peers, counts, shares, layers, ahead, again, pairs)
        orders = order_actions(routes, crossed, counts, shares, problem.schedule, pace)
        anew, kept = most_layers(problem, peers, counts, orders)
        wanted = again | (layers > kept)
        rounds += 1
        if rounds == ROUNDS or (wanted == again).all():
            fits = bool((layers <= np.where(again, anew, kept)).all())
            return Course(routes, crossed, pairs, pace, orders, again, fits)
        again = wanted
