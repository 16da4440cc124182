"""Which links are known, which are yet to be measured, and the view that follows. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtfm_coordinator.links.chosen_pairs import (
    FEW,
    Flags,
    echoes,
    first_partners,
    in_rounds,
    is_stranger,
    next_partners,
    partners,
)
from dtfm_coordinator.links.link_claims import LinkClaims, contradicts, doubtful
from dtfm_coordinator.links.peer_limits import PeerLimits
from dtfm_coordinator.links.probe_requests import ProbeRequests
from dtfm_coordinator.links.probe_rounds import Pair, pair_rounds
from dtfm_coordinator.membership.members import Member
from dtfm_protocol.control.messages import Fan, ProbeResult
from dtfm_protocol.discovery.records import LinkReport
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.missing_links import estimated_latency
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
        self._echoes: dict[Pair, float] = {}
        """Milliseconds one way of pairs by their round trips alone, either way."""
        self._failing: dict[Pair, tuple[float, int]] = {}
        """Gbit/s of links that have become slower than was measured, or may have, as frames under way tell, and the
        round of that measurement, which may be read once more."""
        self.changes = 0
        """Number of changes of what is known of links: what follows from them need not be worked out anew between."""
        self._untried: tuple[int, list[str], list[str]] = (-1, [], [])
        """Number of changes when `untried` was asked last, of whom, and its answer."""
        self.limits = PeerLimits()
        self._claims = LinkClaims()
        self._met_fastest: set[str] = set()
        """Peers that were to be measured with whoever sends fastest before anybody else."""
        self._least: dict[Pair, float] = {}
        """Gbit/s of links that carry that at least: their ends' lines were shared while they were measured."""
        self._shared: set[frozenset[str]] = set()
        """Pairs whose last measurement shared a line."""
        self._confirmed: dict[Pair, tuple[float, str]] = {}
        """Gbit/s of links that an end has seen while the other measured, and which end that was; "": both have measured
        that, one after the other."""
        self._recalled: dict[frozenset[str], tuple[str, int]] = {}
        """Whose word on a pair was recalled, and the round that it names."""
        self.requests = ProbeRequests()

    def tried(self, pairs: Sequence[Pair]) -> None:
        """These pairs were asked to measure; those of which no report comes count as unable to talk."""
        self._tried |= {frozenset(pair) for pair in pairs}
        self.changes += 1

    def departures(self, peer: str) -> int:
        """Return how often a peer has left."""
        return self._gone[peer]

    def forget(self, peer: str) -> None:
        """A peer left; if it returns, its links may be others."""
        self._gone[peer] = self._gone.pop(peer, 0) + 1
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._tried = {pair for pair in self._tried if peer not in pair}
        self.changes += 1
        for pair in [pair for pair in self._gbps if peer in pair]:
            self._forget_link(pair)
        self._echoes = {pair: delay for pair, delay in self._echoes.items() if peer not in pair}
        self._least = {pair: gbps for pair, gbps in self._least.items() if peer not in pair}
        self._shared = {pair for pair in self._shared if peer not in pair}
        self.limits.forget(peer)
        self._claims.forget(peer)
        self._met_fastest.discard(peer)
        self._confirmed = {pair: seen for pair, seen in self._confirmed.items() if peer not in pair}
        self._recalled = {pair: word for pair, word in self._recalled.items() if peer not in pair}
        self.requests.forget(peer)

    def forget_pair(self, sender: str, receiver: str) -> Callable[[], None]:
        """A link is to be measured anew, both ways: that is how links are measured.

        What is returned takes that back, where it has not been measured since, nor an end of it left.
        """
        both = (sender, receiver), (receiver, sender)
        tables: tuple[dict[Any, Any], ...] = (self._gbps, self._latency_ms, self._ways, self._source, self._failing)
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
        self._failing.pop(pair, None)
        self._gbps.pop(pair, None)
        self._latency_ms.pop(pair, None)
        self._ways.pop(pair, None)
        self._source.pop(frozenset(pair), None)

    def gbps(self, sender: str, receiver: str) -> float | None:
        """As measured; None where it was not, or in vain."""
        return self._gbps.get((sender, receiver))

    def gbps_alone(self, sender: str, receiver: str) -> float | None:
        """As measured, where streams went directly and nothing else was on the lines of both ends; None elsewhere."""
        is_other = (sender, receiver) in self._ways or frozenset((sender, receiver)) in self._shared
        return None if is_other else self.gbps(sender, receiver)

    def fans(self, peers: Sequence[str]) -> Iterator[list[Fan]]:
        """Rounds of groups in which those of `peers` whose lines cannot be estimated measure them, as `PeerLimits`."""
        return self.limits.fans(peers, self.gbps, self.gbps_alone, self.delay)

    def estimate_lines(self, peers: Sequence[str]) -> None:
        """Estimate what lines of `peers` carry in all where that can be done, as `PeerLimits`; nothing is measured."""
        self.limits.estimate(peers, self.gbps_alone, self.delay)

    def figures(self, sender: str, receiver: str) -> tuple[float | None, float | None, Way]:
        """Gbit/s, milliseconds one way, and the way, as measured; None where a link was not, or in vain."""
        pair = (sender, receiver)
        return self._gbps.get(pair), self._latency_ms.get(pair), self._ways.get(pair, "direct")

    def delay(self, one: str, other: str) -> float | None:
        """Milliseconds one way, by a measured link or a round trip alone; None where neither was taken."""
        return self._latency_ms.get((one, other), self._echoes.get((one, other)))

    def reported(self, reporter: str, report: LinkReport) -> None:
        """Take over what a peer has measured, but for what the other end has measured since.

        Of one peer's reports the newest is given last. One way is half the round trip.
        """
        if report.limits is not None:
            self.limits.reported(reporter, report.limits)
        self.changes += 1
        for peer, link in report.links.items():
            if peer == reporter:
                continue
            source, last = self._source.get(frozenset((reporter, peer)), (reporter, 0))
            if source != reporter and link.round < last:
                continue
            self._source[frozenset((reporter, peer))] = reporter, link.round
            (self._shared.add if link.is_least else self._shared.discard)(frozenset((reporter, peer)))
            for pair, gbps in (((reporter, peer), link.sent_gbps), ((peer, reporter), link.received_gbps)):
                self._latency_ms[pair] = link.round_trip_ms / 2
                believed = self._claims.believed(reporter, pair, gbps, self._gbps, self._source)
                self._gbps[pair] = self._as_failing(pair, believed, link.round)
                self.limits.carried(*pair, self._gbps[pair])
                if link.way == "direct":
                    self._ways.pop(pair, None)
                else:
                    self._ways[pair] = link.way

    def recalled(self, reporter: str, record: LinkReport) -> None:
        """Take over what a peer says that it has measured for an earlier process of this coordinator, or for another
        one, which alone knows whether it was asked. Where both ends tell of a link, the newer word counts, unless it
        contradicts the other end's; whatever is measured from now on counts more."""
        links = {}
        for peer, link in record.links.items():
            pair, known = frozenset((reporter, peer)), self._recalled.get(frozenset((reporter, peer)))
            if known is not None and known[0] != reporter:
                told = self._gbps.get((reporter, peer), 0.0), self._gbps.get((peer, reporter), 0.0)
                is_newer = link.round >= known[1]
                both = zip((link.sent_gbps, link.received_gbps), told, strict=True)
                sent, received = (_more_likely(now, then, is_newer=is_newer) for now, then in both)
                if (sent, received) == told:
                    continue
                link = link.model_copy(update={"sent_gbps": sent, "received_gbps": received})
            self._recalled[pair] = reporter, link.round
            links[peer] = link.model_copy(update={"round": 0})
        self.reported(reporter, record.model_copy(update={"links": links}))

    def carried(self, seen: Mapping[Pair, float]) -> dict[Pair, float]:
        """Return what links that nobody has measured carry at least: as they were looked at beside other traffic, or of
        the Gbit/s at which receivers say that frames have come, of whom none is believed above what others have
        measured with it."""
        found = {pair: gbps for pair, gbps in self._least.items() if pair not in self._gbps}
        for pair, gbps in seen.items():
            if pair not in self._gbps:
                told = self._claims.seen(pair[1], gbps, self._gbps, self._source)
                found[pair] = max(found.get(pair, 0.0), told)
        return found

    def beside(self, pair: Pair) -> None:
        """Take a pair that has just been measured, beside training, for one that carries what was found at least, where
        its ends' lines were shared: it counts as not measured."""
        if frozenset(pair) not in self._shared:
            return
        both = pair, pair[::-1]
        found = {link: self._gbps[link] for link in both if link in self._gbps}
        delays = {link: self._latency_ms[link] for link in both if link in self._latency_ms}
        self.forget_pair(*pair)
        self._least, self._echoes = self._least | found, self._echoes | delays

    def doubtful(self, pairs: Collection[frozenset[str]]) -> list[Pair]:
        """Those of `pairs` whose rates are too good to be believed of one end alone, as `link_claims.doubtful`."""
        failing = {frozenset(link) for link in self._failing}
        measured = {link: gbps for link, gbps in self._gbps.items() if frozenset(link) not in failing}
        confirmed = {
            link: gbps
            for link, (gbps, by) in self._confirmed.items()
            if by != self._source.get(frozenset(link), ("", 0))[0] or not by  # nobody confirms what it tells itself
        }
        return doubtful(pairs, measured, self._source, confirmed)

    def contradicted(self, pair: Pair, claimed: Sequence[float]) -> bool:
        """Whether the second of `pair` has told much more of their link than the first has measured since; if so, it is
        believed up to what others have seen with it from now on.

        Args:
            claimed: Gbit/s that it has told, from the first to the second, and back.
        """
        found = self._gbps.get(pair), self._gbps.get(pair[::-1])
        if not any(now is not None and contradicts(told, now) for told, now in zip(claimed, found, strict=True)):
            both = zip((pair, pair[::-1]), claimed, found, strict=True)
            self._confirmed |= {link: (min(told, now), "") for link, told, now in both if now is not None}
            return False
        self._claims.contradicted(pair[1])
        self.limits.doubt(pair)
        for known, (teller, _) in self._source.items():
            if teller == pair[1]:
                (other,) = known - {teller}
                self.limits.doubt(known)
                for link in ((teller, other), (other, teller)):
                    self._gbps[link] = self._claims.believed(teller, link, self._gbps[link], self._gbps, self._source)
        self.changes += 1
        return True

    def failing(self, pair: Pair, gbps: float) -> Callable[[], None]:
        """Take the Gbit/s of a measured link as frames under way tell them, or as may be, until it is measured anew.

        What is returned takes that back, where nothing else was found since.
        """
        before, now = self._gbps.get(pair), (gbps, self._source.get(frozenset(pair), ("", 0))[1])
        self._failing[pair], self._gbps[pair] = now, gbps
        self.changes += 1

        def undo() -> None:
            if self._failing.get(pair) == now and before is not None:
                del self._failing[pair]
                self._gbps[pair] = before
                self.changes += 1

        return undo

    def _as_failing(self, pair: Pair, gbps: float, number: int) -> float:
        """Return the Gbit/s of a link as it was measured in round `number`, or as was heard since, by `failing`."""
        told = self._failing.get(pair)
        if told is not None and number <= told[1]:
            return min(gbps, told[0])
        self._failing.pop(pair, None)
        return gbps

    def answered(self, peer: str, result: ProbeResult) -> None:
        """Take over what a peer says that it has measured, if it is what it was asked for, and new; or what it has seen
        of the other end's measurement."""
        # Who takes round trips in the round in which it is measured with tells two things, in any order.
        link = result.link
        other = self.requests.watched(peer, result.round) if link is not None else None
        if other is not None and link is not None:
            self._confirmed |= {(peer, other): (link.sent_gbps, peer), (other, peer): (link.received_gbps, peer)}
            return
        wanted = self.requests.echoes_of(peer, result.round)
        found = self.requests.take(peer, result)
        if found is None:
            return
        self.reported(peer, found)
        for other in wanted & result.echoes.keys():
            self._echoes[peer, other] = self._echoes[other, peer] = result.echoes[other] / 2

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
        """Those of `peers` who were measured with too few of the others, or tried in vain, for the rest to be known."""
        asked = list(peers)
        if self._untried[:2] != (self.changes, asked):
            self._untried = self.changes, asked, [peer for peer in asked if self._lacks(peer, asked)]
        return list(self._untried[2])

    def acquainted(self, members: Sequence[Member]) -> list[Member]:
        """`members` without those whose links to the others are yet to be measured; who knows least goes first."""
        left = list(members)
        while left:
            peers = [member.peer for member in left]
            strangest = max(left, key=lambda member: (self._lacks(member.peer, peers), member.order))
            if not self._lacks(strangest.peer, peers):
                break
            left.remove(strangest)
        return left

    def _lacks(self, peer: str, others: Sequence[str]) -> int:
        """With how many more of `others` the link of `peer` is to be measured, or tried, for the rest to be known."""
        theirs, tried, reaches = [other for other in others if other != peer], 0, False
        for other in theirs:
            reaches |= self._measured(peer, other)
            tried += self._is_looked_at(peer, other)
            if tried >= partners(1 + len(theirs), reaches=reaches):
                break
        return max(0, partners(1 + len(theirs), reaches=reaches) - tried)

    def first_pairs(self, peers: Sequence[str], taking: Collection[str]) -> list[Pair]:
        """Disjoint pairs of `peers` that are measured while newcomers, `taking` round trips, have no time to measure;
        with each it is whoever sends fastest, which is kept in mind: the next one is its nearest, even where that one
        does not answer, for who seems to send fastest may say so only."""
        places = {place for place, peer in enumerate(peers) if peer in taking}
        pairs = first_partners(self._flags(peers, self._is_looked_at), self._matrix(self._gbps, peers, np.nan), places)
        self._met_fastest |= {peers[newcomer] for _, newcomer in pairs}
        return [(peers[one], peers[newcomer]) for one, newcomer in pairs]

    def rounds(self, peers: Sequence[str], anew: Collection[Pair] = ()) -> Iterator[list[Pair]]:
        """Rounds of disjoint pairs of `peers`, after which enough is known of each for the rest to be estimated.

        Whom to ask next follows from what was found before: results are to be taken between two rounds. Where that is
        all of them, every pair is tried again that was tried in vain; else those are whose peers reach nobody.

        Args:
            anew: links that are measured in any case, first.
        """
        if len(peers) <= FEW:
            yield from pair_rounds(peers, self._measured)
            return
        yield from in_rounds({frozenset(pair) for pair in anew if {*pair} <= {*peers}})
        tried, delays = self._flags(peers, self._measured), self._delays(peers)
        reaches = np.asarray(tried.sum(axis=1) > 0)
        tried |= self._flags(peers, self.known) & (reaches[:, None] | reaches[None, :])
        met = {place for place, peer in enumerate(peers) if peer in self._met_fastest}
        while pairs := next_partners(tried, delays, self._matrix(self._gbps, peers, np.nan), met):
            for one, other in pairs:
                tried[one, other] = tried[other, one] = True
            yield [(peers[one], peers[other]) for one, other in pairs]

    def echoes(self, peers: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """To which others each of `peers` that is yet to be measured takes round trips; nothing where all pairs are
        measured anyway."""
        if len(peers) <= FEW:
            return {}
        new = is_stranger(self._flags(peers, self._is_looked_at), self._matrix(self._gbps, peers, np.nan))
        has_delay = self._flags(peers, lambda one, other: self.delay(one, other) is not None)
        wanted = echoes(len(peers), new, has_delay)
        return {peers[peer]: tuple(peers[other] for other in others) for peer, others in wanted.items()}

    def unmeasured(self, pairs: Collection[frozenset[str]]) -> list[frozenset[str]]:
        """Those of `pairs` whose link was neither measured nor tried in vain."""
        return [pair for pair in pairs if not self._is_looked_at(*pair)]

    def _flags(self, peers: Sequence[str], holds: Callable[[str, str], bool]) -> Flags:
        """Whether something holds of each pair, shape (N, N), symmetric, diagonal False."""
        flags = np.zeros((len(peers), len(peers)), dtype=np.bool_)
        for row, one in enumerate(peers):
            for column in range(row):
                flags[row, column] = flags[column, row] = holds(one, peers[column])
        return flags

    def _delays(self, peers: Sequence[str]) -> Matrix:
        known = self._matrix(self._echoes | self._latency_ms, peers, np.nan)
        return estimated_latency(known, [None] * len(peers)).values

    def _measured(self, a: str, b: str) -> bool:
        """Whether a measurement succeeded; one that failed is tried again whenever there is a new plan to make."""
        return (a, b) in self._gbps and (b, a) in self._gbps

    def _is_looked_at(self, a: str, b: str) -> bool:
        return self.known(a, b) or self._measured(a, b)

    def reachable(self, members: Sequence[Member]) -> list[Member]:
        """`members` without those whom no other one reaches, though it was tried."""
        if len(members) < 3:
            return list(members)  # of two that do not meet, nobody can say whose fault it is
        here = frozenset(member.peer for member in members)
        reached = {peer for pair in self._gbps if here.issuperset(pair) and self._measured(*pair) for peer in pair}
        tried = {peer for pair in self._tried if here.issuperset(pair) for peer in pair}
        return [member for member in members if member.peer in reached or member.peer not in tried]

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
            up, down = _least(limits.up_gbps, profile.up_gbps), _least(limits.down_gbps, profile.down_gbps)
            is_allowed = None not in (up, down) and (up, down) == (profile.up_gbps, profile.down_gbps)
            nodes.append(
                NodeView(
                    id=member.peer,
                    flops={str(name): value for name, value in profile.flops.items()}.get(precision),
                    layer_seconds=profile.layer_seconds.times((slower or {}).get(member.peer, 1.0)),
                    memory_bytes=profile.memory_bytes,
                    host_bytes=profile.host_bytes,
                    up_gbps=up,
                    down_gbps=down,
                    line_spread=None if is_allowed else self.limits.spread(member.peer),
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
            latency_ms=_parted(self._matrix(self._echoes | self._latency_ms, ids, np.nan), ids, apart, np.nan),
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


def _more_likely(now: float, then: float, *, is_newer: bool) -> float:
    """Return which of two ends' words on a link counts, in Gbit/s: the less where they contradict each other, else the
    newer."""
    if contradicts(now, then) or contradicts(then, now):
        return min(now, then)
    return now if is_newer else then
