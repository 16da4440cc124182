"""The estimates of links that nobody measured, and how far off they may be.

Nobody can measure every pair of thousands, nor waits for it. An unmeasured ordered pair is guessed from the measured
links:

1. by region: the median of those from the sender's region to the receiver's;
2. by peer. Bandwidths as a bottleneck: the smaller of the sender's uplink and the receiver's downlink, as it is between
   homes (`matrix_completion.bottleneck`). Delays by a place for every peer (`network_coordinates.placed`);
3. by delay, bandwidths only: the median of the links of about that delay (`matrix_completion.median_by_delay`); where
   lines are known, once more without those links that their ends' lines limit;
4. by peer, as a sum: one figure of the sender and one of the receiver, by least squares, within the range of what was
   measured. Delays are what the way out of one home and into another takes; bandwidths are a product, their logarithms
   a sum (`matrix_completion.additive`);
5. bandwidths only, by one figure for all: their median (`matrix_completion.median_of_all`);
6. bandwidths only, by what the ends' lines carry, where they are known;
7. bandwidths only, by groups of peers with fast links among each other (`matrix_completion.mean_by_group`).

Each measured pair is set aside once, a fifth of them at a time, and the guess that misses these by least, having seen
only the others, goes first; the others follow where it has no answer. With few links the order is the one above. Where
no link at all was measured, the per-peer limits stand in, else 1 Gbit/s and no delay.

What that guess has missed the links by that it had not seen says how far off it is elsewhere: nine in ten of these
misses, and some more where they are few, are no larger than the *spread* (split conformal prediction: Vovk et al.,
Algorithmic Learning in a Random World, 2005), and where measured pairs are drawn at random nine in ten of the links
that were not measured are within it, too. They are not quite: neighbours are measured more often than others. So the
nearer and the farther half are looked at by themselves, and the larger miss counts.

Each guess of a bandwidth is cut to the sender's uplink and the receiver's downlink, where they are given, before it is
judged. What was measured is never changed.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_protocol.view.link_matrix import LEAST, Matrix
from dtfm_protocol.view.matrix_completion import (
    MeasuredPairs,
    additive,
    bottleneck,
    mean_by_group,
    median_by_delay,
    median_by_region,
    median_of_all,
)
from dtfm_protocol.view.network_coordinates import placed
from dtfm_protocol.view.spread import covering

ENOUGH = 20
"""Number of measured links from which setting some aside tells good guesses from bad ones."""
FOLDS = 5
"""Parts into which measured pairs are split, each set aside once."""
MANY = 5000
"""Number of measured links from which one part set aside tells as much."""
AS_LINE = 1.25
"""Ratio of what an end sends or receives in all to a link's rate up to which the line is what limits that."""
FLOOR_MS = 0.5
"""Milliseconds that are added to a delay before an error is a share of it: what a machine adds by itself."""
UNKNOWN_DELAY, UNKNOWN_RATE = 2.0, 8.0
"""Spreads where too few links were measured to tell."""
Guess = Callable[[MeasuredPairs], Matrix]
"""A function from measured links to a figure for every ordered pair, shape (N, N); NaN where it has no answer."""
Miss = Callable[[Matrix, Matrix], Matrix]
"""A function from guesses and what was measured to how far they are apart."""


class Estimated(NamedTuple):
    """Figures of all links, those that were not measured estimated."""

    values: Matrix
    """Shape (N, N), zero diagonal, in the unit given."""
    spread: float
    """Bounds within which nine in ten estimates are: a delay's miss as a share of itself and `FLOOR_MS`; the factor by
    which a bandwidth is off."""


def estimated_latency(latency_ms: Matrix, regions: Sequence[str | None]) -> Estimated:
    """Fill the gaps (NaN) of delays in milliseconds."""
    known = ~np.isnan(latency_ms)
    np.fill_diagonal(known, False)
    if _complete(known):
        return Estimated(np.where(known, latency_ms, 0.0), 0.0)
    filled, spread = np.zeros_like(latency_ms), UNKNOWN_DELAY
    if known.any():
        guesses: list[Guess] = [lambda links: median_by_region(links, regions), placed, additive]
        links = MeasuredPairs.among(latency_ms, known)
        filled, spread = _best(links, guesses, _delay_misses, links.values, UNKNOWN_DELAY)
    filled = np.where(known, latency_ms, filled)
    np.fill_diagonal(filled, 0.0)
    return Estimated(filled, spread)


