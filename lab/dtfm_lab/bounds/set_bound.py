"""A lower bound of the step on a few peers that knows which of them have which links: shortest paths over their sets.

A plan is a row of stages, each on a set of peers that no other stage has. For each set of peers in use so far, set of
those of the last stage, and layer with which that ends, there are the least seconds, of any plan so far,

- until something leaves the last stage (A), and from when something comes back to it until all is over (B), and
- that a step takes for what is known so far.

The next stage, with a hop there of a, a hop back of b, and R for a round trip from it through further peers to the end,
takes of a step what is most of these:

- A + a, all its forwards and what others await of its backwards, b + B (`set_stages.WAY`). Where it cannot keep more
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

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_lab.bounds.peer_sets import PeerSets, peer_sets
from dtfm_lab.bounds.set_stages import (
    AHEAD,
    BACK,
    HELD,
    LINE,
    THROUGH,
    TURN,
    WAY,
    WHOLE,
    Stages,
    shared_seconds,
    stage_times,
    stages_of,
    whole_seconds,
)

Floats = npt.NDArray[np.float64]

MOST_PEERS, MOST_STEPS = 8, 4e7
"""Peers, and steps from a stage to the next that may have to be looked at, at most: a second or two of it."""


class Step(NamedTuple):
    """What all plans of a job have in common; seconds and bytes."""

    micro_batches: int
    ahead_bytes: float
    back_bytes: float
    tied_bytes: float
    """Bytes of the gradients that first and last stage share."""
    update: float
    """Least seconds of the update of all layers on one peer."""


class Hop(NamedTuple):
    """The way from one stage to the next, of a plan so far; seconds."""

    arrives: float
    """Until something arrives."""
    has_all: float
    """Until a message behind all of them arrives."""
    home: float
    """From when something goes back until all is over."""
    home_with_all: float
    """From when the first of all messages goes back until the last of them is home."""
    late: float
    """From when the last one has been sent."""
    is_hop: bool
    """Whether there is a stage before."""


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
    times = stage_times(problem, sets, stages)
    trips = _round_trips(stages, sets.ahead, sets.back, times, problem.layers)
    step = Step(
        problem.micro_batches, problem.ahead_bytes, problem.back_bytes, problem.tied_gradients, _least_update(problem)
    )
    all_sets = len(sets.members)
    known = np.empty((3, all_sets, all_sets, problem.layers + 1))
    alone, every = [1 << peer for peer in range(len(problem.alpha))], range(1, all_sets)
    # Plans with one peer a stage are soon looked at: what is no better than they are is then left out.
    for several, begun, lasts in ((False, False, alone), (True, False, every), (True, True, every)):
        for last in lasts:
            ceiling = _least(step, stages, sets, times, trips, known, last, several, begun, ceiling)
    return float(ceiling)


def one_stage_bound(problem: Problem, *, equal_parts: bool = False) -> float:
    """Return seconds of a step that no plan of one stage undercuts."""
    sets, stages = peer_sets(problem), stages_of(problem, equal_parts=equal_parts)
    needed = stage_times(problem, sets, stages)[:, :, stages.number[0, problem.layers], WHOLE].min(axis=0)
    return float((needed + np.maximum(sets.radius, _least_update(problem)))[1:].min())


def _least_update(problem: Problem) -> float:
    """Return the least seconds of the update of all layers on one peer."""
    whole = problem.gradient_before[-1] / problem.whole_layer_gradients if problem.whole_layer_gradients else 0.0
    return float(problem.optimizer.min() * whole)


@compiled
def _round_trips(stages: Stages, ahead: Floats, back: Floats, times: Floats, layers: int) -> Floats:
    """Return the least seconds of a round trip from a peer to the end, that begins with a layer, one peer a stage and
    through peers of a set, shape (S, N, layers + 1)."""
    count = stages.forward.shape[1]
    found = np.full((1 << count, count, layers + 1), np.inf)
    for left in range(1 << count):
        for peer in range(count):
            if left >> peer & 1:
                continue
            found[left, peer, layers] = 0.0
            for other in range(count):
                if not left >> other & 1:
                    continue
                hops = ahead[1 << peer, 1 << other] + back[1 << other, 1 << peer]
                for first in range(1, layers):
                    for end in range(first + 1, layers + 1):
                        stage = stages.number[first, end]
                        least = min(times[0, 1 << other, stage, THROUGH], times[1, 1 << other, stage, THROUGH])
                        total = hops + least + found[left ^ (1 << other), other, end]
                        found[left, peer, first] = min(found[left, peer, first], total)
    return found


@compiled
def _least(
    step: Step,
    stages: Stages,
    sets: PeerSets,
    times: Floats,
    trips: Floats,
    known: Floats,
    final: int,
    several: bool,
    begun: bool,
    ceiling: float,
) -> float:
    """Return the least seconds of any plan with these peers on its last stage, or `ceiling` if that is less.

    Args:
        known: room for what is known of plans so far, shape (3, S, S, layers + 1).
        final: the set of those peers.
        several: whether stages between may have more peers than one.
        begun: whether the first stage has more, where it is not the last one, too.
    """
    all_sets, count = sets.members.shape
    layers = stages.number.shape[0] - 1
    # Seconds until something leaves the last stage, from when it comes back, and of the step, before the commit.
    out, home, needed = known
    for used in range(all_sets):
        last = used
        while last and not used & final:
            known[:, used, last] = np.inf
            last = (last - 1) & used
    least_commits = _least_commits(sets.radius, step.update, count)
    trip, whole = np.empty(layers + 1), np.empty((2, len(stages.first)))
    for used in range(all_sets):
        for chosen in range(1, all_sets):
            is_last, is_alone = chosen == final, sets.members[chosen].sum() == 1
            if used & final or chosen & used or (chosen & final and not is_last):
                continue
            if not is_last and not (is_alone != begun if used == 0 else is_alone or several):
                continue
            now = used | chosen
            least_commit = least_commits[now | final]
            commit = max(sets.radius[now], step.update / sets.members[now].sum())
            _fill_trips(trips, chosen, all_sets - 1 ^ now, trip)
            _fill_whole(step, stages, sets, times, used, chosen, final, begun, ceiling, whole)
            # All sets of peers that the stage before may have; where there is none, once.
            last = used
            while last or used == 0:
                for first in range(1 if used else 0, layers if used else 1):
                    if used and not needed[used, last, first] + least_commit < ceiling:
                        continue
                    hop = _hop(step, stages, sets, out, home, used, last, chosen, first, final)
                    for end in range(layers if is_last else first + 1, layers + 1 if is_last else layers):
                        stage = stages.number[first, end]
                        least, ahead, back = np.inf, np.inf, np.inf
                        for anew in range(2):
                            time = times[anew, chosen, stage]
                            seconds = _stage_seconds(step, time, whole[anew, stage], hop, trip[end], is_alone, is_last)
                            if seconds + least_commit < ceiling:
                                least = min(least, seconds)
                                ahead, back = min(ahead, time[AHEAD]), min(back, time[BACK])
                        if used:
                            least = max(least, needed[used, last, first])
                        if is_last:
                            ceiling = min(ceiling, least + commit)
                        elif least + least_commit < ceiling:
                            out[now, chosen, end] = min(out[now, chosen, end], hop.arrives + ahead)
                            home[now, chosen, end] = min(home[now, chosen, end], back + hop.home)
                            needed[now, chosen, end] = min(needed[now, chosen, end], least)
                if last == 0:
                    break
                last = (last - 1) & used
    return ceiling


@compiled_inside
def _least_commits(radius: Floats, update: float, count: int) -> Floats:
    """Return the least seconds of the commit of any set that a set is part of, shape (S,): further peers may be nearer
    to all than those of a set are."""
    least = radius.copy()
    for used in range(len(least) - 1, 0, -1):
        for peer in range(count):
            least[used] = min(least[used], least[used | 1 << peer])
    return np.maximum(least, update / count)


@compiled_inside
def _fill_trips(trips: Floats, chosen: int, left: int, trip: Floats) -> None:
    """Set the least seconds of a round trip from any peer of a set, through others that are left."""
    trip[:] = np.inf
    for peer in range(trips.shape[1]):
        if chosen >> peer & 1:
            np.minimum(trip, trips[left, peer], trip)


@compiled_inside
def _fill_whole(
    step: Step,
    stages: Stages,
    sets: PeerSets,
    times: Floats,
    used: int,
    chosen: int,
    final: int,
    begun: bool,
    ceiling: float,
    whole: Floats,
) -> None:
    """Set the seconds until all that a stage computes is reduced, shape (2, P), with what ends share: between a first
    stage and those of `final`, or these and a first stage among the peers in use."""
    whole[:] = times[:, chosen, :, WHOLE]
    if step.tied_bytes == 0 or (used == 0) == (chosen == final):
        return
    layers = stages.number.shape[0] - 1
    for border in range(1, layers):
        stage = stages.number[border, layers] if used else stages.number[0, border]
        for anew in range(2):
            if not whole[anew, stage] < ceiling:
                continue
            least = np.inf
            if used == 0:
                least = whole_seconds(stages, sets, chosen, final, True, stage, anew, step.micro_batches)
            elif begun:
                least = whole_seconds(stages, sets, chosen, used, False, stage, anew, step.micro_batches)
            else:
                for peer in range(sets.members.shape[1]):
                    if used >> peer & 1:
                        seconds = whole_seconds(stages, sets, chosen, 1 << peer, True, stage, anew, step.micro_batches)
                        least = min(least, seconds)
            whole[anew, stage] = max(whole[anew, stage], least)


@compiled_inside
def _hop(
    step: Step,
    stages: Stages,
    sets: PeerSets,
    out: Floats,
    home: Floats,
    used: int,
    last: int,
    chosen: int,
    first: int,
    final: int,
) -> Hop:
    """Return the way from the stage before, on the set `last`, that ends before layer `first`; there may be none."""
    if used == 0:
        shared = 0.0
        if chosen != final and step.tied_bytes > 0:
            shared = shared_seconds(stages, sets, chosen, final, step.tied_bytes)
        return Hop(0.0, 0.0, shared, 0.0, 0.0, False)
    left, returned = out[used, last, first], home[used, last, first]
    late = sets.delay[chosen, last] + returned
    return Hop(
        left + sets.ahead[last, chosen],
        left + step.micro_batches * step.ahead_bytes / sets.rate[last, chosen] + sets.delay[last, chosen],
        sets.back[chosen, last] + returned,
        step.micro_batches * step.back_bytes / sets.rate[chosen, last] + late,
        late,
        True,
    )


@compiled_inside
def _stage_seconds(
    step: Step, time: Floats, whole: float, hop: Hop, trip: float, is_alone: bool, is_last: bool
) -> float:
    """Return the seconds of a step that a stage takes at least.

    Args:
        time: what is known of it, shape (`KINDS`,).
        whole: `WHOLE`, with what ends share.
        trip: seconds of a round trip from it to the end.
        is_alone: whether one peer serves it.
    """
    through = time[THROUGH] + trip
    way = max(time[WAY], time[TURN] + trip, np.ceil(step.micro_batches / time[HELD]) * through)
    if is_alone and time[HELD] < step.micro_batches:
        # It begins to go back before its last forward, so that what it awaits then is apart from what it awaits first.
        idle = max(0.0, trip - (time[HELD] - 1) * time[AHEAD]) + max(0.0, trip - (time[HELD] - 1) * time[BACK])
        way = max(way, time[WAY] + idle, through + trip)
    seconds = max(hop.arrives + way + hop.home, hop.arrives + whole)
    if hop.is_hop:
        seconds = max(seconds, hop.has_all + through + hop.home, hop.arrives + through + hop.home_with_all)
        if not is_last:
            seconds = max(seconds, hop.arrives + time[LINE] + hop.late)
    return float(seconds)
