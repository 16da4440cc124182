"""What peers can send and receive in all, and who measures that next. Pure.

A line is measured beside several others at once, which takes seconds. Some peers measure it; of the others it is
estimated, where those that have are alike, and a peer's links do not show that it is another kind (`line_estimate`). An
estimate rises with what any of a peer's links is found to carry later; who has no limit yet, as too few tell, measures.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from dtfm_coordinator.links.line_estimate import (
    ALMOST_ALL,
    FAN,
    FAST_GBPS,
    UNKNOWN_LINE,
    Examples,
    KnownLink,
    estimated_line,
    line_spread,
)
from dtfm_protocol.control.messages import Fan
from dtfm_protocol.discovery.records import Limits

MOST_CHECKED = 30
"""Peers that have measured, at most, of which is looked at what would have been estimated."""
Rates = Callable[[str, str], float | None]
"""Gbit/s of the link from one peer to another; None where it was not measured, or in vain."""
Delays = Callable[[str, str], float | None]
"""Milliseconds from one peer to another; None where that was not measured."""


class PeerLimits:
    """What each peer's own line carries, as it has reported it, or else as it is estimated; and who was asked."""

    def __init__(self) -> None:
        self._limits: dict[str, Limits] = {}
        self._estimated: dict[str, Limits] = {}
        self._spread, self._checked = UNKNOWN_LINE, list[tuple[str, Limits]]()
        self._asked: set[str] = set()
        """Peers that need not be asked (again)."""
        self._left: set[str] = set()
        """Peers that have left since rounds began."""

    def of(self, peer: str) -> Limits:
        """What a peer reported last, or else what is estimated; no limits where neither is known."""
        return self.known(peer) or Limits()

    def known(self, peer: str) -> Limits | None:
        """What a peer reported last, or else what is estimated; None: neither is known."""
        return self._limits.get(peer, self._estimated.get(peer))

    def spread(self, peer: str) -> float | None:
        """Return the factor by which what is estimated of a peer may be off, in nine of ten cases; None: nothing is."""
        return self._spread if peer in self._estimated and peer not in self._limits else None

    def reported(self, peer: str, limits: Limits) -> None:
        """Take over what a peer has measured: it need not be asked."""
        self._limits[peer] = limits
        self._estimated.pop(peer, None)
        self._asked.add(peer)

    def carried(self, sender: str, receiver: str, gbps: float) -> None:
        """Take note of what a link carries: lines that were estimated carry that, too."""
        for peer, way in ((sender, "up_gbps"), (receiver, "down_gbps")):
            known = self._estimated.get(peer)
            if known is not None and (line := getattr(known, way)) is not None and line < gbps:
                self._estimated[peer] = known.model_copy(update={way: gbps})

    def doubt(self, peers: Collection[str]) -> None:
        """Have what is estimated of `peers` be found out anew, as somebody was wrong about their links; until then it
        counts, for no limit at all would be further off."""
        self._asked -= self._estimated.keys() & {*peers}
        self._checked = []

    def forget(self, peer: str) -> None:
        """A peer left; if it returns, its line may be another."""
        self._limits.pop(peer, None)
        self._estimated.pop(peer, None)
        self._asked.discard(peer)
        self._left.add(peer)

    def unasked(self, peers: Sequence[str]) -> list[str]:
        """Those who were not yet asked what they can send and receive in all, nor need not be."""
        return [peer for peer in peers if peer not in self._asked]

    def fans(
        self, peers: Sequence[str], gbps: Rates, alone: Rates | None = None, delay: Delays = lambda *_: None
    ) -> Iterator[list[Fan]]:
        """Rounds of disjoint groups in which peers, each once, measure what they can send and receive in all.

        Each beside those to which it has the fastest links. Who has none that is slow, or too few, is left out: what
        they share is then no home's line. So is whose line can be estimated: what was found is to be taken between two
        rounds.

        Args:
            gbps: of links as they were measured.
            alone: of links that were measured while nothing else was on their ends' lines; None: all were.
            delay: of the same links; without it all lead as far.
        """
        gone = self._left = set[str]()
        self.estimate(peers, alone or gbps, delay)
        left = list(peers)
        while left := [peer for peer in self.unasked(left) if peer not in gone]:
            busy: set[str] = set()
            chosen = []
            for centre in left:
                links = {}
                for other in peers:
                    there, back = gbps(centre, other), gbps(other, centre)
                    if other not in busy and other != centre and there is not None and back is not None:
                        links[other] = there, back
                links = dict(sorted(links.items(), key=lambda link: -link[1][0])[:FAN])
                if centre in busy or (len(links) < FAN and busy):
                    continue
                self._asked.add(centre)
                if links and min(map(min, links.values())) >= FAST_GBPS:
                    self._limits[centre] = Limits()
                elif len(links) > 1:
                    chosen.append(Fan(centre=centre, gbps=links))
                    busy |= {centre, *links}
            if chosen:
                yield chosen
                self.estimate(peers, alone or gbps, delay)

    def estimate(self, peers: Sequence[str], gbps: Rates, delay: Delays) -> None:
        """Estimate the lines of those of `peers` that were not asked, as far as those that were measured tell.

        Args:
            gbps, delay: of links that were measured while nothing else was on their ends' lines.
        """
        measured = [peer for peer in peers if peer in self._limits]
        # A few of many might be of another kind by chance, or by somebody's will.
        if len(measured) < max(FAN, math.isqrt(len(peers))):
            return
        examples = self._examples(measured, gbps, delay)
        if examples.limited <= 0.5 and not examples.free:
            return
        for peer in self.unasked(peers):
            if (line := estimated_line(self._links(peer, peers, gbps, delay), examples)) is not None:
                self._estimated[peer] = line
                self._asked.add(peer)
        checked = [(peer, self._limits[peer]) for peer in measured[-MOST_CHECKED:]]
        if checked != self._checked and not self._estimated.keys().isdisjoint(peers):
            self._checked = checked
            of_each = ((self._links(peer, peers, gbps, delay), line) for peer, line in checked)
            self._spread = line_spread(of_each, examples)

    def _examples(self, measured: Sequence[str], gbps: Rates, delay: Delays) -> Examples:
        """Return what the lines are like of those that have measured them."""
        limited = sum(self._limits[peer].up_gbps is not None for peer in measured) / len(measured)
        free = [peer for peer in measured if self._limits[peer] == Limits()]
        theirs = []
        if len(free) > ALMOST_ALL * len(measured):
            for one in free:
                known = ((delay(one, other) or 0.0, gbps(one, other)) for other in free if one != other)
                theirs += [(far, rate) for far, rate in known if rate is not None]
        return Examples(limited, theirs)

    def _links(self, peer: str, peers: Sequence[str], gbps: Rates, delay: Delays) -> list[KnownLink]:
        """Return the links of a peer that are known both ways."""
        links, others = [], [other for other in peers if other != peer]
        for other in others:
            there, back = gbps(peer, other), gbps(other, peer)
            if there is not None and back is not None:
                links.append(KnownLink(there, back, delay(peer, other) or 0.0, *self._most(other, others, gbps)))
        return links

    def _most(self, peer: str, others: Sequence[str], gbps: Rates) -> tuple[float, float]:
        """Return the Gbit/s that a peer receives, and sends, in all, or else the most that was measured with `others`;
        0: nothing was."""
        limits = self.of(peer)
        received = limits.down_gbps or max((gbps(other, peer) or 0.0 for other in others), default=0.0)
        sent = limits.up_gbps or max((gbps(peer, other) or 0.0 for other in others), default=0.0)
        return received, sent
