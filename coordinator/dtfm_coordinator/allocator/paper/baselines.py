"""Placements without a search, to compare with."""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.links import Matrix, pipeline_seconds
from dtfm_coordinator.allocator.foundations.neighbourhoods import nearness, tiled
from dtfm_coordinator.allocator.paper.crossover import widths
from dtfm_coordinator.allocator.paper.paper_cost import PaperCostModel, Pipelines


def in_order(devices: int, stages: int, replicas: int) -> Pipelines:
    """Return devices in the view's order, as Megatron ranks them with pipeline parallelism alone.

    Neighbours are replicas: stage k holds devices k * R to k * R + R - 1, and pipeline r takes every R-th device from
    r on, so the pipelines run across the network and the all-reduces stay near. Devices beyond K * R are idle.
    """
    _enough(devices, stages, replicas)
    return tuple(tuple(stage * replicas + route for stage in range(stages)) for route in range(replicas))


def random(devices: int, stages: int, replicas: int, seed: int) -> Pipelines:
    """Return a uniformly random placement: pipelines as drawn, without choosing pairings or the order of stages."""
    _enough(devices, stages, replicas)
    drawn = np.random.default_rng(seed).permutation(devices)[: stages * replicas]
    return tuple(tuple(route) for route in drawn.reshape(replicas, stages).tolist())


def greedy(
    alpha: Matrix, beta: Matrix, stages: int, replicas: int, activation_bytes: float, gradient_bytes: float
) -> Pipelines:
    """Return the cheapest of the neighbourhood tilings and of nearest-neighbour routes, found without a search.

    The order of the stages and the pairing of their devices are the best for each.

    Args:
        alpha: one-way delay, seconds, shape (N, N).
        beta: bandwidth, bytes a second, shape (N, N); 0 is a pair that cannot talk.
        activation_bytes: bytes that a pipeline's share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.
    """
    _enough(len(alpha), stages, replicas)
    model = PaperCostModel(alpha, beta, activation_bytes, gradient_bytes, replicas)
    between = pipeline_seconds(alpha, beta, activation_bytes)
    near = nearness(between)
    active = stages * replicas
    groups = [tiled(near, stages, replicas, width)[:active].reshape(stages, replicas) for width in widths(stages)]
    groups.append(_nearest_neighbours(between + between.T, stages, replicas).T)
    arranged = [model.arrange(found.tolist()) for found in groups]
    _, pipelines = min(arranged, key=lambda each: each[0].total)
    return pipelines


def _nearest_neighbours(seconds: Matrix, stages: int, replicas: int) -> npt.NDArray[np.intp]:
    """Return routes, shape (R, K): each goes on to the nearest device that is left, the next from where the last one
    ended."""
    left = np.ones(len(seconds), dtype=bool)
    devices = np.empty(stages * replicas, dtype=np.intp)
    # The first is one with the nearest neighbour of all.
    here = int(np.unravel_index(int((seconds + np.diag(np.full(len(seconds), np.inf))).argmin()), seconds.shape)[0])
    for place in range(len(devices)):
        if place > 0:
            here = int(np.where(left, seconds[here], np.inf).argmin())
            if not left[here]:  # nothing that is left can be reached
                here = int(left.argmax())
        devices[place] = here
        left[here] = False
    return devices.reshape(replicas, stages)


def _enough(devices: int, stages: int, replicas: int) -> None:
    if devices < stages * replicas:
        raise ValueError(f"{stages} stages x {replicas} replicas need {stages * replicas} devices, not {devices}")
