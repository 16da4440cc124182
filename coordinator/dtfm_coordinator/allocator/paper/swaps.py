"""Changes of a placement, made only where its cost afterwards, exact or smooth, is within a limit.

Annealing draws the limit before it prices a change. So the cheap parts of the price come first: what the newcomers
cost with even their nearest partners, where those are kept, then the loads of two groups, one term a device, then what
the boundaries cost at least, by the nearest partners of all, or else of the newcomers, and whatever their matchings,
and only then the matchings.
"""

import numpy as np

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_in_place, compiled_in_place_inside
from dtfm_coordinator.allocator.foundations.copies import copy_into
from dtfm_coordinator.allocator.paper.matching import least_both_ways, match_both_ways
from dtfm_coordinator.allocator.paper.nearest_partners import least_seconds, look_at_newcomer, seconds_with_nearest
from dtfm_coordinator.allocator.paper.placement_state import (
    PairCosts,
    PlacementState,
    cost_to_anneal,
    eighth_power,
    eighth_powers,
    eighth_root,
    pair_seconds_into,
    rearrange,
)


@compiled_in_place_inside
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


@compiled_in_place_inside
def touched(side: int, one: int, other: int, stages: int) -> int:
    """Return the boundary before (even) or behind (odd) the first (0, 1) or second (2, 3) stage; -1 if none or met
    before."""
    boundary = (one if side < 2 else other) - 1 + side % 2
    if boundary < 0 or boundary >= stages - 1 or (side >= 2 and (boundary == one - 1 or boundary == one)):
        return -1
    return boundary


@compiled_in_place
def exchange(
    network: PairCosts, state: PlacementState, here: int, there: int, limit: float, is_smooth: bool, looks: bool
) -> float:
    """Exchange the devices at two positions of different stages, if the cost then is no more than `limit`.

    Args:
        here: position in a group.
        there: position in another group, or of an idle device.
        limit: seconds that the cost may be afterwards.
        is_smooth: whether that is the smooth cost.
        looks: whether nearest partners are kept, looked at first, and noted afterwards: that pays where few exchanges
            are made. Else only the newcomers' are looked for, after the loads.

    Returns:
        The cost, infinite where the exchange was not made.
    """
    stages, replicas = network.stages, network.replicas
    order, mates = state.order, state.mates
    one, other = here // replicas, there // replicas
    if other >= stages:
        other = -2  # idle: next to no stage
    kept, powers, largest = 0.0, 0.0, 0.0
    for stage in range(stages):
        if stage not in (one, other):
            powers += state.powers[stage]
            largest = max(largest, state.slowest[stage])
    for boundary in range(stages - 1):
        if boundary not in (one - 1, one, other - 1, other):
            kept += state.edges[boundary]
    # From cheap to dear: bounds of the boundaries, loads, better bounds, matchings.
    room = limit - kept
    if looks:
        room -= newcomers_least(network, state, one, other, here, there, looks)
    if room < largest:
        return np.inf
    most = eighth_power(room) if is_smooth else np.inf
    one_slowest, other_slowest = loads_after(network, state, here, order[there], 0), 0.0
    largest = max(largest, one_slowest)
    if is_smooth:
        powers += eighth_powers(state.changed[0])
    if largest > room or powers > most:
        return np.inf
    if other >= 0:
        other_slowest = loads_after(network, state, there, order[here], 1)
        largest = max(largest, other_slowest)
        if is_smooth:
            powers += eighth_powers(state.changed[1])
        if largest > room or powers > most:
            return np.inf
    reduction = eighth_root(powers) if is_smooth else largest
    left = limit - kept - reduction
    if looks:
        least = nearest_least(network, state, one, other, here, there, left)
    else:
        least = newcomers_least(network, state, one, other, here, there, looks)
    if least > left:
        return np.inf
    order[here], order[there] = order[there], order[here]
    seconds = np.inf
    if not looks:
        least = 0.0
        for side in range(4):
            state.trial_seconds[side] = 0.0
    least = boundaries_least(network, state, one, other, least, left)
    if least <= left:
        seconds = match_boundaries(network, state, one, other, least, left)
    if seconds == np.inf:
        order[here], order[there] = order[there], order[here]
        return np.inf
    for side in range(4):
        boundary = touched(side, one, other, stages)
        if boundary >= 0:
            copy_into(mates[boundary], state.trials[side])
            state.edges[boundary] = state.trial_seconds[side]
    take_loads(state, one, one_slowest, 0)
    if other >= 0:
        take_loads(state, other, other_slowest, 1)
    if looks:
        to_one, to_other = int(order[here]), int(order[there])
        look_at_newcomer(network.both, order, one, replicas, to_other, to_one, state.nearest)
        if other >= 0:
            look_at_newcomer(network.both, order, other, replicas, to_one, to_other, state.nearest)
    return reduction + kept + seconds


