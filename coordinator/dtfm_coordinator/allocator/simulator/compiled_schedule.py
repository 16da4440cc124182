"""Order of compute as the runtime has it (`dtfm_protocol.plan.schedule.orders`), over slots, as machine code.

What may be started when, how long it takes, and how many micro-batches a peer may keep are the runtime's own rules
(`plan.schedule_rules`), compiled. The run itself is written twice: the runtime's works on names and actions, and
must not need a compiler; this one works on arrays. A test holds the two to each other; a plan that is published always
takes the runtime's own.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_in_place_inside, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import GPIPE, ZERO_BUBBLE
from dtfm_coordinator.allocator.simulator.heap import pop, push
from dtfm_protocol.plan import schedule_rules
from dtfm_protocol.plan.schedule_rules import FORWARD_COST, WEIGHT_COST

Ints = npt.NDArray[np.int64]

KINDS = 3
FORWARD, BACKWARD, WEIGHT = range(KINDS)
"""Kinds of action; an action's number is `KINDS * micro_batch` and one of these."""


_backward_cost = compiled_inside(schedule_rules.backward_cost)
_may_go_back = compiled_inside(schedule_rules.may_go_back)
_may_go_ahead = compiled_inside(schedule_rules.may_go_ahead)
_peer_limits = compiled_inside(schedule_rules.limits)


class SlotOrders(NamedTuple):
    """Order of compute of every slot, and what it has the slots keep."""

    actions: Ints
    """Actions (`KINDS * micro_batch + FORWARD` and so on), the slots' runs one after the other."""
    starts: Ints
    """Places where each slot's run begins, shape (slots + 1,)."""
    peaks: Ints
    """Most micro-batches whose activations each slot keeps: from their forward to the last of their backward."""
    flights: Ints
    """Most micro-batches of each slot between their forward and their backward."""
    waits: Ints
    """Most micro-batches of each slot whose weights' gradients wait for their own action."""


class Pace(NamedTuple):
    """What actions and messages take, and how many micro-batches each slot may have, as `plan.pacing` says it."""

    took: Ints
    """Duration of an action by kind and slot, shape (KINDS, slots)."""
    transfer: Ints
    """Time for which a message takes the link of each pair, by FORWARD and BACKWARD, shape (2, P)."""
    delay: Ints
    """Time from then until it has arrived, shape (2, P)."""
    in_flight: Ints
    """Micro-batches between forward and backward, at most, shape (slots,)."""
    kept: Ints
    """Micro-batches whose activations are kept, at most, shape (slots,)."""


Bools = npt.NDArray[np.bool_]


class _Made(NamedTuple):
    """What the slots have done and could do, while orders are made. Counts by slot, unless said otherwise."""

    actions: Ints
    starts: Ints
    """As in `SlotOrders`."""
    own: Ints
    """Micro-batches of each slot, ascending, the slots' runs one after the other."""
    stage_of: Ints
    limits: Ints
    most: Ints
    """Micro-batches in flight, and kept, at most."""
    forwards: Bools
    backwards: Bools
    """Micro-batches whose forward or backward could start, shape (K, M)."""
    forwards_ready: Ints
    backwards_ready: Ints
    """How many those are."""
    first_forward: Ints
    first_backward: Ints
    """How many of its own a slot has started, up to the first that it has not: they need not be looked at again."""
    forwards_done: Ints
    in_flight: Ints
    kept: Ints
    peaks: Ints
    flights: Ints
    waits: Ints
    """As in `SlotOrders`."""
    done: Ints
    """Actions that were started."""
    weights: Ints
    """Micro-batches in the order of the backwards that have ended, the slots' runs one after the other."""
    weights_ready: Ints
    weights_done: Ints
    busy: Bools
    """Whether each slot computes."""
    free: Ints
    """Time from which on each way of a pair carries nothing, shape (2, P)."""
    where: Ints
    what: Ints
    """Of each event, by number as it was foreseen, the slot, and the action that ends there; or, as its complement,
    whose input arrives there."""
    times: Ints
    numbers: Ints
    """Events to come; a heap."""
    turn: Ints
    """Slots that may have something to start."""


