"""Memory of peers, for the search: how many layers fit by `dtfm_protocol.model.memory_model.stage_bytes`.

Its parts are the protocol's own, compiled; a test holds what fits to what is needed. A stage that would not fit in the
memory of each of its peers recomputes.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_in_place_inside, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.simulator.compiled_schedule import SlotOrders
from dtfm_protocol.model import memory_model

Ints = npt.NDArray[np.int64]

_layer_kept_bytes = compiled_inside(memory_model.layer_kept_bytes)
_messages_bytes = compiled_inside(memory_model.messages_bytes)
_reduction_bytes = compiled_inside(memory_model.reduction_bytes)


@compiled_inside
def most_layers(problem: Problem, peers: Ints, counts: Ints, orders: SlotOrders) -> tuple[Ints, Ints]:
    """Return the number of layers that fit in the memory of each stage's peers, as if all were as large as the largest.

    Args:
        peers: number of the peer in each slot, shape (slots,).
        counts: number of peers of each stage, shape (K,).
        orders: order of compute, which says how much is in flight.

    Returns:
        The numbers with recomputing, and without, each of shape (K,).
    """
    anew, kept = np.empty(len(counts), dtype=np.int64), np.empty(len(counts), dtype=np.int64)
    most_layers_into(problem, peers, counts, orders.peaks, orders.waits, anew, kept)
    return anew, kept


@compiled_in_place_inside
def most_layers_into(
    problem: Problem, peers: Ints, counts: Ints, peaks: Ints, waits: Ints, anew: Ints, kept: Ints
) -> None:
    """Set what `most_layers` returns.

    Args:
        peaks, waits: as in `SlotOrders`.
    """
    stages, slot = len(counts), 0
    for stage in range(stages):
        anew[stage], kept[stage] = problem.layers, problem.layers
        has_replicas = counts[stage] > 1
        feedback = problem.feedback_bytes if has_replicas else 0.0
        beside, ends = _messages_bytes(problem.input_bytes, stages), 0.0
        if stage == 0:
            ends += problem.embedding_parameters
            beside += problem.frozen_embedding_bytes
        if stage == stages - 1:
            ends += problem.head_parameters - (problem.tied_parameters if stages == 1 else 0.0)
            beside += problem.frozen_head_bytes - (problem.frozen_tied_bytes if stages == 1 else 0.0)
            beside += problem.logits_bytes + problem.copied_head_bytes
        if stages > 1 and (stage == 0 or stage == stages - 1):
            beside += problem.tied_reduction_bytes
        for member in range(slot, slot + counts[stage]):
            parameter = problem.parameter_bytes[peers[member]] + feedback
            layer = parameter * problem.layer_parameters + problem.frozen_layer_bytes + problem.copied_layer_bytes
            flying, waiting = peaks[member], waits[member]
            room = problem.memory[peers[member]] - beside - parameter * ends
            if stage == stages - 1:
                room -= waiting * problem.logits_gradient_bytes
            whole = _layer_kept_bytes(flying, waiting, problem.activation_bytes, problem.input_bytes, False)
            kept[stage] = _that_fit(kept[stage], room, layer + whole, problem.layer_parameters, ends, has_replicas)
            room -= problem.activation_bytes
            inputs = _layer_kept_bytes(flying, waiting, problem.activation_bytes, problem.input_bytes, True)
            anew[stage] = _that_fit(anew[stage], room, layer + inputs, problem.layer_parameters, ends, has_replicas)
            there = problem.host_memory[peers[member]]
            if there < np.inf:
                there -= problem.host_parameter_bytes * ends
                each = problem.host_parameter_bytes * problem.layer_parameters
                anew[stage], kept[stage] = _no_more(anew[stage], there, each), _no_more(kept[stage], there, each)
        slot += counts[stage]


@compiled_inside
def _that_fit(most: int, room: float, each: float, parameters: float, ends: float, has_replicas: bool) -> int:
    """Return `most`, or as many layers of `each` bytes as `room` bytes hold if that is less; replicas also have a
    reduction of a layer's `parameters` and those of the `ends`: it takes so much for each, or what it takes at most."""
    if not has_replicas:
        return _no_more(most, room, each)
    slope = _reduction_bytes(1.0)
    whole = _no_more(most, room - _reduction_bytes(np.inf), each)
    return max(whole, _no_more(most, room - slope * ends, each + slope * parameters))


@compiled_inside
def _no_more(most: int, room: float, each: float) -> int:
    """Return `most`, or as many of `each` bytes as `room` bytes hold if that is less."""
    return max(0, int(room // each)) if room < each * most else most
