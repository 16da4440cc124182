"""Cheapest open Hamiltonian path: the order in which groups of devices become pipeline stages."""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

LARGEST_EXACT = 12
"""Number of groups up to which the path is exact; the table of subsets grows as 2^K * K."""
LONGEST_RUN = 3
"""Number of groups, at most, that an Or-opt move takes along."""


@compiled
def shortest_path(cost: Matrix, hint: Index) -> Index:
    """Return the cheapest order that visits every row of `cost` once.

    It is exact up to `LARGEST_EXACT` rows (Held and Karp, 1962); beyond that, the best of `hint` and greedy paths from
    every
    start, each improved by 2-opt reversals and Or-opt moves until neither helps.

    Args:
        cost: symmetric, seconds, finite, shape (K, K); the diagonal means nothing.
        hint: any order, shape (K,).
    """
    count = len(cost)
    if count <= LARGEST_EXACT:
        return exact_path(cost)
    best = improved_path(cost, hint)
    best_length = length(cost, best)
    start = np.empty(count, np.int64)
    for first in range(count):
        greedy_path(cost, first, start)
        order = improved_path(cost, start)
        if length(cost, order) < best_length:
            best, best_length = order, length(cost, order)
    return best


@compiled
def length(cost: Matrix, order: Index) -> float:
    """Return the seconds along `order`."""
    total = 0.0
    for place in range(1, len(order)):
        total += cost[order[place - 1], order[place]]
    return total


@compiled
def exact_path(cost: Matrix) -> Index:
    """Return the cheapest path's order by Held and Karp's dynamic programme over subsets, from finite costs, shape (K,
    K)."""
    count = len(cost)
    subsets = 1 << count
    shortest = np.full((subsets, count), np.inf)  # [subset, last member]
    for group in range(count):
        shortest[1 << group, group] = 0.0
    for subset in range(1, subsets):
        for last in range(count):
            so_far = shortest[subset, last]
            if so_far < np.inf:
                for group in range(count):
                    if subset >> group & 1 == 0:
                        grown = subset | 1 << group
                        if so_far + cost[last, group] < shortest[grown, group]:
                            shortest[grown, group] = so_far + cost[last, group]
    order = np.empty(count, np.int64)
    subset = subsets - 1
    last = int(np.argmin(shortest[subset]))
    for place in range(count):
        order[place] = last
        subset ^= 1 << last
        best, previous = np.inf, -1
        for group in range(count):
            if subset >> group & 1 == 1 and shortest[subset, group] + cost[group, last] < best:
                best, previous = shortest[subset, group] + cost[group, last], group
        last = previous
    return order


@compiled_inside
def greedy_path(cost: Matrix, first: int, order: Index) -> None:
    """Fill in the path from `first` that always goes to the nearest row not yet visited."""
    count = len(cost)
    left = np.ones(count, np.bool_)
    order[0] = first
    left[first] = False
    for place in range(1, count):
        nearest, distance = -1, np.inf
        for group in range(count):
            if left[group] and cost[order[place - 1], group] < distance:
                nearest, distance = group, cost[order[place - 1], group]
        order[place] = nearest
        left[nearest] = False


@compiled_inside
def improved_path(cost: Matrix, start: Index) -> Index:
    """Return `start` after 2-opt reversals and Or-opt moves, the first that helps each time, until none does."""
    count = len(start)
    order, moved = start.copy(), np.empty(count, np.int64)
    # What is gained has to be more than rounding, or two orders of equal length could alternate for ever.
    least = 1e-12 * length(cost, order)
    helped = True
    while helped:
        helped = False
        for first in range(count):
            for last in range(first + 1, count):
                gain = 0.0
                if first > 0:
                    gain += cost[order[first - 1], order[first]] - cost[order[first - 1], order[last]]
                if last < count - 1:
                    gain += cost[order[last], order[last + 1]] - cost[order[first], order[last + 1]]
                if gain > least:
                    order[first : last + 1] = order[first : last + 1][::-1].copy()
                    helped = True
        for size in range(1, min(LONGEST_RUN, count - 1) + 1):
            for first in range(count - size + 1):
                if _insert_run(cost, order, moved, first, size, least):
                    helped = True
    return order


@compiled_inside
def _insert_run(cost: Matrix, order: Index, moved: Index, first: int, size: int, least: float) -> bool:
    """Move the `size` groups from `first` on, reversed or not, to where the path is shortest; True if that helped."""
    count = len(order)
    head, tail = order[first], order[first + size - 1]
    rest = count - size
    for place in range(rest):
        moved[place] = order[place] if place < first else order[place + size]
    lifted = 0.0
    if first > 0:
        lifted += cost[order[first - 1], head]
    if first + size < count:
        lifted += cost[tail, order[first + size]]
    if 0 < first < rest:
        lifted -= cost[moved[first - 1], moved[first]]
    best, best_place, turned = least, -1, False
    for place in range(rest + 1):  # in front of moved[place]
        before = cost[moved[place - 1], head] if place > 0 else 0.0
        after = cost[tail, moved[place]] if place < rest else 0.0
        before_turned = cost[moved[place - 1], tail] if place > 0 else 0.0
        after_turned = cost[head, moved[place]] if place < rest else 0.0
        between = cost[moved[place - 1], moved[place]] if 0 < place < rest else 0.0
        if lifted - (before + after - between) > best:
            best, best_place, turned = lifted - (before + after - between), place, False
        if lifted - (before_turned + after_turned - between) > best:
            best, best_place, turned = lifted - (before_turned + after_turned - between), place, True
    if best_place < 0:
        return False
    run = order[first : first + size].copy()
    for place in range(best_place):
        order[place] = moved[place]
    for step in range(size):
        order[best_place + step] = run[size - 1 - step] if turned else run[step]
    for place in range(best_place, rest):
        order[place + size] = moved[place]
    return True
