"""Shapes of an all-reduce as trees: straight to the owner, a ring, two levels, and around slow links.

Trees of N holders are an array of shape (N, N): for the part of each holder, the parent of each holder; the owner is
its own. A search begins with those that are the fastest (`tree_search`).
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROUNDS = 3
"""Times that each tree is laid anew around what the others make the links carry."""


def direct(count: int) -> Ints:
    """Return the trees of a reduction in which all send to each owner, as with sharded parameter servers."""
    return np.tile(np.arange(count)[:, None], (1, count))


def ring(cost: Floats) -> Ints:
    """Return trees along a ring of near neighbours: a part goes round to its owner, and the total back.

    Args:
        cost: seconds of a message over each pair, both ways, shape (N, N).
    """
    count = len(cost)
    order = [0]
    while len(order) < count:
        left = [place for place in range(count) if place not in order]
        order.append(min(left, key=lambda place: (cost[order[-1], place], place)))
    trees = np.empty((count, count), dtype=np.int64)
    for at, owner in enumerate(order):
        trees[owner, owner] = owner
        for hops in range(1, count):
            trees[owner, order[(at - hops) % count]] = order[(at - hops + 1) % count]
    return trees


def two_levels(groups: Ints) -> Ints:
    """Return trees in which a part is summed within each group first, and the groups' sums go to its owner.

    Args:
        groups: number of each holder's group, shape (N,).
    """
    count = len(groups)
    trees = direct(count)
    members = {int(group): np.flatnonzero(groups == group) for group in np.unique(groups)}
    for owner in range(count):
        rank = int(np.flatnonzero(members[int(groups[owner])] == owner)[0])
        for group, inside in members.items():
            if group == groups[owner]:
                continue
            head = inside[rank % len(inside)]  # another one for each owner of a group, so that all share the work
            trees[owner, inside] = head
            trees[owner, head] = owner
    return trees


def around_slow_links(alpha: Floats, beta: Floats, size: float) -> Ints:
    """Return trees laid one after the other along the links that are least busy, by shortest paths to each owner: what
    a link carries already makes it longer, by the third power beside what all links would carry if they shared it.

    Args:
        alpha: one-way delay, seconds, shape (N, N).
        beta: bytes a second, shape (N, N).
        size: bytes of all gradients.
    """
    count = len(alpha)
    apart = ~np.eye(count, dtype=bool)
    rate = np.minimum(beta, beta.T)
    part = size / count
    shared = size / (count / 2 * rate[apart].mean())
    carried = np.zeros((count, count))
    trees = direct(count)
    for laid in range(ROUNDS):
        for owner in range(count):
            if laid:
                _carry(carried, trees[owner], -part)
            busy = (carried + part) / rate / shared
            cost = np.where(apart, alpha + part / rate * (0.3 + busy**3), np.inf)
            trees[owner] = _shortest_paths(cost, owner)
            _carry(carried, trees[owner], part)
    return trees


def shapes(alpha: Floats, beta: Floats, size: float) -> Iterator[Ints]:
    """Yield all shapes on these links; of two levels, those of each number of groups."""
    count = len(alpha)
    with np.errstate(divide="ignore"):
        cost = alpha + size / count / beta
    both = np.where(np.eye(count, dtype=bool), 0.0, (cost + cost.T) / 2)
    yield direct(count)
    yield ring(both)
    yield around_slow_links(alpha, beta, size)
    tree = linkage(squareform(both, checks=False), "average")
    for groups in range(2, count // 2 + 1):
        yield two_levels(fcluster(tree, groups, "maxclust"))


def _carry(carried: Floats, tree: Ints, amount: float) -> None:
    for place, parent in enumerate(tree.tolist()):
        if parent != place:
            carried[place, parent] += amount
            carried[parent, place] += amount


def _shortest_paths(cost: Floats, owner: int) -> Ints:
    """Return each holder's next one on its cheapest way to the owner (Dijkstra)."""
    count = len(cost)
    far, parent = np.full(count, np.inf), np.full(count, owner)
    far[owner] = 0.0
    left = np.ones(count, dtype=bool)
    for _ in range(count):
        near = int(np.argmin(np.where(left, far, np.inf)))
        left[near] = False
        through = far[near] + cost[:, near]
        better = left & (through < far)
        far[better], parent[better] = through[better], near
    return parent
