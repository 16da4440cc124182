"""Chains of one peer a stage, grown peer by peer: where few of many peers have fast links, the right ones are found so.

Each is the one before with the best other peer at the best place. Stages of neighbours, and of peers that are alike,
with which the search begins else, have all peers in mind; which few of them do best alone they do not tell.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.starts import Stages

FRUITLESS = 2
"""Peers that may make a chain slower before its growth ends."""


def grown(
    problem: Problem,
    soonest: Callable[[Iterable[Stages]], tuple[float, Stages]],
    known: Sequence[tuple[float, Stages]],
    goes_on: Callable[[], bool],
) -> list[Stages]:
    """Return chains, each with a peer more than the one before. The first is the best peer; the best of some pairs,
    where no peer alone holds the model; or the shortest of those that are `known`, where no pair does.

    Args:
        soonest: returns the least seconds that are foretold of any of some placements, and which that is; infinite
            where none fits.
        known: seconds and stages of other chains.
        goes_on: whether to go on, asked before each peer.
    """
    chains, chain, best, fruitless = list[Stages](), list[int](), np.inf, 0
    peers = range(len(problem.forward))
    while len(chain) < min(problem.layers, len(peers)) and fruitless < FRUITLESS and goes_on():
        others = [peer for peer in peers if peer not in chain]
        longer = [[*chain[:at], peer, *chain[at:]] for at in range(len(chain) + 1) for peer in others]
        seconds, found = soonest([[peer] for peer in one] for one in longer)
        if not chain and not np.isfinite(seconds):
            seconds, found = soonest(_promising_pairs(problem))
        if not chain and not np.isfinite(seconds):
            seconds, found = min(known, key=lambda one: len(one[1]), default=(np.inf, []))
        if not np.isfinite(seconds):
            break
        chain = [peer for (peer,) in found]
        chains.append(found)
        best, fruitless = min(best, seconds), fruitless + 1 if seconds >= best else 0
    return chains


def _promising_pairs(problem: Problem) -> list[Stages]:
    """Return chains of two peers, twice as many as there are peers: those whose compute, shared by speed, and messages
    of all micro-batches take the least, one after the other."""
    speeds = 1.0 / (problem.forward + problem.backward)
    compute = (problem.layers + problem.head_layers) / (speeds[:, None] + speeds[None, :])
    with np.errstate(divide="ignore"):
        messages = problem.ahead_bytes / problem.beta + problem.back_bytes / problem.beta.T
    taken = compute + messages
    np.fill_diagonal(taken, np.inf)
    first, last = np.unravel_index(np.argsort(taken, axis=None, kind="stable")[: 2 * len(speeds)], taken.shape)
    return [[[one], [other]] for one, other in zip(first.tolist(), last.tolist(), strict=True) if one != other]
