"""Fast form of reductions in buckets and along trees, event by event, as machine code: `simulated_reduction` on arrays.

For the search over layouts where gradients are cut into several buckets, and for the search for trees. A link carries
its messages one after another in the order in which they are ready; where uplinks and downlinks are limited, messages
queue for them in that order, while the exact simulator gives each its fair share.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.simulator.heap import pop, push

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

FINAL, SUM, TOTAL = range(3)
"""Kinds of events: a bucket's gradient is final on a holder; a sum of a part, or a total, has come to it."""


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
    """What has come to whom."""

    waits: Flags
    """Whether a holder has to wait for others' sums of each owner's part, or owns it, shape (S, S): owner, holder."""
    missing: Ints
    """Sums of each part that each holder still waits for, shape (R, B, S, S): bucket, owner, holder."""
    totals: Ints
    """Totals that each holder still waits for, shape (R, B, S)."""
    known: Ints
    """Buckets that are final, have been begun, and are done, shape (R, S, 3)."""
    sent: Floats
    taken: Floats
    """Seconds at which each uplink and downlink has carried all before, shape (S,)."""
    times: Floats
    events: Ints
    size: Ints
    """Events to come, and how many there are, shape (1,)."""
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
    reductions, holders = cuts.holds.shape
    most = cuts.sizes.shape[1]
    direct = len(trees) == 0
    room = reductions * most * holders * (2 * holders + 1)
    waits = np.eye(holders) > 0.0
    for owner in range(len(trees)):
        for holder in range(holders):
            if trees[owner, holder] != holder:
                waits[owner, trees[owner, holder]] = True
    state = _State(
        waits,
        np.zeros((reductions, most, holders, holders), dtype=np.int64),
        np.zeros((reductions, most, holders), dtype=np.int64),
        np.zeros((reductions, holders, 3), dtype=np.int64),
        np.zeros(holders, dtype=np.float64),
        np.zeros(holders, dtype=np.float64),
        np.empty(room, dtype=np.float64),
        np.empty(room, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.zeros(holders, dtype=np.float64),
    )
    for which in range(reductions):
        members = int(np.int64(0))
        for holder in range(holders):
            members += 1 if cuts.holds[which, holder] else 0
        for bucket in range(cuts.counts[which]):
            for owner in range(holders):
                if cuts.shares[which, owner] == 0.0 or cuts.sizes[which, bucket] == 0.0:
                    continue
                for holder in range(holders):
                    if not cuts.holds[which, holder]:
                        continue
                    state.totals[which, bucket, holder] += 1
                    state.missing[which, bucket, owner, holder] += 1
                    if direct and holder == owner:
                        state.missing[which, bucket, owner, holder] += members - 1
                    elif not direct and trees[owner, holder] != holder:
                        state.missing[which, bucket, owner, trees[owner, holder]] += 1
            for holder in range(holders):
                if cuts.holds[which, holder]:
                    event = _event(FINAL, which, bucket, 0, holder, reductions, most, holders)
                    _put(state, cuts.final[which, holder, bucket], event)
    while state.size[0] > 0:
        now, event, state.size[0] = pop(state.times, state.events, state.size[0])
        holder, owner = event % holders, event // holders % holders
        bucket, which = event // holders**2 % most, event // (holders**2 * most) % reductions
        kind = event // (holders**2 * most * reductions)
        if kind == FINAL:
            state.known[which, holder, FINAL] = max(state.known[which, holder, FINAL], bucket + 1)
            _advance(lines, cuts, trees, between, state, now, which, holder)
        elif kind == SUM:
            _take_sum(lines, cuts, trees, between, state, now, which, bucket, owner, holder, True)
        else:
            _take_total(lines, cuts, trees, state, now, which, bucket, owner, holder)
        if kind != FINAL and state.totals[which, bucket, holder] == 0:
            _advance(lines, cuts, trees, between, state, now, which, holder)
    return state.held


@compiled_inside
def _event(
    kind: int, which: int, bucket: int, owner: int, holder: int, reductions: int, most: int, holders: int
) -> int:
    """Return the number of an event."""
    return (((kind * reductions + which) * most + bucket) * holders + owner) * holders + holder


@compiled_inside
def _put(state: _State, time: float, event: int) -> None:
    """Foresee an event."""
    state.size[0] = push(state.times, state.events, state.size[0], time, event)


@compiled_inside
def _advance(
    lines: Lines, cuts: Cuts, trees: Ints, between: float, state: _State, now: float, which: int, holder: int
) -> None:
    """Let a holder begin the buckets that it may; and those after them that it is done with at once."""
    known = state.known[which, holder]
    while True:
        # Those that are done are counted anew: a total may have come for any.
        done = int(np.int64(0))
        for bucket in range(known[1]):
            done += 1 if state.totals[which, bucket, holder] == 0 else 0
        known[2] = done
        if done == cuts.counts[which]:
            state.held[holder] = max(state.held[holder], now)
        begun = known[1]
        if begun == cuts.counts[which] or begun >= known[0] or begun - done >= cuts.under_way[which]:
            return
        known[1] = begun + 1
        amount = 0.0
        for owner in range(len(state.held)):
            if state.missing[which, begun, owner, holder] > 0 and not state.waits[owner, holder]:
                amount += cuts.sizes[which, begun] * cuts.shares[which, owner]
        _load(lines, state, now, holder, amount)
        for last in range(2):  # what waits for nobody else's goes out first
            for owner in range(len(state.held)):
                if state.missing[which, begun, owner, holder] == 0:
                    continue  # nothing is summed there
                if state.waits[owner, holder] == (last == 1):
                    _take_sum(lines, cuts, trees, between, state, now, which, begun, owner, holder, last == 1)


@compiled_inside
def _take_sum(
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
    later: bool,
) -> None:
    """Let a holder have one more of the sums that it adds up of a part, and send theirs on if it is the last; `later`
    than when it began the bucket, whose other messages have loaded its uplink then."""
    state.missing[which, bucket, owner, holder] -= 1
    if state.missing[which, bucket, owner, holder] > 0:
        return
    if holder == owner:
        _take_total(lines, cuts, trees, state, now, which, bucket, owner, holder)
        return
    reductions, holders = cuts.holds.shape
    most = cuts.sizes.shape[1]
    parent, amount = owner, cuts.sizes[which, bucket] * cuts.shares[which, owner]
    if len(trees) > 0:
        parent = trees[owner, holder]
        amount *= between if state.waits[owner, holder] else 1.0
    if later:
        _load(lines, state, now, holder, amount)
    arrived = _carried(lines, state, now, holder, parent, amount)
    _put(state, arrived, _event(SUM, which, bucket, owner, parent, reductions, most, holders))


@compiled_inside
def _take_total(
    lines: Lines, cuts: Cuts, trees: Ints, state: _State, now: float, which: int, bucket: int, owner: int, holder: int
) -> None:
    """Let a holder have the total of a part, and hand it on."""
    reductions, holders = cuts.holds.shape
    most = cuts.sizes.shape[1]
    state.totals[which, bucket, holder] -= 1
    amount = cuts.sizes[which, bucket] * cuts.shares[which, owner]
    children = int(np.int64(0))
    for child in range(holders):
        children += 1 if _is_child(cuts, trees, which, owner, holder, child) else 0
    _load(lines, state, now, holder, children * amount)
    for child in range(holders):
        if _is_child(cuts, trees, which, owner, holder, child):
            arrived = _carried(lines, state, now, holder, child, amount)
            _put(state, arrived, _event(TOTAL, which, bucket, owner, child, reductions, most, holders))


@compiled_inside
def _is_child(cuts: Cuts, trees: Ints, which: int, owner: int, holder: int, child: int) -> bool:
    """Return whether a holder sends its sums of a part to another one."""
    if child == holder or not cuts.holds[which, child]:
        return False
    return bool(trees[owner, child] == holder if len(trees) > 0 else holder == owner)


@compiled_inside
def _load(lines: Lines, state: _State, now: float, here: int, amount: float) -> None:
    """Have an uplink carry messages that are ready together: they share it, and so are through together."""
    if lines.uplink[here] < np.inf:
        state.sent[here] = max(now, state.sent[here]) + amount / lines.uplink[here]


@compiled_inside
def _carried(lines: Lines, state: _State, now: float, here: int, there: int, amount: float) -> float:
    """Return when a message that is ready now, and has loaded its sender's uplink, arrives; until when its link and its
    receiver's downlink are taken is brought up to date."""
    rate = lines.beta[here, there]
    if rate <= 0.0:
        return np.inf
    begun = max(now, lines.free[here, there])
    ended = begun + amount / rate
    if lines.uplink[here] < np.inf:
        ended = max(ended, state.sent[here])
    if lines.downlink[there] < np.inf:
        state.taken[there] = max(begun, state.taken[there]) + amount / lines.downlink[there]
        ended = max(ended, state.taken[there])
    lines.free[here, there] = ended
    return float(ended + lines.alpha[here, there])
