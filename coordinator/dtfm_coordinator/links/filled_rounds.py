"""Filling of rounds of measurements with pairs of peers who would only wait meanwhile, where estimates are poor. Pure.

A round of a plan's links takes some seconds however few pairs are in it. Where links follow from nothing that is known
of others, only measuring tells, so whoever is free measures, too: the pairs that may be the best, for these are those
that would change a plan.
"""

from collections.abc import Collection, Sequence

import numpy as np

from dtfm_coordinator.links.probe_rounds import Pair
from dtfm_protocol.view.view import View

POOR = 2.0
"""Factor by which estimated rates may be off from which rounds are filled."""


def filled(rounds: Sequence[Sequence[Pair]], view: View, together: Collection[str] = ()) -> list[list[Pair]]:
    """Return `rounds` of disjoint pairs, each with pairs of peers of `view` that are free in it where its estimates are
    poor; none is measured twice.

    Each peer that is free takes whom it would have the fastest link with, as it is estimated, the slower way of both,
    at random among equals; who would have the fastest of all goes first.

    Args:
        together: peers that have filled rounds together before: none of their pairs is added.
    """
    if not rounds or view.estimated_gbps.spread < POOR:
        return [list(turn) for turn in rounds]
    ids, row = view.ids, {peer: place for place, peer in enumerate(view.ids)}
    rates = view.estimated_gbps.values
    rates = np.minimum(rates, rates.T)
    np.fill_diagonal(rates, 0.0)
    gaps = np.isnan(view.bandwidth_gbps)
    rates[~(gaps | gaps.T)] = 0.0
    before = [row[peer] for peer in together if peer in row]
    rates[np.ix_(before, before)] = 0.0
    draw = np.random.default_rng(int((~gaps).sum()))  # another one when more is known
    rates *= 1 + 1e-6 * draw.random(rates.shape)
    for one, other in (pair for turn in rounds for pair in turn):
        if one in row and other in row:
            rates[row[one], row[other]] = rates[row[other], row[one]] = 0.0
    found = []
    for turn in rounds:
        busy = {peer for pair in turn for peer in pair}
        free = np.array([peer not in busy for peer in ids])
        pairs = list(turn)
        for peer in np.argsort(-rates.max(axis=1), kind="stable").tolist():
            best = int(np.argmax(np.where(free, rates[peer], 0.0)))
            if free[peer] and rates[peer, best] > 0 and free[best]:
                free[[peer, best]] = False
                rates[peer, best] = rates[best, peer] = 0.0
                pairs.append((ids[peer], ids[best]))
        found.append(pairs)
    return found
