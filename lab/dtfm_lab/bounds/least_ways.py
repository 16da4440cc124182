"""The least that links can take of a step: the hops of a route over so many peers, and the commit of so many.

A route through K stages visits K distinct peers, so its K - 1 hops are a path. It is a forest, and no forest of so
many edges is cheaper than the first ones that Kruskal's algorithm takes, nor is its dearest edge. And all its hops have
other senders, and other receivers, none of which has a hop that is cheaper than its cheapest.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.links import transfer_seconds
from dtfm_coordinator.allocator.problem.problem_arrays import Problem

Floats = npt.NDArray[np.float64]


class LeastWays(NamedTuple):
    """The least seconds of a micro-batch's ways and of the commit, on the N peers of a problem."""

    ahead: Floats
    """Seconds of so many hops ahead, by their number, shape (N,)."""
    back: Floats
    """Seconds of so many hops back, shape (N,)."""
    both: Floats
    """Seconds of so many hops ahead, and back over the same ones, shape (N,)."""
    slowest: Floats
    """Seconds for which one message, ahead or back, takes the slowest of so many links, which have no sender and no
    receiver in common and are a forest, shape (N,)."""
    radius: Floats
    """Seconds from a peer to the farthest of so many others, from the peer that is nearest to them, shape (N,)."""
    delay: Floats
    """Seconds of each peer's shortest delay, of either direction, shape (N,)."""
    rates: Floats
    """Bytes a second of each peer's so many fastest links, in the mean, the faster direction of each, by their number
    less one, shape (N - 1, N)."""
    round_trip: Floats
    """Seconds of delay to each peer's so many nearest and back, of the farthest of these, shape (N - 1, N)."""
    one_way: Floats
    """Seconds of a byte from each peer to the last of its so many fastest, shape (N - 1, N)."""
    both_ways: Floats
    """Seconds of a byte to that and back, where there and back are the fastest, shape (N - 1, N)."""


def least_ways(problem: Problem) -> LeastWays:
    """Return them for a problem's links; infinite where so many peers cannot talk."""
    count = len(problem.alpha)
    apart = ~np.eye(count, dtype=bool) & (problem.beta > 0)
    alpha = np.where(apart, problem.alpha, np.inf)
    rates = np.where(apart, problem.beta, 0.0)
    ahead, back = (transfer_seconds(size, rates) for size in (problem.ahead_bytes, problem.back_bytes))
    to, fro = alpha + ahead, (alpha + back).T
    byte = transfer_seconds(1.0, rates)
    return LeastWays(
        ahead=_path(to),
        back=_path(fro),
        both=_path(to + fro),
        slowest=np.maximum.reduce(_hops(np.maximum(ahead, back.T))),
        radius=np.sort(np.where(np.eye(count, dtype=bool), 0.0, alpha), axis=1).min(axis=0),
        delay=np.minimum(alpha, alpha.T).min(axis=1),
        rates=np.cumsum(np.sort(np.maximum(rates, rates.T), axis=1)[:, :0:-1], axis=1).T / np.arange(1, count)[:, None],
        round_trip=np.sort(alpha + alpha.T, axis=1)[:, :-1].T,
        one_way=np.sort(byte, axis=1)[:, :-1].T,
        both_ways=np.sort(byte + byte.T, axis=1)[:, :-1].T,
    )


def _path(costs: Floats) -> Floats:
    """Return the least cost of a path of so many hops, by their number, shape (N,)."""
    least: Floats = np.cumsum(_hops(costs), axis=1).max(axis=0)
    return least


def _hops(costs: Floats) -> Floats:
    """Return 0 and then the costs of the cheapest hops, ascending, shape (3, N): of a forest, of as many senders, and
    of as many receivers."""
    senders, receivers = (np.sort(costs.min(axis=axis))[:-1] for axis in (1, 0))
    return np.array([_forest(costs), np.append(0.0, senders), np.append(0.0, receivers)])


def _forest(costs: Floats) -> Floats:
    """Return 0 and the costs of the edges of the cheapest spanning forest, ascending, shape (N,), the cheaper direction
    of each; infinite for those that there are not."""
    count = len(costs)
    edges = np.minimum(costs, costs.T)
    first, second = np.triu_indices(count, 1)
    tree = np.arange(count)
    found = np.full(count, np.inf)
    found[0], taken = 0.0, 1
    for edge in np.argsort(edges[first, second], kind="stable"):
        here, there = tree[first[edge]], tree[second[edge]]
        cost = edges[first[edge], second[edge]]
        if here != there and cost < np.inf:
            tree[tree == there] = here
            found[taken] = cost
            taken += 1
    return found
