"""Search for the trees of an all-reduce, and for how much of the gradients goes along each: by simulated annealing.

It begins with trees that are given and moves one holder of one tree to another parent, or some of one part to another,
and goes by the fast form of the reduction (`fast_reduction`). The random numbers are its own: the same holders and seed
give the same trees on every machine.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.paper.cooling import below, uniform
from dtfm_coordinator.allocator.simulator.fast_reduction import Cuts, Lines, reduced_at

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SHARE_MOVES = 0.3
"""Part of the moves that change how much goes along a tree, and no tree."""
WHOLE_MOVES = 0.1
"""Part of those that move all that goes along one."""
HOTTEST, COLDEST = 0.02, 1e-4
"""Of the present seconds: how much longer a move may make them, in the mean, at the beginning and at the end."""
LEVEL = 0.1
"""Weight of the links' mean load beside the seconds: most moves leave the slowest link's load, and so the seconds, as
they are, and the way to less of it leads through such."""


@compiled
def annealed(
    lines: Lines, cuts: Cuts, between: float, trees: Ints, most_share: float, moves: int, seed: int
) -> tuple[float, Ints, Floats]:
    """Return the least seconds that were found from given trees and shares on, with the trees and shares.

    Args:
        cuts: one reduction; its shares are where the search begins.
        trees: for the part of each holder, the parent of each holder, shape (S, S); a root is its own parent.
        most_share: part of the gradients, at most, that one holder sums.
        moves: number of moves that are tried.
    """
    count = len(lines.alpha)
    random = np.array([np.uint64(2 * seed + 1) * np.uint64(0x9E3779B97F4A7C15)], dtype=np.uint64)
    trees, shares = trees.copy(), cuts.shares[0]
    seconds = _seconds(lines, cuts, trees, between)
    now = seconds + LEVEL * _load(lines, trees, shares, cuts.sizes[0].sum())
    best, best_trees, best_shares = seconds, trees.copy(), shares.copy()
    for move in range(moves):
        heat = HOTTEST * (COLDEST / HOTTEST) ** (move / moves)
        part, place = below(random, count), below(random, count)
        if part == place:
            continue
        old, before, there = trees[part, place], shares[part], shares[place]
        if uniform(random) < SHARE_MOVES:
            amount = shares[part] * (1.0 if uniform(random) < WHOLE_MOVES else uniform(random) ** 2)
            amount = min(amount, most_share - there)
            if amount <= 0.0:
                continue
            shares[part], shares[place] = before - amount, there + amount
        else:
            parent = below(random, count)
            if before == 0.0 or parent in (place, old) or _is_below(trees[part], parent, place):
                continue
            trees[part, place] = parent
        seconds = _seconds(lines, cuts, trees, between)
        after = seconds + LEVEL * _load(lines, trees, shares, cuts.sizes[0].sum())
        if after <= now - heat * now * np.log(uniform(random)):
            now = after
        else:
            trees[part, place], shares[part], shares[place] = old, before, there
        if seconds < best:
            best, best_trees, best_shares = seconds, trees.copy(), shares.copy()
    return best, best_trees, best_shares


def compile_search() -> None:
    """Use the search once, among two holders, so that it is compiled."""
    one = np.ones((2, 2))
    lines = Lines(one, one, one[0], one[0], np.zeros((2, 2)))
    cuts = Cuts(one[:1] > 0, np.array([1]), one[:1, :1], np.array([1]), np.full((1, 2), 0.5), np.zeros((1, 2, 1)))
    annealed(lines, cuts, 1.0, np.array([[0, 0], [1, 1]]), 1.0, 1, 0)


@compiled
def _seconds(lines: Lines, cuts: Cuts, trees: Ints, between: float) -> float:
    """Return the seconds of a reduction on free links."""
    lines.free[:] = 0.0
    return float(reduced_at(lines, cuts, trees, between).max())


@compiled
def _load(lines: Lines, trees: Ints, shares: Floats, size: float) -> float:
    """Return how long links are busy, weighted towards those that are busy longest: the root of the mean of the fourth
    powers."""
    count = len(shares)
    carried = np.zeros((count, count), dtype=np.float64)
    for part in range(count):
        for place in range(count):
            if trees[part, place] != place:
                carried[place, trees[part, place]] += shares[part] * size
                carried[trees[part, place], place] += shares[part] * size
    total = 0.0
    for here in range(count):
        for there in range(count):
            if carried[here, there] > 0.0:
                total += (carried[here, there] / lines.beta[here, there]) ** 4
    return float((total / count**2) ** 0.25)


@compiled
def _is_below(tree: Ints, place: int, other: int) -> bool:
    """Return whether `place` sends its sums through `other`."""
    while tree[place] != place:
        if place == other:
            return True
        place = tree[place]
    return place == other
