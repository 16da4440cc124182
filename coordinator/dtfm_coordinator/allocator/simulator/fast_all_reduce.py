"""Fast form of all-reduces of one bucket, in closed form, as machine code: of a stage, and of what both ends share.

Every holder of gradients sends each owner of a part its own of it; the owner that has all of it sends the sum to all.
Parts are shares of the whole, by slot, for both reductions, or none: then all are alike.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_protocol.plan.reductions import OWN_TIMING, SHARED_TIMING

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

OWN, TIED = range(2)
"""Reductions of a peer of first or last stage: among its stage's replicas, and among the peers of both stages."""
PRIOR, OTHER = (OWN, TIED) if OWN_TIMING.priority <= SHARED_TIMING.priority else (TIED, OWN)
"""The same, that which goes first where both are ready at one time before the other."""


@compiled
def equal_parts(counts: Ints) -> Floats:
    """Return the parts where all holders sum equally much, shape (2, slots)."""
    slots, last = counts.sum(), len(counts) - 1
    parts, slot = np.zeros((2, slots), dtype=np.float64), 0
    for stage in range(last + 1):
        parts[OWN, slot : slot + counts[stage]] = 1.0 / counts[stage]
        slot += counts[stage]
    parts[TIED, : counts[0]] = 1.0 / (counts[0] + counts[last])
    parts[TIED, slots - counts[last] :] = 1.0 / (counts[0] + counts[last])
    return parts


@compiled_inside
def all_reduced(problem: Problem, peers: Ints, ends: Floats, gradients: float, shares: Floats) -> Floats:
    """Return the seconds at which each peer of a stage holds the reduced gradients, if all actions have ended at
    `ends`; the owner of share `shares[member]` of them sums it."""
    if len(peers) == 1 or gradients == 0.0:
        return ends.copy()
    parts = gradients * shares
    summed = _exchanged(problem, peers, ends, ends, parts, True)
    return _exchanged(problem, peers, ends, summed, parts, False)


@compiled_inside
def _exchanged(problem: Problem, peers: Ints, ends: Floats, ready: Floats, parts: Floats, to_owners: bool) -> Floats:
    """Return when each has received what the others send it when they are `ready`, each to all at once: `to_owners`
    their own of the receiver's part, else the sums of the senders' parts. Who receives nothing is done when ready.

    In the second exchange they sent other parts from their `ends` on, and each link is taken until its own has left.
    """
    count, whole = len(peers), parts.sum()
    done = ready.copy()
    for receiver in range(count):
        there = peers[receiver]
        earliest, least_delay = np.inf, np.inf
        for sender in range(count):
            part = parts[receiver] if to_owners else parts[sender]
            if sender == receiver or part == 0.0:
                continue
            here = peers[sender]
            rate, uplink = problem.beta[here, there], problem.uplink[here]
            others = whole - parts[sender]  # to their owners
            taken = max(seconds_to_send(parts[receiver], rate), seconds_to_send(others, uplink))
            begun, took = ready[sender], taken
            if not to_owners:
                begun = max(ready[sender], ends[sender] + taken)
                took = max(seconds_to_send(part, rate), seconds_to_send((count - 1) * part, uplink))
            done[receiver] = max(done[receiver], begun + took + problem.alpha[here, there])
            earliest = min(earliest, ready[sender])
            least_delay = min(least_delay, problem.alpha[here, there])
        if problem.downlink[there] < np.inf and earliest < np.inf:
            size = (count - 1) * parts[receiver] if to_owners else whole - parts[receiver]
            done[receiver] = max(
                done[receiver], earliest + seconds_to_send(size, problem.downlink[there]) + least_delay
            )
    return done


