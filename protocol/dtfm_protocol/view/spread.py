"""The spread of estimates: how far off most of them are, by the misses of those that were checked. Pure."""

import math

import numpy as np

from dtfm_protocol.view.link_matrix import Matrix

COVERED = 0.9
"""Part of further estimates that are to be within the spread."""
CONFIDENCE = 1.645
"""Standard deviations by which the number of misses within the spread is above what is expected: so that the spread
covers as much with a probability of 0.95, from some fifty misses on, below which the largest is taken (a
distribution-free tolerance bound: Wilks, Annals of Mathematical Statistics, 1941; by the normal approximation of the
binomial)."""
SLACK = 1.1
"""Multiple of a miss up to which another one counts as the same: where many miss by about as much, a bound that lies
among these would cover some of them by chance."""


def covering(misses: Matrix) -> float:
    """Return what hardly more than one in ten of further misses exceed; the largest where few are known."""
    count = len(misses)
    place = min(count, math.ceil(COVERED * (count + 1) + CONFIDENCE * math.sqrt(count * COVERED * (1 - COVERED))))
    return SLACK * float(np.sort(misses)[place - 1])
