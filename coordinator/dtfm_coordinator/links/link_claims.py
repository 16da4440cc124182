"""Claims about links: whose word each link's rates are, which of them the other end is to measure, and whose word is
bounded because it was found to be too high. Pure.

Whoever measures a link tells what it carries, both ways; a liar could so say that it is near everybody. So a rate that
only one end tells, and that is above all that others have ever seen with that end, is measured by the other end before
a plan uses it. Who is contradicted is believed from then on up to what others have seen.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from dtfm_coordinator.links.line_estimate import FAST_GBPS
from dtfm_coordinator.links.probe_rounds import Pair

ABOVE = 1.5
"""Multiple of the highest rate that others have seen with a peer, from which its word is looked into."""
CONTRADICTED = 3.0
"""Multiple of what the other end finds, from which a claim is no error of measuring: machines are busy at times."""

Rates = Mapping[Pair, float]
"""Gbit/s from the first peer to the second."""
Sources = Mapping[frozenset[str], tuple[str, int]]
"""Who has measured a pair, and in which round."""


class LinkClaims:
    """Claims that were found to be too high, and by whom."""

    def __init__(self) -> None:
        self._bounded: set[str] = set()

    def contradicted(self, peer: str) -> None:
        """Believe a peer up to what others have seen with it."""
        self._bounded.add(peer)

    def forget(self, peer: str) -> None:
        """A peer left."""
        self._bounded.discard(peer)

    @staticmethod
    def seen(receiver: str, gbps: float, rates: Rates, sources: Sources) -> float:
        """Return the Gbit/s that count where `receiver` says that frames have come at `gbps`: no more than others have
        measured with it; 0: nobody has."""
        return min(gbps, _seen_with(receiver, rates, sources, sends=False) or 0.0)

    def believed(self, reporter: str, pair: Pair, gbps: float, rates: Rates, sources: Sources) -> float:
        """Return the Gbit/s that count where `reporter` says `gbps` of `pair`, of which it is an end."""
        if reporter not in self._bounded:
            return gbps
        seen = _seen_with(reporter, rates, sources, sends=pair[0] == reporter)
        return gbps if seen is None else min(gbps, seen)


def doubtful(
    pairs: Collection[frozenset[str]], rates: Rates, sources: Sources, confirmed: Rates = MappingProxyType({})
) -> list[Pair]:
    """Return those of `pairs` of which one end alone tells more than others have ever seen with it; first the end that
    is to measure, then the one whose word it is. Where nobody else has measured anything with it, there is nothing to
    compare with; above `FAST_GBPS` all rates count as the same.

    Args:
        confirmed: what both ends of a link have found.
    """
    found = []
    for pair in pairs:
        if len(pair) != 2 or pair not in sources:
            continue
        teller = sources[pair][0]
        (other,) = pair - {teller}
        for one, sends in (((teller, other), True), ((other, teller), False)):
            seen = _seen_with(teller, rates, sources, sends=sends)
            if seen is None:
                continue
            seen = max(seen, confirmed.get(one, 0.0))
            if min(FAST_GBPS, rates.get(one, 0.0)) > ABOVE * min(FAST_GBPS, seen):
                found.append((other, teller))
                break
    return sorted(found)


def contradicts(claimed: float, found: float) -> bool:
    """Whether a rate that one end has told is too high for what the other end finds, in Gbit/s."""
    return min(FAST_GBPS, claimed) > CONTRADICTED * min(FAST_GBPS, found)


def _seen_with(peer: str, rates: Rates, sources: Sources, *, sends: bool) -> float | None:
    """Return the highest Gbit/s at which `peer` sends, or else receives, by those who have measured that with it; None:
    nobody has."""
    seen = [
        rates[link]
        for pair, (teller, _) in sources.items()
        if peer in pair and teller != peer
        for link in [(peer, teller) if sends else (teller, peer)]
        if link in rates
    ]
    return max(seen, default=None)
