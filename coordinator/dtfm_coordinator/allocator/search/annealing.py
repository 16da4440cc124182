"""Local search over layouts: simulated annealing on the fast form of the simulated step, as machine code.

A try changes one thing: two peers exchange places (idle ones included, and two of one stage, which re-pairs them); a
peer moves to another stage, joins, or goes home; idle peers become a stage, with layers of one beside it, or a stage's
peers go home, and one beside it has its layers; a layer moves from one stage to another; a micro-batch moves
from one peer of a stage to another; a stage's peers have more or fewer micro-batches in flight. After peers have
changed, the stages' shares follow their speeds again, and the layers are shared out anew where the old ones no longer
fit, and of few peers half of the time where stages have come or gone.
(Kirkpatrick, Gelatt and Vecchi, 1983.)

Of many peers nearly all changes are bad, and so bad that a sketch (`sketched_step`) tells. There a change is played if
it would be made by its sketch, where it is warmer, and has its layers shared out anew if that is better by its sketch.
(An approximation that accepts first: Christen and Fox, 2005; without their correction of what it is biased to.)
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.problem.moving_cost import LayersInForce, moving_a_step
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import layers_for, share_out
from dtfm_coordinator.allocator.search.sketched_step import sketched, sketchpad
from dtfm_coordinator.allocator.simulator.fast_simulator import play
from dtfm_coordinator.allocator.simulator.slot_course import course_of, no_course

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SWAP, MOVE, LAYER, SHARE, REFILL, AHEAD, DEPTH = range(7)
"""Kinds of change: exchange two peers, move a peer, move a layer, move a micro-batch, share the layers out anew, have
more or fewer micro-batches in flight, one stage more or fewer."""

DRAWN = 20
"""Changes that are drawn for each that is played, at most, where sketches choose."""
TOLERANCE = 3.0
"""Times as warm it is where sketches choose what is played: they are off by some per cent."""
AHEAD_SHARE = 0.08
"""Share of tries that change how much is in flight, where that is open."""
DEPTH_SHARE = 0.1
"""Share of tries that change the number of stages, where that is open."""
REFILLED, TOGETHER = 0.5, 0.5
"""Where new stages may be of several peers: share of these changes after which the layers are shared out anew, and of
new stages that are of any number of peers."""


@compiled
def anneal(
    problem: Problem,
    now: LayersInForce,
    order: Ints,
    counts: Ints,
    shares: Ints,
    layers: Ints,
    ahead: Ints,
    uneven: bool,
    largest: int,
    warm: float,
    cool: float,
    tries: int,
    screens: bool,
    rng: np.random.Generator,
) -> tuple[float, Ints, Ints, Ints, Ints, Ints]:
    """Try `tries` changes, and return the best layout met with its objective.

    Args:
        order: numbers of all peers, shape (N,): those in slots first, then the idle ones.
        counts, shares, layers, ahead: peers of each stage, micro-batches of each slot, layers of each stage, and
            micro-batches more in flight, as in `Layout`.
        uneven: whether the numbers of peers of the stages may change.
        largest: where those may, how many idle peers may become one more stage at most; 0: the number of stages stays.
        warm, cool: temperatures at the first and the last try, as fractions of the step.
        screens: whether changes that a sketch finds bad are not played; up to `DRAWN` are drawn for each try.

    Returns:
        Seconds of a step, plus those of moving there spread over the horizon; order, counts, shares, layers, ahead.
    """
    slots = len(shares)
    course = course_of(problem, order[:slots], counts, shares, layers, ahead, no_course())
    equal = np.empty((2, 0), dtype=np.float64)
    current = play(problem, order[:slots], counts, layers, course, equal)[3]
    current += moving_a_step(problem, now, order[:slots], counts, layers)
    best, best_order, best_counts, best_shares = current, order, counts, shares
    best_layers, best_ahead = layers, ahead
    pad, played, drawn, most = sketchpad(problem), 0, 0, DRAWN * tries if screens else tries
    as_is = tries < 0  # never; a flag that is written down would be a type of its own
    sketch = sketched(problem, order[:slots], counts, shares, layers, ahead, as_is, as_is, pad)[0]
    sketch += moving_a_step(problem, now, order[:slots], counts, layers)
    while played < tries and drawn < most:
        temperature = warm * (cool / warm) ** max(played / tries, drawn / most)
        drawn += 1
        new_order, new_counts, new_shares, new_layers, new_ahead = order, counts, shares, layers, ahead
        stages = len(counts)
        idle = len(order) - slots
        if uneven and largest > 0 and stages + idle > 1 and rng.random() < DEPTH_SHARE:
            change = DEPTH
        elif problem.paced and stages > 1 and rng.random() < AHEAD_SHARE:
            change = AHEAD
        else:
            change = _draw_change(rng, slots, stages, uneven)
        if change in (SWAP, MOVE):
            if change == SWAP:
                new_order, new_shares = _swapped(problem, order, counts, shares, rng)
            else:
                new_order, new_counts, new_shares = _moved(problem, order, counts, shares, rng)
            if len(new_order) == 0:
                continue
        elif change == LAYER:
            giver, taker = rng.integers(0, stages), rng.integers(0, stages)
            if giver == taker or layers[giver] == 1:
                continue
            new_layers = layers.copy()
            new_layers[giver] -= 1
            new_layers[taker] += 1
        elif change == DEPTH:
            if idle and (stages == 1 or rng.random() < 0.5):
                changed = _deeper(problem, order, counts, shares, layers, ahead, largest, rng)
            else:
                changed = _shallower(order, counts, shares, layers, ahead, rng)
            new_order, new_counts, new_shares, new_layers, new_ahead = changed
            if len(new_order) == 0:
                continue
        elif change == SHARE:
            new_shares = _shared_otherwise(counts, shares, rng)
            if len(new_shares) == 0:
                continue
        elif change == AHEAD:
            new_ahead = _ahead_otherwise(ahead, problem.micro_batches, rng)
            if (new_ahead == ahead).all():
                continue
        new_slots = len(new_shares)
        peers = new_order[:new_slots]
        refilled = change == REFILL or (change == DEPTH and largest > 1 and rng.random() < REFILLED)
        is_in_pad = as_is
        if screens:
            may_refill = stages > 1 and change in (SWAP, MOVE)
            new_sketch, is_in_pad = sketched(
                problem, peers, new_counts, new_shares, new_layers, new_ahead, refilled, may_refill, pad
            )
            if is_in_pad:
                new_layers = pad.layers[: len(new_counts)].copy()
            new_sketch += moving_a_step(problem, now, peers, new_counts, new_layers)
            if sketch < np.inf and not _is_taken(new_sketch - sketch, TOLERANCE * temperature * current, rng):
                continue
        played += 1
        same = (
            new_slots == slots
            and len(new_counts) == stages
            and (new_counts == counts).all()
            and (new_shares == shares).all()
        )
        known = course if same else no_course()
        new_course = course_of(problem, peers, new_counts, new_shares, new_layers, new_ahead, known)
        # Layers out of the sketch's pad may fit by recomputing only, where others fit without.
        if not new_course.fits or (refilled and not is_in_pad) or (is_in_pad and new_course.again.any()):
            new_layers = layers_for(problem, peers, new_counts, new_shares, new_ahead, new_course)
            if len(new_layers) == 0:
                continue
            new_course = course_of(problem, peers, new_counts, new_shares, new_layers, new_ahead, new_course)
        objective = play(problem, peers, new_counts, new_layers, new_course, equal)[3]
        objective += moving_a_step(problem, now, peers, new_counts, new_layers)
        if _is_taken(objective - current, temperature * current, rng):
            order, counts, shares, layers, ahead = new_order, new_counts, new_shares, new_layers, new_ahead
            course, slots, current = new_course, new_slots, objective
            if screens:
                sketch = sketched(problem, peers, counts, shares, layers, ahead, as_is, as_is, pad)[0]
                sketch += moving_a_step(problem, now, peers, counts, layers)
            if current < best * (1 - 1e-9):
                best, best_order, best_counts, best_shares = current, order, counts, shares
                best_layers, best_ahead = layers, ahead
    return best, best_order, best_counts, best_shares, best_layers, best_ahead


@compiled_inside
def _is_taken(worse: float, heat: float, rng: np.random.Generator) -> bool:
    """Whether a change that makes a step so many seconds worse is made, at a temperature of `heat` seconds."""
    return worse <= 0.0 or rng.random() < np.exp(-worse / heat)


@compiled_inside
def _draw_change(rng: np.random.Generator, slots: int, stages: int, uneven: bool) -> int:
    """Draw the kind of change to try."""
    dice = rng.random()
    if uneven and dice < 0.25:
        return MOVE
    if stages > 1 and dice > 0.85:
        return LAYER if dice > 0.88 else REFILL
    if slots > stages and dice > 0.75:
        return SHARE
    return SWAP


@compiled_inside
def _stage_of(counts: Ints, slot: int | np.int64) -> tuple[int, int]:
    """Return the stage of a slot and the stage's first slot; the number of stages for a place among the idle."""
    first = 0
    for stage in range(len(counts)):
        if slot < first + counts[stage]:
            return stage, first
        first += counts[stage]
    return len(counts), first


