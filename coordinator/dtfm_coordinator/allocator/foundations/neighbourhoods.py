"""Neighbourhoods of devices: who is near whom, and grids of stages and replicas tiled with near ones."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.foundations.links import Matrix

Index = npt.NDArray[np.int64]


class Nearness(NamedTuple):
    """Distances of devices, worked out once for all tilings of a network."""

    seconds: Matrix
    """Seconds of a message between two devices, the slower direction; finite. Shape (N, N)."""
    order: npt.NDArray[np.int32]
    """Other devices of each device, nearest first, itself at the very first; shape (N, N)."""


def nearness(seconds: Matrix) -> Nearness:
    """Return the distances from the seconds of a boundary message between two devices, shape (N, N), infinite where
    they cannot talk."""
    near = np.maximum(seconds, seconds.T)
    np.fill_diagonal(near, 0.0)
    unusable = ~np.isfinite(near)
    near[unusable] = 2 * near.max(where=~unusable, initial=0.0) + 1.0
    np.fill_diagonal(near, -1.0)  # itself comes first, whoever else is at no distance
    order = np.empty(near.shape, dtype=np.int32)
    for device, row in enumerate(near):
        order[device] = np.argsort(row, kind="stable")
    np.fill_diagonal(near, 0.0)
    return Nearness(near, order)


@compiled
def tiled(near: Nearness, stages: int, replicas: int, width: int) -> Index:
    """Tile the grid of stages and replicas with runs of `width` devices that are near each other.

    A run lies along a pipeline: `width` stages of one route. Runs are laid one below the other through the replicas,
    then the next band of stages begins. So `width = stages` makes each pipeline a neighbourhood, `width = 1` makes
    each stage one, and the widths between them suit networks whose clusters fill a part of a pipeline. The tightest
    neighbourhoods are taken first; what is left over is idle. Takes time in proportion to N^2.

    Returns:
        All N devices, shape (N,): the first K * R are K groups of R, in path order, and the rest are idle.
    """
    devices = len(near.seconds)
    taken = np.zeros(devices, np.bool_)
    grid = np.empty((stages, replicas), np.int64)
    run, size_before = np.empty(width, np.int64), 0
    # The place in its order of each device's (size - 1)th nearest that is left; it only ever moves on.
    reach, inside = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    for first in range(0, stages, width):
        size = min(width, stages - first)
        reach[:] = -1
        inside[:] = 0
        for replica in range(replicas):
            centre, least = -1, np.inf
            for device in range(devices):
                if taken[device]:
                    continue
                place, count = reach[device], inside[device]
                while count < size:
                    place += 1
                    if not taken[near.order[device, place]]:
                        count += 1
                reach[device], inside[device] = place, count
                radius = near.seconds[device, near.order[device, place]]
                # Among equally tight runs, the one nearest to the last keeps a cluster's runs together.
                if size_before > 0 and radius <= least:
                    away = 0.0
                    for slot in range(size_before):
                        away += near.seconds[run[slot], device]
                    radius += 1e-6 * away / size_before
                if radius < least:
                    centre, least = device, radius
            found = 0
            for place in range(reach[centre] + 1):
                device = near.order[centre, place]
                if not taken[device]:
                    run[found] = device
                    found += 1
            for slot in range(size):
                taken[run[slot]] = True
                grid[first + slot, replica] = run[slot]
            size_before = size
            for device in range(devices):
                if not taken[device]:
                    lost = 0
                    for slot in range(size):
                        apart = near.seconds[device, run[slot]]
                        if apart <= near.seconds[device, near.order[device, reach[device]]]:
                            lost = 1
                    if lost == 1:  # count again: ties at the rim make a subtraction unsafe
                        lost = 0
                        for place in range(reach[device] + 1):
                            lost += not taken[near.order[device, place]]
                        inside[device] = lost
    order = np.empty(devices, np.int64)
    position = 0
    for stage in range(stages):
        for replica in range(replicas):
            order[position] = grid[stage, replica]
            position += 1
    for device in range(devices):
        if not taken[device]:
            order[position] = device
            position += 1
    return order
