"""A lower bound of the simulated step that holds for any plan of a job, whatever its stages, peers, shares and layers.

For each number of stages, the largest of:

- capacity: in T seconds a peer takes at most `T * speed` layers of micro-batches forward and back, and, where there is
  more than one stage, at most as many micro-batches as it can send one message each for; every stage needs all
  micro-batches, and all stages together all layers of all micro-batches;
- the way of one micro-batch: all layers forward and back on the fastest peer (where weights' gradients come apart, its
  input's gradient back), and each boundary there and back over the fastest link;
- with one stage, on the best number of peers, their compute and then the shortest all-reduce of so many.

The least of these over the numbers of stages that fit in memory is the bound.
"""

import numpy as np

from dtfm_coordinator.allocator.problem.problem_arrays import ZERO_BUBBLE, Problem

STEPS = 60
"""Halvings of the interval in which the bound lies: so many that it is far below the precision of a double."""


def lower_bound(problem: Problem) -> float:
    """Return seconds of a step that no plan can undercut; infinite where no number of stages fits in memory."""
    bounds = [np.inf]
    for stages in range(1, min(len(problem.forward), problem.layers) + 1):
        if _fits(problem, stages):
            bounds.append(data_parallel_bound(problem) if stages == 1 else _pipelined(problem, stages))
    return float(min(bounds))


def _fits(problem: Problem, stages: int) -> bool:
    """Whether the smallest stage there can be fits in the largest memory, and all in all memories."""
    each = problem.parameter_bytes.min()
    layer = each * problem.layer_parameters + problem.frozen_layer_bytes
    everything = problem.layers * layer
    smallest = layer if stages > 1 else everything
    beside = problem.embedding_parameters + problem.head_parameters - (problem.tied_parameters if stages == 1 else 0.0)
    frozen = problem.frozen_embedding_bytes + problem.frozen_head_bytes
    frozen -= problem.frozen_tied_bytes if stages == 1 else 0.0
    ends = each * beside + frozen + problem.logits_bytes
    held = everything + ends
    largest = smallest + (ends if stages == 1 else 0.0)
    return bool(problem.memory.max() >= largest and problem.memory.sum() >= held)


def _speeds(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the layers of a micro-batch that each peer takes forward and back a second, fastest first; shape (N,)."""
    speeds: np.ndarray[tuple[int], np.dtype[np.float64]] = np.sort(1.0 / (problem.forward + problem.backward))[::-1]
    return speeds


def _whole_layers(problem: Problem) -> float:
    """Return the number of layers, the head counted in layers, whose backward is whole; the little that others take is
    left out, for this is a bound."""
    return float(problem.trained_before[-1]) + problem.head_weight_layers


def data_parallel_bound(problem: Problem) -> float:
    """Return the bound in seconds of a step with one stage, on the best number of peers, whoever sums how much."""
    work = problem.micro_batches * _whole_layers(problem)
    speeds = np.cumsum(_speeds(problem))[: problem.micro_batches]
    count = np.arange(1, len(speeds) + 1)
    beta = problem.beta[np.isfinite(problem.beta) & (problem.beta > 0)]
    fastest = float(beta.max()) if beta.size else 0.0
    delay = _least_delay(problem)
    gradients = float(problem.gradient_before[-1]) + problem.embedding_gradients + problem.head_gradients
    gradients -= problem.tied_gradients
    # The largest part is an equal one at least, and crosses each link of its owner's twice; over uplinks all parts but
    # the own one go ahead, and each part back to all others, which in the mean is twice what an equal part has.
    link = 2 * gradients / count / fastest if fastest else np.full(len(count), np.inf)
    uplink = 2 * (count - 1) * gradients / count / float(problem.uplink.max())
    reduce = np.where(count > 1, 2 * delay + np.maximum(link, uplink), 0.0)
    return float((work / speeds + reduce).min())


def _pipelined(problem: Problem, stages: int) -> float:
    """Return the bound in seconds of a step with `stages` stages, more than one."""
    usable = problem.beta.copy()
    np.fill_diagonal(usable, 0.0)
    rate = np.minimum(problem.uplink, usable.sum(axis=1))
    message = problem.message_bytes / float(usable.max()) if usable.any() else np.inf
    way = problem.forward + problem.backward - (problem.weight if problem.schedule == ZERO_BUBBLE else 0.0)
    path = _whole_layers(problem) * float(way.min())
    path += 2 * (stages - 1) * (message + _least_delay(problem))
    least_message = min(problem.ahead_bytes, problem.back_bytes)
    speeds, micro_batches = 1.0 / (problem.forward + problem.backward), problem.micro_batches
    deepest = problem.layers - stages + 1 + problem.head_layers
    work = micro_batches * _whole_layers(problem)

    def enough(seconds: float) -> bool:
        served = np.minimum(float(micro_batches), seconds * rate / least_message)
        layers = np.minimum(seconds * speeds, deepest * served)
        return bool(layers.sum() >= work and served.sum() >= stages * micro_batches)

    high = work / float(speeds.min()) + path
    while not enough(high):
        high *= 2
        if high > 1e15:
            return np.inf
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(low, path)


def _least_delay(problem: Problem) -> float:
    apart = ~np.eye(len(problem.alpha), dtype=bool) & (problem.beta > 0)
    return float(problem.alpha[apart].min()) if apart.any() else 0.0
