"""The cheapest open Hamiltonian path: the order in which groups of devices become pipeline stages."""

from functools import lru_cache
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

LARGEST_EXACT = 12
"""Groups up to which the path is exact; the table of subsets grows as 2^K * K."""


def shortest_path(cost: Matrix, hint: tuple[int, ...] | None = None) -> tuple[float, tuple[int, ...]]:
    """The cheapest order that visits every row of `cost` once.

    Exact up to `LARGEST_EXACT` rows (Held and Karp, 1962); beyond that, the best of greedy paths from every start,
    each improved by 2-opt reversals and Or-opt moves until neither helps.

    Args:
        cost: symmetric, seconds, shape (K, K); infinite is an edge that cannot be taken; the diagonal means nothing.
        hint: an order to improve on, where the path is not exact: much faster than from every start.

    Returns:
        The path's length in seconds, infinite where every path takes a forbidden edge, and the order.
    """
    count = len(cost)
    if count == 1:
        return 0.0, (0,)
    order = _exact(cost) if count <= LARGEST_EXACT else _heuristic(cost, hint)
    return length(cost, order), order


def length(cost: Matrix, order: tuple[int, ...]) -> float:
    """Seconds along `order`."""
    return float(sum(cost[here, there] for here, there in pairwise(order)))


@lru_cache(maxsize=LARGEST_EXACT)
def _layers(count: int) -> tuple[tuple[Index, Index, Index], ...]:
    """For each subset size from 2: the subsets as bit masks (S, 1), their members (S, size), each subset less each."""
    layers = []
    for size in range(2, count + 1):
        members = np.array(list(combinations(range(count), size)), dtype=np.intp)
        masks = (1 << members).sum(axis=1, keepdims=True)
        layers.append((masks, members, masks - (1 << members)))
    return tuple(layers)


def _exact(cost: Matrix) -> tuple[int, ...]:
    """Held and Karp's dynamic programme over subsets, one vectorised layer for each subset size."""
    count = len(cost)
    shortest = np.full((1 << count, count), np.inf)  # [subset, last member]
    shortest[1 << np.arange(count), np.arange(count)] = 0.0
    for masks, members, without in _layers(count):
        shortest[masks, members] = (shortest[without] + cost.T[members]).min(axis=2)
    mask = (1 << count) - 1
    last = int(shortest[mask].argmin())
    order = [last]
    for _ in range(count - 1):
        mask ^= 1 << last
        last = int((shortest[mask] + cost[:, last]).argmin())
        if last in order:  # every path is forbidden: any order will do
            return tuple(range(count))
        order.append(last)
    return tuple(order)


def _heuristic(cost: Matrix, hint: tuple[int, ...] | None) -> tuple[int, ...]:
    finite = cost[np.isfinite(cost)]
    dear = 1.0 + (float(finite.max()) if finite.size else 0.0)
    count = len(cost)
    # A last, free node closes the path to a tour, so that moves need no special ends; forbidden edges stay comparable.
    tour_cost = np.zeros((count + 1, count + 1))
    tour_cost[:count, :count] = np.where(np.isfinite(cost), cost, dear * 10 * count)
    np.fill_diagonal(tour_cost, 0.0)
    starts = [np.array([*hint, count])] if hint else [_greedy(cost, start) for start in range(count)]
    tours = [_improve(tour_cost, start) for start in starts]
    best = min(tours, key=lambda tour: float(tour_cost[tour, np.roll(tour, -1)].sum()))
    cut = int(np.flatnonzero(best == count)[0])
    return tuple(int(group) for group in np.roll(best, -cut)[1:])


def _greedy(cost: Matrix, start: int) -> Index:
    """A path that always goes to the nearest group not yet visited, then the free node."""
    left = set(range(len(cost)))
    order = [start]
    left.discard(start)
    while left:
        order.append(min(left, key=lambda group: (cost[order[-1], group], group)))
        left.discard(order[-1])
    return np.array([*order, len(cost)], dtype=np.intp)


def _improve(cost: Matrix, tour: Index) -> Index:
    """2-opt, then Or-opt, until neither shortens the tour."""
    while True:
        shorter = _two_opt(cost, tour)
        if shorter is None:
            shorter = _or_opt(cost, tour)
        if shorter is None:
            return tour
        tour = shorter


def _two_opt(cost: Matrix, tour: Index) -> Index | None:
    """The tour with its best segment reversed, or None."""
    along = cost[tour][:, tour]
    step = np.append(along.diagonal(1), along[-1, 0])
    onward = np.roll(np.roll(along, -1, axis=0), -1, axis=1)
    gain = np.triu(step[:, None] + step[None, :] - along - onward, k=1)
    first, last = np.unravel_index(int(gain.argmax()), gain.shape)
    if gain[first, last] <= 1e-9 * step.sum():
        return None
    shorter = tour.copy()
    shorter[first + 1 : last + 1] = tour[first + 1 : last + 1][::-1]
    return shorter


def _or_opt(cost: Matrix, tour: Index) -> Index | None:
    """The tour with the best run of up to three groups moved elsewhere, turned round or not, or None."""
    count = len(tour)
    along = cost[tour][:, tour]
    here = np.arange(count)
    after = (here + 1) % count
    step = along[here, after]
    for size in range(1, min(3, count - 2) + 1):
        last = (here + size - 1) % count
        before, beyond = (here - 1) % count, (here + size) % count
        lifted = along[before, here] + along[last, beyond] - along[before, beyond]
        # [run's first, new predecessor]: the run as it is, then turned round.
        inserted = np.stack([along[here] + along[last][:, after], along[last] + along[here][:, after]]) - step
        inside = (here[None, :] - before[:, None]) % count <= size
        gain = np.where(inside, -np.inf, lifted[:, None] - inserted)
        turned, first, place = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[turned, first, place] > 1e-9 * step.sum():
            rest = np.roll(tour, -int(first))
            run, rest = rest[:size], rest[size:]
            cut = int((place - first) % count) - size + 1
            return np.concatenate([rest[:cut], run[::-1] if turned else run, rest[cut:]])
    return None
