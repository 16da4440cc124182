"""Placements that an evolutionary search starts from, and the ways it makes new ones from old.

A placement is an integer array `order` of all N devices: the first K * R are K groups of R, in path order, and the
rest are idle.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from dtfm_coordinator.allocator.compiled import compiled
from dtfm_coordinator.allocator.paper.path import LARGEST_EXACT

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


class Nearness(NamedTuple):
    """Who is near whom, worked out once for all tilings of a network."""

    seconds: Matrix
    """What a message takes between two devices, the slower direction; finite. Shape (N, N)."""
    order: npt.NDArray[np.int32]
    """Each device's others, nearest first, itself at the very first; shape (N, N)."""


def nearness(seconds: Matrix) -> Nearness:
    """From what a boundary message takes between two devices, shape (N, N), infinite where they cannot talk."""
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


def widths(stages: int) -> list[int]:
    """Widths of tilings to try, wide and narrow ones first: one of the two is right for most networks."""
    every = sorted(range(1, stages + 1), key=lambda width: (min(width - 1, stages - width), width))
    if stages <= LARGEST_EXACT:
        return every
    # Where stages are many, those that fill a pipeline evenly, and powers of two.
    return [width for width in every if stages % width == 0 or width & (width - 1) == 0]


@compiled
def tiled(near: Nearness, stages: int, replicas: int, width: int) -> Index:
    """Tile the grid of stages and replicas with runs of `width` devices that are near each other.

    A run lies along a pipeline: `width` stages of one route. Runs are laid one below the other through the replicas,
    then the next band of stages begins. So `width = stages` makes each pipeline a neighbourhood, `width = 1` makes
    each stage one, and the widths between them suit networks whose clusters fill a part of a pipeline. The tightest
    neighbourhoods are taken first; what is left over is idle. Takes time in proportion to N^2.

    Returns:
        The placement, shape (N,).
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
    order[: stages * replicas] = grid.ravel()
    position = stages * replicas
    for device in range(devices):
        if not taken[device]:
            order[position] = device
            position += 1
    return order


def crossed(one: Index, other: Index, stages: int, replicas: int, rng: np.random.Generator) -> Index:
    """A child that takes each device's group from either parent, repaired to groups of equal size.

    Group names mean nothing, so the other parent's groups are first renamed to overlap most with the one's. Groups
    that came out too large give devices up at random to those that came out too small.
    """
    names, others = _labels(one, stages, replicas), _labels(other, stages, replicas)
    overlap = np.zeros((stages + 1, stages + 1))
    np.add.at(overlap, (names, others), 1)
    rows, columns = linear_sum_assignment(overlap[:stages, :stages], maximize=True)
    renamed = np.full(stages + 1, stages)
    renamed[columns] = rows
    child = np.where(rng.random(len(one)) < 0.5, names, renamed[others])

    room = np.append(np.full(stages, replicas), len(one) - stages * replicas)
    homeless = []
    for group, size in enumerate(room):
        members = np.flatnonzero(child == group)
        surplus = len(members) - int(size)
        if surplus > 0:
            homeless.append(rng.choice(members, surplus, replace=False))
    if homeless:
        moving = rng.permutation(np.concatenate(homeless))
        child[moving] = -1
        vacant = room - np.bincount(child[child >= 0], minlength=stages + 1)
        child[moving] = np.repeat(np.arange(stages + 1), vacant)
    return np.argsort(child, kind="stable")


def _labels(order: Index, stages: int, replicas: int) -> Index:
    """Each device's group, `stages` for an idle one."""
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = np.minimum(np.arange(len(order)) // replicas, stages)
    return labels
