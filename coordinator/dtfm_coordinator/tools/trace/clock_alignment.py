"""Alignment of the nodes' clocks, by the messages between them. Pure.

No message arrives before it is sent. So the correction x of each clock (seconds to add to its wall clock) obeys

    x[i] - x[j] <= least[i, j]      for each i that sent something to j,

with `least` the least time from a send to its arrival, each by its own clock. Shortest paths over these bounds give the
tightest ones that follow for every pair, through whatever peers (difference constraints: Cormen et al., Introduction to
Algorithms, section 24.4). Within them nothing tells the clocks' difference from a slower way there than back, so the
middle is taken, as NTP does with a round trip (RFC 5905, section 8): the least-squares fit to the middles of all pairs.
It obeys every bound itself, being the mean of (D[i, r] - D[r, i]) / 2 over all r, each of which does by the triangle
inequality.

Each clock is taken to run evenly for the whole trace. Two clocks that drift apart by p parts per million (10 to 50 are
usual where nothing disciplines them) differ by p * 1e-6 * T at the ends of T seconds: at 10 ppm, 0.1 ms after 10 s and
36 ms after an hour. Where that shows, no correction obeys all bounds; they are then eased by the least that lets one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clocks:
    """Corrections of clocks that make all of them show the same."""

    corrections: tuple[float, ...]
    """Seconds to add to each wall clock; the middle one of a group is left as it is."""
    uncertainties: tuple[float, ...]
    """Seconds by which the difference to any other clock of the group is wrong at most; infinite for a group of one."""
    groups: tuple[tuple[int, ...], ...]
    """Groups of clocks that messages there and back tie together, largest first; between groups, wall clocks decide."""
    contradiction: float
    """Seconds by which messages arrive too early by any correction: what clocks have drifted; else 0."""


def align(walls: Sequence[float], least: Mapping[tuple[int, int], float]) -> Clocks:
    """Return corrections by which no message arrives before it is sent, if there are such.

    Args:
        walls: Unix seconds at zero of each clock.
        least: least seconds from a message's send to its arrival, each by its own clock, by sender and receiver.
    """
    bounds = np.full((len(walls), len(walls)), np.inf)
    for (sender, receiver), flight in least.items():
        bounds[sender, receiver] = flight + (walls[receiver] - walls[sender])
    contradiction = max(0.0, -_least_cycle_mean(bounds))
    closure = _shortest_paths(bounds + contradiction)
    groups = _groups(closure)
    corrections, uncertainties = np.zeros(len(walls)), np.full(len(walls), np.inf)
    for group in groups:
        members = list(group)
        block = closure[np.ix_(members, members)]
        fit = (block - block.T).mean(axis=1) / 2
        corrections[members] = fit - np.median(fit)
        if len(group) > 1:
            # The true difference lies between -block.T and block.
            differences = fit[:, None] - fit
            uncertainties[members] = np.maximum(block - differences, block.T + differences).max(axis=1)
    _settle(corrections, closure, groups)
    return Clocks(tuple(corrections.tolist()), tuple(uncertainties.tolist()), groups, contradiction)


def _least_cycle_mean(bounds: Matrix) -> float:
    """Return the least mean of the bounds along a cycle, infinite where there is none; if negative, they contradict.

    Source: Karp, A characterization of the minimum cycle mean in a digraph, Discrete Mathematics 23 (1978).
    """
    count = len(bounds)
    walks = [np.zeros(count)]
    for _ in range(count):
        walks.append((walks[-1][:, None] + bounds).min(axis=0))
    ends = np.isfinite(walks[-1])
    if not ends.any():
        return np.inf
    lengths = count - np.arange(count)
    means = (walks[-1][ends] - np.stack(walks[:-1])[:, ends]) / lengths[:, None]
    return float(means.max(axis=0).min())


def _shortest_paths(bounds: Matrix) -> Matrix:
    """Return the shortest paths over `bounds`, by the Floyd-Warshall algorithm, shape (N, N)."""
    closure = bounds.copy()
    np.fill_diagonal(closure, 0.0)
    for by in range(len(closure)):
        closure = np.minimum(closure, closure[:, by : by + 1] + closure[by])
    return closure


def _groups(closure: Matrix) -> tuple[tuple[int, ...], ...]:
    tied = np.isfinite(closure) & np.isfinite(closure.T)
    groups = {tuple(np.flatnonzero(row).tolist()) for row in tied}
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))


def _settle(corrections: Matrix, closure: Matrix, groups: Sequence[tuple[int, ...]]) -> None:
    """Move whole groups back until messages that went one way only, too, arrive after they are sent."""
    for _ in groups:  # no chain of groups is longer
        before = corrections.copy()
        for group in groups:
            members = list(group)
            others = [number for number in range(len(corrections)) if number not in group]
            excess = corrections[members][:, None] - corrections[others] - closure[np.ix_(members, others)]
            corrections[members] -= excess.max(initial=0.0)
        if np.array_equal(before, corrections):
            return
