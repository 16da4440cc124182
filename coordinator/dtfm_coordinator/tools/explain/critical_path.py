"""Critical path of a simulated step: what its end waited for, span by span back to its beginning.

Everything in a step begins when the last of what it needs is there. That last one is its binding predecessor: a
forward's is the peer's action before it or the arrival of its input (a weight's gradients take no message); a message's
is what made it, or the message before it on its link; a bucket's is its gradient, or the bucket that made room for it;
a reduced gradient's is the last sum or total to arrive; the commit's is the last vote. Following them from the end,
each stretch of time counts for one cause, so the parts add up to the step.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.simulator.simulated_timeline import (
    REDUCTIONS,
    BucketPart,
    SimulatedSpan,
    Simulation,
    Transfer,
    TransferKind,
)
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import Reduction, reductions

Cause = Literal["compute", "transfer", "all-reduce", "sharing", "delay", "commit", "optimizer"]
CAUSES: tuple[Cause, ...] = ("compute", "transfer", "all-reduce", "sharing", "delay", "commit", "optimizer")
ROUNDING = 1e-9
"""Share of a transfer's seconds up to which a difference is rounding, and not the sharing of a line."""


class Part(NamedTuple):
    """Stretch of the critical path; times in seconds since the step began."""

    cause: Cause
    """Cause for which the time counts. "transfer": bytes of activations and gradients of activations; "all-reduce":
    bytes of gradients; "sharing": what either takes longer because other links share the uplink or downlink; "delay":
    that of any message with bytes; "commit": votes and answers."""
    place: tuple[str, ...]
    """Peer that computes, or sender and receiver."""
    start: float
    end: float
    item: SimulatedSpan | Transfer | None
    """Span or message that takes the time; None for votes and commits."""

    @property
    def seconds(self) -> float:
        """Seconds that the stretch takes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Peer, or pair of peers by their link, through which the critical path leads longest."""

    place: tuple[str, ...]
    seconds: float
    by_cause: tuple[tuple[Cause, float], ...]
    """Seconds by cause, longest first."""
    by_direction: tuple[tuple[tuple[str, ...], float], ...]
    """Seconds of each direction of a link that is on the path, longest first."""


def by_cause(path: Sequence[Part]) -> dict[Cause, float]:
    """Return the seconds of the path by cause, in the order of `CAUSES`; causes that are not on it are left out."""
    return {
        cause: math.fsum(part.seconds for part in path if part.cause == cause)
        for cause in CAUSES
        if any(part.cause == cause for part in path)
    }


def bottleneck(path: Sequence[Part]) -> Bottleneck:
    """Return where the path spends longest. A link counts with both directions: they are one line to mend."""
    seconds: dict[tuple[str, ...], float] = defaultdict(float)
    for part in path:
        seconds[tuple(sorted(part.place))] += part.seconds
    place = max(seconds, key=lambda one: seconds[one])
    there = [part for part in path if tuple(sorted(part.place)) == place]
    directions: dict[tuple[str, ...], float] = defaultdict(float)
    for part in there:
        directions[part.place] += part.seconds
    ranked = sorted(by_cause(there).items(), key=lambda one: -one[1])
    return Bottleneck(
        place=max(directions, key=lambda one: directions[one]),
        seconds=seconds[place],
        by_cause=tuple(ranked),
        by_direction=tuple(sorted(directions.items(), key=lambda one: -one[1])),
    )


def critical_path(plan: Plan, links: Links, played: Simulation) -> tuple[Part, ...]:
    """Return the critical path of a step, from its beginning to its end, without parts that take no time.

    Args:
        links: links on which the step was played.

    Raises:
        ValueError: the step never ends.
    """
    if not math.isfinite(played.cost.total):
        raise ValueError("a step that never ends has no critical path")
    return tuple(reversed(_Walk(plan, links, played).back()))


class _Node(NamedTuple):
    """Thing that others wait for: a span or message by its index, or a peer's share in an all-reduce."""

    kind: Literal["span", "message", "begun", "sum", "total", "done", "held"]
    """Kind of thing. "begun": the peer has begun a bucket; "sum": it has its sum of a part of it; "total": the sum of
    all; "done": the totals of all parts; "held": those of all buckets of all reductions in which it takes part."""
    number: int
    """Index into the spans, the transfers or the plan's peers."""
    reduction: TransferKind = "all-reduce"
    """Which all-reduce, of buckets and parts."""
    bucket: int = 0
    owner: int = 0
    """Place of the part's owner among the holders."""


_Work = tuple[str, str, int | None]
"""Peer, kind of compute or message, and micro-batch."""


