"""Which links are known, which are yet to be measured, and the view that follows. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtfm_coordinator.links.peer_limits import PeerLimits
from dtfm_coordinator.links.probe_requests import ProbeRequests
from dtfm_coordinator.links.probe_rounds import Pair, pair_rounds
from dtfm_coordinator.membership.members import Member
from dtfm_protocol.control.messages import ProbeResult
from dtfm_protocol.discovery.records import LinkReport
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import LinkWay, NodeView, View
from dtfm_protocol.wire.stream import Way

MOST_GONE = 4096
"""Peers that have left of which that is remembered, in case that a link of theirs is being measured."""


class LinkTable:
    """The swarm's links, by ordered pair."""

    def __init__(self) -> None:
        self._latency_ms: dict[Pair, float] = {}
        self._gbps: dict[Pair, float] = {}
        self._ways: dict[Pair, Way] = {}
        """Of pairs that have no direct one."""
        self._source: dict[frozenset[str], tuple[str, int]] = {}
        """Who has measured what is known of a pair, and in which round."""
        self._gone: Counter[str] = Counter()
        """How often each peer has left; of those that left long ago it is forgotten."""
        self._tried: set[frozenset[str]] = set()
        self.changes = 0
        """Number of changes of what is known of links: what follows from them need not be worked out anew between."""
        self._untried: tuple[int, list[str], list[str]] = (-1, [], [])
        """Number of changes when `untried` was asked last, of whom, and its answer."""
        self.limits = PeerLimits()
        self.requests = ProbeRequests()

    def tried(self, pairs: Sequence[Pair]) -> None:
        """These pairs were asked to measure; those of which no report comes count as unable to talk."""
        self._tried |= {frozenset(pair) for pair in pairs}
        self.changes += 1

    def forget(self, peer: str) -> None:
        """A peer left; if it returns, its links may be others."""
        self._gone[peer] = self._gone.pop(peer, 0) + 1
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._tried = {pair for pair in self._tried if peer not in pair}
        self.changes += 1
        for pair in [pair for pair in self._gbps if peer in pair]:
            self._forget_link(pair)
        self.limits.forget(peer)
        self.requests.forget(peer)

    def forget_pair(self, sender: str, receiver: str) -> Callable[[], None]:
        """A link is to be measured anew, both ways: that is how links are measured.

        What is returned takes that back, where it has not been measured since, nor an end of it left.
        """
        both = (sender, receiver), (receiver, sender)
        tables: tuple[dict[Any, Any], ...] = (self._gbps, self._latency_ms, self._ways, self._source)
        known = [(table, key, table[key]) for table in tables for key in (*both, frozenset(both[0])) if key in table]
        was_tried = self.known(sender, receiver)
        gone = [self._gone[peer] for peer in both[0]]

        def undo() -> None:
            self.changes += 1
            if not self._measured(sender, receiver) and gone == [self._gone[peer] for peer in both[0]]:
                for table, key, value in known:
                    table[key] = value
                if was_tried:
                    self.tried([(sender, receiver)])

        for pair in both:
            self._forget_link(pair)
        self._tried.discard(frozenset((sender, receiver)))
        self.changes += 1
        self.requests.forget_pair(sender, receiver)
        return undo

    def _forget_link(self, pair: Pair) -> None:
        self.changes += 1
        self._gbps.pop(pair, None)
        self._latency_ms.pop(pair, None)
        self._ways.pop(pair, None)
        self._source.pop(frozenset(pair), None)

    def gbps(self, sender: str, receiver: str) -> float | None:
        """As measured; None where it was not, or in vain."""
        return self._gbps.get((sender, receiver))

    def figures(self, sender: str, receiver: str) -> tuple[float | None, float | None, Way]:
        """Gbit/s, milliseconds one way, and the way, as measured; None where a link was not, or in vain."""
        pair = (sender, receiver)
        return self._gbps.get(pair), self._latency_ms.get(pair), self._ways.get(pair, "direct")

    def reported(self, reporter: str, report: LinkReport) -> None:
        """Take over what a peer has measured, but for what the other end has measured since.

        Of one peer's reports the newest is given last. One way is half the round trip.
        """
        if report.limits is not None:
            self.limits.reported(reporter, report.limits)
        self.changes += 1
        for peer, link in report.links.items():
            source, last = self._source.get(frozenset((reporter, peer)), (reporter, 0))
            if source != reporter and link.round < last:
                continue
            self._source[frozenset((reporter, peer))] = reporter, link.round
            for pair, gbps in (((reporter, peer), link.sent_gbps), ((peer, reporter), link.received_gbps)):
                self._latency_ms[pair] = link.round_trip_ms / 2
                self._gbps[pair] = gbps
                if link.way == "direct":
                    self._ways.pop(pair, None)
                else:
                    self._ways[pair] = link.way

    def answered(self, peer: str, result: ProbeResult) -> None:
        """Take over what a peer says that it has measured, if it is what it was asked for, and new."""
        found = self.requests.take(peer, result)
        if found is not None:
            self.reported(peer, found)

    def published(self, reporter: str, record: LinkReport) -> None:
        """Take over the links of a peer's record that it is known to measure: it does so again where their way changes.

        Its other links come when it is asked for them, not from a record that may be older.
        """
        if self.requests.is_outdated(reporter, record):
            return
        known = {
            peer: link
            for peer, link in record.links.items()
            if self._source.get(frozenset((reporter, peer)), ("", 0))[0] == reporter
        }
        self.reported(reporter, LinkReport(links=known))

    def reporters(self, peers: Sequence[str]) -> list[str]:
        """Those of `peers` who have measured a link that is known."""
        sources = {source for source, _ in self._source.values()}
        return [peer for peer in peers if peer in sources]

    def known(self, a: str, b: str) -> bool:
        """Whether nothing is left to measure between two peers."""
        return frozenset((a, b)) in self._tried

    def untried(self, peers: Sequence[str]) -> list[str]:
        """Those of `peers` of whose links to each other one was neither measured nor tried in vain."""
        asked = list(peers)
        if self._untried[:2] != (self.changes, asked):
            self._untried = self.changes, asked, [peer for peer in asked if self._open(peer, asked)]
        return list(self._untried[2])

    def acquainted(self, members: Sequence[Member]) -> list[Member]:
        """`members` without those whose links to the others are yet to be measured; who knows least goes first."""
        left = list(members)
        while left:
            peers = [member.peer for member in left]
            strangest = max(left, key=lambda member: (len(self._open(member.peer, peers)), member.order))
            if not self._open(strangest.peer, peers):
                break
            left.remove(strangest)
        return left

    def _open(self, peer: str, others: Sequence[str]) -> list[str]:
        """To which of `others` the link of `peer` was neither measured nor tried in vain."""
        return [o for o in others if o != peer and not self.known(peer, o) and not self._measured(peer, o)]

    def rounds(self, peers: Sequence[str]) -> Iterator[list[Pair]]:
        """Rounds in which all unknown links between `peers` get measured, so that no probe disturbs another."""
        return pair_rounds(peers, self._measured)

    def _measured(self, a: str, b: str) -> bool:
        """Whether a measurement succeeded; one that failed is tried again whenever there is a new plan to make."""
        return (a, b) in self._gbps and (b, a) in self._gbps

    def reachable(self, members: Sequence[Member]) -> list[Member]:
        """`members` without those whom no other one reaches, though it was tried."""
        if len(members) < 3:
            return list(members)  # of two that do not meet, nobody can say whose fault it is
        peers = [member.peer for member in members]
        return [
            member
            for member in members
            if any(
                self._measured(member.peer, other) or not self.known(member.peer, other)
                for other in peers
                if other != member.peer
            )
        ]

    def view(
        self,
        members: Sequence[Member],
        precision: str,
        slower: Mapping[str, float] | None = None,
        apart: Collection[frozenset[str]] = (),
    ) -> View:
        """What the allocator plans on: `members` must have profiles.

        Args:
            slower: how many times slower than their profile peers have become.
            apart: pairs that are to have nothing to do with each other, as if they could not talk.
        """
        nodes = []
        for member in members:
            profile = member.profile
            assert profile is not None
            limits = self.limits.of(member.peer)
            nodes.append(
                NodeView(
                    id=member.peer,
                    flops={str(name): value for name, value in profile.flops.items()}.get(precision),
                    layer_seconds=profile.layer_seconds.times((slower or {}).get(member.peer, 1.0)),
                    memory_bytes=profile.memory_bytes,
                    up_gbps=_least(limits.up_gbps, profile.up_gbps),
                    down_gbps=_least(limits.down_gbps, profile.down_gbps),
                )
            )
        ids = [member.peer for member in members]
        there = set(ids)
        ways = tuple(
            LinkWay(sender=sender, receiver=receiver, way=way)
            for (sender, receiver), way in sorted(self._ways.items())
            if way != "direct" and sender != receiver and {sender, receiver} <= there
        )
        return View(
            nodes=tuple(nodes),
            latency_ms=_parted(self._matrix(self._latency_ms, ids, np.nan), ids, apart, np.nan),
            bandwidth_gbps=_parted(self._matrix(self._gbps, ids, 0.0), ids, apart, 0.0),
            ways=ways,
        )

    def _matrix(self, table: dict[Pair, float], ids: Sequence[str], failed: float) -> Matrix:
        """Measured values; `failed` where a measurement was tried in vain; NaN where none was."""
        return np.array(
            [[table.get((a, b), failed if self.known(a, b) else np.nan) for b in ids] for a in ids], dtype=np.float64
        ).reshape(len(ids), len(ids))


def _least(measured: float | None, allowed: float | None) -> float | None:
    """Return the lower of what a line has and what its person allows, in Gbit/s; None: there is no limit."""
    return min((gbps for gbps in (measured, allowed) if gbps is not None), default=None)


def _parted(matrix: Matrix, ids: Sequence[str], apart: Collection[frozenset[str]], failed: float) -> Matrix:
    """Return the figures of links with `failed` for those between the peers of a pair of `apart`."""
    place = {peer: index for index, peer in enumerate(ids)}
    for pair in apart:
        if len(pair) == 2 and pair <= place.keys():
            a, b = (place[peer] for peer in pair)
            matrix[a, b] = matrix[b, a] = failed
    return matrix
