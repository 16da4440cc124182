"""What each stage that there can be needs of time on each set of peers that may serve it: tables for `set_bound`.

Its micro-batches are dealt to its replicas as is best for one of these times at a time. A stage either keeps its
activations, of as few micro-batches at a time as its peers' memory holds, or computes them anew.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_coordinator.allocator.problem.bucket_cut import MOST_BUCKETS
from dtfm_coordinator.allocator.problem.problem_arrays import ZERO_BUBBLE, Problem
from dtfm_lab.bounds.peer_sets import SLOWEST, PeerSets
from dtfm_lab.bounds.stage_prices import ends_of, sending_rate
from dtfm_protocol.model.memory_model import MESSAGES_RECEIVED_AHEAD
from dtfm_protocol.plan.reductions import BUCKETS_UNDER_WAY

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WAY, WHOLE, TURN, LINE, THROUGH, AHEAD, BACK, HELD = range(8)
"""What is known of a stage: seconds of all forwards, and what of the backwards other stages await; until all that it
computes is reduced; of the longer of forwards and backwards, and of one of the others; until its messages both ways
have left its peers, where it has both; the least of one forward and backward, of one forward, and of one backward; and
the number of micro-batches of which its peers keep anything at once."""
KINDS = 8
KEPT, ANEW = range(2)
"""Whether a stage keeps its activations, or computes them anew."""
HALVINGS, NEAR = 40, 1e-5
"""Halvings of the interval in which a time lies, at most, and the part of it that is near enough: its lower end is
taken."""
ROUNDING = 1e-9
"""What rounding may take off a number of micro-batches."""


class Stages(NamedTuple):
    """All P stages that there can be, on N peers."""

    first: Ints
    """Number of its first layer, shape (P,)."""
    end: Ints
    """Number of the layer after its last, shape (P,)."""
    number: Ints
    """Number of the stage with these, shape (L + 1, L + 1)."""
    forward: Floats
    """Seconds of a micro-batch, shape (P, N)."""
    back: Floats
    """Seconds of what of its backward other stages await, shape (P, N)."""
    rest: Floats
    """Seconds of the rest of it, shape (P, N)."""
    anew: Floats
    """Seconds that a backward takes longer where activations are computed anew, shape (P, N)."""
    last: Floats
    """Seconds of a peer's last action, in which reductions begin, without `anew`, shape (P, N)."""
    gradients: Floats
    """Bytes of the gradients that its replicas reduce among themselves, shape (P,)."""
    tied: Floats
    """Bytes of those that they reduce with the peers of the other end, shape (P,)."""
    sent: Floats
    """Bytes that leave it for each micro-batch, shape (P,)."""
    held: Floats
    """Micro-batches of which a peer can keep anything at once, `KEPT` and `ANEW`, alone and as one of several, shape
    (2, 2, P, N)."""
    outwards: Floats
    """Bytes a second that leave each peer at most, shape (N,)."""
    bucket_bytes: float
    """Bytes of a full bucket."""
    equal_parts: bool
    """Whether all holders of a gradient sum equal parts of it, and send them straight to each other."""


def stages_of(problem: Problem, *, equal_parts: bool) -> Stages:
    """Return what each stage has to do, and what each peer can; `equal_parts` as in `Stages`."""
    layers = problem.layers
    first, end = np.triu_indices(layers + 1, 1)
    number = np.full((layers + 1, layers + 1), -1)
    number[first, end] = np.arange(len(first))
    beyond = problem.head_layers * (end == layers)
    idle = np.where(first == 0, np.minimum(problem.untrained_prefix, end), 0)
    trained = problem.trained_before[end] - problem.trained_before[first]
    count = np.stack([end - first + beyond, end - first - idle + beyond])
    weights = trained + problem.head_weight_layers * (end == layers)
    forward = count[0][:, None] * problem.forward
    through = count[1][:, None] * (problem.backward - problem.weight)
    weight = weights[:, None] * problem.weight
    apart = problem.schedule == ZERO_BUBBLE
    ends = {
        (is_first, is_last): ends_of(problem, first=is_first, last=is_last)
        for is_first in (False, True)
        for is_last in (False, True)
    }
    of = [ends[bool(a == 0), bool(b == layers)] for a, b in zip(first, end, strict=True)]
    whole = (first == 0) & (end == layers)
    return Stages(
        first=first,
        end=end,
        number=number,
        forward=forward,
        back=through if apart else through + weight,
        rest=weight if apart else 0.0 * weight,
        anew=(end - first)[:, None] * problem.forward,
        last=weight if apart else through + weight,
        gradients=problem.gradient_before[end] - problem.gradient_before[first] + [one.gradients for one in of],
        tied=np.where(((first == 0) | (end == layers)) & ~whole, problem.tied_gradients, 0.0),
        sent=problem.ahead_bytes * (end < layers) + problem.back_bytes * (first > 0),
        held=_held(problem, (end - first)[:, None], np.stack([one.memory for one in of]), whole[:, None]),
        outwards=np.maximum(sending_rate(problem), SLOWEST),
        bucket_bytes=problem.bucket_bytes,
        equal_parts=equal_parts,
    )