@compiled
def plain_pace(counts: Ints, shares: Ints, pairs: int, split: bool) -> Pace:
    """Return the pace of a plan that has none of its own: equally fast stages, free links, as few in flight as keep
    those busy."""
    took = np.ones((KINDS, len(shares)), dtype=np.int64)
    took[FORWARD], took[BACKWARD], took[WEIGHT] = FORWARD_COST, _backward_cost(split), WEIGHT_COST
    in_flight, kept = plain_limits(counts, shares, split)
    free = np.zeros((2, pairs), dtype=np.int64)
    return Pace(took, free, free, in_flight, kept)


@compiled
def kinds_of(schedule: int) -> int:
    """Return the number of actions that each micro-batch takes on each peer."""
    return 3 if schedule == ZERO_BUBBLE else 2


@compiled
def order_actions(routes: Ints, crossed: Ints, counts: Ints, shares: Ints, schedule: int, pace: Pace) -> SlotOrders:
    """Return the order in which each slot computes.

    Args:
        routes, crossed: slots and pairs of every micro-batch, as `route_micro_batches` returns them.
        counts: number of peers of each stage, shape (K,).
        shares: number of micro-batches of each slot, shape (slots,).
        schedule: index into `problem_arrays.SCHEDULES`.
    """
    micro_batches, stages = routes.shape
    slots, kinds = len(shares), kinds_of(schedule)
    starts = np.zeros(slots + 1, dtype=np.int64)
    for slot in range(slots):
        starts[slot + 1] = starts[slot] + kinds * shares[slot]
    actions = np.empty(starts[slots], dtype=np.int64)
    own, stage_of = _own_micro_batches(routes, counts, shares)
    most_events = kinds * micro_batches * stages + 2 * micro_batches * (stages - 1)
    forwards = np.zeros((stages, micro_batches), dtype=np.bool_)
    forwards[0, :] = True
    forwards_ready = np.zeros(slots, dtype=np.int64)
    for slot in range(counts[0]):
        forwards_ready[slot] = shares[slot]
    made = _Made(
        actions,
        starts,
        own,
        stage_of,
        limits=pace.in_flight.copy(),
        most=pace.kept.copy(),
        forwards=forwards,
        backwards=np.zeros((stages, micro_batches), dtype=np.bool_),
        forwards_ready=forwards_ready,
        backwards_ready=np.zeros(slots, dtype=np.int64),
        first_forward=np.zeros(slots, dtype=np.int64),
        first_backward=np.zeros(slots, dtype=np.int64),
        forwards_done=np.zeros(slots, dtype=np.int64),
        in_flight=np.zeros(slots, dtype=np.int64),
        kept=np.zeros(slots, dtype=np.int64),
        peaks=np.zeros(slots, dtype=np.int64),
        flights=np.zeros(slots, dtype=np.int64),
        waits=np.zeros(slots, dtype=np.int64),
        done=np.zeros(slots, dtype=np.int64),
        weights=np.empty_like(own),
        weights_ready=np.zeros(slots, dtype=np.int64),
        weights_done=np.zeros(slots, dtype=np.int64),
        busy=np.zeros(slots, dtype=np.bool_),
        free=np.zeros(pace.transfer.shape, dtype=np.int64),
        where=np.empty(most_events, dtype=np.int64),
        what=np.empty(most_events, dtype=np.int64),
        times=np.empty(most_events, dtype=np.int64),
        numbers=np.empty(most_events, dtype=np.int64),
        turn=np.empty(max(2, counts[0]), dtype=np.int64),
    )
    _run(routes, crossed, shares, schedule, pace, made)
    return SlotOrders(actions, starts, made.peaks, made.flights, made.waits)


