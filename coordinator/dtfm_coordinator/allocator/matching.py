"""Bottleneck matchings: pair two groups of devices one to one so that the slowest pair is as fast as can be.

A threshold admits pairs; whether the admitted pairs hold a perfect matching is decided by augmenting paths
(Kuhn 1955, Hall's theorem) on rows kept as integer bit masks. The smallest admitting threshold is the bottleneck.
"""

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


def two_way_matching(forward: Matrix, backward: Matrix) -> tuple[float, tuple[int, ...]]:
    """Minimise the slowest forward edge plus the slowest backward edge over the perfect matchings of two groups.

    One matching serves both directions: a pipeline's gradients return over the pairs that its activations took.
    Where both matrices are equal this is twice the bottleneck matching.

    Args:
        forward: seconds, shape (n, n); `forward[i, j]` sends from row i to column j. Infinite is a forbidden pair.
        backward: seconds, shape (n, n); `backward[i, j]` returns from column j to row i.

    Returns:
        The two bottlenecks' sum in seconds, and the column of each row; infinity and the identity where no
        perfect matching exists.
    """
    if np.array_equal(forward, backward):
        value, columns = bottleneck_matching(forward)
        return 2 * value, columns
    usable = np.isfinite(forward) & np.isfinite(backward)
    forward, backward = np.where(usable, forward, np.inf), np.where(usable, backward, np.inf)
    best, columns = np.inf, tuple(range(len(forward)))
    # Walk along the trade-off: each step allows the forward half just enough to make the backward half faster than
    # any seen before, until even the fastest backward half could not make up for the forward one.
    fastest_backward, _ = bottleneck_matching(backward)
    slowest_backward = np.inf
    while True:
        slowest_forward, _ = bottleneck_matching(np.where(backward < slowest_backward, forward, np.inf))
        if not slowest_forward + fastest_backward < best:
            return best, columns
        slowest_backward, found = bottleneck_matching(np.where(forward <= slowest_forward, backward, np.inf))
        if slowest_forward + slowest_backward < best:
            best, columns = slowest_forward + slowest_backward, found


def bottleneck_matching(cost: Matrix) -> tuple[float, tuple[int, ...]]:
    """The perfect matching of rows and columns whose largest entry is smallest.

    Args:
        cost: seconds, shape (n, n); infinite is a forbidden pair.

    Returns:
        The largest entry used, and the column of each row; infinity and the identity where no perfect matching
        exists.
    """
    steps = _steps(cost, np.isfinite(cost))
    steps = steps[steps >= floor(cost)]
    low, high = 0, len(steps) - 1
    best = None
    # The floor itself holds more often than not, so it is tried before halving.
    probe = low
    while low <= high:
        found = _perfect_matching(_masks(cost <= steps[probe]))
        if found is None:
            low = probe + 1
        else:
            best, high = (float(steps[probe]), tuple(found)), probe - 1
        probe = (low + high) // 2
    return best or (np.inf, tuple(range(len(cost))))


def floor(cost: Matrix) -> float:
    """A lower bound of the bottleneck: every row and every column must use at least its cheapest entry."""
    return float(max(cost.min(axis=1).max(), cost.min(axis=0).max()))


def _steps(cost: Matrix, usable: npt.NDArray[np.bool_]) -> Matrix:
    """The distinct usable entries, ascending: the only thresholds at which a matching can appear."""
    return np.unique(cost[usable])


def _masks(admitted: npt.NDArray[np.bool_]) -> list[int]:
    """Each row's admitted columns as the bits of an integer."""
    packed = np.packbits(admitted, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def _perfect_matching(admitted: list[int]) -> list[int] | None:
    """The column of each row in some perfect matching of the admitted pairs, or None."""
    row_of: dict[int, int] = {}
    unseen = 0

    def augment(row: int) -> bool:
        nonlocal unseen
        while candidates := admitted[row] & unseen:
            bit = candidates & -candidates
            unseen ^= bit
            if bit not in row_of or augment(row_of[bit]):
                row_of[bit] = row
                return True
        return False

    for row in range(len(admitted)):
        unseen = (1 << len(admitted)) - 1
        if not augment(row):
            return None
    columns = [0] * len(admitted)
    for bit, row in row_of.items():
        columns[row] = bit.bit_length() - 1
    return columns
