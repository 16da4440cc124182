"""From the peers of each stage to a route for every micro-batch.

How many micro-batches a peer takes follows from its speed; which peer of the next stage each of them goes to follows
the pipelines of the placement where shares allow, and else costs the links least; in which order they come alternates.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

Matrix = npt.NDArray[np.float64]


def shares(speeds: Sequence[float], micro_batches: int) -> tuple[int, ...]:
    """Whole micro-batches for peers of these speeds, by largest remainder; everyone takes at least one.

    Raises:
        ValueError: there are fewer micro-batches than peers.
    """
    if micro_batches < len(speeds):
        raise ValueError(f"{micro_batches} micro-batches cannot keep {len(speeds)} peers busy")
    quotas = np.array(speeds, dtype=np.float64) * (micro_batches / sum(speeds))
    counts = np.maximum(1, np.floor(quotas)).astype(np.int64)
    while counts.sum() < micro_batches:
        counts[int((quotas - counts).argmax())] += 1
    while counts.sum() > micro_batches:
        # Those lifted to one took what others have a claim to: the largest take back.
        counts[int(np.where(counts > 1, counts - quotas, -np.inf).argmax())] -= 1
    return tuple(counts.tolist())


def routes(stage_shares: Sequence[Sequence[int]], seconds: Sequence[Matrix]) -> tuple[tuple[int, ...], ...]:
    """For each micro-batch, which of each stage's peers serves it.

    Args:
        stage_shares: for each stage, its peers' micro-batches; all sum to the same. Stages of equal shares are
            joined peer by peer, as a placement's pipelines are.
        seconds: for each boundary, what a micro-batch's message takes there and its gradient back, shape
            (peers before, peers after); infinite is a pair that cannot talk.
    """
    current = interleaved(stage_shares[0])
    stages = [current]
    for before, after, cost in zip(stage_shares, stage_shares[1:], seconds, strict=False):
        if tuple(before) == tuple(after):
            flows = np.diag(np.array(before, dtype=np.int64))
        else:
            flows = _cheapest_flows(before, after, cost)
        current = _follow(current, after, flows)
        stages.append(current)
    return tuple(zip(*stages, strict=True))


def interleaved(counts: Sequence[int]) -> tuple[int, ...]:
    """Each index as often as its count says, spread as evenly as can be."""
    slots = [((turn + 0.5) / count, index) for index, count in enumerate(counts) for turn in range(count)]
    return tuple(index for _, index in sorted(slots))


def _cheapest_flows(before: Sequence[int], after: Sequence[int], cost: Matrix) -> npt.NDArray[np.int64]:
    """How many micro-batches go from each peer to each: the transportation problem with the least transfer in all.

    Its vertices are whole numbers, and the simplex method ends on a vertex.
    """
    finite = cost[np.isfinite(cost)]
    dear = 1e3 * (1.0 + (float(finite.max()) if finite.size else 0.0))
    rows = np.kron(np.eye(len(before)), np.ones(len(after)))
    columns = np.kron(np.ones(len(before)), np.eye(len(after)))
    solved = linprog(
        np.where(np.isfinite(cost), cost, dear).ravel(),
        A_eq=np.vstack([rows, columns]),
        b_eq=np.array([*before, *after]),
        method="highs-ds",
    )
    flows: npt.NDArray[np.int64] = np.rint(solved.x).astype(np.int64).reshape(len(before), len(after))
    return flows


def _follow(current: Sequence[int], after: Sequence[int], flows: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """The next stage's peer of each micro-batch: of those the flows allow, the one furthest behind its share."""
    left = flows.copy()
    taken = [0] * len(after)
    following = []
    for peer in current:
        allowed = np.flatnonzero(left[peer])
        chosen = min((int(index) for index in allowed), key=lambda index: ((taken[index] + 0.5) / after[index], index))
        left[peer, chosen] -= 1
        taken[chosen] += 1
        following.append(chosen)
    return tuple(following)
