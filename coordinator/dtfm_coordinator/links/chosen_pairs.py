"""Choice of the pairs that are measured: few for each peer, however many there are, and those that tell most. Pure.

Every peer takes round trips to a few others, all at once; from these all delays are estimated. Its rates it measures
with `PARTNERS` others, one after the other, which takes seconds each: with its nearest, for neighbours may have a
better way than through the world; with whoever sends fastest, for only then does its own downlink show. With a third
one, drawn, rates are estimated better, and plans are no better for it (benchmarks/few_measurements.py): the pairs that
a plan is about to use are measured in any case. Who sends fastest is known before a newcomer's delays are: it measures
with that one while it takes its round trips.
"""

import itertools
from collections.abc import Callable, Collection, Iterable

import numpy as np
import numpy.typing as npt

from dtfm_protocol.view.link_matrix import Matrix

Flags = npt.NDArray[np.bool_]
PARTNERS = 2
"""Others with whom each peer measures rates before plans are made."""
FEW = 4
"""Peers of which all pairs are measured: three rounds at most."""
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


def partners(count: int, *, reaches: bool = True) -> int:
    """Return with how many others each of so many peers measures rates; with one more where it `reaches` nobody so."""
    return count - 1 if count <= FEW else PARTNERS + (not reaches)


def is_stranger(tried: Flags, gbps: Matrix) -> Flags:
    """Return who has too few partners yet, shape (N,).

    Args:
        tried: pairs that were measured, or tried in vain, shape (N, N), symmetric, diagonal False.
        gbps: measured rates; NaN where there is none, shape (N, N).
    """
    count, reaches = len(tried), ~np.isnan(gbps).all(axis=1)
    few: Flags = tried.sum(axis=1) < np.where(reaches, partners(count), partners(count, reaches=False))
    return few


def first_partners(tried: Flags, gbps: Matrix, taking: Collection[int]) -> list[tuple[int, int]]:
    """Return disjoint pairs that can be measured while those who are `taking` round trips do so: of each of these that
    has no partner yet, and of whoever sends fastest of the others. The first of a pair measures.

    Args:
        tried, gbps: as for `is_stranger`.
        taking: peers, none of which has time to measure.
    """
    strangers = [peer for peer in _strangers(tried, gbps) if peer in taking and not tried[peer].any()]
    fastest = _fastest_sender(tried, gbps)
    return _disjoint(tried, strangers, {*range(len(tried))} - {*taking}, fastest)


def next_partners(
    tried: Flags, delays: Matrix, gbps: Matrix, met_fastest: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Return disjoint pairs of which each has a stranger, the round to be measured next; none where all know enough.

    The first of a pair measures: who has more partners, so that a newcomer does not tell itself what its links carry.

    Args:
        tried, gbps: as for `is_stranger`.
        delays: of all pairs, measured or estimated, shape (N, N).
        met_fastest: peers whose first partner was to be whoever sends fastest, as `first_partners` has it.
    """
    known, fastest = tried.sum(axis=1), _fastest_sender(tried, gbps)

    def choose(peer: int, free: list[int]) -> int:
        if known[peer] == 0 or (known[peer] == 1 and peer in met_fastest):
            drawn = _drawn(tried, peer)
            return min(free, key=lambda other: (delays[peer, other], drawn[other]))
        return fastest(peer, free)

    return _disjoint(tried, _strangers(tried, gbps), range(len(tried)), choose)


def _strangers(tried: Flags, gbps: Matrix) -> list[int]:
    """Return who has too few partners, those with the fewest first."""
    known = tried.sum(axis=1)
    return sorted(np.flatnonzero(is_stranger(tried, gbps)).tolist(), key=lambda peer: (int(known[peer]), peer))


def _fastest_sender(tried: Flags, gbps: Matrix) -> Callable[[int, list[int]], int]:
    """Return a function that gives, of those who are free, the one that sends fastest, for a peer."""
    sends = np.where(np.isnan(gbps), 0.0, gbps).max(axis=1, initial=0.0)

    def choose(peer: int, free: list[int]) -> int:
        drawn = _drawn(tried, peer)
        return min(free, key=lambda other: (-sends[other], drawn[other]))

    return choose


def _drawn(tried: Flags, peer: int) -> list[int]:
    """Return an order of all peers, by which `peer` chooses of equal ones."""
    order: list[int] = np.random.default_rng((peer, int(tried[peer].sum()))).permutation(len(tried)).tolist()
    return order


def _disjoint(
    tried: Flags, strangers: Iterable[int], others: Collection[int], choose: Callable[[int, list[int]], int]
) -> list[tuple[int, int]]:
    """Return disjoint pairs of one of `others`, which `choose` gives, and a stranger, as far as there are any left."""
    busy: set[int] = set()
    pairs = []
    for peer in strangers:
        free = [other for other in others if other != peer and other not in busy and not tried[peer, other]]
        if peer not in busy and free:
            chosen = choose(peer, free)
            pairs.append((chosen, peer))
            busy |= {peer, chosen}
    return pairs


def in_rounds(pairs: Iterable[Collection[str]]) -> list[list[tuple[str, str]]]:
    """Return rounds of disjoint pairs that hold each pair once, those with the busiest peers first.

    As many rounds as the busiest peer has pairs where peers form no odd circle, as along a pipeline; else some more at
    times. A pair without a round that is free at both ends takes one that is free at its first; where the second is
    busy then, the pairs that hang on that one change places between two rounds (Kempe chains, as in König's proof that
    the edges of bipartite graphs have so few colours, Mathematische Annalen, 1916).
    """
    left: list[tuple[str, str]] = [(one, other) for one, other in map(sorted, pairs)]
    degree: dict[str, int] = {}
    for pair in left:
        for peer in pair:
            degree[peer] = degree.get(peer, 0) + 1
    left.sort(key=lambda pair: (-max(degree[pair[0]], degree[pair[1]]), pair))
    met: dict[str, dict[int, str]] = {peer: {} for peer in degree}
    """Whom each peer meets, by round."""
    for one, other in left:
        turn, free = _first_free(met[one]), _first_free(met[other])
        if turn in met[other]:
            chain = _chain(met, other, turn, free)
            if one in chain:  # an odd circle
                turn = _first_free(met[one] | met[other])
            else:
                _swap(met, chain, turn, free)
        met[one][turn], met[other][turn] = other, one
    rounds: list[list[tuple[str, str]]] = []
    for one, other in left:
        turn = next(turn for turn, peer in met[one].items() if peer == other)
        rounds += [[] for _ in range(turn + 1 - len(rounds))]
        rounds[turn].append((one, other))
    return rounds


def _first_free(met: dict[int, str]) -> int:
    return next(turn for turn in itertools.count() if turn not in met)


def _chain(met: dict[str, dict[int, str]], peer: str, turn: int, other_turn: int) -> list[str]:
    """Return the peers of the chain that begins at `peer` and whose pairs are in these two rounds by turns."""
    chain = [peer]
    while (following := met[chain[-1]].get(turn)) is not None:
        chain.append(following)
        turn, other_turn = other_turn, turn
    return chain


def _swap(met: dict[str, dict[int, str]], chain: list[str], turn: int, other_turn: int) -> None:
    """Have the pairs of a chain change places between two rounds."""
    for peer in chain:
        met[peer] = {
            other_turn if at == turn else turn if at == other_turn else at: other for at, other in met[peer].items()
        }
