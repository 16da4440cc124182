"""Least seconds of an all-reduce over links that are each alone, along whatever trees.

Of each byte that n holders sum, n - 1 messages lead to the sum, and n - 1 with the total to all: the links together
carry `2 (n - 1) G`. And of each byte something crosses any border between holders in both directions, the sums of one
side or the total: the links across carry `G` each way. The borders that are looked at are those around each holder, and
around each group of near ones.
"""

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

Floats = npt.NDArray[np.float64]


def least_seconds(alpha: Floats, beta: Floats, size: float) -> float:
    """Return the least seconds from when the first holder is ready.

    Args:
        alpha: one-way delay, seconds, shape (N, N).
        beta: bytes a second, shape (N, N), all more than 0.
        size: bytes of all gradients, `G`.
    """
    count = len(alpha)
    apart = ~np.eye(count, dtype=bool)
    least = 2 * (count - 1) * size / float(beta[apart].sum())
    away = np.where(apart, alpha + size / count / beta, 0.0)
    sides = [[place] for place in range(count)]
    for one, other, _, _ in linkage(squareform((away + away.T) / 2, checks=False), "average").tolist()[:-1]:
        sides.append(sides[int(one)] + sides[int(other)])
    for side in sides:
        inside = np.zeros(count, dtype=bool)
        inside[side] = True
        out, into = beta[np.ix_(inside, ~inside)].sum(), beta[np.ix_(~inside, inside)].sum()
        least = max(least, size / float(min(out, into)))
    return least