@compiled_in_place_inside
def _run(routes: Ints, crossed: Ints, shares: Ints, schedule: int, pace: Pace, made: _Made) -> None:
    """Play the step and take down what each slot does.

    One long function on purpose: it runs for every change that a search tries, and its parts would hand each other what
    it has in its hands.
    """
    micro_batches, stages = routes.shape
    gpipe, split, kinds = schedule == GPIPE, schedule == ZERO_BUBBLE, kinds_of(schedule)
    actions, starts, own, stage_of, limits, most = (
        made.actions,
        made.starts,
        made.own,
        made.stage_of,
        made.limits,
        made.most,
    )
    forwards, backwards, turn, where, what = made.forwards, made.backwards, made.turn, made.where, made.what
    forwards_ready, backwards_ready, forwards_done = made.forwards_ready, made.backwards_ready, made.forwards_done
    first_forward, first_backward, in_flight, kept = made.first_forward, made.first_backward, made.in_flight, made.kept
    peaks, flights, waits, done, busy, free = made.peaks, made.flights, made.waits, made.done, made.busy, made.free
    weights, weights_ready, weights_done = made.weights, made.weights_ready, made.weights_done
    times, numbers, size = made.times, made.numbers, int(np.int64(0))
    started, total, foreseen = 0, kinds * micro_batches * stages, int(np.int64(0))
    waiting, now = 0, int(np.int64(0))
    for micro_batch in range(micro_batches):  # slots of the first stage, by first use
        if own[starts[routes[micro_batch, 0]] // kinds] == micro_batch:
            turn[waiting] = routes[micro_batch, 0]
            waiting += 1
    while True:
        for number in range(waiting):
            slot = turn[number]
            if busy[slot]:
                continue
            stage = stage_of[slot]
            base = starts[slot] // kinds
            action = -1
            if backwards_ready[slot] > 0 and _may_go_back(gpipe, forwards_done[slot], shares[slot]):
                found, first_backward[slot] = _lowest(
                    backwards[stage], own, base, base + shares[slot], first_backward[slot]
                )
                backwards[stage, found] = False
                backwards_ready[slot] -= 1
                action = KINDS * found + BACKWARD
                if split:
                    waits[slot] = max(waits[slot], weights_ready[slot] - weights_done[slot] + 1)
            if (
                action < 0
                and forwards_ready[slot] > 0
                and _may_go_ahead(gpipe, in_flight[slot], limits[slot], kept[slot], most[slot])
            ):
                found, first_forward[slot] = _lowest(
                    forwards[stage], own, base, base + shares[slot], first_forward[slot]
                )
                forwards[stage, found] = False
                forwards_ready[slot] -= 1
                action = KINDS * found + FORWARD
                in_flight[slot] += 1
                kept[slot] += 1
                flights[slot] = max(flights[slot], in_flight[slot])
                peaks[slot] = max(peaks[slot], kept[slot])
            if action < 0 and weights_done[slot] < weights_ready[slot]:
                action = KINDS * weights[base + weights_done[slot]] + WEIGHT
                weights_done[slot] += 1
            if action < 0:
                continue
            busy[slot] = True
            actions[starts[slot] + done[slot]] = action
            done[slot] += 1
            started += 1
            where[foreseen], what[foreseen] = slot, action
            size = push(times, numbers, size, now + pace.took[action % KINDS, slot], foreseen)
            foreseen += 1
        if size == 0:
            if started == total:
                return
            # Every slot stands at its limit and waits for a forward that another one holds back.
            turn[0] = _held_back(forwards, own, shares, stage_of)
            limits[turn[0]] += 1
            most[turn[0]] += 1
            waiting = 1
            continue
        time, event, size = pop(times, numbers, size)
        now = int(time)
        slot, action = where[event], what[event]
        stage = stage_of[slot]
        turn[0], waiting = slot, 1
        if action < 0:
            action = ~action
            if action % KINDS == FORWARD:
                forwards[stage, action // KINDS] = True
                forwards_ready[slot] += 1
            else:
                backwards[stage, action // KINDS] = True
                backwards_ready[slot] += 1
            continue
        micro_batch, kind = action // KINDS, action % KINDS
        busy[slot] = False
        towards = -1
        if kind == FORWARD:
            forwards_done[slot] += 1
            if stage == stages - 1:
                backwards[stage, micro_batch] = True
                backwards_ready[slot] += 1
            else:
                towards = stage + 1
        elif kind == WEIGHT:
            kept[slot] -= 1
        else:
            in_flight[slot] -= 1
            if split:
                weights[starts[slot] // kinds + weights_ready[slot]] = micro_batch
                weights_ready[slot] += 1
            else:
                kept[slot] -= 1
            towards = stage - 1
        if towards >= 0:
            pair, receiver = crossed[micro_batch, min(stage, towards)], routes[micro_batch, towards]
            free[kind, pair] = max(now, free[kind, pair]) + pace.transfer[kind, pair]
            arrival = free[kind, pair] + pace.delay[kind, pair]
            if arrival > now:
                where[foreseen], what[foreseen] = receiver, ~action
                size = push(times, numbers, size, arrival, foreseen)
                foreseen += 1
            else:
                if kind == FORWARD:
                    forwards[towards, micro_batch] = True
                    forwards_ready[receiver] += 1
                else:
                    backwards[towards, micro_batch] = True
                    backwards_ready[receiver] += 1
                turn[1], waiting = receiver, 2


@compiled_inside
def _own_micro_batches(routes: Ints, counts: Ints, shares: Ints) -> tuple[Ints, Ints]:
    """Return the micro-batches of each slot, ascending, the slots' runs one after the other; and each slot's stage."""
    micro_batches, stages = routes.shape
    slots = len(shares)
    own, stage_of = np.empty(shares.sum(), dtype=np.int64), np.empty(slots, dtype=np.int64)
    place = np.zeros(slots, dtype=np.int64)
    for slot in range(slots - 1):
        place[slot + 1] = place[slot] + shares[slot]
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


@compiled_inside
def plain_limits(counts: Ints, shares: Ints, split: bool) -> tuple[Ints, Ints]:
    """Return the two limits of `schedule_rules.limits` for each slot: micro-batches in flight, and those kept."""
    limits, most = np.empty(len(shares), dtype=np.int64), np.empty(len(shares), dtype=np.int64)
    plain_limits_into(counts, shares, split, limits, most)
    return limits, most


@compiled_in_place_inside
def plain_limits_into(counts: Ints, shares: Ints, split: bool, limits: Ints, most: Ints) -> None:
    """Set what `plain_limits` returns."""
    end, least = len(shares), int(np.int64(0))
    for later in range(len(counts)):
        stage = len(counts) - 1 - later
        smallest = shares[end - 1]
        for slot in range(end - counts[stage], end):
            limits[slot], most[slot] = _peer_limits(shares[slot], least, stage, len(counts), split)
            smallest = min(smallest, shares[slot])
        least = min(least, smallest) if later else smallest
        end -= counts[stage]


@compiled_in_place_inside
def _lowest(ready: Bools, own: Ints, start: int, end: int, first: int) -> tuple[int, int]:
    """Return the lowest micro-batch of a slot that is ready, of which there is one; and how many at the front need not
    be looked at again."""
    place = start + first
    while place < end:
        if ready[own[place]]:
            return own[place], (first + 1 if place == start + first else first)
        place += 1
    return -1, first


@compiled_in_place_inside
def _held_back(forwards: Bools, own: Ints, shares: Ints, stage_of: Ints) -> int:
    """Return the slot with the lowest micro-batch whose forward is ready."""
    chosen, least, first = -1, forwards.shape[1], int(np.int64(0))
    for slot in range(len(shares)):
        for place in range(first, first + shares[slot]):
            if own[place] < least and forwards[stage_of[slot], own[place]]:
                chosen, least = slot, own[place]
                break
        first += shares[slot]
    return chosen
