"""Rounds in which pairs of peers measure their links, so that no probe disturbs another. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

Pair = tuple[str, str]
"""Two peers, in order: of a link, the sender and the receiver."""


def pair_rounds(peers: Sequence[str], is_measured: Callable[[str, str], bool]) -> Iterator[list[Pair]]:
    """Rounds of disjoint pairs that hold each pair of `peers` that is not measured once; none is empty.

    The circle method of round-robin tournaments: N - 1 rounds of N / 2 pairs. The first of a pair measures: each peer
    about as often as it is measured with, so that nobody alone tells of its links.
    """
    ring: list[str | None] = list(peers)
    if len(ring) % 2:
        ring.append(None)
    asked = Counter[str]()
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = [
            (b, a) if asked[a] < asked[b] else (a, b)
            for a, b in zip(ring[:half], reversed(ring[half:]), strict=True)
            if a is not None and b is not None and not is_measured(a, b)
        ]
        asked.update(other for _, other in pairs)
        if pairs:
            yield pairs
        ring = [ring[0], ring[-1], *ring[1:-1]]