def _held(problem: Problem, layers: Ints, ends: Floats, whole: npt.NDArray[np.bool_]) -> Floats:
    """Return the number of micro-batches of which each peer can keep anything at once, shape (2, 2, P, N)."""
    found = []
    for feedback in (0.0, problem.feedback_bytes):
        parameter = problem.parameter_bytes + feedback
        each = parameter * problem.layer_parameters + problem.frozen_layer_bytes + problem.copied_layer_bytes
        room = problem.memory - ends - layers * each - MESSAGES_RECEIVED_AHEAD * problem.input_bytes * ~whole
        kept, anew = (np.maximum(one, 1e-9) for one in (problem.activation_bytes, problem.input_bytes))
        found.append([room / (layers * kept), (room - problem.activation_bytes) / (layers * anew)])
    held: Floats = np.clip(np.floor(np.array(found) + ROUNDING), 0.0, problem.micro_batches).swapaxes(0, 1)
    return held


def stage_times(problem: Problem, sets: PeerSets, stages: Stages) -> Floats:
    """Return what is known of each stage on each set of peers, by whether it computes anew, shape
    (2, S, P, `KINDS`); infinite where memory does not hold it. What ends of the model share is not in it."""
    return _stage_times(stages, sets, problem.micro_batches)


@compiled
def _stage_times(stages: Stages, sets: PeerSets, micro_batches: int) -> Floats:
    """Fill the tables of `stage_times`."""
    all_sets, count = sets.members.shape
    found = np.full((2, all_sets, len(stages.first), KINDS), np.inf)
    begin, each, nothing = np.zeros((1, count)), np.zeros((1, count)), np.zeros(count)
    for chosen in range(1, all_sets):
        peers = np.flatnonzero(sets.members[chosen])
        several = 1 if len(peers) > 1 else 0
        if len(peers) > micro_batches:
            continue
        for stage in range(len(stages.first)):
            for anew in range(2):
                held = stages.held[anew, several, stage]
                if held[peers].min() < 1:
                    continue
                out = found[anew, chosen, stage]
                ahead, back = stages.forward[stage], stages.back[stage] + anew * stages.anew[stage]
                out[HELD], out[THROUGH] = held[peers].sum(), (ahead + back)[peers].min()
                out[AHEAD], out[BACK] = ahead[peers].min(), back[peers].min()
                begin[0], each[0] = 0.0, ahead + back
                out[WAY] = _soonest(peers, begin, each, micro_batches, 0.0, nothing, nothing)
                begin[0], each[0] = np.minimum(ahead, back), np.maximum(ahead, back)
                out[TURN] = _soonest(peers, begin, each, micro_batches, 0.0, nothing, nothing)
                begin[0], each[0] = ahead, stages.sent[stage] / stages.outwards
                out[LINE] = _soonest(peers, begin, each, micro_batches, 0.0, nothing, nothing)
                out[WHOLE] = whole_seconds(stages, sets, chosen, 0, True, stage, anew, micro_batches)
    return found


@compiled_inside
def whole_seconds(
    stages: Stages, sets: PeerSets, chosen: int, other: int, exactly: bool, stage: int, anew: int, micro_batches: int
) -> float:
    """Return the least seconds until all that a stage computes on a set of peers is reduced.

    Args:
        other: the set of peers of the other end, with which it reduces what both share; 0: it does not, or there is
            nothing.
        exactly: whether all of `other` serve that, or perhaps some of them alone.
    """
    peers = np.flatnonzero(sets.members[chosen])
    tied = stages.tied[stage] if other else 0.0
    own = stages.gradients[stage] if len(peers) > 1 else 0.0
    back = stages.back[stage] + anew * stages.anew[stage]
    last = stages.last[stage] + anew * stages.anew[stage]
    whole = stages.forward[stage] + back + stages.rest[stage]
    # The first stage is through with what is shared at its end, the last one with the head before.
    early = 0.0 if stages.first[stage] == 0 else 1.0
    begin, each, given = np.zeros((3, len(last))), np.zeros((3, len(last))), np.zeros(len(last))
    each[0] = each[1] = whole
    if own > 0:
        begin[0] = np.maximum(0.0, sets.reduce_delay[chosen] + own / sets.reduce_rate[chosen] - last)
        given += own
    if tied > 0:
        shared = sets.delay[chosen, other] + tied / sets.rate[chosen, other]
        begin[0] = np.maximum(begin[0], shared - early * last)
        given += tied
    if stages.equal_parts:
        holders = len(peers) + sets.members[other].sum()
        knows = tied > 0 and exactly
        if own > 0:
            given += (1 - 2 / len(peers)) * own
        if knows:
            given += (1 - 2 / holders) * tied
        for peer in peers:
            for mate in range(len(last)):
                if mate == peer:
                    continue
                sent = 0.0
                if own > 0 and sets.members[chosen, mate]:
                    seconds = _exchange_seconds(sets, peer, mate, own, len(peers), stages.bucket_bytes)
                    begin[0, peer] = max(begin[0, peer], seconds - last[peer])
                    sent += 2 * own / len(peers)
                if knows and sets.members[chosen | other, mate]:
                    seconds = _exchange_seconds(sets, peer, mate, tied, holders, stages.bucket_bytes)
                    begin[0, peer] = max(begin[0, peer], seconds - early * last[peer])
                    sent += 2 * tied / holders
                if sent > 0:
                    seconds = sent / sets.beta[peer, mate] + sets.alpha[peer, mate]
                    begin[0, peer] = max(begin[0, peer], seconds - last[peer])
    given /= stages.outwards
    begin[1] = given - last
    begin[2], each[2] = stages.forward[stage] + given, stages.sent[stage] / stages.outwards
    traffic = 2 * (len(peers) - 1) * own + len(peers) * tied
    among = sets.among[chosen | other] if tied > 0 else sets.among[chosen]
    return _soonest(peers, begin, each, micro_batches, traffic, among, last)


