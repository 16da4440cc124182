"""Changes of a placement, made only where the exact cost afterwards is within a limit.

Annealing draws the limit before it prices a change. So the cheap parts of the price come first: the loads of two
groups, one term a device, then what the newcomers' best partners cost, then what the boundaries cost at least whatever
their matchings, and only then the matchings.
"""

import numpy as np

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_in_place
from dtfm_coordinator.allocator.foundations.copies import copy_into
from dtfm_coordinator.allocator.paper.matching import least_both_ways, match_both_ways
from dtfm_coordinator.allocator.paper.placement_state import (
    Index,
    PairCosts,
    PlacementState,
    cost,
    pair_up,
    rearrange,
)


@compiled_in_place
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


@compiled_in_place
def newcomer_seconds(network: PairCosts, order: Index, newcomer: int, stage: int) -> float:
    """Return the least seconds, both directions, that a device next to a stage pays: with its best partner there."""
    first = stage * network.replicas
    forward, backward = network.forward[newcomer], network.backward[newcomer]
    least = np.inf
    for position in range(first, first + network.replicas):
        least = min(least, forward[order[position]] + backward[order[position]])
    return least


@compiled_in_place
def touched(side: int, one: int, other: int, stages: int) -> int:
    """Return the boundary before (even) or behind (odd) the first (0, 1) or second (2, 3) stage; -1 if none or met
    before."""
    boundary = (one if side < 2 else other) - 1 + side % 2
    if boundary < 0 or boundary >= stages - 1 or (side >= 2 and (boundary == one - 1 or boundary == one)):
        return -1
    return boundary


@compiled_in_place
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
    seconds = np.inf
    if newcomers_least(network, state, here, there) <= left:
        least = boundaries_least(network, state, one, other, left)
        if least <= left:
            seconds = match_boundaries(network, state, one, other, least, left)
    if seconds > left:
        order[here], order[there] = order[there], order[here]
        return np.inf
    for side in range(4):
        boundary = touched(side, one, other, stages)
        if boundary >= 0:
            copy_into(mates[boundary], state.trials[side])
            state.edges[boundary] = state.kept[side]
    copy_into(state.loads[one * replicas : (one + 1) * replicas], state.changed[0])
    state.slowest[one] = one_slowest
    if other >= 0:
        copy_into(state.loads[other * replicas : (other + 1) * replicas], state.changed[1])
        state.slowest[other] = other_slowest
    return reduction + kept + seconds


@compiled_in_place
def newcomers_least(network: PairCosts, state: PlacementState, here: int, there: int) -> float:
    """Return what the boundaries of two exchanged devices cost at least, seconds: what each of the two pays with even
    its best partners, one at each boundary."""
    stages, replicas, least = network.stages, network.replicas, 0.0
    one, other = here // replicas, there // replicas
    for side in range(4):
        stage, newcomer = (one, state.order[here]) if side < 2 else (other, state.order[there])
        beside = stage - 1 + 2 * (side % 2)
        if 0 <= beside < stages and stage < stages and beside not in (one, other):
            least += newcomer_seconds(network, state.order, newcomer, beside)
    return least


@compiled_in_place
def boundaries_least(network: PairCosts, state: PlacementState, one: int, other: int, limit: float) -> float:
    """Return what the boundaries of two stages cost at least, seconds, and put each one's pairs and its part into
    `pairs` and `kept`; some value beyond the limit once the sum is."""
    replicas, least = network.replicas, 0.0
    for side in range(4):
        boundary = touched(side, one, other, network.stages)
        if boundary >= 0:
            middle = (boundary + 1) * replicas
            rows, columns = state.order[middle - replicas : middle], state.order[middle : middle + replicas]
            pairs = state.pairs[side]
            pair_up(network, rows, columns, pairs)
            state.kept[side] = least_both_ways(pairs, network.symmetric, state.room, limit - least)
            least += state.kept[side]
            if least > limit:
                break
    return least


@compiled_in_place
def match_boundaries(
    network: PairCosts, state: PlacementState, one: int, other: int, least: float, limit: float
) -> float:
    """Return the seconds of the boundaries of two stages, and put each one's matching and its part into `trials` and
    `kept`, from what `boundaries_least` put there; some value beyond the limit once the sum is.

    Args:
        least: what it returned.
    """
    seconds = 0.0
    for side in range(4):
        boundary = touched(side, one, other, network.stages)
        if boundary >= 0:
            least = max(0.0, least - state.kept[side])
            trial = state.trials[side]
            copy_into(trial, state.mates[boundary])
            stop = limit - seconds - least
            state.kept[side] = match_both_ways(state.pairs[side], network.symmetric, trial, state.room, stop)
            seconds += state.kept[side]
            if seconds + least > limit:
                return np.inf
    return seconds


@compiled
def turn(network: PairCosts, state: PlacementState, first: int, last: int, limit: float) -> float:
    """Reverse the order of the stages from `first` to `last`, if the cost then is no more than `limit`; return as
    `exchange`."""
    stages = network.stages
    seconds = cost(state)
    before, behind = first > 0, last < stages - 1
    if before:
        seconds -= state.edges[first - 1]
    if behind:
        seconds -= state.edges[last]
    edges = turned_edges(network, state, first, last, limit - seconds)
    if seconds + edges > limit:
        return np.inf
    permutation = np.arange(stages)
    permutation[first : last + 1] = permutation[first : last + 1][::-1].copy()
    rearrange(network, state, permutation)
    if before:
        state.mates[first - 1], state.edges[first - 1] = state.trials[0], state.kept[0]
    if behind:
        state.mates[last], state.edges[last] = state.trials[1], state.kept[1]
    return cost(state)


@compiled_in_place
def turned_edges(network: PairCosts, state: PlacementState, first: int, last: int, limit: float) -> float:
    """Return the seconds of the boundaries before and behind a run of stages if it were reversed, and put their
    matchings and their parts into `trials` and `kept`; some value beyond the limit once the sum is."""
    replicas, order, least = network.replicas, state.order, 0.0
    for side in range(2):
        earlier, later = (first - 1, last) if side == 0 else (first, last + 1)
        state.kept[side] = 0.0
        if earlier >= 0 and later < network.stages:
            rows, columns = order[earlier * replicas :][:replicas], order[later * replicas :][:replicas]
            pair_up(network, rows, columns, state.pairs[side])
            state.kept[side] = least_both_ways(state.pairs[side], network.symmetric, state.room, limit - least)
            least += state.kept[side]
            if least > limit:
                return np.inf
    seconds = 0.0
    for side in range(2):
        earlier, later = (first - 1, last) if side == 0 else (first, last + 1)
        if earlier >= 0 and later < network.stages:
            least -= state.kept[side]
            trial = state.trials[side]
            for replica in range(replicas):
                trial[replica] = replica
            stop = limit - seconds - least
            state.kept[side] = match_both_ways(state.pairs[side], network.symmetric, trial, state.room, stop)
            seconds += state.kept[side]
    return seconds
