"""Crossover of two placements, and the widths of the tilings with which the evolutionary search starts.

A placement is an integer array `order` of all N devices: the first K * R are K groups of R, in path order, and the
rest are idle.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from dtfm_coordinator.allocator.foundations.neighbourhoods import Index
from dtfm_coordinator.allocator.paper.hamiltonian_path import LARGEST_EXACT


def widths(stages: int) -> list[int]:
    """Return widths of tilings to try, wide and narrow ones first: one of the two is right for most networks."""
    every = sorted(range(1, stages + 1), key=lambda width: (min(width - 1, stages - width), width))
    if stages <= LARGEST_EXACT:
        return every
    # Where stages are many, those that fill a pipeline evenly, and powers of two.
    return [width for width in every if stages % width == 0 or width & (width - 1) == 0]


def crossed(one: Index, other: Index, stages: int, replicas: int, rng: np.random.Generator) -> Index:
    """Return a child that takes each device's group from either parent, repaired to groups of equal size.

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
    """Return each device's group, `stages` for an idle one."""
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = np.minimum(np.arange(len(order)) // replicas, stages)
    return labels
