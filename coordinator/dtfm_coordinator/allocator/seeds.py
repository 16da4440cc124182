"""Placements that an evolutionary search starts from, and the ways it makes new ones from old.

A placement is an integer array `order` of all N devices: the first K * R are K groups of R, in path order, and the
rest are idle.
"""

from collections.abc import Iterator
from itertools import combinations
from math import factorial

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


def banded(seconds: Matrix, stages: int, replicas: int, width: int) -> Index:
    """Tile the grid of stages and replicas with runs of `width` devices that are near each other.

    A run lies along a pipeline: `width` stages of one route. Runs are laid one below the other through the replicas,
    then the next band of stages begins. So `width = stages` makes each pipeline a neighbourhood, `width = 1` makes
    each stage one, and the widths between them suit networks whose clusters fill a part of a pipeline. The tightest
    neighbourhoods are taken first; what is left over is idle.

    Args:
        seconds: what a boundary message takes between two devices, shape (N, N).
    """
    near = np.maximum(seconds, seconds.T)
    np.fill_diagonal(near, 0.0)
    near = np.where(np.isfinite(near), near, 2 * near[np.isfinite(near)].max() + 1.0)
    left = np.arange(len(near))
    grid = np.empty((stages, replicas), dtype=np.intp)
    run = left[:0]
    for first in range(0, stages, width):
        band = slice(first, min(first + width, stages))
        size = band.stop - first
        for replica in range(replicas):
            among = near[np.ix_(left, left)]
            radius = np.partition(among, size - 1, axis=1)[:, size - 1]
            if len(run):
                # Among equally tight runs, the one nearest to the last keeps a cluster's runs together.
                radius = radius + 1e-6 * near[np.ix_(run, left)].mean(axis=0)
            chosen = np.argsort(among[radius.argmin()], kind="stable")[:size]
            run = left[chosen]
            grid[band, replica] = run
            left = np.delete(left, chosen)
    return np.concatenate([grid.ravel(), left])


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


def shuffled(order: Index, rng: np.random.Generator) -> Index:
    """The placement with two to eight of its devices moved round in a ring."""
    moved = order.copy()
    size = int(rng.integers(2, max(3, min(9, len(order) // 2 + 1))))
    ring = rng.choice(len(order), min(size, len(order)), replace=False)
    moved[ring] = order[np.roll(ring, 1)]
    return moved


def _labels(order: Index, stages: int, replicas: int) -> Index:
    """Each device's group, `stages` for an idle one."""
    labels = np.empty(len(order), dtype=np.intp)
    labels[order] = np.minimum(np.arange(len(order)) // replicas, stages)
    return labels


def partitions(count: int, stages: int, replicas: int) -> int:
    """How many ways there are to put `stages * replicas` of `count` devices into unnamed groups of `replicas`."""
    idle = count - stages * replicas
    symmetries: int = factorial(replicas) ** stages * factorial(stages) * factorial(idle)
    return factorial(count) // symmetries


def every_partition(count: int, stages: int, replicas: int) -> Iterator[Index]:
    """All of them, once each."""

    def grouped(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield ()
            return
        for mates in combinations(left[1:], replicas - 1):
            group = (left[0], *mates)
            for rest in grouped(tuple(device for device in left if device not in group)):
                yield (*group, *rest)

    for active in combinations(range(count), stages * replicas):
        idle = tuple(device for device in range(count) if device not in active)
        for order in grouped(active):
            yield np.array([*order, *idle], dtype=np.intp)
