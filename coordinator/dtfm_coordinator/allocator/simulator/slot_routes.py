"""Routes of micro-batches, from the peers of each stage, over *slots*: places in stages, numbered in order.

How many micro-batches a slot takes follows from its peer's speed. Which slot of the next stage each goes to follows the
slots' order: shares are laid along a line in both stages, and a micro-batch goes to whoever lies across. So equal
shares make pipelines, whatever the shares no more than `R + S - 1` pairs of R and S peers talk, and the order of the
peers within a stage says who talks to whom. In which order micro-batches come alternates over the peers.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.simulator.heap import pop, push

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@compiled
def assign_shares(speeds: Floats, micro_batches: int) -> Ints:
    """Return whole micro-batches for the peers of one stage, by largest remainder; each takes at least one.

    Args:
        speeds: layers a second, or anything proportional to it, shape (R,), R <= micro_batches.
    """
    # Loops throughout: numpy's own would make arrays, which takes longer than all else here.
    each, total = micro_batches / speeds.sum(), int(np.int64(0))
    quotas, counts = np.empty(len(speeds), dtype=np.float64), np.empty(len(speeds), dtype=np.int64)
    for peer in range(len(speeds)):
        quotas[peer] = speeds[peer] * each
        counts[peer] = max(1, int(np.floor(quotas[peer])))
        total += counts[peer]
    while total < micro_batches:
        chosen = 0
        for peer in range(1, len(counts)):
            if quotas[peer] - counts[peer] > quotas[chosen] - counts[chosen]:
                chosen = peer
        counts[chosen] += 1
        total += 1
    while total > micro_batches:
        # Those lifted to one took what others have a claim to: the largest take back.
        chosen, most = 0, -np.inf
        for peer in range(len(counts)):
            if counts[peer] > 1 and counts[peer] - quotas[peer] > most:
                chosen, most = peer, counts[peer] - quotas[peer]
        counts[chosen] -= 1
        total -= 1
    return counts


@compiled
def route_micro_batches(counts: Ints, shares: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the slot of every micro-batch at every stage.

    Args:
        counts: number of peers of each stage, shape (K,).
        shares: number of micro-batches of each slot, shape (sum of counts,); the same sum M in each stage.

    Returns:
        Slots, shape (M, K); the number of the pair of slots that each crosses at each boundary, shape (M, K - 1); and
        those pairs, shape (P, 2).
    """
    stages = len(counts)
    micro_batches = shares[: counts[0]].sum()
    routes = np.empty((micro_batches, stages), dtype=np.int64)
    crossed = np.empty((micro_batches, max(0, stages - 1)), dtype=np.int64)
    pairs = np.empty((2 * counts.sum(), 2), dtype=np.int64)
    spread = _interleaved(shares[: counts[0]])
    for micro_batch in range(micro_batches):
        routes[micro_batch, 0] = spread[micro_batch]
    before, found = 0, 0
    for stage in range(1, stages):
        after = before + counts[stage - 1]
        end = after + counts[stage]
        first = found
        # The micro-batches left on each pair, in the order of the senders; a sender's pairs stand together.
        left = np.zeros(counts[stage - 1] + counts[stage], dtype=np.int64)
        starts = np.empty(counts[stage - 1] + 1, dtype=np.int64)
        receiver, room = after, shares[after]
        for sender in range(before, after):
            starts[sender - before] = found - first
            rest = shares[sender]
            while rest > 0:
                if room == 0:
                    receiver += 1
                    room = shares[receiver]
                flow = min(rest, room)
                pairs[found, 0], pairs[found, 1] = sender, receiver
                left[found - first] = flow
                found += 1
                rest -= flow
                room -= flow
        starts[after - before] = found - first
        taken = np.zeros(end - after, dtype=np.int64)
        for micro_batch in range(micro_batches):
            sender = routes[micro_batch, stage - 1] - before
            # Of those the sender may serve, the one furthest behind its share.
            chosen, least = -1, np.inf
            for pair in range(starts[sender], starts[sender + 1]):
                if left[pair] > 0:
                    slot = pairs[first + pair, 1]
                    progress = (taken[slot - after] + 0.5) / shares[slot]
                    if progress < least:
                        chosen, least = pair, progress
            left[chosen] -= 1
            slot = pairs[first + chosen, 1]
            taken[slot - after] += 1
            routes[micro_batch, stage] = slot
            crossed[micro_batch, stage - 1] = first + chosen
        before = after
    return routes, crossed, pairs[:found].copy()


@compiled_inside
def _interleaved(shares: Ints) -> Ints:
    """Return each index as often as its share says, spread as evenly as possible."""
    total = shares.sum()
    turns, numbers, size = np.empty(total, dtype=np.float64), np.empty(total, dtype=np.int64), int(np.int64(0))
    indices, spread = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for index in range(len(shares)):
        for turn in range(shares[index]):
            indices[size] = index
            size = push(turns, numbers, size, (turn + 0.5) / shares[index], size)
    for place in range(total):
        _, number, size = pop(turns, numbers, size)
        spread[place] = indices[number]
    return spread
