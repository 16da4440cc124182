"""Fast form of reductions in buckets and along trees, event by event, as machine code: `simulated_reduction` on arrays.

For the search over layouts where gradients are cut into several buckets, and for the search for trees. A link carries
its messages one after another in the order in which they are ready; where uplinks and downlinks are limited, messages
queue for them in that order, while the exact simulator gives each its fair share.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_in_place_inside, compiled_inside, inlined
from dtfm_coordinator.allocator.simulator.heap import pop, push

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

FINAL, SUM, TOTAL = range(3)
"""Kinds of events: a bucket's gradient is final on a holder; all sums of a part have come to it; a total that it hands
on has come, or the last of those that it does not."""


class Lines(NamedTuple):
    """Links between S holders of gradients; seconds, and bytes a second."""

    alpha: Floats
    beta: Floats
    uplink: Floats
    downlink: Floats
    free: Floats
    """Seconds at which each link has carried all that came before, shape (S, S)."""


class Cuts(NamedTuple):
    """R reductions among S holders, cut into at most B buckets."""

    holds: Flags
    """Whether each holder takes part, shape (R, S)."""
    counts: Ints
    """Number of buckets, shape (R,)."""
    sizes: Floats
    """Bytes of each bucket, shape (R, B)."""
    under_way: Ints
    """Number of buckets that a holder reduces at a time, shape (R,)."""
    shares: Floats
    """Part of each bucket that each holder sums, shape (R, S)."""
    final: Floats
    """Seconds at which each bucket's gradient is final on each holder, shape (R, S, B)."""


class _State(NamedTuple):
    """What has come to whom, and what is on its way.

    A message's arrival is known as soon as it is sent, and nothing follows from it but from the last one that somebody
    waits for. So that one alone is an event: of S holders that send each other parts, one for S messages.
    """

    waits: Flags
    """Whether a holder has to wait for others' sums of each owner's part, or owns it, shape (S, S): owner, holder."""
    missing: Ints
    """Sums of each part, its own among them, that were not sent to a holder yet, shape (R, B, S, S): bucket, owner,
    holder."""
    summed: Floats
    """Seconds at which the last of those that were sent arrives, in the same shape."""
    totals: Ints
    """Totals that were not sent to a holder yet, shape (R, B, S); those that it hands on: that have not come."""
    total_at: Floats
    """Seconds at which the last of those that were sent arrives, in the same shape."""
    total_event: Ints
    """The number that this would have among events, in the same shape."""
    whole: Flags
    """Whether a holder has all totals, in the same shape."""
    known: Ints
    """Buckets that are final, and have been begun, shape (R, S, 2)."""
    sent: Floats
    taken: Floats
    """Seconds at which each uplink and downlink has carried all before, shape (S,)."""
    times: Floats
    events: Ints
    size: Ints
    """Events to come; how many there are, and the number of the present one, shape (2,)."""
    held: Floats
    """Seconds at which each holder had the totals of all its reductions, shape (S,)."""


@compiled
def reduced_at(lines: Lines, cuts: Cuts, trees: Ints, between: float) -> Floats:
    """Return the seconds at which each holder has all totals, shape (S,).

    Args:
        trees: for the part of each holder, the parent of each holder, shape (S, S), for all reductions; shape (0, 0):
            all send to a part's owner directly.
        between: bytes of a sum of several, in fp32, over what they are coded.
    """
    if len(trees) == 0:
        trees = _stars(cuts.holds.shape[1])
    state = _begun(cuts, trees)
    _run(lines, cuts, trees, between, state)
    return state.held


@compiled_in_place_inside
def _run(lines: Lines, cuts: Cuts, trees: Ints, between: float, state: _State) -> None:
    """Let all events happen, one after the other, with what follows from each."""
    reductions, holders = cuts.holds.shape
    most = cuts.sizes.shape[1]
    while state.size[0] > 0:
        now, event, state.size[0] = pop(state.times, state.events, state.size[0])
        state.size[1] = event
        holder, owner = event % holders, event // holders % holders
        bucket, which = event // holders**2 % most, event // (holders**2 * most) % reductions
        kind = event // (holders**2 * most * reductions)
        if kind == FINAL:
            state.known[which, holder, FINAL] = max(state.known[which, holder, FINAL], bucket + 1)
        elif kind == SUM:
            _send_on(lines, cuts, trees, between, state, now, which, bucket, owner, holder)
        elif state.waits[owner, holder]:
            _take_total(lines, cuts, trees, state, now, which, bucket, owner, holder)
        else:
            state.whole[which, bucket, holder] = True
        if kind == FINAL or state.whole[which, bucket, holder]:
            _advance(lines, cuts, trees, between, state, now, which, holder)


