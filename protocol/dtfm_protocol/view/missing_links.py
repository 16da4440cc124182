"""The estimates of links that nobody measured.

Nobody can probe every pair of thousands. An unmeasured ordered pair is guessed from the measured links:

1. by region: the median of those from the sender's region to the receiver's;
2. by peer, bandwidths only, as a bottleneck: the smaller of the sender's uplink and the receiver's downlink, as it is
   between homes (`matrix_completion.bottleneck`);
3. by peer, as a sum: one figure of the sender and one of the receiver, by least squares, within the range of what was
   measured. Delays are what the way out of one home and into another takes; bandwidths are a product, their logarithms
   a sum (`matrix_completion.additive`).

One in five of the measured links is set aside, and the guess that misses these by least, having seen only the others,
goes first; the others follow where it has no answer. With few links the order is the one above. Where no link at all
was measured, the per-peer limits stand in, else 1 Gbit/s and no delay.

A bandwidth is then cut to the sender's uplink and the receiver's downlink, where they are given. What was measured is
never changed.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.matrix_completion import MeasuredPairs, additive, bottleneck, median_by_region

ENOUGH = 20
"""Number of measured links from which setting some aside tells good guesses from bad ones."""
Guess = Callable[[MeasuredPairs], Matrix]
"""A function from measured links to a figure for every ordered pair, shape (N, N); NaN where it has no answer."""


def estimated_latency(latency_ms: Matrix, regions: Sequence[str | None]) -> Matrix:
    """Fill the gaps (NaN) of delays: shape (N, N), zero diagonal, in the unit given."""
    known = ~np.isnan(latency_ms)
    np.fill_diagonal(known, False)
    if _complete(known):
        return np.where(known, latency_ms, 0.0)
    filled = np.zeros_like(latency_ms)
    if known.any():
        filled = _best(
            MeasuredPairs.among(latency_ms, known), [lambda links: median_by_region(links, regions), additive]
        )
    filled = np.where(known, latency_ms, filled)
    np.fill_diagonal(filled, 0.0)
    return filled


def estimated_bandwidth(bandwidth_gbps: Matrix, regions: Sequence[str | None], up: Matrix, down: Matrix) -> Matrix:
    """Fill the gaps of bandwidths: shape (N, N), zero diagonal, in the unit given.

    Args:
        bandwidth_gbps: measured bandwidths; NaN are gaps, 0 a pair that cannot talk.
        regions: the region of each peer; None where unknown.
        up: what each peer can send in all, shape (N,); infinite where unknown.
        down: what each peer can receive in all, shape (N,); infinite where unknown.
    """
    known = ~np.isnan(bandwidth_gbps)
    np.fill_diagonal(known, False)
    if _complete(known):
        return np.where(known, bandwidth_gbps, 0.0)
    # A pair that cannot talk says nothing of one that nobody has tried.
    working = known & (bandwidth_gbps > 0)
    limits = np.minimum(up[:, None], down[None, :])
    if working.any():
        logarithms = np.log(np.where(working, bandwidth_gbps, 1.0))
        guesses: list[Guess] = [lambda links: median_by_region(links, regions), bottleneck, additive]
        filled = np.minimum(np.exp(_best(MeasuredPairs.among(logarithms, working), guesses)), limits)
    else:
        filled = np.where(np.isfinite(limits), limits, 1.0)
    filled = np.where(known, bandwidth_gbps, filled)
    np.fill_diagonal(filled, 0.0)
    return filled


def _complete(known: npt.NDArray[np.bool_]) -> bool:
    return int(known.sum()) == len(known) * (len(known) - 1)


def _best(links: MeasuredPairs, guesses: Sequence[Guess]) -> Matrix:
    """Choose the guess that is best at links that it has not seen; the next best where it has no answer, and so on.

    One of them must have an answer everywhere.
    """
    if len(links.values) >= ENOUGH:
        # Drawn, because every fifth in order could be one column; always alike, because a view has one estimate.
        hidden = np.random.default_rng(0).random(len(links.values)) < 0.2
        if hidden.any():
            seen, unseen = links.part(~hidden), links.part(hidden)
            misses = np.array(
                [np.abs(guess(seen)[unseen.senders, unseen.receivers] - unseen.values) for guess in guesses]
            )
            silent = np.isnan(misses).all(axis=1)
            judged = ~np.isnan(misses[~silent]).any(axis=0)
            means = np.where(silent, np.inf, misses[:, judged].mean(axis=1)) if judged.any() else np.zeros(len(guesses))
            guesses = [guesses[place] for place in np.argsort(means, kind="stable")]
    filled = guesses[0](links)
    for guess in guesses[1:]:
        if not np.isnan(filled).any():
            break
        filled = np.where(np.isnan(filled), guess(links), filled)
    return filled
