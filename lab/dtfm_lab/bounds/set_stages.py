"""Each stage that there can be, and what it asks of each peer of a few: what `set_paths` are made of.

A stage either keeps its activations, of as few micro-batches at a time as its peers' memory holds, or computes them
anew.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.problem.bucket_cut import MOST_BUCKETS
from dtfm_coordinator.allocator.problem.problem_arrays import ZERO_BUBBLE, Problem
from dtfm_lab.bounds.peer_sets import SLOWEST
from dtfm_lab.bounds.stage_prices import ends_of, sending_rate
from dtfm_protocol.model.memory_model import MESSAGES_RECEIVED_AHEAD
from dtfm_protocol.plan.reductions import BUCKETS_UNDER_WAY

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROUNDING = 1e-9
"""What rounding may take off a number of micro-batches."""


class Stages(NamedTuple):
    """All P stages that there can be, on N peers."""

    first: Ints
    """Number of its first layer, shape (P,)."""
    end: Ints
    """Number of the layer after its last, shape (P,)."""
    number: Ints
    """Number of the stage with these, shape (L + 1, L + 1)."""
    forward: Floats
    """Seconds of a micro-batch, shape (P, N)."""
    back: Floats
    """Seconds of what of its backward other stages await, shape (P, N)."""
    rest: Floats
    """Seconds of the rest of it, shape (P, N)."""
    anew: Floats
    """Seconds that a backward takes longer where activations are computed anew, shape (P, N)."""
    last: Floats
    """Seconds of a peer's last action, in which reductions begin, without `anew`, shape (P, N)."""
    gradients: Floats
    """Bytes of the gradients that its replicas reduce among themselves, shape (P,)."""
    tied: Floats
    """Bytes of those that they reduce with the peers of the other end, shape (P,)."""
    sent: Floats
    """Bytes that leave it for each micro-batch, shape (P,)."""
    held: Floats
    """Micro-batches of which a peer can keep anything at once, where the stage keeps activations and where it computes
    them anew, alone and as one of several, shape (2, 2, P, N)."""
    outwards: Floats
    """Bytes a second that leave each peer at most, shape (N,)."""
    bucket_bytes: float
    """Bytes of a full bucket."""
    most_buckets: float
    """Number of buckets of a reduction at most: of more, neighbours are taken together."""
    under_way: float
    """Number of them that are under way at a time, before any are taken together."""
    equal_parts: bool
    """Whether all holders of a gradient sum equal parts of it, and send them straight to each other."""


def stages_of(problem: Problem, *, equal_parts: bool) -> Stages:
    """Return what each stage has to do, and what each peer can; `equal_parts` as in `Stages`."""
    layers = problem.layers
    first, end = np.triu_indices(layers + 1, 1)
    number = np.full((layers + 1, layers + 1), -1)
    number[first, end] = np.arange(len(first))
    beyond = problem.head_layers * (end == layers)
    idle = np.where(first == 0, np.minimum(problem.untrained_prefix, end), 0)
    trained = problem.trained_before[end] - problem.trained_before[first]
    count = np.stack([end - first + beyond, end - first - idle + beyond])
    weights = trained + problem.head_weight_layers * (end == layers)
    forward = count[0][:, None] * problem.forward
    through = count[1][:, None] * (problem.backward - problem.weight)
    weight = weights[:, None] * problem.weight
    apart = problem.schedule == ZERO_BUBBLE
    ends = {
        (is_first, is_last): ends_of(problem, first=is_first, last=is_last)
        for is_first in (False, True)
        for is_last in (False, True)
    }
    of = [ends[bool(a == 0), bool(b == layers)] for a, b in zip(first, end, strict=True)]
    whole = (first == 0) & (end == layers)
    return Stages(
        first=first,
        end=end,
        number=number,
        forward=forward,
        back=through if apart else through + weight,
        rest=weight if apart else 0.0 * weight,
        anew=(end - first)[:, None] * problem.forward,
        last=weight if apart else through + weight,
        gradients=problem.gradient_before[end] - problem.gradient_before[first] + [one.gradients for one in of],
        tied=np.where(((first == 0) | (end == layers)) & ~whole, problem.tied_gradients, 0.0),
        sent=problem.ahead_bytes * (end < layers) + problem.back_bytes * (first > 0),
        held=_held(problem, (end - first)[:, None], np.stack([one.memory for one in of]), whole[:, None]),
        outwards=np.maximum(sending_rate(problem), SLOWEST),
        bucket_bytes=problem.bucket_bytes,
        most_buckets=float(MOST_BUCKETS),
        under_way=float(BUCKETS_UNDER_WAY),
        equal_parts=equal_parts,
    )


def _held(problem: Problem, layers: Ints, ends: Floats, whole: npt.NDArray[np.bool_]) -> Floats:
    """Return the number of micro-batches of which each peer can keep anything at once, shape (2, 2, P, N)."""
    found = []
    for feedback in (0.0, problem.feedback_bytes):
        parameter = problem.parameter_bytes + feedback
        each = parameter * problem.layer_parameters + problem.frozen_layer_bytes + problem.copied_layer_bytes
        room = problem.memory - ends - layers * each - MESSAGES_RECEIVED_AHEAD * problem.input_bytes * ~whole
        kept, anew = (np.maximum(one, 1e-9) for one in (problem.activation_bytes, problem.input_bytes))
        found.append([room / (layers * kept), (room - problem.activation_bytes) / (layers * anew)])
    held = np.clip(np.floor(np.array(found) + ROUNDING), 0.0, problem.micro_batches).swapaxes(0, 1)
    # With one peer, or one layer, it would be laid out as another type of array, for which all is compiled once more.
    return np.ascontiguousarray(held)
