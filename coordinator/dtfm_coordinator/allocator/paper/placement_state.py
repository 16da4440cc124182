"""A placement with everything that its cost is made of, so that a change costs only what it touches.

A placement is an array of all devices: K groups of R in path order, then the idle ones. Beside it stand each device's
all-reduce load, each group's slowest, each boundary's matching and its cost, and the nearest partners by which changes
are turned down (`nearest_partners`). Exchanging two devices
(`swaps`) changes the loads of two groups by one term each, and at most four boundaries, whose matchings are
repaired (`matching`).

The largest of all loads is much of the cost, and most changes leave it as it is. So there is a smooth cost besides,
with the loads' 8-norm instead: every load counts there, the larger the more.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_in_place_inside, compiled_inside
from dtfm_coordinator.allocator.paper.hamiltonian_path import shortest_path
from dtfm_coordinator.allocator.paper.matching import MatchingRoom, match_both_ways
from dtfm_coordinator.allocator.paper.nearest_partners import NearestPartners, look_in_stage

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


class PairCosts(NamedTuple):
    """Cost of every pair of devices, in seconds. Pairs that cannot talk are finite, and dearer than any path around
    them."""

    stages: int
    replicas: int
    symmetric: bool
    """Whether every link is alike in both directions."""
    reduce: Matrix
    """Seconds that row spends on column in an all-reduce, shape (N, N)."""
    reduce_back: Matrix
    """`reduce` transposed, for reading along rows; the same array where symmetric."""
    forward: Matrix
    """Seconds of a boundary message from row to column, shape (N, N)."""
    backward: Matrix
    """`forward` transposed; the same array where symmetric."""
    both: Matrix
    """Seconds of a boundary message there and one back, shape (N, N)."""


class PlacementState(NamedTuple):
    """Placement, and what its cost is made of."""

    order: Index
    """Devices, shape (N,): K groups of R in path order, then the idle ones."""
    loads: Matrix
    """All-reduce seconds of the device at each active position, shape (K * R,)."""
    slowest: Matrix
    """Largest load of each group, seconds, shape (K,)."""
    powers: Matrix
    """Sum of each group's loads to the power of eight, shape (K,)."""
    mates: Index
    """Replica of the later stage that each replica of the earlier one feeds, for each boundary, shape (K - 1, R)."""
    edges: Matrix
    """Seconds of each boundary, both directions, shape (K - 1,)."""
    nearest: NearestPartners
    """Nearest partners of each device in each stage, after `look_around`; stale after exchanges that do not note
    them."""
    trials: Index
    """Work space: trial matchings of up to four boundaries, shape (4, R)."""
    pairs: Matrix
    """Work space: seconds of the pairs of up to four boundaries, there and back, shape (4, 2, R, R)."""
    room: MatchingRoom
    """Work space of matchings."""
    changed: Matrix
    """Work space: the loads of two groups after an exchange, shape (2, R)."""
    trial_seconds: Matrix
    """Work space: trial costs of up to four boundaries, or what they are at least, shape (4,)."""


def network_of(reduce: Matrix, forward: Matrix, stages: int, replicas: int) -> PairCosts:
    """Return a network from seconds of all-reduce and boundary messages of each ordered pair, which may be infinite."""
    reduce, forward = _finite(reduce), _finite(forward)
    symmetric = np.array_equal(reduce, reduce.T) and np.array_equal(forward, forward.T)
    if symmetric:
        return PairCosts(stages, replicas, True, reduce, reduce, forward, forward, 2 * forward)
    back = np.ascontiguousarray(reduce.T), np.ascontiguousarray(forward.T)
    return PairCosts(stages, replicas, False, reduce, back[0], forward, back[1], forward + back[1])


def state_of(network: PairCosts, order: Index) -> PlacementState:
    """Return a placement with nothing computed yet: `refresh` it."""
    stages, replicas = network.stages, network.replicas
    return PlacementState(
        order=np.array(order, dtype=np.int64),
        loads=np.zeros(stages * replicas),
        slowest=np.zeros(stages),
        powers=np.zeros(stages),
        mates=np.tile(np.arange(replicas), (stages - 1, 1)),
        edges=np.zeros(stages - 1),
        nearest=NearestPartners.of_size(len(network.both), stages),
        trials=np.zeros((4, replicas), dtype=np.int64),
        pairs=np.zeros((4, 2, replicas, replicas)),
        room=MatchingRoom.of_size(replicas),
        changed=np.zeros((2, replicas)),
        trial_seconds=np.zeros(4),
    )


def _finite(seconds: Matrix) -> Matrix:
    """Return seconds in which pairs that cannot talk are dearer than any placement that avoids them, instead of
    infinite."""
    usable = np.isfinite(seconds)
    if usable.all():
        return np.ascontiguousarray(seconds)
    dear = 1e3 * max(float(seconds.max(where=usable, initial=0.0)), 1e-9)
    return np.where(usable, seconds, dear)


@compiled
def refresh(network: PairCosts, state: PlacementState) -> float:
    """Compute loads and boundaries anew, from the matchings there, and return the placement's cost in seconds."""
    stages, replicas = network.stages, network.replicas
    order = state.order
    for stage in range(stages):
        first = stage * replicas
        state.slowest[stage] = 0.0
        for position in range(first, first + replicas):
            load = 0.0
            for other in range(first, first + replicas):
                if other != position:
                    load += network.reduce[order[position], order[other]]
            state.loads[position] = load
            state.slowest[stage] = max(state.slowest[stage], load)
        state.powers[stage] = eighth_powers(state.loads[first : first + replicas])
    for boundary in range(stages - 1):
        state.edges[boundary] = boundary_seconds(network, state, boundary, state.mates[boundary])
    return cost(state)


