"""Cost of going from the plan in force to another: bytes of state, and of weights that are not trained, over measured
links.

A peer that serves layers which it did not serve before fetches all of them from those who did, from all of them at
once; where none is left, from the newest checkpoint, over a middling link.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.problem.problem_arrays import Problem

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class LayersInForce(NamedTuple):
    """Layers that each peer of a `Problem` holds now."""

    first: Ints
    """First layer that each peer holds, shape (N,); -1 for one that holds none."""
    end: Ints
    """Layer after the last that each peer holds, shape (N,)."""
    layer_bytes: float
    """Bytes that are fetched of one layer."""
    archive: float
    """Bytes a second at which state that no peer holds is fetched from the newest checkpoint."""
    horizon: float
    """Steps within which a move must pay back; infinite where nothing is in force, and moving costs nothing."""


def standing(problem: Problem, spans: dict[int, tuple[int, int]], horizon: float) -> LayersInForce:
    """Return the layers that peers hold now; `spans` has `[first, end)` of each peer that holds any, by its number."""
    first = np.full(len(problem.forward), -1, dtype=np.int64)
    end = np.full(len(problem.forward), -1, dtype=np.int64)
    for peer, span in spans.items():
        first[peer], end[peer] = span
    between = problem.beta[np.isfinite(problem.beta) & (problem.beta > 0)]
    archive = float(np.median(between)) if between.size else np.inf
    return LayersInForce(first, end, problem.moved_layer_bytes, archive, horizon)


@compiled
def moving_a_step(problem: Problem, now: LayersInForce, peers: Ints, counts: Ints, layers: Ints) -> float:
    """Return `moving_seconds` spread over the steps within which a move must pay back; 0 where nothing is in force."""
    if now.horizon == np.inf:
        return 0.0
    return moving_seconds(problem, now, peers, counts, layers) / now.horizon


@compiled
def moving_seconds(problem: Problem, now: LayersInForce, peers: Ints, counts: Ints, layers: Ints) -> float:
    """Return the seconds until every peer holds the state of its new stage.

    Args:
        peers: number of the peer in each slot.
        counts: number of peers of each stage.
        layers: number of layers of each stage.
    """
    slowest = 0.0
    sent = np.zeros(len(now.first), dtype=np.float64)
    slot, begin = 0, 0
    for stage in range(len(counts)):
        finish = begin + layers[stage]
        for member in range(slot, slot + counts[stage]):
            peer = peers[member]
            received, waited = 0.0, 0.0
            for layer in range(begin, finish):
                if now.first[peer] <= layer < now.end[peer]:
                    continue
                received += now.layer_bytes
                rate = 0.0
                for source in range(len(now.first)):
                    if now.first[source] <= layer < now.end[source]:
                        rate += problem.beta[source, peer]
                if rate > 0.0:
                    for source in range(len(now.first)):
                        if now.first[source] <= layer < now.end[source]:
                            sent[source] += now.layer_bytes * problem.beta[source, peer] / rate
                    waited += now.layer_bytes / rate
                else:
                    waited += now.layer_bytes / now.archive
            slowest = max(slowest, waited, received / problem.downlink[peer])
        slot += counts[stage]
        begin = finish
    for source in range(len(now.first)):
        slowest = max(slowest, sent[source] / problem.uplink[source])
    return slowest
