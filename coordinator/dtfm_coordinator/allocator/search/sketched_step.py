"""Sketch of a step: about how long a layout's is, from sums alone, so that a search plays only what is promising.

Whatever is busy longest, a peer, a link or a line, handles all of its micro-batches, while one of them goes all the way
there and back; where little may be in flight, that way is gone again and again. Then gradients are reduced, each at
once. Of queues, and of what overlaps, a sketch knows nothing: two are to be compared with each other only. It takes a
hundredth of the time that a step takes to play (`fast_simulator`), and no memory of its own.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_in_place_inside, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import GPIPE, ZERO_BUBBLE, Problem
from dtfm_coordinator.allocator.search.layout import layers_by_load_into
from dtfm_coordinator.allocator.simulator.compiled_schedule import BACKWARD, FORWARD, plain_limits_into
from dtfm_coordinator.allocator.simulator.fast_all_reduce import seconds_to_send
from dtfm_coordinator.allocator.simulator.slot_memory import most_layers_into
from dtfm_coordinator.allocator.simulator.slot_pace import backward_layers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Sketchpad(NamedTuple):
    """Arrays that sketches of one problem's layouts are made in."""

    in_flight: Ints
    """Micro-batches that each slot may have in flight, shape (N,)."""
    peaks: Ints
    """Micro-batches that it keeps at least when it has most, in the same shape."""
    waits: Ints
    """Micro-batches whose weights' gradients wait then, in the same shape."""
    anew: Ints
    """Most layers of each stage that fit in memory with recomputing, shape (layers,)."""
    fit: Ints
    """Most layers that fit without, in the same shape."""
    layers: Ints
    """Layers of each stage as they are shared out by load, in the same shape."""
    load: Floats
    """Seconds of each layer of a stage, in the same shape."""


@compiled_inside
def sketchpad(problem: Problem) -> Sketchpad:
    """Return arrays for sketches of a problem's layouts."""
    peers = len(problem.forward)
    return Sketchpad(
        in_flight=np.empty(peers, dtype=np.int64),
        peaks=np.empty(peers, dtype=np.int64),
        waits=np.empty(peers, dtype=np.int64),
        anew=np.empty(problem.layers, dtype=np.int64),
        fit=np.empty(problem.layers, dtype=np.int64),
        layers=np.empty(problem.layers, dtype=np.int64),
        load=np.empty(problem.layers, dtype=np.float64),
    )


@compiled_in_place_inside
def sketched(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    shares: Ints,
    layers: Ints,
    ahead: Ints,
    by_load: bool,
    if_better: bool,
    pad: Sketchpad,
) -> tuple[float, bool]:
    """Return the sketched seconds of a layout's step, and whether they are those with the layers in `pad`, which are
    shared out by load.

    They are infinite where memory holds no such layers, or where micro-batches or gradients would go between a pair
    that cannot talk. How much is in flight at a time follows from the order of compute, which is not known here: memory
    is taken to hold what it may hold.

    Args:
        peers, counts, shares, layers, ahead: as `slot_course.course_of` takes them.
        by_load: share the layers out by load in any case (`layout.layers_by_load`).
        if_better: do so where that is better; as always where memory does not hold `layers`.
    """
    _limit(problem, peers, counts, shares, ahead, pad)
    seconds = np.inf if by_load else _seconds(problem, peers, counts, shares, layers, pad)
    if not (by_load or if_better or seconds == np.inf):
        return seconds, False
    if not layers_by_load_into(problem, peers, counts, shares, pad.anew, pad.fit, pad.layers, pad.load):
        return seconds, False
    other = _seconds(problem, peers, counts, shares, pad.layers, pad)
    return (other, True) if by_load or other < seconds else (seconds, False)


@compiled_in_place_inside
def _limit(problem: Problem, peers: Ints, counts: Ints, shares: Ints, ahead: Ints, pad: Sketchpad) -> None:
    """Set how many micro-batches slots may have in flight, and how many layers fit beside those that they need not
    wait for: where more may be, some stages have it, and the last ones seldom."""
    is_split = problem.schedule == ZERO_BUBBLE
    plain_limits_into(counts, shares, is_split, pad.in_flight, pad.peaks)
    slot = 0
    for stage in range(len(counts)):
        more = ahead[stage] if problem.paced else 0
        for member in range(slot, slot + counts[stage]):
            flying = shares[member] if problem.schedule == GPIPE else pad.in_flight[member]
            pad.peaks[member] = min(shares[member], pad.peaks[member], flying + 1) if is_split else flying
            pad.waits[member] = 1 if is_split else 0
            pad.in_flight[member] = min(shares[member], flying + more)
        slot += counts[stage]
    most_layers_into(problem, peers, counts, pad.peaks, pad.waits, pad.anew, pad.fit)


