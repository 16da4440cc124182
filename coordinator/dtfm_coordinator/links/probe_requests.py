"""Requests for measurements: which peers were asked for, and which of their results are answers. Pure.

A result comes with every report of its peer, and may come late. It is taken once, from the peer that was asked, for the
very round in which it was asked, and only as long as nobody was asked for the same again. The other end of a pair may
tell what it has seen of that measurement; nobody waits for it.
"""

from dtfm_protocol.control.messages import ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import LinkReport


class ProbeRequests:
    """Requests for measurements that have not been answered yet."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], str | None] = {}
        """Peer to which a peer was asked to measure its link, by asked peer and round; None: what it can send and
        receive in all."""
        self._echoes: dict[str, tuple[int, frozenset[str]]] = {}
        """Round in which each peer was asked for round trips last, and to whom."""
        self._watched: dict[tuple[str, int], str] = {}
        """Peer by which a peer was to be measured with, by that one and round; it may tell once the next has begun."""
        self._answered: dict[str, int] = {}
        """Round of each peer whose result was taken last."""

    def ask(self, turn: ProbeRound) -> None:
        """Note that a round is asked for; results of an earlier one about the same are of no use from now on."""
        for peer, other in turn.pairs:
            self.forget_pair(peer, other)
            self._open[peer, turn.id] = other
            self._watched[other, turn.id] = peer
        centres = {one.centre for one in turn.fans} | turn.echoes.keys()
        self._echoes |= {peer: (turn.id, frozenset(others)) for peer, others in turn.echoes.items()}
        self._open = {key: other for key, other in self._open.items() if other is not None or key[0] not in centres}
        self._open |= dict.fromkeys((centre, turn.id) for centre in centres)

    def awaits(self, peer: str, number: int) -> bool:
        """Whether `peer` has yet to report its part of round `number`."""
        return (peer, number) in self._open

    def echoes_of(self, peer: str, number: int) -> frozenset[str]:
        """Return to whom `peer` was asked for round trips in round `number`, if it has yet to answer."""
        round_, others = self._echoes.get(peer, (0, frozenset[str]()))
        return others if round_ == number and self.awaits(peer, number) else frozenset()

    def take(self, peer: str, result: ProbeResult) -> LinkReport | None:
        """Return what `peer` has answered as a report of links, empty where it measured in vain; None: it was not
        asked, or has answered before."""
        key = peer, result.round
        if key not in self._open:
            return None
        other = self._open.pop(key)
        self._answered[peer] = result.round
        if other is None:
            return LinkReport(links={}, limits=result.limits, probed=result.round)
        if result.link is None:
            return LinkReport(links={}, probed=result.round)
        # A later round than this one would keep out what the other end measures from now on.
        link = result.link.model_copy(update={"round": result.round})
        return LinkReport(links={other: link}, probed=result.round)

    def watched(self, peer: str, number: int) -> str | None:
        """Return who was to measure its link with `peer` in round `number`, if `peer` has not told before what it has
        seen of that; None: nobody."""
        return self._watched.pop((peer, number), None)

    def is_outdated(self, peer: str, record: LinkReport) -> bool:
        """Whether `peer` published a record before it reported what was taken last. Order does not tell that: a clock
        that numbers rounds may be set back."""
        return self._answered.get(peer, record.probed) != record.probed

    def forget_pair(self, a: str, b: str) -> None:
        """Drop the requests about the link between two peers: what was measured so far counts no more."""
        pair = {a, b}
        self._open = {key: other for key, other in self._open.items() if {key[0], other} != pair}
        self._watched = {key: other for key, other in self._watched.items() if {key[0], other} != pair}

    def forget(self, peer: str) -> None:
        """Drop the requests of and about a peer, which has left."""
        self._open = {key: other for key, other in self._open.items() if peer not in (key[0], other)}
        self._watched = {key: other for key, other in self._watched.items() if peer not in (key[0], other)}
        self._answered.pop(peer, None)
        self._echoes.pop(peer, None)
