"""The runtime's order of compute, for the search: `protocol.schedule.orders` over slots, as machine code.

The two are held to each other by a test; a plan that is published always takes the runtime's own.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.compiled import compiled
from dtfm_coordinator.allocator.step.heap import pop, push
from dtfm_coordinator.allocator.step.routes import route_micro_batches
from dtfm_protocol.schedule import BACKWARD_COST, FORWARD_COST

Ints = npt.NDArray[np.int64]


class Course(NamedTuple):
    """What follows from the stages' counts and shares alone, whoever stands in the slots."""

    routes: Ints
    """The slot of every micro-batch at every stage, shape (M, K)."""
    crossed: Ints
    """The number of the pair of slots that each crosses at each boundary, shape (M, K - 1)."""
    pairs: Ints
    """Those pairs, shape (P, 2)."""
    actions: Ints
    """See `order_actions`."""
    starts: Ints
    peaks: Ints


Bools = npt.NDArray[np.bool_]


@compiled
def course_of(counts: Ints, shares: Ints, gpipe: bool) -> Course:
    """Routes and order of compute; arguments as for `order_actions`."""
    routes, crossed, pairs = route_micro_batches(counts, shares)
    actions, starts, peaks = order_actions(routes, counts, shares, gpipe)
    return Course(routes, crossed, pairs, actions, starts, peaks)


