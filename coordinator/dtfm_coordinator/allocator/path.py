"""The cheapest open Hamiltonian path: the order in which groups of devices become pipeline stages."""

from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

LARGEST_EXACT = 12
"""Groups up to which the path is exact; the table of subsets grows as 2^K * K."""


def shortest_path(cost: Matrix) -> tuple[float, tuple[int, ...]]:
    """The cheapest order that visits every row of `cost` once.

    Exact up to `LARGEST_EXACT` rows (Held and Karp, 1962); beyond that, the best of greedy paths from every start,
    each improved by 2-opt reversals and Or-opt moves until neither helps.

    Args:
        cost: symmetric, seconds, shape (K, K); infinite is an edge that cannot be taken; the diagonal means nothing.

    Returns:
        The path's length in seconds, infinite where every path takes a forbidden edge, and the order.
    """
    count = len(cost)
    if count == 1:
        return 0.0, (0,)
    order = _exact(cost) if count <= LARGEST_EXACT else _heuristic(cost)
    return length(cost, order), order


def length(cost: Matrix, order: tuple[int, ...]) -> float:
    """Seconds along `order`."""
    return float(sum(cost[here, there] for here, there in zip(order, order[1:], strict=False)))


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


def _heuristic(cost: Matrix) -> tuple[int, ...]:
    finite = cost[np.isfinite(cost)]
    dear = 1.0 + (float(finite.max()) if finite.size else 0.0)
    count = len(cost)
    # A last, free node closes the path to a tour, so that moves need no special ends; forbidden edges stay comparable.
    tour_cost = np.zeros((count + 1, count + 1))
    tour_cost[:count, :count] = np.where(np.isfinite(cost), cost, dear * 10 * count)
    tours = (_improve(tour_cost, _greedy(cost, start)) for start in range(count))
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
    after = np.roll(tour, -1)
    step = cost[tour, after]
    gain = step[:, None] + step[None, :] - cost[np.ix_(tour, tour)] - cost[np.ix_(after, after)]
    gain = np.triu(gain, k=1)
    first, last = np.unravel_index(int(gain.argmax()), gain.shape)
    if gain[first, last] <= 1e-9 * step.sum():
        return None
    shorter = tour.copy()
    shorter[first + 1 : last + 1] = tour[first + 1 : last + 1][::-1]
    return shorter


def _or_opt(cost: Matrix, tour: Index) -> Index | None:
    """The tour with the best run of up to three groups moved elsewhere, or None."""
    count = len(tour)
    total = float(cost[tour, np.roll(tour, -1)].sum())
    for size in (1, 2, 3):
        for start in range(count):
            turned = np.roll(tour, -start)
            run, rest = turned[:size], turned[size:]
            following = np.roll(rest, -1)
            closed = cost[rest[-1], rest[0]]
            lifted = cost[rest[-1], run[0]] + cost[run[-1], rest[0]] - closed
            inserted = cost[rest, run[0]] + cost[run[-1], following] - cost[rest, following]
            place = int(inserted.argmin())
            if inserted[place] < lifted - 1e-9 * total:
                return np.concatenate([rest[: place + 1], run, rest[place + 1 :]])
    return None
