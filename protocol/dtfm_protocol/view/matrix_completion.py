"""The completion of a matrix of links: ways to read a figure for every ordered pair out of those of a few."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from dtfm_protocol.view.link_matrix import Matrix

SWEEPS = 30
"""Rounds of alternating least squares; each is exact in one side's figures."""
RIDGE = 1e-3
"""Strength of the pull towards the common mean, in measurements: it settles peers of whom one direction was never
measured."""
ALIKE_LINKS = 5
"""Number of measured links, those of the most similar delays, whose median stands for one that was not measured."""
ASSIGNMENTS = 10
"""Rounds in which each link is given to the end that limits it; they settle in a few."""


@dataclass(frozen=True, slots=True)
class MeasuredPairs:
    """The measured links among `count` peers: sender, receiver and figure of each, shape (links,)."""

    count: int
    senders: npt.NDArray[np.intp]
    receivers: npt.NDArray[np.intp]
    values: Matrix

    @classmethod
    def among(cls, matrix: Matrix, usable: npt.NDArray[np.bool_]) -> Self:
        """Take the entries of a matrix of shape (N, N) that are usable."""
        senders, receivers = np.nonzero(usable)
        return cls(len(matrix), senders, receivers, matrix[senders, receivers])

    def part(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Return the links that are chosen, by a mask of shape (links,)."""
        return type(self)(self.count, self.senders[chosen], self.receivers[chosen], self.values[chosen])


def median_by_region(links: MeasuredPairs, regions: Sequence[str | None]) -> Matrix:
    """Return the median of each ordered pair of regions, for all pairs of peers in them; NaN where there is none."""
    names = {name: number for number, name in enumerate(dict.fromkeys(name for name in regions if name is not None))}
    count = len(names) + 1  # the last has no name, and says nothing
    # Regions of one node each say less than a fit by peer does.
    if len(names) > len(regions) // 2:
        return np.full((links.count, links.count), np.nan)
    member = np.array([count - 1 if name is None else names[name] for name in regions], dtype=np.intp)
    pair = member[links.senders] * count + member[links.receivers]
    order = np.lexsort((links.values, pair))
    present, starts, sizes = np.unique(pair[order], return_index=True, return_counts=True)
    sorted_values = links.values[order]
    table: Matrix = np.full((count, count), np.nan)
    table.flat[present] = (sorted_values[starts + (sizes - 1) // 2] + sorted_values[starts + sizes // 2]) / 2
    table[-1, :] = table[:, -1] = np.nan
    return table[member[:, None], member[None, :]]


def median_by_delay(links: MeasuredPairs, delays: Matrix) -> Matrix:
    """Return, for each pair, the median of the links whose delays are most like its own, shape (N, N).

    Links between the same two places have one delay and one rate, and the longer a way, the less it carries as a rule.

    Args:
        delays: of every ordered pair, measured or estimated, in any unit, shape (N, N).
    """
    order = np.argsort(delays[links.senders, links.receivers], kind="stable")
    known, values = delays[links.senders, links.receivers][order], links.values[order]
    width = min(ALIKE_LINKS, len(values))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    middle = np.searchsorted(known, delays.ravel())
    # Of the windows that may hold it the one whose ends are the nearest to its delay.
    found, nearest = np.zeros(delays.size, dtype=np.intp), np.full(delays.size, np.inf)
    for back in range(width + 1):
        first = np.clip(middle - back, 0, len(values) - width)
        far = np.maximum(delays.ravel() - known[first], known[first + width - 1] - delays.ravel())
        found, nearest = np.where(far < nearest, first, found), np.minimum(far, nearest)
    return np.asarray(medians[found].reshape(delays.shape), dtype=np.float64)


def mean_by_group(links: MeasuredPairs) -> Matrix:
    """Return, for each pair, the mean of the links between the last two groups that it takes to join its ends, each
    way, shape (N, N); the median of all where no links join them.

    Groups are joined by links, those of the largest figures first (single-linkage clustering: Sneath, Journal of
    General Microbiology, 1957): machines of one room have fast links among each other, and alike ones to all others.
    """
    known, joined = np.full((links.count, links.count), np.nan), median_of_all(links)
    known[links.senders, links.receivers] = links.values
    group, members = np.arange(links.count), [np.array([peer]) for peer in range(links.count)]
    for link in np.argsort(-links.values, kind="stable"):
        one, other = group[links.senders[link]], group[links.receivers[link]]
        if one == other:
            continue
        for rows, columns in ((members[one], members[other]), (members[other], members[one])):
            block = known[np.ix_(rows, columns)]
            back = known[np.ix_(columns, rows)]
            seen = block if np.isfinite(block).any() else back
            joined[np.ix_(rows, columns)] = np.nanmean(seen)
        group[members[other]] = one
        members[one] = np.concatenate([members[one], members[other]])
    return joined


def median_of_all(links: MeasuredPairs) -> Matrix:
    """Return the median of all measured links for every pair, shape (N, N): the best there is where links follow from
    nothing. Whatever follows them more closely is then wrong by chance, and a search would pick what is too good."""
    return np.full((links.count, links.count), float(np.median(links.values)))


def additive(links: MeasuredPairs) -> Matrix:
    """Fit `mean + sender + receiver` by least squares, cut to the range of what was measured; shape (N, N)."""
    mean = float(links.values.mean())
    rest = links.values - mean
    sent, received = _totals(links, None), _totals(links, None, receiving=True)
    sender_rest, receiver_rest = _totals(links, rest), _totals(links, rest, receiving=True)
    sender, receiver = np.zeros(links.count), np.zeros(links.count)
    for _ in range(SWEEPS):
        sender = (sender_rest - _totals(links, receiver[links.receivers])) / (sent + RIDGE)
        receiver = (receiver_rest - _totals(links, sender[links.senders], receiving=True)) / (received + RIDGE)
    return _within(mean + sender[:, None] + receiver[None, :], links)


def bottleneck(links: MeasuredPairs) -> Matrix:
    """Fit `min(sender, receiver)`, shape (N, N): of each link only the end that limits it can be learned.

    Begins with the largest figure of each peer, either way: exact where some link is limited by nothing else. A peer
    that limits none of its links is taken to limit none of the others, and one that was never measured to be like
    most.
    """
    sender, receiver = np.full(links.count, -np.inf), np.full(links.count, -np.inf)
    np.maximum.at(sender, links.senders, links.values)
    np.maximum.at(receiver, links.receivers, links.values)
    limits_sending = limits_receiving = np.zeros(links.count)
    for _ in range(ASSIGNMENTS):
        by_sender = sender[links.senders] <= receiver[links.receivers]
        sent, received = links.part(by_sender), links.part(~by_sender)
        limits_sending, limits_receiving = _totals(sent, None), _totals(received, None, receiving=True)
        sums = _totals(sent, sent.values), _totals(received, received.values, receiving=True)
        sender = np.where(limits_sending > 0, sums[0] / np.maximum(limits_sending, 1), sender)
        receiver = np.where(limits_receiving > 0, sums[1] / np.maximum(limits_receiving, 1), receiver)
    for figures, limited in ((sender, limits_sending), (receiver, limits_receiving)):
        unmeasured = np.isinf(figures)
        figures[limited == 0] = np.inf
        if (limited > 0).any():
            figures[unmeasured] = np.median(figures[limited > 0])
    return _within(np.minimum(sender[:, None], receiver[None, :]), links)


def _totals(links: MeasuredPairs, values: Matrix | None, *, receiving: bool = False) -> Matrix:
    """Sum over each peer's links as a sender, or as a receiver; count them where there are no values."""
    ends = links.receivers if receiving else links.senders
    return np.bincount(ends, weights=values, minlength=links.count).astype(np.float64)


def _within(fit: Matrix, links: MeasuredPairs) -> Matrix:
    bounded: Matrix = np.clip(fit, links.values.min(), links.values.max())
    return bounded