@compiled
def look_around(network: PairCosts, state: PlacementState) -> None:
    """Look for the nearest partners of each device in each stage."""
    for stage in range(network.stages):
        look_in_stage(network.both, state.order, stage, network.replicas, state.nearest)


@compiled
def cost(state: PlacementState) -> float:
    """Return the placement's cost in seconds."""
    return float(state.slowest.max() + state.edges.sum())


@compiled
def cost_to_anneal(state: PlacementState, is_smooth: bool) -> float:
    """Return the placement's smooth cost in seconds, or else its cost."""
    return float(eighth_root(state.powers.sum()) + state.edges.sum()) if is_smooth else cost(state)


@compiled_in_place_inside
def eighth_power(value: float | np.float64) -> float:
    """Return the power of eight."""
    squared = value * value
    fourth = squared * squared
    return float(fourth * fourth)


@compiled_in_place_inside
def eighth_powers(loads: Matrix) -> float:
    """Return the sum of loads to the power of eight."""
    total = 0.0
    for load in loads:
        total += eighth_power(load)
    return total


@compiled_in_place_inside
def eighth_root(power: float | np.float64) -> float:
    """Return the eighth root."""
    return float(np.sqrt(np.sqrt(np.sqrt(power))))


@compiled_in_place_inside
def pair_seconds_into(network: PairCosts, rows: Index, columns: Index, pairs: Matrix) -> None:
    """Fill in `pairs`, shape (2, R, R): seconds from each of `rows` to each of `columns`, and back; only the first
    where the network is symmetric."""
    replicas = network.replicas
    for row in range(replicas):
        forward, backward = network.forward[rows[row]], network.backward[rows[row]]
        for column in range(replicas):
            pairs[0, row, column] = forward[columns[column]]
        if not network.symmetric:
            for column in range(replicas):
                pairs[1, row, column] = backward[columns[column]]


@compiled_in_place_inside
def boundary_seconds(network: PairCosts, state: PlacementState, boundary: int, mate: Index) -> float:
    """Return the seconds of both directions between a stage and the next, from and into the matching `mate`, by
    `match_both_ways`."""
    middle = (boundary + 1) * network.replicas
    rows = state.order[middle - network.replicas : middle]
    columns = state.order[middle : middle + network.replicas]
    pairs = state.pairs[0]
    pair_seconds_into(network, rows, columns, pairs)
    return match_both_ways(pairs, network.symmetric, mate, state.room, np.inf)


@compiled_inside
def rearrange(network: PairCosts, state: PlacementState, permutation: Index) -> None:
    """Put the stages into another order, with the boundaries that stay; the others' matchings and costs are stale."""
    stages, replicas = network.stages, network.replicas
    order, loads = state.order[: stages * replicas].copy(), state.loads.copy()
    slowest, mates, edges = state.slowest.copy(), state.mates.copy(), state.edges.copy()
    powers, nearest = state.powers.copy(), state.nearest
    seconds, others = nearest.seconds.copy(), nearest.others.copy()
    devices, after = nearest.devices.copy(), nearest.next.copy()
    for stage in range(stages):
        old = permutation[stage]
        state.order[stage * replicas : (stage + 1) * replicas] = order[old * replicas : (old + 1) * replicas]
        state.loads[stage * replicas : (stage + 1) * replicas] = loads[old * replicas : (old + 1) * replicas]
        state.slowest[stage], state.powers[stage] = slowest[old], powers[old]
        nearest.seconds[:, stage], nearest.others[:, stage] = seconds[:, old], others[:, old]
        nearest.devices[:, stage], nearest.next[:, stage] = devices[:, old], after[:, old]
        if stage < stages - 1:
            new = permutation[stage + 1]
            if new == old + 1:
                state.mates[stage], state.edges[stage] = mates[old], edges[old]
            elif new == old - 1:
                state.edges[stage] = edges[new]
                for replica in range(replicas):
                    state.mates[stage, mates[new, replica]] = replica


@compiled
def reorder(network: PairCosts, state: PlacementState) -> float:
    """Put the stages into the cheapest order over all their matchings, and return the placement's cost in seconds."""
    stages, replicas = network.stages, network.replicas
    order = state.order
    between = np.zeros((stages, stages))
    mate, pairs = state.trials[0], state.pairs[0]
    for one in range(stages):
        for other in range(one + 1, stages):
            if other == one + 1:
                between[one, other] = between[other, one] = state.edges[one]
                continue
            mate[:] = np.arange(replicas)
            rows, columns = (
                order[one * replicas : (one + 1) * replicas],
                order[other * replicas : (other + 1) * replicas],
            )
            pair_seconds_into(network, rows, columns, pairs)
            seconds = match_both_ways(pairs, network.symmetric, mate, state.room, np.inf)
            between[one, other] = between[other, one] = seconds
    found = shortest_path(between, np.arange(stages))
    length = 0.0
    for stage in range(stages - 1):
        length += between[found[stage], found[stage + 1]]
    if length < state.edges.sum() * (1 - 1e-12):
        rearrange(network, state, found)
        for stage in range(stages - 1):
            if abs(found[stage] - found[stage + 1]) != 1:
                state.mates[stage] = np.arange(replicas)
                state.edges[stage] = boundary_seconds(network, state, stage, state.mates[stage])
    return cost(state)


def routes_of(network: PairCosts, state: PlacementState) -> Index:
    """Return the devices of each pipeline along the boundaries' matchings, shape (R, K)."""
    groups = state.order[: network.stages * network.replicas].reshape(network.stages, network.replicas)
    row, routes = np.arange(network.replicas), [groups[0]]
    for boundary in range(network.stages - 1):
        row = state.mates[boundary, row]
        routes.append(groups[boundary + 1, row])
    return np.stack(routes, axis=1)