@compiled_inside
def _stars(holders: int) -> Ints:
    """Return the trees where all send to a part's owner directly."""
    trees = np.empty((holders, holders), dtype=np.int64)
    for owner in range(holders):
        trees[owner, :] = owner
    return trees


@compiled_inside
def _begun(cuts: Cuts, trees: Ints) -> _State:
    """Return what is awaited when nothing has come, and the events that nothing leads to."""
    reductions, holders = cuts.holds.shape
    most = cuts.sizes.shape[1]
    room = reductions * most * holders * (2 * holders + 2)
    waits = np.eye(holders) > 0.0
    for owner in range(len(trees)):
        for holder in range(holders):
            if trees[owner, holder] != holder:
                waits[owner, trees[owner, holder]] = True
    state = _State(
        waits,
        np.zeros((reductions, most, holders, holders), dtype=np.int64),
        np.full((reductions, most, holders, holders), -1.0),
        np.zeros((reductions, most, holders), dtype=np.int64),
        np.full((reductions, most, holders), -1.0),
        np.zeros((reductions, most, holders), dtype=np.int64),
        np.zeros((reductions, most, holders), dtype=np.bool_),
        np.zeros((reductions, holders, 2), dtype=np.int64),
        np.zeros(holders, dtype=np.float64),
        np.zeros(holders, dtype=np.float64),
        np.empty(room, dtype=np.float64),
        np.empty(room, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
        np.zeros(holders, dtype=np.float64),
    )
    for which in range(reductions):
        for bucket in range(cuts.counts[which]):
            for owner in range(holders):
                if cuts.shares[which, owner] == 0.0 or cuts.sizes[which, bucket] == 0.0:
                    continue
                for holder in range(holders):
                    if not cuts.holds[which, holder]:
                        continue
                    state.totals[which, bucket, holder] += 1
                    state.missing[which, bucket, owner, holder] += 1
                    if trees[owner, holder] != holder:
                        state.missing[which, bucket, owner, trees[owner, holder]] += 1
            for holder in range(holders):
                state.whole[which, bucket, holder] = state.totals[which, bucket, holder] == 0
                if cuts.holds[which, holder]:
                    event = _event(FINAL, which, bucket, 0, holder, reductions, most, holders)
                    _put(state, cuts.final[which, holder, bucket], event)
    return state


@compiled_in_place_inside
def _event(
    kind: int, which: int, bucket: int, owner: int, holder: int, reductions: int, most: int, holders: int
) -> int:
    """Return the number of an event."""
    return (((kind * reductions + which) * most + bucket) * holders + owner) * holders + holder


@compiled_in_place_inside
def _put(state: _State, time: float, event: int) -> None:
    """Foresee an event."""
    state.size[0] = push(state.times, state.events, state.size[0], time, event)


@compiled_in_place_inside
def _is_past(state: _State, now: float, time: float, event: int) -> bool:
    """Whether an event of that time and number comes before the present one."""
    return time < now or (time == now and event < state.size[1])


@compiled_in_place_inside
def _advance(
    lines: Lines, cuts: Cuts, trees: Ints, between: float, state: _State, now: float, which: int, holder: int
) -> None:
    """Let a holder begin the buckets that it may; and those after them that it is done with at once."""
    (reductions, holders), most = cuts.holds.shape, cuts.sizes.shape[1]
    known, waits = state.known[which, holder], state.waits
    alpha, beta, free, downlink, taken = lines.alpha, lines.beta, lines.free[holder], lines.downlink, state.taken
    while True:
        # Those that are done are counted anew: a total may have come for any.
        begun, done = known[1], int(np.int64(0))
        for bucket in range(begun):
            done += 1 if state.whole[which, bucket, holder] else 0
        if done == cuts.counts[which]:
            state.held[holder] = max(state.held[holder], now)
        if begun == cuts.counts[which] or begun >= known[0] or begun - done >= cuts.under_way[which]:
            return
        known[1] = begun + 1
        missing, summed = state.missing[which, begun], state.summed[which, begun]
        size, shares, amount = cuts.sizes[which, begun], cuts.shares[which], 0.0
        for owner in range(holders):
            if missing[owner, holder] > 0 and not waits[owner, holder]:
                amount += size * shares[owner]
        _load(lines, state, now, holder, amount)
        sent = state.sent[holder]
        for owner in range(holders):  # what waits for nobody else's goes out first
            if missing[owner, holder] == 0 or waits[owner, holder]:
                continue  # where nothing is missing nothing is summed
            missing[owner, holder] = 0
            parent = trees[owner, holder]
            arrived = _carried(
                now,
                size * shares[owner],
                alpha[holder, parent],
                beta[holder, parent],
                free,
                sent,
                downlink,
                taken,
                parent,
            )
            summed[owner, parent] = max(summed[owner, parent], arrived)
            missing[owner, parent] -= 1
            if missing[owner, parent] == 0:
                _put(state, summed[owner, parent], _event(SUM, which, begun, owner, parent, reductions, most, holders))
        for owner in range(holders):
            if missing[owner, holder] == 0 or not waits[owner, holder]:
                continue
            missing[owner, holder] -= 1
            if missing[owner, holder] > 0:
                continue
            # Its own is the last that is sent, but another one's may be the last to come.
            event = _event(SUM, which, begun, owner, holder, reductions, most, holders)
            if _is_past(state, now, summed[owner, holder], event):
                _send_on(lines, cuts, trees, between, state, now, which, begun, owner, holder)
            else:
                _put(state, summed[owner, holder], event)


@compiled_in_place_inside
def _send_on(
    lines: Lines,
    cuts: Cuts,
    trees: Ints,
    between: float,
    state: _State,
    now: float,
    which: int,
    bucket: int,
    owner: int,
    holder: int,
) -> None:
    """Let a holder that has all sums that it adds up of a part send theirs on."""
    if holder == owner:
        _take_total(lines, cuts, trees, state, now, which, bucket, owner, holder)
        return
    reductions, holders = cuts.holds.shape
    parent, amount = trees[owner, holder], cuts.sizes[which, bucket] * cuts.shares[which, owner] * between
    _load(lines, state, now, holder, amount)
    arrived = _carried(
        now,
        amount,
        lines.alpha[holder, parent],
        lines.beta[holder, parent],
        lines.free[holder],
        state.sent[holder],
        lines.downlink,
        state.taken,
        parent,
    )
    arrived = max(state.summed[which, bucket, owner, parent], arrived)
    state.summed[which, bucket, owner, parent] = arrived
    state.missing[which, bucket, owner, parent] -= 1
    if state.missing[which, bucket, owner, parent] == 0:
        _put(state, arrived, _event(SUM, which, bucket, owner, parent, reductions, cuts.sizes.shape[1], holders))


@compiled_in_place_inside
def _take_total(
    lines: Lines, cuts: Cuts, trees: Ints, state: _State, now: float, which: int, bucket: int, owner: int, holder: int
) -> None:
    """Let a holder have the total of a part, and hand it on."""
    (reductions, holders), most = cuts.holds.shape, cuts.sizes.shape[1]
    alpha, beta, free, downlink, taken = lines.alpha, lines.beta, lines.free[holder], lines.downlink, state.taken
    holds, parents, waits = cuts.holds[which], trees[owner], state.waits[owner]
    totals, at, last = state.totals[which, bucket], state.total_at[which, bucket], state.total_event[which, bucket]
    totals[holder] -= 1
    if totals[holder] == 0:
        if _is_past(state, now, at[holder], last[holder]):
            state.whole[which, bucket, holder] = True
        else:
            _put(state, at[holder], last[holder])
    amount = cuts.sizes[which, bucket] * cuts.shares[which, owner]
    children = int(np.int64(0))
    for child in range(holders):
        children += 1 if parents[child] == holder and child != holder and holds[child] else 0
    _load(lines, state, now, holder, children * amount)
    sent = state.sent[holder]
    for child in range(holders):
        if parents[child] != holder or child == holder or not holds[child]:
            continue
        arrived = _carried(now, amount, alpha[holder, child], beta[holder, child], free, sent, downlink, taken, child)
        event = _event(TOTAL, which, bucket, owner, child, reductions, most, holders)
        if waits[child]:
            _put(state, arrived, event)
            continue
        if arrived > at[child] or (arrived == at[child] and event > last[child]):
            at[child], last[child] = arrived, event
        totals[child] -= 1
        if totals[child] == 0:
            _put(state, at[child], last[child])


@compiled_in_place_inside
def _load(lines: Lines, state: _State, now: float, here: int, amount: float) -> None:
    """Have an uplink carry messages that are ready together: they share it, and so are through together."""
    if lines.uplink[here] < np.inf:
        state.sent[here] = max(now, state.sent[here]) + amount / lines.uplink[here]


@inlined
def _carried(
    now: float,
    amount: float,
    delay: float,
    rate: float,
    free: Floats,
    sent: float,
    downlink: Floats,
    taken: Floats,
    there: int,
) -> float:
    """Return when a message that is ready now arrives; until when its link and its receiver's downlink are taken is
    brought up to date.

    Args:
        free: seconds at which each of the sender's links has carried all before, shape (S,).
        sent: those at which its uplink has carried the message and all before; 0 where it has no limit.
    """
    if rate <= 0.0:
        return np.inf
    begun = max(now, free[there])
    ended = max(begun + amount / rate, sent)
    if downlink[there] < np.inf:
        taken[there] = max(begun, taken[there]) + amount / downlink[there]
        ended = max(ended, taken[there])
    free[there] = ended
    return float(ended + delay)