@compiled_in_place_inside
def take_loads(state: PlacementState, stage: int, slowest: float, row: int) -> None:
    """Give a stage the loads that `loads_after` put into `changed[row]`, of which `slowest` is the largest."""
    loads = state.changed[row]
    copy_into(state.loads[stage * len(loads) : (stage + 1) * len(loads)], loads)
    state.slowest[stage], state.powers[stage] = slowest, eighth_powers(loads)


@compiled_in_place_inside
def newcomers_least(
    network: PairCosts, state: PlacementState, one: int, other: int, here: int, there: int, looks: bool
) -> float:
    """Return what the boundaries beside two devices that are about to be exchanged cost at least, seconds: what each of
    the two then pays with even its nearest partners, one at each boundary.

    Args:
        looks: whether nearest partners are kept; else they are looked for.
    """
    least = 0.0
    for side in range(4):
        stage, newcomer = (one, state.order[there]) if side < 2 else (other, state.order[here])
        beside = stage - 1 + 2 * (side % 2)
        if 0 <= beside < network.stages and stage >= 0 and beside not in (one, other):
            if looks:
                least += state.nearest.seconds[newcomer, beside]
            else:
                least += seconds_with_nearest(network.both[newcomer], state.order, beside, network.replicas)
    return least


@compiled_in_place_inside
def nearest_least(
    network: PairCosts, state: PlacementState, one: int, other: int, here: int, there: int, limit: float
) -> float:
    """Return what the boundaries of two stages cost at least, seconds, once devices are exchanged: what the worst off
    of each boundary's devices pays with even its nearest partner; some value beyond the limit once the sum is. Each
    boundary's is in `trial_seconds` then."""
    least = 0.0
    for side in range(4):
        boundary = touched(side, one, other, network.stages)
        if boundary >= 0 and least <= limit:
            later = farthest(network, state, boundary, boundary + 1, one, other, here, there)
            earlier = farthest(network, state, boundary + 1, boundary, one, other, here, there)
            state.trial_seconds[side] = max(later, earlier)
            least += state.trial_seconds[side]
    return least


@compiled_in_place_inside
def farthest(
    network: PairCosts, state: PlacementState, stage: int, beside: int, one: int, other: int, here: int, there: int
) -> float:
    """Return the seconds that the worst off of a stage's devices pays with its nearest partner in a stage beside, once
    devices are exchanged."""
    order, replicas, most = state.order, network.replicas, 0.0
    leaver, newcomer = -1, -1
    if beside == one:
        leaver, newcomer = int(order[here]), int(order[there])
    elif beside == other:
        leaver, newcomer = int(order[there]), int(order[here])
    for position in range(stage * replicas, (stage + 1) * replicas):
        device = order[there if position == here else (here if position == there else position)]
        most = max(most, least_seconds(network.both, state.nearest, device, beside, leaver, newcomer))
    return most


@compiled_in_place_inside
def boundaries_least(
    network: PairCosts, state: PlacementState, one: int, other: int, least: float, limit: float
) -> float:
    """Return what the boundaries of two stages cost at least, seconds, for `match_boundaries`; some value beyond the
    limit once the sum is.

    Args:
        least: what `nearest_least` returned just before; 0 where nothing is known, nor in `trial_seconds`.
    """
    for side in range(4):
        boundary = touched(side, one, other, network.stages)
        if boundary >= 0 and least <= limit:
            least -= state.trial_seconds[side]
            least += least_between(network, state, side, boundary, boundary + 1, limit - least)
    return least


