"""Sets of a few peers, as bits of a number: what they can carry between each other, and what an all-reduce takes.

Of a reduction of G bytes at least G leave each set of its holders that is not all of them, after the last of these has
begun to send: the parts that are owned outside need its gradients, and of the others the totals go out, straight or
along trees. So the cut with the lowest rate says how long it takes.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.foundations.links import transfer_seconds
from dtfm_coordinator.allocator.problem.problem_arrays import Problem

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SLOWEST, FASTEST = 1e-300, 1e18
"""Bytes a second of what carries nothing, and beyond which a link is none the faster: so all sums and parts of them
are numbers."""


class PeerSets(NamedTuple):
    """Links between any two sets of N peers without a peer in common; S = 2^N, a set has the bits of its peers.

    Tables of shape (S, S) are from the set of the row to that of the column.
    """

    members: Bools
    """Whether a set has a peer, shape (S, N)."""
    alpha: Floats
    """Seconds of delay from peer to peer, shape (N, N)."""
    beta: Floats
    """Bytes a second from peer to peer, shape (N, N)."""
    ahead: Floats
    """Least seconds of a message ahead, alone."""
    back: Floats
    """Least seconds of a message back, alone."""
    delay: Floats
    """Least delay."""
    rate: Floats
    """Bytes a second over all links together."""
    among: Floats
    """Bytes a second that a peer of a set sends to the others of it, shape (S, N)."""
    radius: Floats
    """Seconds from a peer of a set to the farthest of it, from the peer that is nearest to all, shape (S,)."""
    reduce_rate: Floats
    """Bytes a second at which an all-reduce among a set goes on at most, once the peer has begun, shape (S, N)."""
    reduce_delay: Floats
    """Least delay of that, shape (S, N)."""


def peer_sets(problem: Problem) -> PeerSets:
    """Return the sets of a problem's peers."""
    count = len(problem.alpha)
    numbers = np.arange(1 << count)
    members = (numbers[:, None] >> np.arange(count) & 1).astype(bool)
    apart = ~np.eye(count, dtype=bool) & (problem.beta > 0)
    alpha = np.where(apart, problem.alpha, np.inf)
    beta = np.where(apart, np.minimum(problem.beta, FASTEST), 0.0)
    inside = members.astype(np.float64)
    out = inside @ np.minimum(problem.uplink[:, None], beta @ inside.T)
    into = np.minimum(problem.downlink[None, :], inside @ beta) @ inside.T
    rate = np.maximum(np.minimum(out, into), SLOWEST)
    among = np.where(members, np.minimum(problem.uplink, inside @ beta.T), 0.0)
    delay = _nearest(alpha, members)
    far = np.where(np.eye(count, dtype=bool), 0.0, alpha)
    farthest = np.where(members[:, None, :], far[None], 0.0).max(axis=2)
    radius = np.where(members, farthest, np.inf).min(axis=1)
    reduce_rate, reduce_delay = _lowest_cuts(rate, delay, count)
    sizes = (problem.ahead_bytes, problem.back_bytes)
    ahead, back = (_nearest(alpha + transfer_seconds(size, beta), members) for size in sizes)
    return PeerSets(
        members, alpha, np.maximum(beta, SLOWEST), ahead, back, delay, rate, among, radius, reduce_rate, reduce_delay
    )


def _nearest(costs: Floats, members: Bools) -> Floats:
    """Return the least cost from a peer of one set to a peer of another, shape (S, S)."""
    to_set = np.where(members[None], costs[:, None, :], np.inf).min(axis=2)
    nearest = np.full((len(members), len(members)), np.inf)
    for peer, row in enumerate(to_set):
        np.minimum(nearest, np.where(members[:, peer, None], row[None], np.inf), out=nearest)
    return nearest


@compiled
def _lowest_cuts(rate: Floats, delay: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the rate, and the delay, of the cut of each set that holds up each of its peers most, shape (S, N)."""
    least, beside = np.full((1 << count, count), np.inf), np.zeros((1 << count, count))
    for whole in range(1, 1 << count):
        part = (whole - 1) & whole
        while part > 0:
            for peer in range(count):
                if part >> peer & 1 and rate[part, whole ^ part] < least[whole, peer]:
                    least[whole, peer] = rate[part, whole ^ part]
                    beside[whole, peer] = delay[part, whole ^ part]
            part = (part - 1) & whole
    return least, beside