@compiled_inside
def tied_all_reduced(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    ends: Floats,
    final: Floats,
    pairs: Ints,
    backlog: Floats,
    own: tuple[float, float],
    shares: Floats,
) -> Floats:
    """Return the seconds at which each peer of first and last stage holds all of its reduced gradients, shape (slots,);
    for those between, their entry of `ends`.

    Args:
        peers: number of the peer in each slot, shape (slots,).
        counts: number of peers of each stage, shape (K,), K > 1.
        ends: seconds at which each slot has ended its last action, shape (slots,).
        final: seconds at which each slot has its gradients of what is shared, shape (slots,).
        pairs: pairs of slots between which micro-batches go, shape (P, 2).
        backlog: seconds at which each pair's link back has carried all gradients, shape (P,).
        own: bytes of the first stage's gradients, and of the last one's, without those that they share.
        shares: the part of each reduction that each slot sums, shape (2, slots).
    """
    slots = len(peers)
    left = np.zeros((slots, slots), dtype=np.float64)
    if len(counts) == 2:
        # The link ahead is free: all that went over it has come back before its sender's last action.
        for pair in range(len(pairs)):
            left[pairs[pair, 1], pairs[pair, 0]] = backlog[pair]
    sizes, whole = np.zeros((2, slots), dtype=np.float64), np.zeros((2, slots), dtype=np.float64)
    for slot in range(slots):
        if slot < counts[0] or slot >= slots - counts[-1]:
            whole[OWN, slot], whole[TIED, slot] = own[0] if slot < counts[0] else own[1], problem.tied_gradients
            sizes[OWN, slot] = shares[OWN, slot] * whole[OWN, slot]
            sizes[TIED, slot] = shares[TIED, slot] * whole[TIED, slot]
    through = np.empty((2, slots), dtype=np.float64)
    for slot in range(slots):
        through[OWN, slot], through[TIED, slot] = ends[slot], final[slot]
    sent, taken = np.zeros(slots, dtype=np.float64), np.zeros(slots, dtype=np.float64)
    summed = _both_exchanged(problem, peers, counts, sizes, whole, through, left, sent, taken, True)
    reduced = _both_exchanged(problem, peers, counts, sizes, whole, summed, left, sent, taken, False)
    held = np.empty(slots, dtype=np.float64)
    for slot in range(slots):
        held[slot] = max(reduced[OWN, slot], reduced[TIED, slot])
    return held


@compiled_inside
def _both_exchanged(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    sizes: Floats,
    whole: Floats,
    ready: Floats,
    left: Floats,
    sent: Floats,
    taken: Floats,
    to_owners: bool,
) -> Floats:
    """Return when each peer of first and last stage has received, of each of its two reductions, what the others send
    when they are `ready`: as in `_exchanged`; by reduction and slot, as `sizes`, the parts, and `ready` are.

    `whole` has the bytes of all parts together, by reduction and slot. What is ready first goes first, and `PRIOR` of
    what is ready at one time: on links, which are free from `left` on, and on uplinks and downlinks, which are from
    `sent` and `taken` on. All three are brought up to date.
    """
    slots, firsts, lasts = len(peers), counts[0], counts[-1]
    arrived = ready.copy()
    earliest = np.full((2, slots), np.inf)
    least_delay = np.full((2, slots), np.inf)
    for sender in range(slots):
        if firsts <= sender < slots - lasts:
            continue
        here, near = peers[sender], firsts if sender < firsts else lasts
        early = PRIOR if ready[PRIOR, sender] <= ready[OTHER, sender] else OTHER
        for which in (early, 1 - early):
            others = near - 1 if which == OWN else firsts + lasts - 1
            begun, everything = ready[which, sender], others * sizes[which, sender]
            if to_owners:
                everything = whole[which, sender] - sizes[which, sender]
            if everything <= 0.0:
                continue  # of what is not trained nothing is sent
            sent[sender] = max(sent[sender], begun) + seconds_to_send(everything, problem.uplink[here])
            for receiver in range(slots):
                there = peers[receiver]
                inside = (receiver < firsts) == (sender < firsts)
                if receiver == sender or firsts <= receiver < slots - lasts or (which == OWN and not inside):
                    continue
                size = sizes[which, receiver if to_owners else sender]
                if size == 0.0:
                    continue
                took = seconds_to_send(size, problem.beta[here, there])
                left[sender, receiver] = max(max(left[sender, receiver], begun) + took, sent[sender])
                delay = problem.alpha[here, there]
                arrived[which, receiver] = max(arrived[which, receiver], left[sender, receiver] + delay)
                earliest[which, receiver] = min(earliest[which, receiver], begun)
                least_delay[which, receiver] = min(least_delay[which, receiver], delay)
    for receiver in range(slots):
        downlink = problem.downlink[peers[receiver]]
        if downlink == np.inf:
            continue
        early = PRIOR if earliest[PRIOR, receiver] <= earliest[OTHER, receiver] else OTHER
        for which in (early, 1 - early):
            if earliest[which, receiver] < np.inf:
                near = firsts if receiver < firsts else lasts
                others = near - 1 if which == OWN else firsts + lasts - 1
                everything = others * sizes[which, receiver]
                if not to_owners:
                    everything = whole[which, receiver] - sizes[which, receiver]
                taken[receiver] = max(taken[receiver], earliest[which, receiver])
                taken[receiver] += seconds_to_send(everything, downlink)
                arrived[which, receiver] = max(arrived[which, receiver], taken[receiver] + least_delay[which, receiver])
    return arrived


@compiled
def seconds_to_send(size: float, bandwidth: float) -> float:
    """Return the seconds that `size` bytes take alone at `bandwidth` bytes a second; infinite where that is 0."""
    if size == 0.0:
        return 0.0
    return size / bandwidth if bandwidth > 0.0 else np.inf
