"""Exhaustive search: looks at every placement of a small swarm, for the one that is provably best.

Groups are the subsets of R devices, as bit masks in lexicographic order, so that those led by one device stand
together. A walk over them always lets the lowest device that is still free lead the next group, or leaves it idle: so
each placement is met once, whatever its groups are called. A branch ends where its all-reduce alone costs more than the
best so far; boundaries are matched when first needed and remembered.
"""

from math import factorial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.paper.hamiltonian_path import LARGEST_EXACT, exact_path
from dtfm_coordinator.allocator.paper.matching import MatchingRoom, match_both_ways
from dtfm_coordinator.allocator.paper.placement_state import Index, Matrix, PairCosts, pair_seconds_into

LARGEST_MASK = 62
"""Number of devices whose subsets fit a signed 64-bit mask."""
REMEMBERED = 8_000_000
"""Number of pairs of groups, at most, whose boundaries are remembered (64 MB)."""


def partitions(count: int, stages: int, replicas: int) -> int:
    """Return the number of ways to put `stages * replicas` of `count` devices into unnamed groups of `replicas`."""
    idle = count - stages * replicas
    symmetries: int = factorial(replicas) ** stages * factorial(stages) * factorial(idle)
    return factorial(count) // symmetries


def provable(count: int, stages: int) -> bool:
    """Whether a walk over all placements, however long, would prove the best: orders of stages are exact, and masks
    suffice."""
    return count <= LARGEST_MASK and stages <= LARGEST_EXACT


class Walk(NamedTuple):
    """State of a walk over all placements."""

    members: npt.NDArray[np.uint8]
    """Devices of each group, shape (M, R)."""
    masks: Index
    """Devices of each group as bits, shape (M,)."""
    loads: Matrix
    """All-reduce seconds of each group, shape (M,)."""
    first: Index
    """First group that each device leads, shape (N + 1,); the last is M."""
    known: Matrix
    """Seconds of the boundary of each pair of groups, NaN until needed, shape (M, M); empty where too many."""
    choice: Index
    """Next group to try at each depth, shape (N + 1,); past its leader's last, the leader is left idle; -1 just after
    coming there."""
    used: Index
    """Devices that are placed or idle at each depth, as bits, shape (N + 1,)."""
    chosen: Index
    """Groups chosen so far at each depth, shape (N + 1, K)."""
    filled: Index
    """Number of groups chosen so far at each depth, shape (N + 1,)."""
    depth: Index
    """Depth at which the walk is, shape (1,); -1 when it is over."""
    best: Index
    """Groups of the best placement in the order of its stages, shape (K,); -1 where none beat the start."""


def walk_of(network: PairCosts) -> Walk:
    """Return a walk over the placements of one network, at its start."""
    devices, stages, replicas = len(network.forward), network.stages, network.replicas
    groups = factorial(devices) // factorial(replicas) // factorial(devices - replicas)
    members = np.empty((groups, replicas), dtype=np.uint8)
    masks, loads, first = np.empty(groups, np.int64), np.empty(groups), np.empty(devices + 1, np.int64)
    list_groups(network, members, masks, loads, first)
    side = groups if groups**2 <= REMEMBERED else 0
    return Walk(
        members,
        masks,
        loads,
        first,
        np.full((side, side), np.nan),
        choice=np.full(devices + 1, -1),
        used=np.zeros(devices + 1, np.int64),
        chosen=np.zeros((devices + 1, stages), np.int64),
        filled=np.zeros(devices + 1, np.int64),
        depth=np.zeros(1, np.int64),
        best=np.full(stages, -1),
    )


@compiled
def list_groups(network: PairCosts, members: npt.NDArray[np.uint8], masks: Index, loads: Matrix, first: Index) -> None:
    """Fill in all subsets of R devices in lexicographic order, and what their all-reduces take."""
    devices, replicas = len(network.forward), network.replicas
    now = np.arange(replicas)
    first[:] = len(members)
    for group in range(len(members)):
        mask, slowest = 0, 0.0
        first[now[0]] = min(first[now[0]], group)
        for slot in range(replicas):
            members[group, slot] = now[slot]
            mask |= 1 << now[slot]
            load = 0.0
            for other in range(replicas):
                if other != slot:
                    load += network.reduce[now[slot], now[other]]
            slowest = max(slowest, load)
        masks[group], loads[group] = mask, slowest
        slot = replicas - 1
        while slot >= 0 and now[slot] == devices - replicas + slot:
            slot -= 1
        if slot >= 0:
            now[slot] += 1
            for later in range(slot + 1, replicas):
                now[later] = now[later - 1] + 1


