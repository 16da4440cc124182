"""Network coordinates: a place for every peer, fitted to the delays that were measured, from which the others follow.

As in Vivaldi (Dabek et al., SIGCOMM 2004) the delay of a pair is the distance between its two places plus a height of
each, the way from home to the exchange. Vivaldi's peers move their own places one round trip after the other; here all
round trips are in one hand, so all places are fitted at once, from a start by multidimensional scaling.
"""

import numpy as np

from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.matrix_completion import MeasuredPairs

DIMENSIONS = 3
"""Dimensions of a place: cities lie on a sphere. (Each of one more is one more figure to be learned of every peer.)"""
FLOOR = 0.02
"""Share of the median delay below which errors count as if they were of that: a fit of relative errors would else bend
to the shortest delays alone."""
STEPS, STEP = 600, 0.1
"""Steps of the fit (Adam: Kingma and Ba, arXiv 1412.6980), and the length of the first, in median delays."""
FIRST_MOMENT, SECOND_MOMENT = 0.9, 0.99
CALM = 3e-3
"""Strength of the pull of places to where they began, and of heights to the common one: it settles peers of whom too
few delays are known."""
MOST_SCALED = 512
"""Peers up to which the start is found by scaling, whose work grows with the cube; of more it is drawn."""


def placed(links: MeasuredPairs) -> Matrix:
    """Fit places and heights to measured delays; return the delay between any two peers, shape (N, N), symmetric.

    A peer of whom no delay was measured is as far from each as the median; its diagonal means nothing.
    """
    scale = float(np.median(links.values))
    if scale <= 0:
        return np.zeros((links.count, links.count))
    ends, delays = _undirected(links, scale)
    start = _start(links.count, ends, delays)
    places, heights = _fit(start, ends, delays)
    fit = _distances(places[:, None] - places[None, :]) + heights[:, None] + heights[None, :]
    unmeasured = ~np.isin(np.arange(links.count), ends)
    fit[unmeasured, :] = fit[:, unmeasured] = 1.0
    return np.asarray(scale * fit, dtype=np.float64)


def _undirected(links: MeasuredPairs, scale: float) -> tuple[np.ndarray, Matrix]:
    """Return the two ends of each pair of peers, shape (2, pairs), and the mean of its delays, in `scale`."""
    low, high = np.minimum(links.senders, links.receivers), np.maximum(links.senders, links.receivers)
    pair, place = np.unique(low * links.count + high, return_inverse=True)
    sums = np.bincount(place, weights=links.values / scale)
    return np.stack((pair // links.count, pair % links.count)), sums / np.bincount(place)


def _start(count: int, ends: np.ndarray, delays: Matrix) -> Matrix:
    """Return first places, shape (N, DIMENSIONS): by scaling of the shortest ways over what was measured (Isomap:
    Tenenbaum et al., Science 2000), else at random."""
    if count > MOST_SCALED:
        return np.random.default_rng(0).normal(scale=0.3, size=(count, DIMENSIONS))
    ways = np.full((count, count), np.inf)
    ways[ends[0], ends[1]] = ways[ends[1], ends[0]] = delays
    np.fill_diagonal(ways, 0.0)
    for over in range(count):
        np.minimum(ways, ways[:, over, None] + ways[None, over, :], out=ways)
    ways = np.where(np.isfinite(ways), ways, 1.0)
    squares = ways**2
    means = squares.mean(axis=0)
    values, vectors = np.linalg.eigh(-0.5 * (squares - means[:, None] - means[None, :] + means.mean()))
    places = np.zeros((count, DIMENSIONS))
    used = min(count, DIMENSIONS)
    places[:, :used] = vectors[:, ::-1][:, :used] * np.sqrt(np.maximum(0.0, values[::-1][:used]))
    return places


def _fit(start: Matrix, ends: np.ndarray, delays: Matrix) -> tuple[Matrix, Matrix]:
    """Return places and heights with the least sum of squared relative errors."""
    count = len(start)
    one, other = ends
    weights = 1.0 / (delays + FLOOR) ** 2
    weights /= max(1e-12, weights.mean())
    known = np.maximum(1.0, np.bincount(one, minlength=count) + np.bincount(other, minlength=count))
    figures = np.column_stack((0.7 * start, np.full(count, 0.1)))
    begun = figures.copy()
    first, second = np.zeros_like(figures), np.zeros_like(figures)
    for step in range(1, STEPS + 1):
        apart = figures[one, :-1] - figures[other, :-1]
        far = _distances(apart)
        wrong = weights * (far + figures[one, -1] + figures[other, -1] - delays)
        pulls = np.column_stack(((wrong / np.maximum(far, 1e-9))[:, None] * apart, wrong))
        slope = CALM * (figures - begun)
        for axis in range(figures.shape[1]):
            there = np.bincount(one, weights=pulls[:, axis], minlength=count)
            back = np.bincount(other, weights=pulls[:, axis], minlength=count)
            slope[:, axis] += (there + back if axis == DIMENSIONS else there - back) / known
        first = FIRST_MOMENT * first + (1 - FIRST_MOMENT) * slope
        second = SECOND_MOMENT * second + (1 - SECOND_MOMENT) * slope**2
        length = STEP * (1 - (step - 1) / STEPS)
        move = (first / (1 - FIRST_MOMENT**step)) / (np.sqrt(second / (1 - SECOND_MOMENT**step)) + 1e-9)
        figures = figures - length * move
        figures[:, -1] = np.maximum(0.0, figures[:, -1])
    return figures[:, :-1], figures[:, -1]


def _distances(apart: Matrix) -> Matrix:
    far: Matrix = np.sqrt((apart**2).sum(axis=-1))
    return far