def estimated_bandwidth(
    bandwidth_gbps: Matrix,
    regions: Sequence[str | None],
    up: Matrix,
    down: Matrix,
    delays: Matrix | None = None,
) -> Estimated:
    """Fill the gaps of bandwidths.

    Args:
        bandwidth_gbps: measured bandwidths; NaN are gaps, 0 a pair that cannot talk.
        regions: the region of each peer; None where unknown.
        up: what each peer can send in all, shape (N,); infinite where unknown.
        down: what each peer can receive in all, shape (N,); infinite where unknown.
        delays: of every pair, measured or estimated, shape (N, N); None where nothing is known of them.
    """
    known = ~np.isnan(bandwidth_gbps)
    np.fill_diagonal(known, False)
    if _complete(known):
        return Estimated(np.where(known, bandwidth_gbps, 0.0), 1.0)
    # A pair that cannot talk says nothing of one that nobody has tried.
    working = known & (bandwidth_gbps > 0)
    limits, spread = np.minimum(up[:, None], down[None, :]), UNKNOWN_RATE
    if working.any():
        links = MeasuredPairs.among(np.log(np.where(working, bandwidth_gbps, 1.0)), working)
        most = np.log(np.maximum(limits, LEAST))
        guesses: list[Guess] = [lambda links: median_by_region(links, regions), bottleneck]
        if delays is not None and np.ptp(delays[links.senders, links.receivers]) > 0:
            guesses.append(lambda links: median_by_delay(links, delays))
            if np.isfinite(most).any():
                guesses.append(lambda links: median_by_delay(_slower_than_lines(links, most), delays))
        guesses += [additive, median_of_all]
        if np.isfinite(most).any():
            guesses.append(lambda links: np.where(np.isfinite(most), most, bottleneck(links)))
        guesses.append(mean_by_group)
        guesses = [_cut(guess, most) for guess in guesses]
        far = np.zeros(len(links.values)) if delays is None else delays[links.senders, links.receivers]
        filled, logarithm = _best(links, guesses, _plain_misses, far, math.log(UNKNOWN_RATE))
        filled, spread = np.minimum(np.exp(filled), limits), math.exp(logarithm)
    else:
        filled = np.where(np.isfinite(limits), limits, 1.0)
    filled = np.where(known, bandwidth_gbps, filled)
    np.fill_diagonal(filled, 0.0)
    return Estimated(filled, spread)


def _cut(guess: Guess, most: Matrix) -> Guess:
    """Return a guess that knows what lines carry: so it is judged by what comes out in the end."""
    return lambda links: np.minimum(guess(links), most)


def _slower_than_lines(links: MeasuredPairs, most: Matrix) -> MeasuredPairs:
    """Return the links that are slower than what the lines of their ends carry: those that these limit say nothing of
    others. All of them where there is no such one.

    Args:
        most: logarithms of what the lines carry, shape (N, N).
    """
    free = links.values < most[links.senders, links.receivers] - math.log(AS_LINE)
    return links.part(free) if free.any() else links


def _complete(known: npt.NDArray[np.bool_]) -> bool:
    return int(known.sum()) == len(known) * (len(known) - 1)


def _plain_misses(guessed: Matrix, true: Matrix) -> Matrix:
    misses: Matrix = np.abs(guessed - true)
    return misses


def _delay_misses(guessed: Matrix, true: Matrix) -> Matrix:
    misses: Matrix = np.abs(guessed - true) / (guessed + FLOOR_MS)
    return misses


def _best(
    links: MeasuredPairs, guesses: Sequence[Guess], miss: Miss, far: Matrix, unknown: float
) -> tuple[Matrix, float]:
    """Choose the guess that is best at links that it has not seen, the next best where it has no answer, and so on;
    return what they say, and their spread, `unknown` where too few links were measured to tell. `far` is each link's
    delay.

    One of them must have an answer everywhere.
    """
    spread = unknown
    if len(links.values) >= ENOUGH:
        unseen = _unseen(links, guesses)
        true = links.values
        tried = ~np.isnan(unseen[-1])
        misses = np.array([miss(guessed, true) for guessed in unseen])
        silent = np.isnan(misses).all(axis=1)
        judged = ~np.isnan(misses[~silent]).any(axis=0)
        means = np.where(silent, np.inf, misses[:, judged].mean(axis=1)) if judged.any() else np.zeros(len(guesses))
        order = np.argsort(means, kind="stable")
        guesses = [guesses[place] for place in order]
        missed = _first_answers(misses[order])[tried]
        is_far = far[tried] > np.median(far)
        spread = max((covering(some) for some in (missed[is_far], missed[~is_far]) if len(some)), default=unknown)
    filled = guesses[0](links)
    for guess in guesses[1:]:
        if not np.isnan(filled).any():
            break
        filled = np.where(np.isnan(filled), guess(links), filled)
    return filled, spread


def _unseen(links: MeasuredPairs, guesses: Sequence[Guess]) -> Matrix:
    """Return what each guess says of each measured link, having seen neither that link nor the way back, shape
    (guesses, links); NaN where that was not tried.

    Parts are drawn, because every fifth in order could be one column; always alike, because a view has one estimate.
    """
    low, high = np.minimum(links.senders, links.receivers), np.maximum(links.senders, links.receivers)
    pairs, pair = np.unique(low * links.count + high, return_inverse=True)
    part = (np.random.default_rng(0).permutation(len(pairs)) % FOLDS)[pair]
    said = np.full((len(guesses), len(links.values)), np.nan)
    for fold in range(FOLDS if len(links.values) < MANY else 1):
        hidden = part == fold
        if not hidden.any() or hidden.all():
            continue
        seen, asked = links.part(~hidden), links.part(hidden)
        for row, guess in enumerate(guesses):
            said[row, hidden] = guess(seen)[asked.senders, asked.receivers]
    return said


def _first_answers(rows: Matrix) -> Matrix:
    """Return of each column the first entry that is a number."""
    answers: Matrix = rows[0]
    for row in rows[1:]:
        answers = np.where(np.isnan(answers), row, answers)
    return answers
