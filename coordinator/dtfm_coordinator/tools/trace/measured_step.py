"""One training step as the traces of its nodes tell it, in the form of a simulated one, to be set beside it. Pure."""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from dtfm_coordinator.allocator.simulator.simulated_timeline import (
    SimulatedSpan,
    SpanKind,
    Transfer,
    TransferKind,
)
from dtfm_coordinator.tools.formatting import named
from dtfm_coordinator.tools.trace.aligned_traces import MOST_NAMED, AlignedTraces
from dtfm_protocol.bounds import FIRST_SHARED_BUCKET
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.trace_format import TraceSpan

ACTIONS: tuple[SpanKind, ...] = tuple(kind for kind in get_args(SpanKind) if kind != "optimizer")
"""Kinds of compute of which a micro-batch's number is told."""
MESSAGES: dict[str, TransferKind] = {"ACTIVATION": "activation", "GRADIENT": "gradient"}
"""Kinds of messages of one micro-batch, by the frame's kind."""
REDUCING = ("PART", "REDUCED")
"""Frame kinds of an all-reduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Training step as it was measured; times in seconds since its first forward began."""

    number: int
    """Number of the step, from 1."""
    others: tuple[float, ...]
    """Seconds of all steps of the plan that the traces hold whole, this one included, in their order."""
    total: float
    """Seconds until the last peer's update ended."""
    to_next: float | None
    """Seconds until the next step's first forward began; None where the traces do not have it."""
    compute: tuple[SimulatedSpan, ...]
    """Compute of all peers, by start."""
    transfers: tuple[Transfer, ...]
    """Messages of which both ends are known, by start; their bytes are not known (0)."""
    last_backward: float
    committed: float
    """Seconds when the last peer's update began."""


def measured_step(found: AlignedTraces, plan: Plan, wanted: int | None = None) -> MeasuredStep:
    """Return one of the steps that ran as `plan` lays them out, of which the traces of all its peers tell.

    Args:
        wanted: number of the step; None: the one of median length.

    Raises:
        UserError: there is none such.
    """
    spans = _compute_by_step(found, plan.peers)
    whole = {step: own for step, own in sorted(spans.items()) if _is_whole(own, plan)}
    if under := _steps_under(found, plan.version) & whole.keys():
        whole = {step: own for step, own in whole.items() if step in under}
    if not whole:
        raise UserError(_nothing(found, plan))
    lengths = {step: _end(own) - _begin(own) for step, own in whole.items()}
    if wanted is None:
        wanted = next(step for step in lengths if lengths[step] == statistics.median_low(lengths.values()))
    elif wanted not in whole:
        raise UserError(
            f"the traces hold {len(whole)} whole step{'s'[: len(whole) != 1]} of this plan, between step {min(whole)} "
            f"and step {max(whole)}, and step {wanted} is none of them: give another --step, or leave it out"
        )
    own, following = whole[wanted], spans.get(wanted + 1)
    begin = _begin(own)
    updates = [span for span in own if span.kind == "optimizer"]
    return MeasuredStep(
        number=wanted,
        others=tuple(lengths.values()),
        total=lengths[wanted],
        to_next=None if following is None else _begin(following) - begin,
        compute=tuple(span._replace(start=span.start - begin, end=span.end - begin) for span in own),
        transfers=_transfers(found, set(plan.peers), wanted, begin),
        last_backward=max(span.end for span in own if span.kind != "optimizer") - begin,
        committed=max(span.start for span in updates) - begin,
    )


@dataclass(frozen=True, slots=True)
class PeerSeconds:
    """Seconds of one peer's step, by what it does; they add up to its update's end."""

    compute: float
    waits: float
    """Seconds of waiting for input before its last action."""
    reduction: float
    """Seconds from its last action to its update: the all-reduce, the other stages' end, the votes."""
    optimizer: float

    @classmethod
    def of(cls, compute: Sequence[SimulatedSpan], peer: str, committed: float) -> "PeerSeconds":
        """Return those of `peer` in a step's compute, be it simulated or measured; `committed` is when its update
        begins where that takes no time."""
        own = [span for span in compute if span.peer == peer]
        actions = [span for span in own if span.kind != "optimizer"]
        update = next((span for span in own if span.kind == "optimizer"), None)
        last = max(span.end for span in actions)
        computes = math.fsum(span.end - span.start for span in actions)
        begins, ends = (committed, committed) if update is None else (update.start, update.end)
        return cls(computes, max(0.0, last - computes), max(0.0, begins - last), ends - begins)


