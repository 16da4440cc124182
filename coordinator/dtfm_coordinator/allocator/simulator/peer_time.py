"""Time of each peer in a simulated step: what it computes, and what it waits for."""

import math
from collections import defaultdict
from typing import NamedTuple

from dtfm_coordinator.allocator.simulator.simulated_timeline import (
    REDUCTIONS,
    SimulatedSpan,
    Simulation,
    SpanKind,
    Transfer,
    TransferKind,
)

INPUT: dict[SpanKind, TransferKind] = {"forward": "activation", "backward": "gradient"}
"""Kind of message that each kind of action waits for, if it waits."""


class PeerTime(NamedTuple):
    """Seconds of one peer in a step; all but `exchange` add up to the step."""

    compute: float
    """Seconds of forwards and backwards, and of weights' gradients where they are an action of their own."""
    bubble: float
    """Seconds of waiting before its last action for input that a neighbour has not computed yet."""
    transfer: float
    """Seconds of waiting before its last action for input that is on its way, behind other messages of its link
    included."""
    reduction: float
    """Seconds from its last action to the commit: the all-reduce, the other stages' end, the votes."""
    optimizer: float
    rest: float
    """Seconds from its update's end to the step's."""
    exchange: float
    """Seconds of `reduction` in which a message of an all-reduce is on its way from or to the peer."""


class TimeShares(NamedTuple):
    """Shares of the peers' time in a step, as means over the peers of the plan; they add up to 1."""

    compute: float
    """Share of forwards, backwards and the update."""
    communication: float
    """Share of waiting for what is on its way: input before the last action, gradients of an all-reduce after it."""
    waiting: float
    """Share of waiting for what others have not computed yet: the pipeline's bubble, and the other stages' end."""


def peer_times(played: Simulation) -> dict[str, PeerTime]:
    """Return the time of each peer that computes in a step that ends."""
    spans: dict[str, list[SimulatedSpan]] = defaultdict(list)
    for span in played.compute:
        spans[span.peer].append(span)
    inputs = {(t.receiver, t.kind, t.micro_batch): t for t in played.transfers if t.kind not in REDUCTIONS}
    reductions: dict[str, list[Transfer]] = defaultdict(list)
    for transfer in played.transfers:
        if transfer.kind in REDUCTIONS:
            reductions[transfer.sender].append(transfer)
            reductions[transfer.receiver].append(transfer)
    return {peer: _peer_time(peer, spans[peer], inputs, reductions[peer], played) for peer in spans}


def time_shares(played: Simulation) -> TimeShares:
    """Return what the peers' time goes into in a step that ends."""
    times = peer_times(played).values()
    whole = played.cost.total * len(times)
    compute = math.fsum(time.compute + time.optimizer for time in times) / whole
    communication = math.fsum(time.transfer + time.exchange for time in times) / whole
    return TimeShares(compute, communication, max(0.0, 1 - compute - communication))


def _peer_time(
    peer: str,
    spans: list[SimulatedSpan],
    inputs: dict[tuple[str, TransferKind, int | None], Transfer],
    reductions: list[Transfer],
    played: Simulation,
) -> PeerTime:
    """Return one peer's time. A gap before an action counts for its input: as bubble until that is ready at the sender,
    then as transfer."""
    bubble = transfer = free = 0.0
    actions = [span for span in spans if span.kind != "optimizer"]
    for span in actions:
        kind = INPUT.get(span.kind)
        source = inputs.get((peer, kind, span.micro_batch)) if kind is not None else None
        ready = span.start if source is None else min(span.start, max(free, source.ready))
        bubble += ready - free
        transfer += span.start - ready
        free = span.end
    update = next((span for span in spans if span.kind == "optimizer"), None)
    committed = played.committed if update is None else update.start
    return PeerTime(
        compute=math.fsum(span.end - span.start for span in actions),
        bubble=bubble,
        transfer=transfer,
        reduction=committed - free,
        optimizer=0.0 if update is None else update.end - update.start,
        rest=max(0.0, played.cost.total - (committed if update is None else update.end)),
        exchange=_covered(reductions, free, committed),
    )


def _covered(transfers: list[Transfer], begin: float, end: float) -> float:
    """Return the seconds between `begin` and `end` in which at least one of the messages is on its way."""
    covered, until = 0.0, begin
    for start, arrival in sorted((transfer.start, transfer.arrival) for transfer in transfers):
        covered += max(0.0, min(arrival, end) - max(start, until))
        until = max(until, min(arrival, end))
    return covered
