"""Fast form of the simulated training step: `simulator` on arrays, as machine code, for the search.

Both play every action in the runtime's order and every message over its link:

- a peer computes one action at a time, as soon as what it needs has arrived; sending costs no compute;
- an ordered link carries its messages one after another and delivers each `alpha` seconds after its last byte left;
- a stage's peers reduce their gradients by sharded parameter servers, bucket by bucket as these are final, while other
  stages still compute, and those of first and last stage together the gradients of a matrix that they share; a
  commit is collected and sent out; then each peer takes its optimizer step.

They differ in how transfers that meet at one peer share its uplink or downlink. The simulator gives each its fair share
at every moment; here they queue for the bytes that the peer can take in all, in the order in which they begin, and the
all-reduce does not see what is left of the pipeline. Where no such limit binds the two agree exactly.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_in_place_inside, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.simulator.compiled_schedule import BACKWARD, FORWARD, KINDS, WEIGHT, kinds_of
from dtfm_coordinator.allocator.simulator.fast_all_reduce import (
    OWN,
    all_reduced,
    equal_parts,
    seconds_to_send,
    tied_all_reduced,
)
from dtfm_coordinator.allocator.simulator.fast_buckets import (
    bucket_count,
    ends_reduced,
    in_one_each,
    is_limited,
    last_share,
    stage_reduced,
    tied_final,
)
from dtfm_coordinator.allocator.simulator.heap import pop, push
from dtfm_coordinator.allocator.simulator.slot_course import Course
from dtfm_coordinator.allocator.simulator.slot_pace import action_seconds, backward_layers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

EQUAL_PARTS: Floats = np.empty((2, 0), dtype=np.float64)
"""Parts of a step's reductions where all holders sum equally much."""


class _Played(NamedTuple):
    """What has happened in a step, and what everything takes; seconds."""

    stage_of: Ints
    """Stage of each slot."""
    took: Floats
    """What an action takes, by kind and slot, shape (KINDS, slots)."""
    seconds: Floats
    """What a message takes on the link of each pair, by FORWARD and BACKWARD, shape (2, P)."""
    delay: Floats
    """From when it has left until it arrives, in the same shape."""
    arrived: Floats
    """When each micro-batch's message has arrived at each stage, shape (2, K, M); -1 where it has not."""
    free: Floats
    """When the link of each pair is free again, shape (2, P)."""
    sent_free: Floats
    received_free: Floats
    """When each slot's uplink and downlink is free again."""
    done: Ints
    """Place of each slot's next action."""
    clock: Floats
    """When each slot has ended its last one."""
    busy: Flags
    """Whether each slot computes."""
    keys: Floats
    values: Ints
    """Actions under way: when they end, and their slots; a heap."""