@compiled
def order_actions(routes: Ints, counts: Ints, shares: Ints, gpipe: bool) -> tuple[Ints, Ints, Ints]:
    """The order in which each slot computes.

    Args:
        routes: slots, shape (M, K).
        counts: peers of each stage, shape (K,).
        shares: micro-batches of each slot.
        gpipe: all forwards first; else 1F1B.

    Returns:
        Actions `2 * micro_batch` (forward) and `2 * micro_batch + 1` (backward), the slots' runs one after the other;
        where each slot's run begins, shape (slots + 1,); and the most micro-batches that each slot keeps between their
        forward and their backward.
    """
    micro_batches, stages = routes.shape
    slots = len(shares)
    starts = np.zeros(slots + 1, dtype=np.int64)
    starts[1:] = np.cumsum(2 * shares)
    actions = np.empty(starts[slots], dtype=np.int64)
    own, stage_of = _own_micro_batches(routes, counts, shares)
    limits = _limits(counts, shares)
    # What each slot could start: [stage, micro-batch]; `first` skips what it has started.
    forwards = np.zeros((stages, micro_batches), dtype=np.bool_)
    backwards = np.zeros((stages, micro_batches), dtype=np.bool_)
    forwards[0, :] = True
    first_forward, first_backward = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64)
    forwards_done, in_flight = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64)
    peaks, done = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64)
    busy = np.zeros(slots, dtype=np.bool_)
    keys, values, size = np.empty(slots + 1, dtype=np.float64), np.empty(slots + 1, dtype=np.int64), 0
    started, total = 0, 2 * micro_batches * stages

    turn = np.empty(max(2, counts[0]), dtype=np.int64)
    waiting, now = 0, 0
    for micro_batch in range(micro_batches):  # slots of the first stage, by first use
        if own[starts[routes[micro_batch, 0]] // 2] == micro_batch:
            turn[waiting] = routes[micro_batch, 0]
            waiting += 1
    while True:
        for number in range(waiting):
            slot = turn[number]
            if busy[slot]:
                continue
            stage = stage_of[slot]
            base = starts[slot] // 2
            action = -1
            if not (gpipe and forwards_done[slot] < shares[slot]):
                found, first_backward[slot] = _lowest(
                    backwards[stage], own, base, base + shares[slot], first_backward[slot]
                )
                if found >= 0:
                    backwards[stage, found] = False
                    action = 2 * found + 1
            if action < 0 and (gpipe or in_flight[slot] < limits[slot]):
                found, first_forward[slot] = _lowest(
                    forwards[stage], own, base, base + shares[slot], first_forward[slot]
                )
                if found >= 0:
                    forwards[stage, found] = False
                    action = 2 * found
                    in_flight[slot] += 1
                    peaks[slot] = max(peaks[slot], in_flight[slot])
            if action < 0:
                continue
            busy[slot] = True
            actions[starts[slot] + done[slot]] = action
            done[slot] += 1
            started += 1
            duration = BACKWARD_COST if action % 2 else FORWARD_COST
            # Whoever started first goes first among those that end together.
            size = push(keys, values, size, float((now + duration) * (total + 1) + started), slot)
        if size == 0:
            if started == total:
                return actions, starts, peaks
            # Every slot stands at its limit and waits for a forward that another one holds back.
            turn[0] = _held_back(forwards, own, starts, shares, stage_of)
            limits[turn[0]] += 1
            waiting, now = 1, 0
            continue
        key, slot, size = pop(keys, values, size)
        now = int(key) // (total + 1)
        action, stage = actions[starts[slot] + done[slot] - 1], stage_of[slot]
        micro_batch = action // 2
        busy[slot] = False
        turn[0], waiting = slot, 1
        if action % 2 == 0:
            forwards_done[slot] += 1
            if stage == stages - 1:
                backwards[stage, micro_batch] = True
            else:
                forwards[stage + 1, micro_batch] = True
                turn[1], waiting = routes[micro_batch, stage + 1], 2
        else:
            in_flight[slot] -= 1
            if stage > 0:
                backwards[stage - 1, micro_batch] = True
                turn[1], waiting = routes[micro_batch, stage - 1], 2


@compiled
def _own_micro_batches(routes: Ints, counts: Ints, shares: Ints) -> tuple[Ints, Ints]:
    """The micro-batches of each slot, ascending, the slots' runs one after the other; and each slot's stage."""
    micro_batches, stages = routes.shape
    slots = len(shares)
    own, stage_of = np.empty(shares.sum(), dtype=np.int64), np.empty(slots, dtype=np.int64)
    place = np.zeros(slots, dtype=np.int64)
    place[1:] = np.cumsum(shares)[:-1]
    for stage in range(stages):
        for micro_batch in range(micro_batches):
            slot = routes[micro_batch, stage]
            own[place[slot]] = micro_batch
            place[slot] += 1
    slot = 0
    for stage in range(stages):
        stage_of[slot : slot + counts[stage]] = stage
        slot += counts[stage]
    return own, stage_of


@compiled
def _limits(counts: Ints, shares: Ints) -> Ints:
    """Micro-batches that each slot may have between forward and backward under 1F1B."""
    limits = np.ones(len(shares), dtype=np.int64)
    end, least = len(shares), 0
    for later in range(len(counts)):
        stage = len(counts) - 1 - later
        for slot in range(end - counts[stage], end):
            if later:
                limits[slot] = 1 + later * -(-shares[slot] // least)
        smallest = shares[end - counts[stage] : end].min()
        least = min(least, smallest) if later else smallest
        end -= counts[stage]
    return limits


@compiled
def _lowest(ready: Bools, own: Ints, start: int, end: int, first: int) -> tuple[int, int]:
    """The lowest micro-batch of a slot that is ready, or -1; and how many at the front need not be looked at again."""
    place = start + first
    while place < end:
        if ready[own[place]]:
            return own[place], (first + 1 if place == start + first else first)
        place += 1
    return -1, first


@compiled
def _held_back(forwards: Bools, own: Ints, starts: Ints, shares: Ints, stage_of: Ints) -> int:
    """The slot with the lowest micro-batch whose forward is ready."""
    chosen, least = -1, forwards.shape[1]
    for slot in range(len(shares)):
        base = starts[slot] // 2
        for place in range(base, base + shares[slot]):
            if own[place] < least and forwards[stage_of[slot], own[place]]:
                chosen, least = slot, own[place]
                break
    return chosen