@compiled
def walk_on(network: PairCosts, walk: Walk, bound: float, leaves: int) -> tuple[float, int]:
    """Continue a walk for about `leaves` placements.

    Args:
        bound: seconds; only placements that cost less count.

    Returns:
        The best cost in seconds, `bound` where none is better, and the number of placements priced.
    """
    stages, replicas, devices = network.stages, network.replicas, len(network.forward)
    idle = devices - stages * replicas
    room = MatchingRoom(np.empty((4, replicas), np.int64), np.empty((2, replicas)), np.empty((replicas, replicas)))
    pairs, mate = np.empty((2, replicas, replicas)), np.empty(replicas, np.int64)
    between = np.zeros((stages, stages))
    looked_at = 0
    depth = walk.depth[0]
    while depth >= 0 and looked_at < leaves:
        count, used = walk.filled[depth], walk.used[depth]
        if count == stages:
            looked_at += 1
            cost, order = leaf(network, walk, walk.chosen[depth], bound, between, pairs, mate, room)
            if cost < bound:
                bound = cost
                for stage in range(stages):
                    walk.best[stage] = walk.chosen[depth, order[stage]]
            depth -= 1
            continue
        leader = 0
        while used >> leader & 1 == 1:
            leader += 1
        group = walk.choice[depth]
        if group < 0:  # just come here
            group = walk.first[leader]
        end = walk.first[leader + 1]
        while group < end and (walk.masks[group] & used != 0 or walk.loads[group] >= bound):
            group += 1
        walk.choice[depth] = group + 1
        if group < end:
            walk.chosen[depth + 1, :count] = walk.chosen[depth, :count]
            walk.chosen[depth + 1, count] = group
            walk.used[depth + 1], walk.filled[depth + 1] = used | walk.masks[group], count + 1
        elif group == end and depth - count < idle:
            walk.chosen[depth + 1, :count] = walk.chosen[depth, :count]
            walk.used[depth + 1], walk.filled[depth + 1] = used | 1 << leader, count
        else:
            depth -= 1
            continue
        depth += 1
        walk.choice[depth] = -1
    walk.depth[0] = depth
    return bound, looked_at


@compiled_inside
def leaf(
    network: PairCosts,
    walk: Walk,
    chosen: Index,
    bound: float,
    between: Matrix,
    pairs: Matrix,
    mate: Index,
    room: MatchingRoom,
) -> tuple[float, Index]:
    """Return the cost of the chosen groups in their best order, and that order; infinite where a bound shows it is no
    better."""
    stages = network.stages
    slowest, floor, saved, saved_next = 0.0, 0.0, 0.0, 0.0
    for one in range(stages):
        slowest = max(slowest, walk.loads[chosen[one]])
        for other in range(one + 1, stages):
            seconds = boundary(network, walk, chosen[one], chosen[other], pairs, mate, room)
            between[one, other] = between[other, one] = seconds
    if stages > 2:
        # Each group pays for half of its two cheapest boundaries, but for the path's two ends.
        for one in range(stages):
            least, second = np.inf, np.inf
            for other in range(stages):
                if other != one:
                    if between[one, other] < least:
                        least, second = between[one, other], least
                    elif between[one, other] < second:
                        second = between[one, other]
            floor += (least + second) / 2
            if second > saved:
                saved, saved_next = second, saved
            elif second > saved_next:
                saved_next = second
        if slowest + floor - (saved + saved_next) / 2 >= bound:
            return np.inf, chosen
    order = exact_path(between)
    cost = slowest
    for stage in range(stages - 1):
        cost += between[order[stage], order[stage + 1]]
    return cost, order


@compiled_inside
def boundary(
    network: PairCosts, walk: Walk, one: int, other: int, pairs: Matrix, mate: Index, room: MatchingRoom
) -> float:
    """Return the seconds of the boundary between two groups, remembered where there is a table for it."""
    remembered = len(walk.known) > 0
    if remembered and not np.isnan(walk.known[one, other]):
        return float(walk.known[one, other])
    mate[:] = np.arange(network.replicas)
    rows, columns = walk.members[one].astype(np.int64), walk.members[other].astype(np.int64)
    pair_seconds_into(network, rows, columns, pairs)
    seconds = match_both_ways(pairs, network.symmetric, mate, room, np.inf)
    if remembered:
        walk.known[one, other] = walk.known[other, one] = seconds
    return seconds