@compiled
def play(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    layers: Ints,
    course: Course,
    parts: Floats,
) -> tuple[float, float, float, float]:
    """Play one training step.

    Args:
        peers: number of the peer in each slot, shape (slots,).
        counts: number of peers of each stage, shape (K,).
        layers: number of layers of each stage, shape (K,).
        course: routes, order of compute, and which stages recompute (`slot_course.course_of`).
        parts: the part of its stage's gradients, and of those that first and last stage share, that each slot sums,
            shape (2, slots); shape (2, 0): all sum equally much.

    Returns:
        The compute of the busiest peer; when the last action has ended, when all have the commit, and when all have
        taken their optimizer step. Seconds, infinite where a pair that cannot talk would have to.
    """
    slots, stages = len(peers), len(counts)
    if parts.shape[1] == 0:
        parts = equal_parts(counts)
    kinds = kinds_of(problem.schedule)
    begun, ends, backlog = _last_actions(problem, peers, counts, layers, course)
    busiest, last, slot = 0.0, 0.0, 0
    committed, arbiter = 0.0, peers[course.routes[0, 0]]
    tied = problem.tied_gradients if stages > 1 else 0.0
    first_own, last_own = 0.0, 0.0  # bytes that the replicas of first and last stage reduce among themselves
    held = np.empty(slots, dtype=np.float64)
    layer, update_layers = int(np.int64(0)), np.empty(stages, dtype=np.float64)  # of a stage's parameters, in layers
    for stage in range(stages):
        first_slot = slot
        depth = layers[stage] + (problem.head_layers if stage == stages - 1 else 0.0)
        for member in range(first_slot, first_slot + counts[stage]):
            count = (course.orders.starts[member + 1] - course.orders.starts[member]) // kinds
            peer = peers[member]
            through, weight = backward_layers(problem, layer, layers[stage], stages, stage)
            back = through * (problem.backward[peer] - problem.weight[peer]) + weight * problem.weight[peer]
            work = count * (depth * problem.forward[peer] + back)
            if course.again[stage]:
                work += count * layers[stage] * problem.forward[peer]
            busiest = max(busiest, work)
            last = max(last, ends[member])
        slot += counts[stage]
        gradients = problem.gradient_before[layer + layers[stage]] - problem.gradient_before[layer]
        if stage == 0:
            gradients += problem.embedding_gradients
            first_own = gradients - tied
        if stage == stages - 1:
            gradients += problem.head_gradients - (problem.tied_gradients if stages == 1 else 0.0)
            last_own = gradients - tied
        layer += layers[stage]
        update_layers[stage] = gradients / problem.whole_layer_gradients
        if tied == 0.0 or 0 < stage < stages - 1:
            shares = parts[OWN, first_slot:slot]
            which = (layer - layers[stage], layers[stage], stage, stages)
            since, until = begun[first_slot:slot], ends[first_slot:slot]
            if counts[stage] == 1 or bucket_count(problem, gradients) == 1:
                final = since + last_share(problem, which, gradients) * (until - since)
                reduced = all_reduced(problem, peers[first_slot:slot], final, gradients, shares)
            else:
                reduced = stage_reduced(problem, peers[first_slot:slot], which, gradients, since, until, shares)
            for member in range(first_slot, slot):
                held[member] = reduced[member - first_slot]
    if tied > 0.0:
        own = (first_own, last_own)
        if in_one_each(problem, first_own, last_own) and is_limited(problem, peers, counts):
            final = tied_final(problem, counts, layers, begun, ends)
            both = tied_all_reduced(problem, peers, counts, ends, final, course.pairs, backlog, own, parts)
        else:
            both = ends_reduced(problem, peers, counts, layers, own, begun, ends, course.pairs, backlog, parts)
        for member in range(slots):
            if member < counts[0] or member >= slots - counts[-1]:
                held[member] = both[member]
    for member in range(slots):
        peer = peers[member]
        committed = max(committed, held[member] + problem.alpha[peer, arbiter])
        if problem.beta[peer, arbiter] == 0.0 or problem.beta[arbiter, peer] == 0.0:
            committed = np.inf  # it could not vote, or not hear the commit
    answered, applied, slot = 0.0, 0.0, 0
    for stage in range(stages):
        for member in range(slot, slot + counts[stage]):
            heard = committed + problem.alpha[arbiter, peers[member]]
            answered = max(answered, heard)
            applied = max(applied, heard + update_layers[stage] * problem.optimizer[peers[member]])
        slot += counts[stage]
    assert slot == slots
    if last == np.inf:  # what takes part of an infinite time is no number, and shows nowhere in what follows
        answered, applied = np.inf, np.inf
    return busiest, last, answered, applied