class _Walk:
    """Walk back through a step's spans and messages, by what each waits for."""

    def __init__(self, plan: Plan, links: Links, played: Simulation) -> None:
        self._plan, self._links = plan, links
        self._peers = plan.peers
        self._number = {peer: number for number, peer in enumerate(self._peers)}
        self._spans, self._transfers = played.compute, played.transfers
        self._stage_of = {peer: stage for stage in range(len(plan.stages)) for peer in plan.replicas(stage)}
        self._span_of: dict[_Work, int] = {
            (s.peer, s.kind, s.micro_batch): index for index, s in enumerate(self._spans)
        }
        self._arrival: dict[_Work, int] = {
            (t.receiver, t.kind, t.micro_batch): index
            for index, t in enumerate(self._transfers)
            if t.kind not in REDUCTIONS
        }
        lanes: dict[str, list[int]] = defaultdict(list)
        for index, span in enumerate(self._spans):
            if span.kind != "optimizer":
                lanes[span.peer].append(index)
        self._before = {later: earlier for lane in lanes.values() for earlier, later in pairwise(lane)}
        self._last_span = {peer: lane[-1] for peer, lane in lanes.items()}
        queues: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index, transfer in enumerate(self._transfers):
            queues[transfer.sender, transfer.receiver].append(index)
        self._ahead = {later: earlier for queue in queues.values() for earlier, later in pairwise(queue)}
        self._begun = played.begun
        self._buckets: dict[tuple[str, TransferKind], list[int]] = defaultdict(list)
        for peer, kind, bucket in self._begun:
            self._buckets[peer, kind].append(bucket)
        self._came: dict[tuple[str, TransferKind, BucketPart], list[int]] = defaultdict(list)
        """Messages by which each peer gets others' sums of a part, or its total."""
        for index, transfer in enumerate(self._transfers):
            if transfer.part is not None:
                self._came[transfer.receiver, transfer.kind, transfer.part].append(index)
        self._reduction_of: dict[tuple[str, TransferKind], Reduction] = {
            (peer, "tied all-reduce" if one.is_shared else "all-reduce"): one
            for one in reductions(plan, tied=True)
            for peer in one.holders
        }
        self._path: list[Part] = []

    def back(self) -> list[Part]:
        """Return the path, last part first."""
        first = self._committed()
        node: _Node | None = first
        now = self._time(first)
        while node is not None:
            before = self._waited_for(node, now)
            begun = 0.0 if before is None else before[1]
            if node.kind == "span":
                span = self._spans[node.number]
                self._add("compute", (span.peer,), begun, now, span)
            elif node.kind == "message":
                self._add_message(self._transfers[node.number], begun, now)
            now = begun
            node = None if before is None else before[0]
        return self._path

    def _committed(self) -> _Node:
        """Add what follows the last vote's gradients, and return those that the peer held that cast it."""
        arbiter = self._peers[0]
        held = {peer: _Node("held", number) for number, peer in enumerate(self._peers)}
        votes = {peer: self._time(node) + self._delay(peer, arbiter) for peer, node in held.items()}
        voter = max(votes, key=lambda peer: votes[peer])
        decided = votes[voter]
        received = {peer: decided + self._delay(arbiter, peer) for peer in self._peers}
        updates = [self._span_of.get((peer, "optimizer", None)) for peer in self._peers]
        ends = {
            peer: received[peer] if update is None else self._spans[update].end
            for peer, update in zip(self._peers, updates, strict=True)
        }
        last = max(ends, key=lambda peer: ends[peer])
        update = self._span_of.get((last, "optimizer", None))
        self._add("optimizer", (last,), received[last], ends[last], None if update is None else self._spans[update])
        self._add("commit", (arbiter, last), decided, received[last], None)
        self._add("commit", (voter, arbiter), self._time(held[voter]), decided, None)
        return held[voter]

    def _add(
        self, cause: Cause, place: tuple[str, ...], start: float, end: float, item: SimulatedSpan | Transfer | None
    ) -> None:
        if end > start:
            self._path.append(Part(cause, place, start, end, item))

    def _add_message(self, transfer: Transfer, begun: float, until: float) -> None:
        """Add the parts of a message between `begun` and `until`: its bytes, what sharing adds to them, its delay."""
        place = (transfer.sender, transfer.receiver)
        left = min(until, transfer.end)
        alone = begun + transfer.bytes / float(self._links.beta[*(self._links.index[peer] for peer in place)])
        if alone >= left - ROUNDING * (left - begun):
            alone = left
        cause: Cause = "all-reduce" if transfer.kind in REDUCTIONS else "transfer"
        self._add("delay", place, left, until, transfer)
        self._add("sharing", place, alone, left, transfer)
        self._add(cause, place, begun, alone, transfer)

    def _waited_for(self, node: _Node, now: float) -> tuple[_Node, float] | None:
        """Return what `node`, done at `now`, waited for last, and until when; None at the step's beginning."""
        candidates = self._needs(node)
        return max(candidates, key=lambda one: one[1], default=None)

    def _needs(self, node: _Node) -> list[tuple[_Node, float]]:
        """Return everything that `node` needs, and the seconds when it is there."""
        if node.kind == "span":
            found = self._inputs(self._spans[node.number])
            if node.number in self._before:
                found.insert(0, _Node("span", self._before[node.number]))
            return [(one, self._time(one)) for one in found]
        if node.kind == "message":
            source = self._source(node.number)
            found_at = [(source, self._time(source))]
            if node.number in self._ahead:
                # The link is free once the last byte of the message before has left; its delay holds nothing up.
                ahead = self._ahead[node.number]
                found_at.append((_Node("message", ahead), self._transfers[ahead].end))
            return found_at
        if node.kind == "begun":
            return self._before_begun(node, self._peers[node.number])
        found = self._reduced(node, self._peers[node.number])
        return [(one, self._time(one)) for one in found]

    def _reduced(self, node: _Node, peer: str) -> list[_Node]:
        """Return what a peer's sum or total of a part, all of a bucket, or all of its buckets are made of."""
        kind, bucket, owner = node.reduction, node.bucket, node.owner
        if node.kind == "held":
            return [
                _Node("done", node.number, kind, bucket) for kind in REDUCTIONS for bucket in self._buckets[peer, kind]
            ]
        begun = node._replace(kind="begun", owner=0)
        if node.kind == "done":
            owners = self._reduction_of[peer, kind].owners
            return [begun, *(_Node("total", node.number, kind, bucket, each) for each in owners)]
        if node.kind == "total" and self._reduction_of[peer, kind].holders[owner] == peer:
            return [node._replace(kind="sum")]
        came = self._came[peer, kind, BucketPart(bucket, owner, node.kind == "total")]
        return [begun, *(_Node("message", one) for one in came)]

    def _before_begun(self, node: _Node, peer: str) -> list[tuple[_Node, float]]:
        """Return what a bucket waited for: its gradient, which is final before the last action is over, or that another
        one was done."""
        begun = self._begun[peer, node.reduction, node.bucket]
        last = self._last_span[peer]
        earlier = [
            node._replace(kind="done", bucket=bucket) for bucket in self._buckets[peer, node.reduction]
            if bucket < node.bucket
        ]  # fmt: skip
        done = [(one, self._time(one)) for one in earlier]
        return [
            (_Node("span", last), min(begun, self._spans[last].end)),
            *((one, time) for one, time in done if time <= begun),
        ]

    def _inputs(self, span: SimulatedSpan) -> list[_Node]:
        """Return the message (on the last stage the forward) that a forward or backward takes; a weight takes none."""
        stage = self._stage_of[span.peer]
        if span.kind == "weight":
            return []
        if span.kind == "backward" and stage == len(self._plan.stages) - 1:
            return [_Node("span", self._span_of[span.peer, "forward", span.micro_batch])]
        if span.kind == "forward" and stage == 0:
            return []
        kind = "activation" if span.kind == "forward" else "gradient"
        return [_Node("message", self._arrival[span.peer, kind, span.micro_batch])]

    def _source(self, index: int) -> _Node:
        """Return what made a message."""
        transfer = self._transfers[index]
        if transfer.part is not None:
            bucket, part, is_total = transfer.part
            return _Node("total" if is_total else "sum", self._number[transfer.sender], transfer.kind, bucket, part)
        kind = "forward" if transfer.kind == "activation" else "backward"
        return _Node("span", self._span_of[transfer.sender, kind, transfer.micro_batch])

    def _time(self, node: _Node) -> float:
        """Return the seconds when `node` is done."""
        if node.kind == "span":
            return self._spans[node.number].end
        if node.kind == "message":
            return self._transfers[node.number].arrival
        if node.kind == "begun":
            return self._begun[self._peers[node.number], node.reduction, node.bucket]
        return max(time for _, time in self._needs(node))

    def _delay(self, sender: str, receiver: str) -> float:
        if sender == receiver:
            return 0.0
        return float(self._links.alpha[self._links.index[sender], self._links.index[receiver]])