@compiled_in_place_inside
def match_boundaries(
    network: PairCosts, state: PlacementState, one: int, other: int, least: float, limit: float
) -> float:
    """Return the seconds of the boundaries of two stages, and put each one's matching and its part into `trials` and
    `trial_seconds`; infinite where the sum is beyond the limit.

    Args:
        least: what `boundaries_least` returned just before.
    """
    seconds = 0.0
    for side in range(4):
        boundary = touched(side, one, other, network.stages)
        if boundary >= 0 and seconds < np.inf:
            least = max(0.0, least - state.trial_seconds[side])
            copy_into(state.trials[side], state.mates[boundary])
            seconds += matched_between(network, state, side, limit - seconds - least)
    return seconds


@compiled_in_place_inside
def least_between(
    network: PairCosts, state: PlacementState, side: int, earlier: int, later: int, limit: float
) -> float:
    """Return what a boundary between two stages costs at least, seconds, and put that and its pairs into
    `trial_seconds` and `pairs`; some value beyond the limit once it is."""
    replicas, order, pairs = network.replicas, state.order, state.pairs[side]
    rows = order[earlier * replicas : (earlier + 1) * replicas]
    columns = order[later * replicas : (later + 1) * replicas]
    pair_seconds_into(network, rows, columns, pairs)
    least = least_both_ways(pairs, network.symmetric, state.room, limit)
    state.trial_seconds[side] = least
    return least


@compiled_in_place_inside
def matched_between(network: PairCosts, state: PlacementState, side: int, limit: float) -> float:
    """Return the seconds of a boundary after `least_between`, and put them into `trial_seconds`; infinite where they
    are beyond the limit. The matching in `trials` is improved to the best."""
    seconds = match_both_ways(state.pairs[side], network.symmetric, state.trials[side], state.room, limit)
    state.trial_seconds[side] = seconds
    return seconds if seconds <= limit else np.inf


@compiled
def turn(network: PairCosts, state: PlacementState, first: int, last: int, limit: float, is_smooth: bool) -> float:
    """Reverse the order of the stages from `first` to `last`, if the cost then is no more than `limit`; return as
    `exchange`."""
    stages = network.stages
    seconds = cost_to_anneal(state, is_smooth)
    before, behind = first > 0, last < stages - 1
    if before:
        seconds -= state.edges[first - 1]
    if behind:
        seconds -= state.edges[last]
    if turned_edges(network, state, first, last, limit - seconds) == np.inf:
        return np.inf
    permutation = np.arange(stages)
    permutation[first : last + 1] = permutation[first : last + 1][::-1].copy()
    rearrange(network, state, permutation)
    if before:
        state.mates[first - 1], state.edges[first - 1] = state.trials[0], state.trial_seconds[0]
    if behind:
        state.mates[last], state.edges[last] = state.trials[1], state.trial_seconds[1]
    return cost_to_anneal(state, is_smooth)


@compiled_in_place_inside
def turned_edges(network: PairCosts, state: PlacementState, first: int, last: int, limit: float) -> float:
    """Return the seconds of the boundaries before and behind a run of stages if it were reversed, and put their
    matchings and their parts into `trials` and `trial_seconds`; infinite where the sum is beyond the limit."""
    least, seconds = 0.0, 0.0
    for side in range(2):
        earlier, later = (first - 1, last) if side == 0 else (first, last + 1)
        if earlier >= 0 and later < network.stages and least <= limit:
            least += least_between(network, state, side, earlier, later, limit - least)
    if least > limit:
        return np.inf
    for side in range(2):
        earlier, later = (first - 1, last) if side == 0 else (first, last + 1)
        if earlier >= 0 and later < network.stages and seconds < np.inf:
            least = max(0.0, least - state.trial_seconds[side])
            for replica in range(network.replicas):
                state.trials[side, replica] = replica
            seconds += matched_between(network, state, side, limit - seconds - least)
    return seconds