@compiled_inside
def _last_actions(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    layers: Ints,
    course: Course,
) -> tuple[Floats, Floats, Floats]:
    """Return the seconds at which each slot has begun its last action, and ended it, and those at which each pair's
    link back has carried all gradients."""
    pairs, (micro_batches, stages) = course.pairs, course.routes.shape
    slots = len(peers)
    took = action_seconds(problem, peers, counts, layers, course.again)
    stage_of = np.empty(slots, dtype=np.int64)
    slot = 0
    for stage in range(stages):
        stage_of[slot : slot + counts[stage]] = stage
        slot += counts[stage]
    # Each pair's seconds on the link, and delay; by FORWARD and BACKWARD.
    bytes_of = problem.boundary_bytes
    seconds, delay = np.empty((2, len(pairs)), dtype=np.float64), np.empty((2, len(pairs)), dtype=np.float64)
    for pair in range(len(pairs)):
        here, there, boundary = peers[pairs[pair, 0]], peers[pairs[pair, 1]], stage_of[pairs[pair, 0]]
        seconds[FORWARD, pair] = seconds_to_send(bytes_of[FORWARD, boundary], problem.beta[here, there])
        seconds[BACKWARD, pair] = seconds_to_send(bytes_of[BACKWARD, boundary], problem.beta[there, here])
        delay[FORWARD, pair], delay[BACKWARD, pair] = problem.alpha[here, there], problem.alpha[there, here]
    arrived = np.full((2, stages, micro_batches), -1.0)
    arrived[FORWARD, 0, :] = 0.0
    played = _Played(
        stage_of,
        took,
        seconds,
        delay,
        arrived,
        free=np.zeros((2, len(pairs)), dtype=np.float64),
        sent_free=np.zeros(slots, dtype=np.float64),
        received_free=np.zeros(slots, dtype=np.float64),
        done=course.orders.starts[:-1].copy(),
        clock=np.zeros(slots, dtype=np.float64),
        busy=np.zeros(slots, dtype=np.bool_),
        keys=np.empty(slots + 1, dtype=np.float64),
        values=np.empty(slots + 1, dtype=np.int64),
    )
    _run(problem, peers, counts, course, played)
    begun, starts = played.clock.copy(), course.orders.starts
    for slot in range(slots):
        assert played.done[slot] == starts[slot + 1]
        begun[slot] -= took[course.orders.actions[starts[slot + 1] - 1] % KINDS, slot]
    return begun, played.clock, played.free[BACKWARD]


@compiled_in_place_inside
def _run(problem: Problem, peers: Ints, counts: Ints, course: Course, played: _Played) -> None:
    """Let all actions happen, one after the other, and the messages that they lead to."""
    routes, crossed = course.routes, course.crossed
    actions, starts = course.orders.actions, course.orders.starts
    stages, bytes_of = routes.shape[1], problem.boundary_bytes
    uplink, downlink = problem.uplink, problem.downlink
    stage_of, took, arrived, free = played.stage_of, played.took, played.arrived, played.free
    seconds, delay, sent_free, received_free = played.seconds, played.delay, played.sent_free, played.received_free
    done, clock, busy, keys, values = played.done, played.clock, played.busy, played.keys, played.values
    size = int(np.int64(0))
    for slot in range(counts[0]):
        busy[slot] = True
        size = push(keys, values, size, took[FORWARD, slot], slot)
    while size > 0:
        now, slot, size = pop(keys, values, size)
        busy[slot] = False
        clock[slot] = now
        action, stage = actions[done[slot]], stage_of[slot]
        done[slot] += 1
        way, micro_batch = action % KINDS, action // KINDS
        touched = -1
        if way == FORWARD and stage == stages - 1:
            arrived[BACKWARD, stage, micro_batch] = now
        elif way == FORWARD or (way == BACKWARD and stage > 0):
            boundary = stage if way == FORWARD else stage - 1
            towards = stage + 1 if way == FORWARD else stage - 1
            pair, touched, sent = crossed[micro_batch, boundary], routes[micro_batch, towards], bytes_of[way, boundary]
            begun = max(now, free[way, pair])
            if uplink[peers[slot]] < np.inf:
                begun = max(begun, sent_free[slot])
            ended = max(
                begun + seconds[way, pair],
                received_free[touched] + seconds_to_send(sent, downlink[peers[touched]]),
            )
            sent_free[slot] = max(now, sent_free[slot]) + seconds_to_send(sent, uplink[peers[slot]])
            if downlink[peers[touched]] < np.inf:
                received_free[touched] = ended
            free[way, pair] = ended
            arrived[way, towards, micro_batch] = ended + delay[way, pair]
        for number in range(2):
            other = slot if number == 0 else touched
            if other < 0 or busy[other] or done[other] == starts[other + 1]:
                continue
            following = actions[done[other]]
            kind = following % KINDS
            # A weight needs nothing but its own backward, which comes before it in the slot's order.
            there = 0.0 if kind == WEIGHT else arrived[kind, stage_of[other], following // KINDS]
            if there < 0.0:
                continue
            busy[other] = True
            size = push(keys, values, size, max(clock[other], there) + took[kind, other], other)
