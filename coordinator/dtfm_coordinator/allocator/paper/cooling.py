"""Simulated annealing on the smooth or the exact cost, one temperature at a time; the best by the exact one is kept.

Much of what a placement costs hangs on few devices. So some of the changes begin with one of them: one of the slowest
group, or of a boundary's slowest pair.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_in_place, compiled_in_place_inside
from dtfm_coordinator.allocator.foundations.copies import copy_into
from dtfm_coordinator.allocator.paper.placement_state import Index, PairCosts, PlacementState, cost, cost_to_anneal
from dtfm_coordinator.allocator.paper.swaps import exchange, turn

Words = npt.NDArray[np.uint64]

TURNS = 0.02
"""Share of the changes that reverse a run of stages."""


@compiled_in_place
def uniform(random: Words) -> float:
    """Return the next number in (0, 1) of a 64-bit xorshift generator (Marsaglia 2003); its state is of shape (1,), not
    zero."""
    word = random[0]
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    random[0] = word
    return (np.float64(word >> np.uint64(12)) + 0.5) / 4503599627370496.0


@compiled_in_place_inside
def below(random: Words, count: int) -> int:
    """Return a random integer from 0 to count - 1."""
    return int(uniform(random) * count)


@compiled_in_place_inside
def draw_first(network: PairCosts, state: PlacementState, random: Words, focus: float) -> int:
    """Draw a position in a group: with probability `focus` one that the cost depends on, else any."""
    replicas = network.replicas
    choice = uniform(random)
    if choice < focus / 2:
        first = int(np.argmax(state.slowest)) * replicas
        if below(random, 2) == 0:
            return first + below(random, replicas)
        return first + int(np.argmax(state.loads[first : first + replicas]))
    if choice < focus and network.stages > 1:
        boundary = below(random, network.stages - 1)
        earlier, later = boundary * replicas, (boundary + 1) * replicas
        seconds = network.forward if below(random, 2) == 0 else network.backward
        worst, largest = 0, -1.0
        for replica in range(replicas):
            here, there = state.order[earlier + replica], state.order[later + state.mates[boundary, replica]]
            if seconds[here, there] > largest:
                worst, largest = replica, seconds[here, there]
        if below(random, 2) == 0:
            return earlier + worst
        return later + int(state.mates[boundary, worst])
    return below(random, network.stages * replicas)


@compiled_in_place
def anneal(
    network: PairCosts,
    state: PlacementState,
    random: Words,
    best: Index,
    best_cost: float,
    temperature: float,
    steps: int,
    focus: float,
    is_smooth: bool,
    looks: bool,
) -> tuple[float, int]:
    """Try `steps` changes at one temperature (Metropolis 1953): exchanges of two devices, now and then a reversal of
    stages.

    Args:
        random: the generator's state, shape (1,).
        best: the best placement so far, shape (N,); changed in place where a better one is met.
        best_cost: cost of `best`, seconds.
        temperature: seconds that a change for the worse may cost, give or take.
        focus: share of the exchanges that begin with a device that the cost depends on.
        is_smooth: whether changes are judged by the smooth cost.
        looks: as in `exchange`.

    Returns:
        The best cost met, `best_cost` where none was better; and the number of changes that were made.
    """
    stages, replicas = network.stages, network.replicas
    made = int(np.int64(0))
    elsewhere = len(state.order) - replicas
    turns = TURNS if stages > 2 else 0.0
    now = cost_to_anneal(state, is_smooth)
    for _ in range(steps):
        # The limit is drawn first, so that most changes are turned down before they are worked out.
        limit = now - temperature * np.log(uniform(random))
        if elsewhere == 0 or uniform(random) < turns:
            first, last = below(random, stages), below(random, stages)
            if first > last:
                first, last = last, first
            if last == first or last - first == stages - 1:
                continue
            after = turn(network, state, first, last, limit, is_smooth)
        else:
            here = draw_first(network, state, random, focus)
            there = below(random, elsewhere)
            if there >= here - here % replicas:
                there += replicas
            after = exchange(network, state, here, there, limit, is_smooth, looks)
        if after < np.inf:
            now = after
            made += 1
            met = cost(state) if is_smooth else after
            if met < best_cost * (1 - 1e-12):
                best_cost = met
                copy_into(best, state.order)
    return best_cost, made