@compiled_inside
def shared_seconds(stages: Stages, sets: PeerSets, chosen: int, other: int, tied: float) -> float:
    """Return the least seconds from when the last peer of a first stage is through until what it shares with the last
    one, on the set `other`, of `tied` bytes, is reduced."""
    seconds = sets.delay[chosen, other] + tied / sets.rate[chosen, other]
    if stages.equal_parts:
        holders, least = sets.members[chosen | other].sum(), np.inf
        for peer in np.flatnonzero(sets.members[chosen]):
            most = 0.0
            for mate in np.flatnonzero(sets.members[chosen | other]):
                if mate != peer:
                    needed = _exchange_seconds(sets, peer, mate, tied, holders, stages.bucket_bytes)
                    sent = 2 * tied / holders / sets.beta[peer, mate] + sets.alpha[peer, mate]
                    most = max(most, needed, sent)
            least = min(least, most)
        seconds = max(seconds, least)
    return float(seconds)


@compiled_inside
def _exchange_seconds(sets: PeerSets, peer: int, mate: int, size: float, holders: int, bucket_bytes: float) -> float:
    """Return the least seconds in which a peer has the sums of its mate's part of each bucket, of `size` bytes in all,
    where `holders` sum equal parts."""
    buckets = np.ceil(size / bucket_bytes * (1 - ROUNDING))
    played = min(buckets, float(MOST_BUCKETS))
    under_way = max(1.0, np.round(BUCKETS_UNDER_WAY * played / buckets))
    seconds = np.ceil(played / under_way) * (sets.alpha[peer, mate] + sets.alpha[mate, peer])
    if under_way == 1:  # each begins when the one before has ended
        seconds += size / holders * (1 / sets.beta[peer, mate] + 1 / sets.beta[mate, peer])
    return float(seconds)


@compiled_inside
def _soonest(
    peers: Ints,
    begin: Floats,
    each: Floats,
    micro_batches: int,
    traffic: float,
    among: Floats,
    last: Floats,
) -> float:
    """Return the least seconds in which peers, one micro-batch each at least, serve all.

    Args:
        begin, each: seconds that a peer needs, and that it needs for each micro-batch, by several lines of which the
            one that takes longest counts, shape (lines, N).
        traffic: bytes that peers send each other, each beginning `last` seconds before it has served all of its own,
            by the first line's `each`.
        among: bytes a second at which it sends them.
    """
    low, high = 0.0, np.inf
    for peer in peers:
        one, every = 0.0, 0.0
        for line in range(len(begin)):
            one = max(one, begin[line, peer] + each[line, peer])
            every = max(every, begin[line, peer] + micro_batches * each[line, peer])
        low, high = max(low, one), min(high, every)
    high = max(low, high)
    if len(peers) == 1 and traffic == 0:
        return high
    if traffic > 0:
        rates = SLOWEST
        for peer in peers:
            rates += among[peer]
        high += micro_batches * each[0, peers].max() + traffic / rates
        # Who sends least in the time of a micro-batch serves first.
        peers = peers[np.argsort(among[peers] * each[0, peers])]
    if not high < np.inf:
        return high
    for halving in range(HALVINGS + 1):
        middle = low if halving == 0 else (low + high) / 2
        left, carried = micro_batches - len(peers), 0.0
        for peer in peers:
            most = float(micro_batches)
            for line in range(len(begin)):
                if each[line, peer] > 0:
                    there = (middle - begin[line, peer]) / each[line, peer]
                    most = min(most, np.floor(there * (1 + ROUNDING) + ROUNDING))
            more = min(left, max(0, int(most) - 1))
            left -= more
            carried += among[peer] * (middle + last[peer] - (1 + more) * each[0, peer])
        if left == 0 and (traffic == 0 or carried >= traffic * (1 - ROUNDING)):
            high = middle
            if halving == 0:
                return low
        else:
            low = middle
        if high - low <= NEAR * high:
            break
    return low
