"""Pace of a step over slots, of which orders of compute are made: what actions and messages take on these peers."""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import ZERO_BUBBLE, Problem
from dtfm_coordinator.allocator.simulator.compiled_schedule import (
    BACKWARD,
    FORWARD,
    KINDS,
    WEIGHT,
    Pace,
    plain_limits,
)
from dtfm_coordinator.allocator.simulator.fast_all_reduce import seconds_to_send
from dtfm_protocol.plan import schedule_rules

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_microseconds = compiled_inside(schedule_rules.microseconds)


@compiled_inside
def action_seconds(problem: Problem, peers: Ints, counts: Ints, layers: Ints, again: Bools) -> Floats:
    """Return the seconds of an action by kind and slot, shape (KINDS, slots); stages marked in `again` recompute."""
    took = np.zeros((KINDS, len(peers)), dtype=np.float64)
    slot, layer, stages = 0, int(np.int64(0)), len(counts)
    for stage in range(stages):
        depth = layers[stage] + (problem.head_layers if stage == stages - 1 else 0.0)
        through, weight = backward_layers(problem, layer, layers[stage], stages, stage)
        layer += layers[stage]
        for member in range(slot, slot + counts[stage]):
            peer = peers[member]
            took[FORWARD, member] = depth * problem.forward[peer]
            took[BACKWARD, member] = through * (problem.backward[peer] - problem.weight[peer])
            took[WEIGHT, member] = weight * problem.weight[peer]
            if problem.schedule != ZERO_BUBBLE:
                took[BACKWARD, member] += took[WEIGHT, member]
                took[WEIGHT, member] = 0.0
            if again[stage]:
                took[BACKWARD, member] += layers[stage] * problem.forward[peer]
        slot += counts[stage]
    return took


@compiled_inside
def measured_pace(
    problem: Problem, peers: Ints, counts: Ints, shares: Ints, layers: Ints, ahead: Ints, again: Bools, pairs: Ints
) -> Pace:
    """Return the pace of a layout in microseconds, as its plan carries it (`workload.paced`).

    Args:
        ahead: micro-batches that each peer of a stage may have in flight beyond those that keep equally fast stages
            with free links busy, shape (K,).
        again: whether each stage recomputes, shape (K,).
        pairs: pairs of slots between which micro-batches go, shape (P, 2).
    """
    seconds = action_seconds(problem, peers, counts, layers, again)
    took = np.empty((KINDS, len(peers)), dtype=np.int64)
    for kind in range(KINDS):
        for slot in range(len(peers)):
            took[kind, slot] = _microseconds(seconds[kind, slot], 1)
    transfer, delay = np.empty((2, len(pairs)), dtype=np.int64), np.empty((2, len(pairs)), dtype=np.int64)
    boundary, end = int(np.int64(0)), int(counts[0])  # pairs come boundary by boundary, whose senders are below `end`
    for pair in range(len(pairs)):
        while pairs[pair, 0] >= end:
            boundary += 1
            end += counts[boundary]
        here, there = peers[pairs[pair, 0]], peers[pairs[pair, 1]]
        ahead_bytes, back_bytes = problem.boundary_bytes[FORWARD, boundary], problem.boundary_bytes[BACKWARD, boundary]
        transfer[FORWARD, pair] = _microseconds(seconds_to_send(ahead_bytes, problem.beta[here, there]), 0)
        transfer[BACKWARD, pair] = _microseconds(seconds_to_send(back_bytes, problem.beta[there, here]), 0)
        delay[FORWARD, pair] = _microseconds(problem.alpha[here, there], 0)
        delay[BACKWARD, pair] = _microseconds(problem.alpha[there, here], 0)
    in_flight, kept = plain_limits(counts, shares, problem.schedule == ZERO_BUBBLE)
    slot = 0
    for stage in range(len(counts)):
        for member in range(slot, slot + counts[stage]):
            in_flight[member] = min(shares[member], in_flight[member] + ahead[stage])
            kept[member] = min(shares[member], kept[member] + ahead[stage])
        slot += counts[stage]
    return Pace(took, transfer, delay, in_flight, kept)


@compiled_inside
def backward_layers(problem: Problem, first: int, layers: int, stages: int, stage: int) -> tuple[float, float]:
    """Return a stage's backward in layers, without and of the gradients of weights, as `stage_compute` does; it begins
    with the layer `first`."""
    through, weight = float(layers), problem.trained_before[first + layers] - problem.trained_before[first]
    if stage == 0:
        through -= min(problem.untrained_prefix, layers)
    if stage == stages - 1:
        through += problem.head_layers
        weight += problem.head_weight_layers
    return through, weight
