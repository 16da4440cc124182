"""Reductions of a layout bucket by bucket, as machine code: `problem.bucket_cut` on arrays.

Where a stage's gradients are one bucket, `fast_all_reduce` says in closed form what this plays event by event.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_inside
from dtfm_coordinator.allocator.problem.bucket_cut import MOST_BUCKETS
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.simulator.fast_all_reduce import OWN, PRIOR, TIED
from dtfm_coordinator.allocator.simulator.fast_reduction import Cuts, Lines, reduced_at
from dtfm_protocol.plan.reductions import BUCKETS_UNDER_WAY, OWN_TIMING, SHARED_TIMING

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROUNDING = 1e-9
"""Of a bucket's bytes: so much less than the end of a layer's gradients is that end."""
EARLY = tuple(timing.begins == "with gradients" for timing in (OWN_TIMING, SHARED_TIMING))
"""Whether buckets begin as their gradients are final, of each of `OWN` and `TIED`."""
OWN_ROW, TIED_ROW = (0, 2) if PRIOR == OWN else (1, 0)
"""Where `ends_reduced` has the first stage's own reduction, before the last one's, and what both share: in the order
of priority, in which it plays what happens at one time."""


@compiled_inside
def bucket_count(problem: Problem, gradients: float) -> int:
    """Return the number of buckets that the engine makes of so many bytes of gradients, at least 1."""
    return max(1, int(np.ceil(gradients / problem.bucket_bytes - ROUNDING)))


@compiled_inside
def bucket_ends(problem: Problem, gradients: float) -> tuple[Floats, int]:
    """Return where the buckets that are played end, in bytes, and how many are under way at a time."""
    made = bucket_count(problem, gradients)
    played = min(made, MOST_BUCKETS)
    ends = np.empty(played, dtype=np.float64)
    for number in range(played):
        ends[number] = min(gradients, ((number + 1) * made // played) * problem.bucket_bytes)
    return ends, max(1, int(np.round(BUCKETS_UNDER_WAY * played / made)))


@compiled_inside
def final_shares(
    problem: Problem, first: int, layers: int, stage: int, stages: int, which: int, ends: Floats
) -> Floats:
    """Return the shares of the last action after which a stage's buckets with these ends may begin.

    Args:
        first: first layer of the stage.
        layers: number of its layers.
        which: `OWN` for what the stage's replicas reduce among themselves, `TIED` for what first and last stage share.
    """
    # The embedding's gradients come last, and take no time: what is not there before them is final at the end.
    head, head_layers = 0.0, 0.0
    if stage == stages - 1:
        head, head_layers = problem.head_gradients - problem.tied_gradients, problem.head_layers
    if which == TIED:
        head = problem.tied_gradients if stage > 0 else 0.0
    prefix = problem.untrained_prefix  # the backward ends before it
    whole = head_layers + max(0, first + layers - max(first, prefix))
    shares = np.empty(len(ends), dtype=np.float64)
    for number in range(len(ends)):
        wanted = ends[number] * (1.0 - ROUNDING)
        there, passed = head, head_layers
        layer = first + layers
        while there < wanted and layer > first:
            layer -= 1
            passed += 1.0 if layer >= prefix else 0.0
            if which == OWN:
                there += problem.gradient_before[layer + 1] - problem.gradient_before[layer]
        shares[number] = passed / whole if whole > 0.0 and there >= wanted else 1.0
        if not EARLY[which] or (which == TIED and stages == 2):
            shares[number] = 1.0  # see `bucket_cut`
    return shares


@compiled_inside
def last_share(problem: Problem, stage: tuple[int, int, int, int], gradients: float) -> float:
    """Return the share of its last action after which all of a stage's own gradients are final."""
    first, layers, number, stages = stage
    return float(final_shares(problem, first, layers, number, stages, OWN, np.array([gradients]))[0])


@compiled_inside
def tied_final(problem: Problem, counts: Ints, layers: Ints, begun: Floats, ends: Floats) -> Floats:
    """Return the seconds at which each slot of first and last stage has its gradients of what they share, where that is
    one bucket, shape (slots,); for those between, their entry of `ends`."""
    final, stages = ends.copy(), len(counts)
    cut = np.array([problem.tied_gradients])
    share = final_shares(problem, layers.sum() - layers[-1], layers[-1], stages - 1, stages, TIED, cut)[0]
    for slot in range(len(ends) - counts[-1], len(ends)):
        final[slot] = begun[slot] + share * (ends[slot] - begun[slot])
    return final


@compiled_inside
def in_one_each(problem: Problem, first_own: float, last_own: float) -> bool:
    """Return whether the reductions of first and last stage, and the one of what they share, are one bucket each."""
    most = max(max(first_own, last_own), problem.tied_gradients)
    return bucket_count(problem, most) == 1


@compiled_inside
def is_limited(problem: Problem, peers: Ints, counts: Ints) -> bool:
    """Return whether a peer of first or last stage has an uplink or downlink that its links share: closed forms are
    nearer to fair shares of it than messages that queue."""
    for slot in range(len(peers)):
        holds = slot < counts[0] or slot >= len(peers) - counts[-1]
        if holds and min(problem.uplink[peers[slot]], problem.downlink[peers[slot]]) < np.inf:
            return True
    return False


