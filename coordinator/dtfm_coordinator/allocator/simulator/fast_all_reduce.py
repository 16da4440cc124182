"""Fast form of the all-reduces at a step's end, as machine code: of each stage, and of what first and last stage share.

Every holder of gradients sends each other one its part; the owner of a part that has all of it sends the sum to all.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import Problem

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

OWN, TIED = range(2)
"""Reductions of a peer of first or last stage: among its stage's replicas, and among the peers of both stages."""


@compiled_inside
def all_reduced(problem: Problem, peers: Ints, ends: Floats, gradients: float) -> Floats:
    """Return the seconds at which each peer of a stage holds the reduced gradients, if all actions have ended at
    `ends`."""
    count = len(peers)
    if count == 1 or gradients == 0.0:
        return ends.copy()
    part = gradients / count
    summed = _exchanged(problem, peers, ends, ends, part)
    return _exchanged(problem, peers, ends, summed, part)


@compiled_inside
def _exchanged(problem: Problem, peers: Ints, ends: Floats, ready: Floats, part: float) -> Floats:
    """Return when each has received a part from all others, who send it when they are `ready`, each to all at once.

    Where the peers were ready later than their `ends`, they sent other parts from then on, and each link is taken
    until its own has left.
    """
    count = len(peers)
    again = (ready != ends).any()
    done = ready.copy()
    for receiver in range(count):
        there = peers[receiver]
        earliest, least_delay = np.inf, np.inf
        for sender in range(count):
            if sender == receiver:
                continue
            here = peers[sender]
            alone = seconds_to_send(part, problem.beta[here, there])
            took = max(alone, seconds_to_send((count - 1) * part, problem.uplink[here]))
            begun = max(ready[sender], ends[sender] + took) if again else ready[sender]
            done[receiver] = max(done[receiver], begun + took + problem.alpha[here, there])
            earliest = min(earliest, ready[sender])
            least_delay = min(least_delay, problem.alpha[here, there])
        if problem.downlink[there] < np.inf:
            all_in = earliest + seconds_to_send((count - 1) * part, problem.downlink[there])
            done[receiver] = max(done[receiver], all_in + least_delay)
    return done


@compiled_inside
def tied_all_reduced(
    problem: Problem,
    peers: Ints,
    counts: Ints,
    ends: Floats,
    pairs: Ints,
    backlog: Floats,
    own: tuple[float, float],
) -> Floats:
    """Return the seconds at which each peer of first and last stage holds all of its reduced gradients, shape (slots,);
    for those between, their entry of `ends`.

    Args:
    peers: number of the peer in each slot, shape (slots,).
    counts: number of peers of each stage, shape (K,), K > 1.
    ends: seconds at which each slot has ended its last action, shape (slots,).
    pairs: pairs of slots between which micro-batches go, shape (P, 2).
    backlog: seconds at which each pair's link back has carried all gradients, shape (P,).
    own: bytes of the first stage's gradients, and of the last one's, without those that they share.
    """
    slots = len(peers)
    left = np.zeros((slots, slots), dtype=np.float64)
    if len(counts) == 2:
        # The link ahead is free: all that went over it has come back before its sender's last action.
        for pair in range(len(pairs)):
            left[pairs[pair, 1], pairs[pair, 0]] = backlog[pair]
    sizes = np.zeros((2, slots), dtype=np.float64)
    sizes[OWN, : counts[0]], sizes[OWN, slots - counts[-1] :] = own[0] / counts[0], own[1] / counts[-1]
    sizes[TIED] = problem.tied_gradients / (counts[0] + counts[-1])
    through = np.empty((2, slots), dtype=np.float64)
    for slot in range(slots):
        through[OWN, slot], through[TIED, slot] = ends[slot], ends[slot]
    sent, taken = np.zeros(slots, dtype=np.float64), np.zeros(slots, dtype=np.float64)
    summed = _both_exchanged(problem, peers, counts, sizes, through, left, sent, taken)
    reduced = _both_exchanged(problem, peers, counts, sizes, summed, left, sent, taken)
    held = np.empty(slots, dtype=np.float64)
    for slot in range(slots):
        held[slot] = max(reduced[OWN, slot], reduced[TIED, slot])
    return held


@compiled_inside
def _both_exchanged(
    problem: Problem, peers: Ints, counts: Ints, sizes: Floats, ready: Floats, left: Floats, sent: Floats, taken: Floats
) -> Floats:
    """Return when each peer of first and last stage has received, of each of its two reductions, a part from all
    others, who send it when they are `ready`; by reduction and slot, as `sizes` and `ready` are.

    What is ready first goes first, the stage's own before what is shared: on links, which are free from `left` on, and
    on uplinks and downlinks, which are from `sent` and `taken` on. All three are brought up to date.
    """
    slots, firsts, lasts = len(peers), counts[0], counts[-1]
    arrived = ready.copy()
    earliest = np.full((2, slots), np.inf)
    least_delay = np.full((2, slots), np.inf)
    for sender in range(slots):
        if firsts <= sender < slots - lasts:
            continue
        here, near = peers[sender], firsts if sender < firsts else lasts
        early = OWN if ready[OWN, sender] <= ready[TIED, sender] else TIED
        for which in (early, 1 - early):
            others = near - 1 if which == OWN else firsts + lasts - 1
            size, begun = sizes[which, sender], ready[which, sender]
            if size == 0.0:
                continue  # of what is not trained nothing is sent
            sent[sender] = max(sent[sender], begun) + seconds_to_send(others * size, problem.uplink[here])
            for receiver in range(slots):
                there = peers[receiver]
                inside = (receiver < firsts) == (sender < firsts)
                if receiver == sender or firsts <= receiver < slots - lasts or (which == OWN and not inside):
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
        early = OWN if earliest[OWN, receiver] <= earliest[TIED, receiver] else TIED
        for which in (early, 1 - early):
            if earliest[which, receiver] < np.inf:
                near = firsts if receiver < firsts else lasts
                others = near - 1 if which == OWN else firsts + lasts - 1
                taken[receiver] = max(taken[receiver], earliest[which, receiver])
                taken[receiver] += seconds_to_send(others * sizes[which, receiver], downlink)
                arrived[which, receiver] = max(arrived[which, receiver], taken[receiver] + least_delay[which, receiver])
    return arrived


@compiled
def seconds_to_send(size: float, bandwidth: float) -> float:
    """Return the seconds that `size` bytes take alone at `bandwidth` bytes a second; infinite where that is 0."""
    if size == 0.0:
        return 0.0
    return size / bandwidth if bandwidth > 0.0 else np.inf