@compiled_inside
def _swapped(problem: Problem, order: Ints, counts: Ints, shares: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the order with two places exchanged, and the shares of their stages anew; empty where nothing changes."""
    slots = len(shares)
    here, there = rng.integers(0, slots), rng.integers(0, len(order))
    if here == there:
        return order[:0], shares
    order = order.copy()
    order[here], order[there] = order[there], order[here]
    stage, first = _stage_of(counts, here)
    other, other_first = _stage_of(counts, there)
    if stage != other:
        shares = shares.copy()
        share_out(problem, order, counts, shares, stage, first)
        if other < len(counts):
            share_out(problem, order, counts, shares, other, other_first)
    return order, shares


@compiled_inside
def _moved(
    problem: Problem, order: Ints, counts: Ints, shares: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Return order, counts and shares with one peer in another stage, or idle, or no longer idle; empty where that
    cannot be."""
    stages, slots = len(counts), len(shares)
    place = rng.integers(0, len(order))
    stage = _stage_of(counts, place)[0]
    target = rng.integers(0, stages + 1)
    if target == stage or (stage < stages and counts[stage] == 1):
        return order[:0], counts, shares
    if target < stages and counts[target] == problem.micro_batches:
        return order[:0], counts, shares
    counts = counts.copy()
    if stage < stages:
        counts[stage] -= 1
    rest = np.concatenate((order[:place], order[place + 1 :]))
    target_first = counts[:target].sum() if target < stages else counts.sum()
    to = target_first + (rng.integers(0, counts[target] + 1) if target < stages else 0)
    if target < stages:
        counts[target] += 1
    moved = np.concatenate((rest[:to], order[place : place + 1], rest[to:]))
    fresh = np.empty(counts.sum(), dtype=np.int64)
    old, new = int(np.int64(0)), int(np.int64(0))
    for number in range(stages):
        count = counts[number]
        if number in (stage, target):
            share_out(problem, moved, counts, fresh, number, new)
        else:
            for member in range(count):
                fresh[new + member] = shares[old + member]
        old += count + (1 if number == stage else 0) - (1 if number == target else 0)
        new += count
    assert old == slots
    return moved, counts, fresh


@compiled_inside
def _deeper(
    problem: Problem,
    order: Ints,
    counts: Ints,
    shares: Ints,
    layers: Ints,
    ahead: Ints,
    largest: int,
    rng: np.random.Generator,
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return order, counts, shares, layers and what is ahead with idle peers as one more stage, of some of the layers
    of one beside it; no order where that stage has but one.

    Where only several peers are worth a stage, no single one leads there: so half of the time they are any number.
    """
    slots, stages = len(shares), len(counts)
    place = rng.integers(0, stages + 1)
    giver = place - rng.integers(0, 2)  # the stage behind that place, or before it
    if giver < 0:
        giver += 1
    if giver == stages:
        giver -= 1
    if layers[giver] == 1:
        return order[:0], counts, shares, layers, ahead
    taken = 1 + (rng.integers(0, layers[giver] - 1) if rng.random() < 0.5 else 0)
    size = np.int64(1)
    if largest > 1 and rng.random() < TOGETHER:
        size = rng.integers(1, min(len(order) - slots, problem.micro_batches, largest) + 1)
    first, idle = counts[:place].sum(), rng.integers(slots, len(order) - size + 1)
    new_order = np.concatenate((order[:first], order[idle : idle + size], order[first:idle], order[idle + size :]))
    new_counts, new_shares = _with(counts, place, size), np.empty(slots + size, dtype=np.int64)
    new_shares[:first], new_shares[first + size :] = shares[:first], shares[first:]
    share_out(problem, new_order, new_counts, new_shares, int(place), first)
    new_layers = layers.copy()
    new_layers[giver] -= taken
    new_layers = _with(new_layers, place, taken)
    return new_order, new_counts, new_shares, new_layers, _with(ahead, place, ahead[giver])


@compiled_inside
def _shallower(
    order: Ints, counts: Ints, shares: Ints, layers: Ints, ahead: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return the same with one stage fewer, whose peers go home; one beside it has its layers."""
    stages = len(counts)
    stage = rng.integers(0, stages)
    taker = stage - 1 if stage == stages - 1 or (stage > 0 and rng.random() < 0.5) else stage + 1
    first = counts[:stage].sum()
    behind = first + counts[stage]
    new_order = np.concatenate((order[:first], order[behind:], order[first:behind]))
    new_layers = layers.copy()
    new_layers[taker] += layers[stage]
    kept = np.concatenate((np.arange(stage), np.arange(stage + 1, stages)))
    new_shares = np.concatenate((shares[:first], shares[behind:]))
    new_ahead = ahead[kept]
    if stages == 2:
        new_ahead[0] = 0  # a stage alone has nothing ahead
    return new_order, counts[kept], new_shares, new_layers[kept], new_ahead


@compiled_inside
def _with(values: Ints, place: int | np.int64, value: int | np.int64) -> Ints:
    """Return values with one more before that place."""
    new = np.empty(len(values) + 1, dtype=np.int64)
    new[:place], new[place], new[place + 1 :] = values[:place], value, values[place:]
    return new


@compiled_inside
def _shared_otherwise(counts: Ints, shares: Ints, rng: np.random.Generator) -> Ints:
    """Return the shares with one micro-batch handed from one peer of a stage to another; empty where that cannot be."""
    giver = rng.integers(0, len(shares))
    stage, first = _stage_of(counts, giver)
    taker = first + rng.integers(0, counts[stage])
    if taker == giver or shares[giver] == 1:
        return shares[:0]
    shares = shares.copy()
    shares[giver] -= 1
    shares[taker] += 1
    return shares


@compiled_inside
def _ahead_otherwise(ahead: Ints, most: int, rng: np.random.Generator) -> Ints:
    """Return how many more are in flight with one stage's number, or all, a little or much larger or smaller."""
    ahead = ahead.copy()
    dice, stage = rng.integers(0, 4), rng.integers(0, 2 * len(ahead))
    for number in range(len(ahead)):
        if stage == number or stage >= len(ahead):
            now = ahead[number]
            changed = (now + 1, now - 1, 2 * now + 2, now // 2)[dice]
            ahead[number] = min(most, max(0, changed))
    return ahead
