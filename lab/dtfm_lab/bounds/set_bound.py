"""A lower bound of the step on a few peers that knows which of them have which links: shortest paths over their sets.

A plan is a row of stages, each on a set of peers that no other stage has. For each set of peers in use so far, set of
those of the last stage, and layer with which that ends, there are the least seconds, of any plan so far,

- until something leaves the last stage (A), and from when something comes back to it until all is over (B), and
- that a step takes for what is known so far.

The next stage, with a hop there of a, a hop back of b, and R for a round trip from it through further peers to the end,
takes of a step what is most of these:

- A + a, all its forwards and what others await of its backwards, b + B (`set_paths.WAY`). Where it cannot keep more
  than q of its micro-batches at once, R passes twice but for q - 1 actions: before its first backward, and after its
  last forward.
- A + a, and until all that it computes is reduced (`WHOLE`).
- A + a, all of the longer of its forwards and backwards and one of the others, R, b + B: its last forward goes on to
  the end and back, and its first backward has come from there (`TURN`).
- A + a, its round trips, of which no more than it keeps micro-batches are under way at once, b + B.
- A, all messages ahead on all links there together, the delay, a round trip from there, b + B; and likewise back.
- A + a, a forward, all messages of a peer with both through its line, the delay of the last one, B (`LINE`).

Last come the commit, from the peer that is nearest to all in use, or the update.

The peers of the last stage are looked at one set after the other, so that it is known with whom the first one reduces
what both share. What is no better than the best so far is left out: that makes what is left dearer, and so the bound
tighter.
"""

import numpy as np

from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_lab.bounds.peer_sets import peer_sets
from dtfm_lab.bounds.set_paths import WHOLE, Step, least_path, round_trips, stage_times
from dtfm_lab.bounds.set_stages import stages_of

MOST_PEERS, MOST_STEPS = 8, 4e7
"""Peers, and steps from a stage to the next that may have to be looked at, at most: a second or two of it."""


def is_small(problem: Problem) -> bool:
    """Whether a problem has so few peers and layers that `set_bound` is soon there."""
    count = len(problem.alpha)
    return count <= MOST_PEERS and 4.0**count * problem.layers**2 / 2 <= MOST_STEPS


def set_bound(problem: Problem, ceiling: float = np.inf, *, equal_parts: bool = False) -> float:
    """Return seconds of a step that no plan in the problem's schedule undercuts, or `ceiling` if that is less.

    Args:
        equal_parts: whether all holders of a gradient sum equal parts of it, and send them straight to each other.
    """
    sets, stages = peer_sets(problem), stages_of(problem, equal_parts=equal_parts)
    times = stage_times(stages, sets, problem.micro_batches)
    trips = round_trips(stages, sets.ahead, sets.back, times, problem.layers)
    step = Step(
        problem.micro_batches, problem.ahead_bytes, problem.back_bytes, problem.tied_gradients, _least_update(problem)
    )
    all_sets = len(sets.members)
    known = np.empty((3, all_sets, all_sets, problem.layers + 1))
    alone, every = [1 << peer for peer in range(len(problem.alpha))], range(1, all_sets)
    # Plans with one peer a stage are soon looked at: what is no better than they are is then left out.
    for several, begun, lasts in ((False, False, alone), (True, False, every), (True, True, every)):
        for last in lasts:
            ceiling = least_path(step, stages, sets, times, trips, known, last, several, begun, ceiling)
    return float(ceiling)


def one_stage_bound(problem: Problem, *, equal_parts: bool = False) -> float:
    """Return seconds of a step that no plan of one stage undercuts."""
    sets, stages = peer_sets(problem), stages_of(problem, equal_parts=equal_parts)
    needed = stage_times(stages, sets, problem.micro_batches)[:, :, stages.number[0, problem.layers], WHOLE].min(axis=0)
    return float((needed + np.maximum(sets.radius, _least_update(problem)))[1:].min())


def _least_update(problem: Problem) -> float:
    """Return the least seconds of the update of all layers on one peer."""
    whole = problem.gradient_before[-1] / problem.whole_layer_gradients if problem.whole_layer_gradients else 0.0
    return float(problem.optimizer.min() * whole)
