"""Positions of nodes in a drawing: near ones near, by classical multidimensional scaling, or in a circle by region.

Where regions say more of who is near whom than single nodes do, regions are placed, and their nodes huddle in them.
"""

from typing import NamedTuple

import numpy as np

from dtfm_protocol.view.link_matrix import Matrix

INFORMATIVE_SPREAD = 0.05
"""Ratio of the distances' standard deviation to their mean from which they tell which nodes are near each other."""
INFORMATIVE_PLANE = 0.3
"""Share of the distances' variance that a plane must hold to show it."""
HUDDLING = 0.7
"""Ratio of the mean distance within regions to that between them, below which regions stand for their nodes."""
SPACING = 0.6
"""Distance of two nodes, at least, as a share of that of nodes on a full grid."""
WIDEST_SPACING = 0.18
"""Distance of two nodes, at least, where they are few."""
SPIRAL = 1.65
"""Distance of two neighbours, at least, in a sunflower of nodes at radii of 1, the root of 2, the root of 3 and so on
(Vogel 1979)."""
ROUNDS = 400
"""Number of rounds, at most, in which nodes that are too near push each other away."""
MOST_PUSHED = 400
"""Number of nodes up to which they push each other away: a picture of more shows no single one."""


class Placement(NamedTuple):
    """Positions of nodes in the unit square."""

    points: Matrix
    """Position of each node, shape (N, 2)."""
    by_region: bool
    """Whether the nodes of a region stand together."""


def places(seconds: Matrix, regions: tuple[str | None, ...]) -> Placement:
    """Return a point for each node.

    Args:
        seconds: seconds of a message on each ordered pair, shape (N, N); infinite where none passes.
        regions: region of each node; None: not known.
    """
    count = len(seconds)
    distances = _distances(seconds)
    spacing = min(WIDEST_SPACING, SPACING / np.sqrt(count))
    member = np.array([list(dict.fromkeys(regions)).index(region) for region in regions])
    if _huddles(distances, member):
        return Placement(_fitted(_huddled(distances, member, spacing)), True)
    points = _scaled(distances)
    if points is None:
        order = np.argsort(member, kind="stable")
        points, grouped = np.empty((count, 2)), len(set(regions)) > 1
        points[order] = _circle(np.where(np.diff(member[order], prepend=0) > 0, 2.0, 1.0))
        return Placement(_fitted(points), grouped)
    return Placement(_fitted(_apart(_fitted(points), np.full(count, spacing / 2))), False)


def _distances(seconds: Matrix) -> Matrix:
    """Return symmetric, finite distances: square roots of the seconds, so that the far do not squeeze the near into a
    point."""
    both = (seconds + seconds.T) / 2
    np.fill_diagonal(both, 0.0)
    finite = both[np.isfinite(both)]
    distances: Matrix = np.sqrt(np.where(np.isfinite(both), both, 1.5 * max(finite.max(initial=0.0), 1e-9)))
    return distances


def _huddles(distances: Matrix, member: Matrix) -> bool:
    """Whether there are regions that hold more than one node, and whose nodes are near each other."""
    same = member[:, None] == member[None, :]
    within, between = distances[same & ~np.eye(len(member), dtype=bool)], distances[~same]
    return bool(within.size and between.size and within.mean() < HUDDLING * between.mean())


def _huddled(distances: Matrix, member: Matrix, spacing: float) -> Matrix:
    """Return nodes as a sunflower's seeds in discs, one a region; the discs stand by their mean distances."""
    sizes = np.bincount(member)
    share = np.eye(len(sizes))[member] / sizes[member][:, None]
    centres = _scaled(share.T @ distances @ share * (1 - np.eye(len(sizes))))
    step = spacing / SPIRAL
    radii = step * np.sqrt(sizes) + 0.75 * spacing
    centres = _ring(radii) if centres is None else _apart(_fitted(centres), radii)
    points = np.empty((len(member), 2))
    for region, size in enumerate(sizes):
        seeds = np.arange(size)
        reach = step * np.sqrt(seeds + 0.5) if size > 1 else np.zeros(1)
        turn = seeds * (np.pi if size == 2 else np.pi * (3 - np.sqrt(5))) + np.pi / 2
        points[member == region] = centres[region] + np.column_stack([reach * np.cos(turn), reach * np.sin(turn)])
    return points


def _scaled(distances: Matrix) -> Matrix | None:
    """Return positions by classical scaling (Torgerson 1952): the two leading axes of the centred squares; None where
    they say little."""
    count = len(distances)
    if count == 1:
        return np.zeros((1, 2))
    pairs = distances[~np.eye(count, dtype=bool)]
    if count > 2 and pairs.std() <= INFORMATIVE_SPREAD * pairs.mean():
        return None
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ distances**2 @ centring)
    leading = np.clip(values[[-1, -2]], 0.0, None)
    if leading.sum() < INFORMATIVE_PLANE * np.clip(values, 0.0, None).sum():
        return None
    # An eigenvector's sign is a matter of the library: the first node goes to the left and up.
    points: Matrix = vectors[:, [-1, -2]] * np.sqrt(leading)
    points *= np.where(points[0] > 0, -1.0, 1.0) * np.array([1.0, -1.0])
    return points


def _circle(steps: Matrix) -> Matrix:
    """Return points on the unit circle from the top clockwise, each after its step; the first step is that from the
    last point."""
    angles = np.pi / 2 - 2 * np.pi * np.cumsum(steps) / steps.sum()
    circle: Matrix = np.column_stack([np.cos(angles), np.sin(angles)])
    return circle


def _ring(radii: Matrix) -> Matrix:
    """Return the centres of discs beside each other on a circle."""
    ring: Matrix = _circle(radii + np.roll(radii, 1)) * 1.15 * radii.sum() / np.pi
    return ring


def _fitted(points: Matrix) -> Matrix:
    """Return the points moved and scaled into the unit square, both axes alike."""
    low, high = points.min(axis=0), points.max(axis=0)
    extent = float((high - low).max())
    fitted: Matrix = 0.5 + (points - (low + high) / 2) / (extent if extent > 0 else 1.0)
    return fitted


def _apart(points: Matrix, radii: Matrix) -> Matrix:
    """Return the points moved so that discs of `radii` about them do not overlap; those on one spot fan out in their
    order."""
    count = len(points)
    if count > MOST_PUSHED:
        return points
    turn = np.arange(count) * np.pi * (3 - np.sqrt(5))
    points = points + 1e-3 * radii[:, None] * np.column_stack([np.cos(turn), np.sin(turn)])
    least = radii[:, None] + radii[None, :]
    for _ in range(ROUNDS):
        between = points[:, None, :] - points[None, :, :]
        lengths = np.sqrt((between**2).sum(axis=2))
        np.fill_diagonal(lengths, np.inf)
        short = np.clip(least - lengths, 0.0, None)
        if (short < 0.02 * least).all():
            break
        push = between * (short / (2 * np.maximum(lengths, 1e-12)))[:, :, None]
        points = points + 0.5 * push.sum(axis=1)
    return points