@compiled_inside
def lines_between(problem: Problem, peers: Ints) -> Lines:
    """Return the links between peers, all of them free."""
    count = len(peers)
    alpha, beta = np.empty((count, count), dtype=np.float64), np.empty((count, count), dtype=np.float64)
    uplink, downlink = np.empty(count, dtype=np.float64), np.empty(count, dtype=np.float64)
    for here in range(count):
        uplink[here], downlink[here] = problem.uplink[peers[here]], problem.downlink[peers[here]]
        for there in range(count):
            alpha[here, there] = problem.alpha[peers[here], peers[there]]
            beta[here, there] = problem.beta[peers[here], peers[there]]
    return Lines(alpha, beta, uplink, downlink, np.zeros((count, count), dtype=np.float64))


@compiled_inside
def stage_reduced(
    problem: Problem,
    peers: Ints,
    stage: tuple[int, int, int, int],
    gradients: float,
    begun: Floats,
    ends: Floats,
    shares: Floats,
) -> Floats:
    """Return the seconds at which each replica of a stage holds its reduced gradients.

    Args:
        stage: its first layer, its number of layers, its number, and the number of stages.
        begun: seconds at which each replica has begun its last action.
        ends: seconds at which each has ended it.
        shares: the part that each sums.
    """
    first, layers, number, stages = stage
    cut, under_way = bucket_ends(problem, gradients)
    final = final_shares(problem, first, layers, number, stages, OWN, cut)
    count, buckets = len(peers), len(cut)
    cuts = _cuts(1, count, buckets)
    _fill(cuts, 0, cut, under_way)
    for holder in range(count):
        cuts.holds[0, holder], cuts.shares[0, holder] = True, shares[holder]
        for bucket in range(buckets):
            cuts.final[0, holder, bucket] = begun[holder] + final[bucket] * (ends[holder] - begun[holder])
    return reduced_at(lines_between(problem, peers), cuts, np.empty((0, 0), dtype=np.int64), 1.0)


@compiled_inside
def ends_reduced(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    layers: Ints,
    own: tuple[float, float],
    begun: Floats,
    ends: Floats,
    pairs: Ints,
    backlog: Floats,
    shares: Floats,
) -> Floats:
    """Return, of first and last stage, which share a matrix, the seconds at which each slot holds its reduced
    gradients, shape (slots,); what is between them has zeros.

    Args:
        own: bytes of the first stage's gradients, and of the last one's, without those that they share.
        begun: seconds at which each slot has begun its last action, shape (slots,).
        ends: seconds at which each slot has ended it, shape (slots,).
        pairs: pairs of slots between which micro-batches go, shape (P, 2).
        backlog: seconds at which each pair's link back has carried all gradients, shape (P,).
        shares: the part of each reduction that each slot sums, shape (2, slots).
    """
    slots, stages, total = len(peers), len(counts), layers.sum()
    chosen = np.empty(counts[0] + counts[-1], dtype=np.int64)
    for slot in range(counts[0]):
        chosen[slot] = slot
    for slot in range(counts[-1]):
        chosen[counts[0] + slot] = slots - counts[-1] + slot
    lines = lines_between(problem, peers[chosen])
    if stages == 2:
        # The link ahead is free: all that went over it has come back before its sender's last action.
        for pair in range(len(pairs)):
            lines.free[pairs[pair, 1], pairs[pair, 0]] = backlog[pair]
    sizes = np.empty(3, dtype=np.float64)
    sizes[OWN_ROW], sizes[OWN_ROW + 1], sizes[TIED_ROW] = own[0], own[1], problem.tied_gradients
    most = 1
    for which in range(3):
        most = max(most, min(MOST_BUCKETS, bucket_count(problem, sizes[which])))
    cuts = _cuts(3, len(chosen), most)
    for which in range(3):
        cut, under_way = bucket_ends(problem, sizes[which])
        _fill(cuts, which, cut, under_way)
        for end in range(2):
            if which == OWN_ROW + 1 - end:
                continue
            first, stage = (0, 0) if end == 0 else (total - layers[-1], stages - 1)
            kind = TIED if which == TIED_ROW else OWN
            final = final_shares(problem, first, layers[stage], stage, stages, kind, cut)
            for holder in range(len(chosen)):
                if (holder < counts[0]) != (end == 0):
                    continue
                slot = chosen[holder]
                cuts.holds[which, holder], cuts.shares[which, holder] = True, shares[kind, slot]
                for bucket in range(len(cut)):
                    cuts.final[which, holder, bucket] = begun[slot] + final[bucket] * (ends[slot] - begun[slot])
    reduced = reduced_at(lines, cuts, np.empty((0, 0), dtype=np.int64), 1.0)
    held = np.zeros(slots, dtype=np.float64)
    for holder in range(len(chosen)):
        held[chosen[holder]] = reduced[holder]
    return held


@compiled_inside
def _cuts(reductions: int, holders: int, buckets: int) -> Cuts:
    """Return empty ones."""
    return Cuts(
        np.zeros((reductions, holders), dtype=np.bool_),
        np.zeros(reductions, dtype=np.int64),
        np.zeros((reductions, buckets), dtype=np.float64),
        np.ones(reductions, dtype=np.int64),
        np.zeros((reductions, holders), dtype=np.float64),
        np.zeros((reductions, holders, buckets), dtype=np.float64),
    )


@compiled_inside
def _fill(cuts: Cuts, which: int, ends: Floats, under_way: int) -> None:
    """Say how large the buckets of a reduction are that end there, and how many are under way at a time."""
    cuts.counts[which], cuts.under_way[which] = len(ends), under_way
    before = 0.0
    for bucket in range(len(ends)):
        cuts.sizes[which, bucket] = ends[bucket] - before
        before = ends[bucket]
