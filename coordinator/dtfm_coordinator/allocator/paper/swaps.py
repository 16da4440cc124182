"""Changes of a placement, made only where the exact cost afterwards is within a limit.

Annealing draws the limit before it prices a change. So the cheap parts of the price come first: the loads of two
groups, one term a device, then what the newcomers' best partners cost, and only then the matchings that they change.
"""

import numpy as np

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.paper.matching import match_both_ways
from dtfm_coordinator.allocator.paper.placement_state import (
    Index,
    PairCosts,
    PlacementState,
    boundary_seconds,
    cost,
    rearrange,
)


@compiled_inside
def loads_after(network: PairCosts, state: PlacementState, position: int, newcomer: int, row: int) -> float:
    """Return the largest load of a position's group once `newcomer` has its place, seconds; put all of them into
    `changed[row]`."""
    replicas = network.replicas
    first = position - position % replicas
    leaver = state.order[position]
    added, taken = network.reduce_back[newcomer], network.reduce_back[leaver]
    onto = network.reduce[newcomer]
    own, largest = 0.0, 0.0
    changed = state.changed[row]
    for slot in range(replicas):
        if first + slot != position:
            device = state.order[first + slot]
            load = state.loads[first + slot] + added[device] - taken[device]
            own += onto[device]
            changed[slot] = load
            largest = max(largest, load)
    changed[position - first] = own
    return max(largest, own)


@compiled_inside
def newcomer_seconds(network: PairCosts, order: Index, newcomer: int, stage: int) -> float:
    """Return the least seconds, both directions, that a device next to a stage pays: with its best partner there."""
    first = stage * network.replicas
    forward, backward = network.forward[newcomer], network.backward[newcomer]
    least = np.inf
    for position in range(first, first + network.replicas):
        least = min(least, forward[order[position]] + backward[order[position]])
    return least


@compiled_inside
def touched(side: int, one: int, other: int, stages: int) -> int:
    """Return the boundary before (even) or behind (odd) the first (0, 1) or second (2, 3) stage; -1 if none or met
    before."""
    boundary = (one if side < 2 else other) - 1 + side % 2
    if boundary < 0 or boundary >= stages - 1 or (side >= 2 and (boundary == one - 1 or boundary == one)):
        return -1
    return boundary


@compiled
def exchange(network: PairCosts, state: PlacementState, here: int, there: int, limit: float) -> float:
    """Exchange the devices at two positions of different stages, if the cost then is no more than `limit`.

    Args:
        here: position in a group.
        there: position in another group, or of an idle device.
        limit: seconds that the cost may be afterwards.

    Returns:
        The cost, infinite where the exchange was not made.
    """
    stages, replicas = network.stages, network.replicas
    order, mates = state.order, state.mates
    one, other = here // replicas, there // replicas
    if other >= stages:
        other = -2  # idle: next to no stage
    one_slowest, other_slowest = loads_after(network, state, here, order[there], 0), 0.0
    reduction, kept = one_slowest, 0.0
    for stage in range(stages):
        if stage not in (one, other):
            reduction = max(reduction, state.slowest[stage])
    for boundary in range(stages - 1):
        if boundary not in (one - 1, one, other - 1, other):
            kept += state.edges[boundary]
    left = limit - kept - reduction
    if left < 0:
        return np.inf
    if other >= 0:
        other_slowest = loads_after(network, state, there, order[here], 1)
        reduction = max(reduction, other_slowest)
        left = limit - kept - reduction
        if left < 0:
            return np.inf
    order[here], order[there] = order[there], order[here]
    # What the newcomers pay with even their best partners settles most exchanges without a matching.
    least = 0.0
    for side in range(4):
        stage, newcomer = (one, order[here]) if side < 2 else (other, order[there])
        beside = stage - 1 + 2 * (side % 2)
        state.kept[side] = 0.0
        if 0 <= beside < stages and stage >= 0 and beside not in (one, other):
            state.kept[side] = newcomer_seconds(network, order, newcomer, beside)
        least += state.kept[side]
    for side in range(4):
        boundary = touched(side, one, other, stages)
        if least > left:
            break
        if boundary >= 0:
            least = max(0.0, least - state.kept[side])
            trial = state.room[5 + side]
            trial[:] = mates[boundary]
            seconds = boundary_seconds(network, state, boundary, trial, left - least)
            left -= seconds
            kept += seconds
            state.kept[side] = seconds
    if least > left:
        order[here], order[there] = order[there], order[here]
        return np.inf
    for side in range(4):
        boundary = touched(side, one, other, stages)
        if boundary >= 0:
            mates[boundary] = state.room[5 + side]
            state.edges[boundary] = state.kept[side]
    first = one * replicas
    state.loads[first : first + replicas] = state.changed[0]
    state.slowest[one] = one_slowest
    if other >= 0:
        first = other * replicas
        state.loads[first : first + replicas] = state.changed[1]
        state.slowest[other] = other_slowest
    return reduction + kept


@compiled
def turn(network: PairCosts, state: PlacementState, first: int, last: int, limit: float) -> float:
    """Reverse the order of the stages from `first` to `last`, if the cost then is no more than `limit`; return as
    `exchange`."""
    stages, replicas = network.stages, network.replicas
    seconds = cost(state)
    lower, upper = state.room[5], state.room[6]
    left_edge, right_edge = 0.0, 0.0
    order = state.order
    symmetric, slack, room = network.symmetric, state.slack, state.room[:5]
    head, tail = order[first * replicas : (first + 1) * replicas], order[last * replicas : (last + 1) * replicas]
    if first > 0:
        seconds -= state.edges[first - 1]
    if last < stages - 1:
        seconds -= state.edges[last]
    if seconds > limit:
        return np.inf
    if first > 0:
        lower[:] = np.arange(replicas)
        rows = order[(first - 1) * replicas : first * replicas]
        left_edge = match_both_ways(
            network.forward, network.backward, symmetric, rows, tail, lower, room, slack, limit - seconds
        )
        seconds += left_edge
        if seconds > limit:
            return np.inf
    if last < stages - 1:
        upper[:] = np.arange(replicas)
        columns = order[(last + 1) * replicas : (last + 2) * replicas]
        right_edge = match_both_ways(
            network.forward, network.backward, symmetric, head, columns, upper, room, slack, limit - seconds
        )
        seconds += right_edge
        if seconds > limit:
            return np.inf
    permutation = np.arange(stages)
    permutation[first : last + 1] = permutation[first : last + 1][::-1].copy()
    rearrange(network, state, permutation)
    if first > 0:
        state.mates[first - 1], state.edges[first - 1] = lower, left_edge
    if last < stages - 1:
        state.mates[last], state.edges[last] = upper, right_edge
    return cost(state)