def _compute_by_step(found: AlignedTraces, peers: Collection[str]) -> dict[int, list[SimulatedSpan]]:
    """Return the compute of these peers by step, each by start; seconds of the common clock."""
    steps: defaultdict[int, list[SimulatedSpan]] = defaultdict(list)
    wanted = set(peers)
    for trace, shift in zip(found.traces, found.shifts, strict=True):
        if (peer := trace.header.peer) not in wanted:
            continue
        for span in trace.spans:
            kind, step, index = _kind(span), span.args.get("step"), span.args.get("index")
            if kind is None or not isinstance(step, int):
                continue
            start, end = (span.begin + shift) / 1e9, (span.end + shift) / 1e9
            steps[step].append(SimulatedSpan(peer, kind, index if isinstance(index, int) else None, start, end))
    return {step: sorted(own, key=lambda span: (span.start, span.end)) for step, own in steps.items()}


def _kind(span: TraceSpan) -> SpanKind | None:
    if span.lane == "optimizer":
        return "optimizer"
    word = span.name.partition(" ")[0]
    return next((kind for kind in ACTIONS if kind == word), None) if span.lane == "compute" else None


def _is_whole(spans: Sequence[SimulatedSpan], plan: Plan) -> bool:
    """Return whether each peer of `plan` has done just its micro-batches, once, and its update: a step that was begun
    twice, or under another plan, is none of this one's."""
    done: defaultdict[tuple[str, SpanKind], list[int | None]] = defaultdict(list)
    for span in spans:
        done[span.peer, span.kind].append(span.micro_batch)
    return all(
        len(done[peer, "optimizer"]) == 1
        and all(sorted(done[peer, kind], key=str) == sorted(plan.micro_batches(peer), key=str) for kind in ACTIONS[:2])
        for peer in plan.peers
    )


def _steps_under(found: AlignedTraces, version: int) -> set[int]:
    """Return the steps of which some message was sent under the plan of this version."""
    return {
        step
        for trace in found.traces
        for span in trace.spans
        if span.args.get("plan") == version and isinstance(step := span.args.get("step"), int)
    }


def _begin(spans: Sequence[SimulatedSpan]) -> float:
    return min(span.start for span in spans)


def _end(spans: Sequence[SimulatedSpan]) -> float:
    return max(span.end for span in spans)


def _transfers(found: AlignedTraces, peers: Collection[str], step: int, begin: float) -> tuple[Transfer, ...]:
    made = []
    for send, receive in found.messages:
        sent, came = found.traces[send[0]].spans[send[1]], found.traces[receive[0]].spans[receive[1]]
        sender, receiver = found.traces[send[0]].header.peer, found.traces[receive[0]].header.peer
        kind = _message_kind(sent.args)
        if kind is None or sent.args.get("step") != step or not {sender, receiver} <= set(peers):
            continue
        start, end = ((at + found.shifts[send[0]]) / 1e9 - begin for at in (sent.begin, sent.end))
        arrival = (came.end + found.shifts[receive[0]]) / 1e9 - begin
        index = sent.args.get("index")
        micro_batch = index if kind in MESSAGES.values() and isinstance(index, int) else None
        made.append(Transfer(sender, receiver, kind, micro_batch, 0.0, start, start, end, max(end, arrival)))
    return tuple(sorted(made, key=lambda transfer: transfer.start))


def _message_kind(args: Mapping[str, str | int]) -> TransferKind | None:
    kind, group = str(args.get("kind")), args.get("group", 0)
    if kind in REDUCING:
        return "tied all-reduce" if isinstance(group, int) and group >= FIRST_SHARED_BUCKET else "all-reduce"
    return MESSAGES.get(kind)


def _nothing(found: AlignedTraces, plan: Plan) -> str:
    """Return why there is no step to look at, and what to do."""
    there = {trace.header.peer for trace in found.traces}
    if missing := [named(peer) for peer in plan.peers if peer not in there]:
        some = ", ".join(missing[:MOST_NAMED]) + (" and others" if len(missing) > MOST_NAMED else "")
        return f"there is no trace of {some}, which the plan gives work to: give the traces of all its nodes"
    return (
        "the traces hold no whole step that ran as this plan says: give the plan under which they ran, as plan.json in "
        "the coordinator's state folder is for the newest"
    )