@compiled_in_place_inside
def _seconds(problem: Problem, peers: Ints, counts: Ints, shares: Ints, layers: Ints, pad: Sketchpad) -> float:
    """Return the sketched seconds with these layers, within the limits that were set."""
    stages, end, layer = len(counts), len(peers), problem.layers
    around, busiest, reduced = 0.0, 0.0, 0.0
    tied = problem.tied_gradients if stages > 1 else 0.0
    for later in range(stages):
        stage = stages - 1 - later
        if layers[stage] > max(pad.anew[stage], pad.fit[stage]):
            return np.inf
        first = end - counts[stage]
        sent, received = 0.0, 0.0  # bytes of each micro-batch
        if later > 0:
            sent += problem.boundary_bytes[FORWARD, stage]
            received += problem.boundary_bytes[BACKWARD, stage]
            longest, slowest = _crossing(problem, peers, shares, first, end, stage)
            busiest = max(busiest, longest)
            around += slowest
        if stage > 0:
            sent += problem.boundary_bytes[BACKWARD, stage - 1]
            received += problem.boundary_bytes[FORWARD, stage - 1]
        layer -= layers[stage]
        depth = layers[stage] + (problem.head_layers if stage == stages - 1 else 0.0)
        if layers[stage] > pad.fit[stage]:
            depth += layers[stage]  # it recomputes
        through, weight = backward_layers(problem, layer, layers[stage], stages, stage)
        slowest = 0.0
        for member in range(first, end):
            peer = peers[member]
            each = depth * problem.forward[peer] + through * (problem.backward[peer] - problem.weight[peer])
            each += weight * problem.weight[peer]
            line = max(sent / problem.uplink[peer], received / problem.downlink[peer])
            busiest = max(busiest, (shares[member] - 1) * max(each, line))
            slowest = max(slowest, each)
        around += slowest
        for member in range(first, end):
            busiest = max(busiest, (shares[member] / pad.in_flight[member] - 1) * around)
        own = problem.gradient_before[layer + layers[stage]] - problem.gradient_before[layer]
        own += (problem.embedding_gradients - tied) if stage == 0 else 0.0
        own += (problem.head_gradients - problem.tied_gradients) if stage == stages - 1 else 0.0
        if counts[stage] > 1:
            reduced = max(reduced, _reducing(problem, peers, first, end, end, end, own))
        end = first
    slots = len(peers)
    shared = _reducing(problem, peers, end, counts[0], slots - counts[-1], slots, tied)
    return float(around + busiest + reduced + shared)


@compiled_in_place_inside
def _crossing(problem: Problem, peers: Ints, shares: Ints, first: int, end: int, boundary: int) -> tuple[float, float]:
    """Return the seconds for which the busiest link of a boundary is busy but for one micro-batch, and the longest that
    one takes there and back. Its senders are the slots from `first` to `end`; routes are those of
    `slot_routes.route_micro_batches`."""
    ahead_bytes, back_bytes = problem.boundary_bytes[FORWARD, boundary], problem.boundary_bytes[BACKWARD, boundary]
    busiest, longest, receiver, room = 0.0, 0.0, end, shares[end]
    for sender in range(first, end):
        left = shares[sender]
        while left > 0:
            if room == 0:
                receiver += 1
                room = shares[receiver]
            flow = min(left, room)
            here, there = peers[sender], peers[receiver]
            out = seconds_to_send(ahead_bytes, problem.beta[here, there])
            back = seconds_to_send(back_bytes, problem.beta[there, here])
            busiest = max(busiest, (flow - 1) * max(out, back))
            longest = max(longest, out + back + problem.alpha[here, there] + problem.alpha[there, here])
            left -= flow
            room -= flow
    return busiest, longest


@compiled_in_place_inside
def _reducing(problem: Problem, peers: Ints, first: int, middle: int, again: int, end: int, gradients: float) -> float:
    """Return the seconds of an all-reduce in equal parts of the slots from `first` to `middle` and `again` to `end`."""
    if gradients == 0.0:
        return 0.0
    holders = middle - first + end - again
    part, longest = gradients / holders, 0.0
    for number in range(holders):
        here = peers[first + number if first + number < middle else again + first + number - middle]
        delay, rate = 0.0, np.inf
        for place in range(holders):
            there = peers[first + place if first + place < middle else again + first + place - middle]
            if there != here:
                delay = max(delay, problem.alpha[here, there])
                rate = min(rate, problem.beta[here, there])
        line = min(problem.uplink[here], problem.downlink[here])
        longest = max(longest, delay + max(seconds_to_send(part, rate), (holders - 1) * part / line))
    return 2 * longest
