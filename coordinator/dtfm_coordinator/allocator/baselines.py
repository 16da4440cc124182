"""Placements without a search, to compare with."""

import numpy as np

from dtfm_coordinator.allocator.paper_cost import Pipelines


def in_order(devices: int, stages: int, replicas: int) -> Pipelines:
    """Devices in the view's order, as Megatron ranks them with pipeline parallelism alone.

    Neighbours are replicas: stage k holds devices k * R to k * R + R - 1, and pipeline r takes every R-th device from
    r on, so the pipelines run across the network and the all-reduces stay near. Devices beyond K * R are idle.
    """
    _enough(devices, stages, replicas)
    return tuple(tuple(stage * replicas + route for stage in range(stages)) for route in range(replicas))


def random(devices: int, stages: int, replicas: int, seed: int) -> Pipelines:
    """A uniformly random placement: pipelines as drawn, without choosing pairings or the order of stages."""
    _enough(devices, stages, replicas)
    drawn = np.random.default_rng(seed).permutation(devices)[: stages * replicas]
    return tuple(tuple(route) for route in drawn.reshape(replicas, stages).tolist())


def _enough(devices: int, stages: int, replicas: int) -> None:
    if devices < stages * replicas:
        raise ValueError(f"{stages} stages x {replicas} replicas need {stages * replicas} devices, not {devices}")
