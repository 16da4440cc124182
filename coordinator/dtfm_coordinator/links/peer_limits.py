"""What peers can send and receive in all, and who measures that next. Pure.

A line is measured beside several others at once, which takes seconds. Some peers measure it; of the others it is
estimated, where those that have are alike, and a peer's links do not show that it is another kind. Among homes it is
the line that limits what a peer sends: the fastest of its links tells it, or else what it carries at least. With no
limit for those that are faster than any other end, plans would count on more than they have
(benchmarks/few_measurements.py). Elsewhere the links limit, unless a peer's are slower than those of others that lead
about as far, or two are equally fast, though the other ends could receive more: they have the line in common. An
estimate rises with what any of a peer's links is found to carry later; who has no limit yet, as too few tell, measures.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from dtfm_protocol.control.messages import Fan
from dtfm_protocol.discovery.records import Limits

FAN = 3
"""How many others a peer sends to at once when its limits are measured."""
FAST_GBPS = 2.0
"""Links that are all faster are no home's."""
ROOM = 1.25
"""Multiple of a link's rate that its other end must be able to carry for the rate to be what the line carries."""
ALIKE = 1.2
"""Ratio up to which rates of two links count as the same line's."""
ALMOST_ALL = 0.75
"""Share of the peers that have measured their lines above which others are taken to be as they are."""
ABOUT_AS_FAR = 3.0
"""Ratio of two links' delays up to which they are compared."""
MUCH_SLOWER = 2.0
"""Ratio to what links that lead about as far carry in the median from which a link may be limited by its line."""
Rates = Callable[[str, str], float | None]
"""Gbit/s of the link from one peer to another; None where it was not measured, or in vain."""
Delays = Callable[[str, str], float | None]
"""Milliseconds from one peer to another; None where that was not measured."""


class _KnownLink(NamedTuple):
    """A peer's link, and what its other end can do; Gbit/s, and milliseconds one way."""

    sent: float
    received: float
    delay: float
    other_receives: float
    other_sends: float
    """Of the other end in all, or else over any link that was measured with others; 0: over none."""


class PeerLimits:
    """What each peer's own line carries, as it has reported it, or else as it is estimated; and who was asked."""

    def __init__(self) -> None:
        self._limits: dict[str, Limits] = {}
        self._estimated: dict[str, Limits] = {}
        self._asked: set[str] = set()
        """Peers that need not be asked (again)."""
        self._left: set[str] = set()
        """Peers that have left since rounds began."""

    def of(self, peer: str) -> Limits:
        """What a peer reported last, or else what is estimated; no limits where neither is known."""
        return self._limits.get(peer, self._estimated.get(peer, Limits()))

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
        lines = sum(self._limits[peer].up_gbps is not None for peer in measured) / len(measured)
        free = [peer for peer in measured if self._limits[peer] == Limits()]
        theirs = []
        if len(free) > ALMOST_ALL * len(measured):
            for one in free:
                known = ((delay(one, other) or 0.0, gbps(one, other)) for other in free if one != other)
                theirs += [(far, rate) for far, rate in known if rate is not None]
        if lines <= 0.5 and not theirs:
            return
        for peer in self.unasked(peers):
            links = self._links(peer, peers, gbps, delay)
            if len(links) < 2 or min(min(link.sent, link.received) for link in links) >= FAST_GBPS:
                continue
            if lines > 0.5 and _share_a_line(links):
                estimated = _line(links)
            elif lines > ALMOST_ALL:
                estimated = Limits(up_gbps=max(link.sent for link in links))
            elif theirs and not (_share_a_line(links) or any(_is_slow(link, theirs) for link in links)):
                estimated = Limits()
            else:
                continue
            self._estimated[peer] = estimated
            self._asked.add(peer)

    def _links(self, peer: str, peers: Sequence[str], gbps: Rates, delay: Delays) -> list[_KnownLink]:
        """Return the links of a peer that are known both ways."""
        links, others = [], [other for other in peers if other != peer]
        for other in others:
            there, back = gbps(peer, other), gbps(other, peer)
            if there is not None and back is not None:
                links.append(_KnownLink(there, back, delay(peer, other) or 0.0, *self._most(other, others, gbps)))
        return links

    def _most(self, peer: str, others: Sequence[str], gbps: Rates) -> tuple[float, float]:
        """Return the Gbit/s that a peer receives, and sends, in all, or else the most that was measured with `others`;
        0: nothing was."""
        limits = self.of(peer)
        received = limits.down_gbps or max((gbps(other, peer) or 0.0 for other in others), default=0.0)
        sent = limits.up_gbps or max((gbps(peer, other) or 0.0 for other in others), default=0.0)
        return received, sent


def _share_a_line(links: Sequence[_KnownLink]) -> bool:
    """Return whether several links are about equally fast, though their other ends could receive more."""
    sent = max(link.sent for link in links)
    roomy = [link.sent for link in links if link.other_receives >= ROOM * sent]
    return len(roomy) > 1 and ALIKE * min(roomy) >= sent


def _line(links: Sequence[_KnownLink]) -> Limits:
    """Return what a line carries that is shared by several links."""
    received = max(link.received for link in links)
    is_own = any(ALIKE * link.received >= received for link in links if link.other_sends >= ROOM * received)
    return Limits(up_gbps=max(link.sent for link in links), down_gbps=received if is_own else None)


def _is_slow(link: _KnownLink, theirs: Sequence[tuple[float, float]]) -> bool:
    """Return whether a link is much slower than those that lead about as far, or there is none: then it may be its line
    that limits it. What TCP carries is less the further it leads, so those that lead less far count for less.

    Args:
        theirs: delay and Gbit/s of each.
    """
    as_far = [
        rate * min(1.0, far / link.delay) if link.delay else rate
        for far, rate in theirs
        if link.delay <= ABOUT_AS_FAR * far and far <= ABOUT_AS_FAR * link.delay
    ]
    return not as_far or MUCH_SLOWER * min(link.sent, link.received) < median(as_far)
