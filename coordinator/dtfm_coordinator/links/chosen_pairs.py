"""Choice of the pairs that are measured: few for each peer, however many there are, and those that tell most. Pure.

Every peer takes round trips to a few others, all at once; from these all delays are estimated. Its rates it measures
with `PARTNERS` others, one after the other: with its nearest, for neighbours may have a better way than through the
world; with whoever sends fastest, for only then does its own downlink show; with one that is drawn, for what was chosen
for a reason says less about the rest. Then come the pairs that a plan is about to use.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dtfm_protocol.view.link_matrix import Matrix

Flags = npt.NDArray[np.bool_]
PARTNERS = 3
"""Others with whom each peer measures rates before plans are made; of fewer, all."""
ECHOES = 8
"""Others to which each peer takes round trips."""
LANDMARKS = 4
"""Of these, how many are the same for all: distances to common points hold places together."""


def echoes(count: int, is_new: Flags, known: Flags) -> dict[int, list[int]]:
    """Return to which others each new peer takes round trips.

    Args:
        count: of peers, N.
        is_new: whose round trips are wanted, shape (N,).
        known: pairs whose delay is known, shape (N, N).
    """
    # Who is no newcomer, and known to most, is a landmark; the same whoever asks.
    order = sorted(range(count), key=lambda peer: (bool(is_new[peer]), -int(known[peer].sum()), peer))
    landmarks, wanted = order[:LANDMARKS], {}
    for peer in np.flatnonzero(is_new).tolist():
        drawn = np.random.default_rng(peer).permutation(count).tolist()
        others = dict.fromkeys(other for other in (*landmarks, *drawn) if other != peer and not known[peer, other])
        wanted[peer] = list(others)[: max(0, ECHOES - int(known[peer].sum()))]
    return {peer: others for peer, others in wanted.items() if others}


def is_stranger(tried: Flags) -> Flags:
    """Return who has too few partners yet, shape (N,).

    Args:
        tried: pairs that were measured, or tried in vain, shape (N, N), symmetric, diagonal False.
    """
    few: Flags = tried.sum(axis=1) < min(PARTNERS, len(tried) - 1)
    return few


def next_partners(tried: Flags, delays: Matrix, gbps: Matrix) -> list[tuple[int, int]]:
    """Return disjoint pairs of which each has a stranger, the round to be measured next; none where all know enough.

    The first of a pair measures: who has more partners, so that a newcomer does not tell itself what its links carry.

    Args:
        tried: as for `is_stranger`.
        delays: of all pairs, measured or estimated, shape (N, N).
        gbps: measured rates; NaN where there is none, shape (N, N).
    """
    partners = tried.sum(axis=1)
    sends = np.where(np.isnan(gbps), 0.0, gbps).max(axis=1, initial=0.0)
    busy: set[int] = set()
    pairs = []
    strangers = sorted(np.flatnonzero(is_stranger(tried)).tolist(), key=lambda peer: (int(partners[peer]), peer))
    for peer in strangers:
        free = [other for other in range(len(tried)) if other != peer and other not in busy and not tried[peer, other]]
        if peer in busy or not free:
            continue
        drawn = np.random.default_rng((peer, int(partners[peer]))).permutation(len(tried))
        if partners[peer] == 0:
            chosen = min(free, key=lambda other: (delays[peer, other], drawn[other]))
        elif partners[peer] == 1:
            chosen = min(free, key=lambda other: (-sends[other], drawn[other]))
        else:
            chosen = min(free, key=lambda other: drawn[other])
        pairs.append((chosen, peer))
        busy |= {peer, chosen}
    return pairs


def in_rounds(pairs: Iterable[Collection[str]]) -> list[list[tuple[str, str]]]:
    """Return rounds of disjoint pairs that hold each pair once, those with the busiest peers first.

    At most twice as many rounds as the busiest peer has pairs, as every greedy colouring of edges, as a rule hardly
    more than that.
    """
    left: list[Sequence[str]] = [sorted(pair) for pair in pairs]
    degree: dict[str, int] = {}
    for pair in left:
        for peer in pair:
            degree[peer] = degree.get(peer, 0) + 1
    left.sort(key=lambda pair: (-max(degree[pair[0]], degree[pair[1]]), pair))
    rounds: list[list[tuple[str, str]]] = []
    busy: list[set[str]] = []
    for one, other in left:
        place = next((place for place, there in enumerate(busy) if not there & {one, other}), len(rounds))
        if place == len(rounds):
            rounds.append([])
            busy.append(set())
        rounds[place].append((one, other))
        busy[place] |= {one, other}
    return rounds
