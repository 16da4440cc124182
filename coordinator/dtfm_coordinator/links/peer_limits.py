"""What peers can send and receive in all, and who measures that next. Pure.

A line is measured beside several others at once, which takes seconds. Whoever comes to others whose lines are known
need not do that where its links show it: two that are equally fast, though the others could receive more, have the line
in common. Nor where almost all others are alike: among homes it is the line that limits what a peer sends; elsewhere it
is each link, where a newcomer's are no slower than theirs that lead as far. That is an estimate: a line that is faster
than any other end could tell is taken for that fast, and not for more.
"""

from collections.abc import Callable, Iterator, Sequence
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
"""Share of the others above which a newcomer is taken to be as they are."""
Rates = Callable[[str, str], float | None]
"""Gbit/s of the link from one peer to another; None where it was not measured, or in vain."""
Delays = Callable[[str, str], float | None]
"""Milliseconds from one peer to another; None where that was not measured."""


class _Met(NamedTuple):
    """A peer's link with another one, and what that one can do; Gbit/s, and milliseconds one way."""

    sent: float
    received: float
    delay: float
    other_receives: float
    other_sends: float
    """Of the other end in all, or else over any link that was measured with others; 0: over none."""


class PeerLimits:
    """The limits of each peer's own line, as it has reported them, and who was asked for them."""

    def __init__(self) -> None:
        self._limits: dict[str, Limits] = {}
        self._asked: set[str] = set()

    def of(self, peer: str) -> Limits:
        """What a peer reported last; no limits where it has reported none."""
        return self._limits.get(peer, Limits())

    def reported(self, peer: str, limits: Limits) -> None:
        """Take over what a peer has measured: it need not be asked."""
        self._limits[peer] = limits
        self._asked.add(peer)

    def forget(self, peer: str) -> None:
        """A peer left; if it returns, its line may be another."""
        self._limits.pop(peer, None)
        self._asked.discard(peer)

    def unasked(self, peers: Sequence[str]) -> list[str]:
        """Those who were not yet asked what they can send and receive in all."""
        return [peer for peer in peers if peer not in self._asked]

    def fans(
        self, peers: Sequence[str], gbps: Rates, alone: Rates | None = None, delay: Delays = lambda *_: None
    ) -> Iterator[list[Fan]]:
        """Rounds of disjoint groups in which peers, each once, measure what they can send and receive in all.

        Each beside those to which it has the fastest links. Who has none that is slow, or too few, is left out: what
        they share is then no home's line. So is whose line its links show.

        Args:
            gbps: of links as they were measured.
            alone: of links that were measured while nothing else was on their ends' lines; None: all were.
            delay: of the same links; without it all lead as far.
        """
        for peer in self.unasked(peers):
            others = [other for other in peers if other != peer]
            if (shown := self._shown(peer, others, alone or gbps, delay)) is not None:
                self.reported(peer, shown)
        left = self.unasked(peers)
        while left:
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
                if len(links) > 1 and min(map(min, links.values())) < FAST_GBPS:
                    chosen.append(Fan(centre=centre, gbps=links))
                    busy |= {centre, *links}
            left = self.unasked(left)
            if chosen:
                yield chosen

    def _shown(self, peer: str, others: Sequence[str], gbps: Rates, delay: Delays) -> Limits | None:
        """Return what a peer sends and receives in all, as its links to `others`, and what is known of theirs, show it;
        None where they do not."""
        links = []
        for other in others:
            there, back = gbps(peer, other), gbps(other, peer)
            if there is not None and back is not None:
                links.append(_Met(there, back, delay(peer, other) or 0.0, *self._most(other, others, gbps)))
        if len(links) < 2:
            return None
        lines = sum(self.of(other).up_gbps is not None for other in others)
        free = [other for other in others if other in self._limits and self._limits[other].up_gbps is None]
        shares_line = _shares_line(links)
        if lines > ALMOST_ALL * len(others) or (2 * lines > len(others) and shares_line):
            return _line(links)
        if len(free) > ALMOST_ALL * len(others) and not shares_line:
            pairs = [(one, other) for one in free for other in free if one != other]
            theirs = [(delay(*pair) or 0.0, rate) for pair in pairs if (rate := gbps(*pair)) is not None]
            if not any(_is_slow(min(link.sent, link.received), link.delay, theirs) for link in links):
                return Limits()
        return None

    def _most(self, peer: str, others: Sequence[str], gbps: Rates) -> tuple[float, float]:
        """Return the Gbit/s that a peer receives, and sends, in all, or else the most that was measured with `others`;
        0: nothing was."""
        limits = self.of(peer)
        received = limits.down_gbps or max((gbps(other, peer) or 0.0 for other in others), default=0.0)
        sent = limits.up_gbps or max((gbps(peer, other) or 0.0 for other in others), default=0.0)
        return received, sent


def _shares_line(links: Sequence[_Met]) -> bool:
    """Return whether several links are about equally fast, though their other ends could receive more."""
    sent = max(link.sent for link in links)
    alike = [link.sent for link in links if link.other_receives >= ROOM * sent]
    return len(alike) > 1 and ALIKE * min(alike) >= sent


def _line(links: Sequence[_Met]) -> Limits:
    """Return what a line carries that limits what its peer sends."""
    sent, received = max(link.sent for link in links), max(link.received for link in links)
    is_own = any(ALIKE * link.received >= received for link in links if link.other_sends >= ROOM * received)
    return Limits(up_gbps=sent, down_gbps=received if is_own else None)


def _is_slow(gbps: float, delay: float, theirs: Sequence[tuple[float, float]]) -> bool:
    """Return whether a link is slower than those of others that lead as far: then it may be its line that limits it.

    One that leads further than all may be as much slower as it is longer, as what TCP carries is.

    Args:
        theirs: delay and Gbit/s of each.
    """
    beyond = [rate for far, rate in theirs if far >= delay]
    if not beyond and theirs:
        far, rate = max(theirs)
        beyond = [rate * far / delay]
    return not beyond or ALIKE * gbps < min(beyond)
