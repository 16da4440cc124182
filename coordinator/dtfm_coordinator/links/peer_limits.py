"""What peers can send and receive in all, and who measures that next. Pure."""

from collections.abc import Callable, Iterator, Sequence

from dtfm_protocol.control.messages import Fan
from dtfm_protocol.discovery.records import Limits

FAN = 3
"""How many others a peer sends to at once when its limits are measured."""
FAST_GBPS = 2.0
"""Links that are all faster are no home's."""


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

    def fans(self, peers: Sequence[str], gbps: Callable[[str, str], float | None]) -> Iterator[list[Fan]]:
        """Rounds of disjoint groups in which peers, each once, measure what they can send and receive in all.

        Each beside those to which it has the fastest links. Who has none that is slow, or too few, is left out: what
        they share is then no home's line.

        Args:
            gbps: of the link from one peer to another; None where it was not measured, or in vain.
        """
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
