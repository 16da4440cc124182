"""The shortest paths over sets of a few peers, as machine code: what `set_bound` says, and times of stages for it.

Of each time a stage needs, its micro-batches are dealt to its replicas as is best for that one.

All that is compiled together is here: its machine code would not follow a change of another file.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_inside
from dtfm_lab.bounds.peer_sets import PeerSets
from dtfm_lab.bounds.set_stages import Stages

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WAY, WHOLE, TURN, LINE, THROUGH, AHEAD, BACK, HELD = range(8)
"""What is known of a stage: seconds of all forwards, and what of the backwards other stages await; until all that it
computes is reduced; of the longer of forwards and backwards, and of one of the others; until its messages both ways
have left its peers, where it has both; the least of one forward and backward, of one forward, and of one backward; and
the number of micro-batches of which its peers keep anything at once."""
KINDS = 8
HALVINGS, NEAR = 40, 1e-5
"""Halvings of the interval in which a time lies, at most, and the part of it that is near enough: its lower end is
taken."""
ROUNDING, LITTLE = 1e-9, 1e-300
"""What rounding may take off a number of micro-batches, and what is added to sums that must not be 0."""


class Step(NamedTuple):
    """What all plans of a job have in common; seconds and bytes."""

    micro_batches: int
    ahead_bytes: float
    back_bytes: float
    tied_bytes: float
    """Bytes of the gradients that first and last stage share."""
    update: float
    """Least seconds of the update of all layers on one peer."""


class Hop(NamedTuple):
    """The way from one stage to the next, of a plan so far; seconds."""

    arrives: float
    """Until something arrives."""
    has_all: float
    """Until a message behind all of them arrives."""
    home: float
    """From when something goes back until all is over."""
    home_with_all: float
    """From when the first of all messages goes back until the last of them is home."""
    late: float
    """From when the last one has been sent."""
    is_hop: bool
    """Whether there is a stage before."""


@compiled
def stage_times(stages: Stages, sets: PeerSets, micro_batches: int) -> Floats:
    """Return what is known of each stage on each set of peers, by whether it computes anew, shape
    (2, S, P, `KINDS`); infinite where memory does not hold it. What ends of the model share is not in it."""
    all_sets, count = sets.members.shape
    found = np.full((2, all_sets, len(stages.first), KINDS), np.inf)
    begin, each, nothing = np.zeros((1, count)), np.zeros((1, count)), np.zeros(count)
    nobody = int(np.int64(0))  # one written down would be a type of its own, for which all is compiled once more
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
                out[WHOLE] = _whole_seconds(stages, sets, chosen, nobody, nobody == 0, stage, anew, micro_batches)
    return found


@compiled_inside
def _whole_seconds(
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
                    seconds = _exchange_seconds(stages, sets, peer, mate, own, len(peers))
                    begin[0, peer] = max(begin[0, peer], seconds - last[peer])
                    sent += 2 * own / len(peers)
                if knows and sets.members[chosen | other, mate]:
                    seconds = _exchange_seconds(stages, sets, peer, mate, tied, holders)
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
def _shared_seconds(stages: Stages, sets: PeerSets, chosen: int, other: int, tied: float) -> float:
    """Return the least seconds from when the last peer of a first stage is through until what it shares with the last
    one, on the set `other`, of `tied` bytes, is reduced."""
    seconds = sets.delay[chosen, other] + tied / sets.rate[chosen, other]
    if stages.equal_parts:
        holders, least = sets.members[chosen | other].sum(), np.inf
        for peer in np.flatnonzero(sets.members[chosen]):
            most = 0.0
            for mate in np.flatnonzero(sets.members[chosen | other]):
                if mate != peer:
                    needed = _exchange_seconds(stages, sets, peer, mate, tied, holders)
                    sent = 2 * tied / holders / sets.beta[peer, mate] + sets.alpha[peer, mate]
                    most = max(most, needed, sent)
            least = min(least, most)
        seconds = max(seconds, least)
    return float(seconds)


@compiled_inside
def _exchange_seconds(stages: Stages, sets: PeerSets, peer: int, mate: int, size: float, holders: int) -> float:
    """Return the least seconds in which a peer has the sums of its mate's part of each bucket, of `size` bytes in all,
    where `holders` sum equal parts."""
    buckets = np.ceil(size / stages.bucket_bytes * (1 - ROUNDING))
    played = min(buckets, stages.most_buckets)
    under_way = max(1.0, np.round(stages.under_way * played / buckets))
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
        rates = LITTLE
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


@compiled
def round_trips(stages: Stages, ahead: Floats, back: Floats, times: Floats, layers: int) -> Floats:
    """Return the least seconds of a round trip from a peer to the end, that begins with a layer, one peer a stage and
    through peers of a set, shape (S, N, layers + 1)."""
    count = stages.forward.shape[1]
    found = np.full((1 << count, count, layers + 1), np.inf)
    for left in range(1 << count):
        for peer in range(count):
            if left >> peer & 1:
                continue
            found[left, peer, layers] = 0.0
            for other in range(count):
                if not left >> other & 1:
                    continue
                hops = ahead[1 << peer, 1 << other] + back[1 << other, 1 << peer]
                for first in range(1, layers):
                    for end in range(first + 1, layers + 1):
                        stage = stages.number[first, end]
                        least = min(times[0, 1 << other, stage, THROUGH], times[1, 1 << other, stage, THROUGH])
                        total = hops + least + found[left ^ (1 << other), other, end]
                        found[left, peer, first] = min(found[left, peer, first], total)
    return found


@compiled
def least_path(
    step: Step,
    stages: Stages,
    sets: PeerSets,
    times: Floats,
    trips: Floats,
    known: Floats,
    final: int,
    several: bool,
    begun: bool,
    ceiling: float,
) -> float:
    """Return the least seconds of any plan with these peers on its last stage, or `ceiling` if that is less.

    Args:
        known: room for what is known of plans so far, shape (3, S, S, layers + 1).
        final: the set of those peers.
        several: whether stages between may have more peers than one.
        begun: whether the first stage has more, where it is not the last one, too.
    """
    all_sets, count = sets.members.shape
    layers = stages.number.shape[0] - 1
    # Seconds until something leaves the last stage, from when it comes back, and of the step, before the commit.
    out, home, needed = known
    for used in range(all_sets):
        last = used
        while last and not used & final:
            known[:, used, last] = np.inf
            last = (last - 1) & used
    least_commits = _least_commits(sets.radius, step.update, count)
    trip, whole = np.empty(layers + 1), np.empty((2, len(stages.first)))
    for used in range(all_sets):
        for chosen in range(1, all_sets):
            is_last, is_alone = chosen == final, sets.members[chosen].sum() == 1
            if used & final or chosen & used or (chosen & final and not is_last):
                continue
            if not is_last and not (is_alone != begun if used == 0 else is_alone or several):
                continue
            now = used | chosen
            least_commit = least_commits[now | final]
            commit = max(sets.radius[now], step.update / sets.members[now].sum())
            _fill_trips(trips, chosen, all_sets - 1 ^ now, trip)
            _fill_whole(step, stages, sets, times, used, chosen, final, begun, ceiling, whole)
            # All sets of peers that the stage before may have; where there is none, once.
            last = used
            while last or used == 0:
                for first in range(1 if used else 0, layers if used else 1):
                    if used and not needed[used, last, first] + least_commit < ceiling:
                        continue
                    hop = _hop(step, stages, sets, out, home, used, last, chosen, first, final)
                    for end in range(layers if is_last else first + 1, layers + 1 if is_last else layers):
                        stage = stages.number[first, end]
                        least, ahead, back = np.inf, np.inf, np.inf
                        for anew in range(2):
                            time = times[anew, chosen, stage]
                            seconds = _stage_seconds(step, time, whole[anew, stage], hop, trip[end], is_alone, is_last)
                            if seconds + least_commit < ceiling:
                                least = min(least, seconds)
                                ahead, back = min(ahead, time[AHEAD]), min(back, time[BACK])
                        if used:
                            least = max(least, needed[used, last, first])
                        if is_last:
                            ceiling = min(ceiling, least + commit)
                        elif least + least_commit < ceiling:
                            out[now, chosen, end] = min(out[now, chosen, end], hop.arrives + ahead)
                            home[now, chosen, end] = min(home[now, chosen, end], back + hop.home)
                            needed[now, chosen, end] = min(needed[now, chosen, end], least)
                if last == 0:
                    break
                last = (last - 1) & used
    return ceiling


@compiled_inside
def _least_commits(radius: Floats, update: float, count: int) -> Floats:
    """Return the least seconds of the commit of any set that a set is part of, shape (S,): further peers may be nearer
    to all than those of a set are."""
    least = radius.copy()
    for used in range(len(least) - 1, 0, -1):
        for peer in range(count):
            least[used] = min(least[used], least[used | 1 << peer])
    return np.maximum(least, update / count)


@compiled_inside
def _fill_trips(trips: Floats, chosen: int, left: int, trip: Floats) -> None:
    """Set the least seconds of a round trip from any peer of a set, through others that are left."""
    trip[:] = np.inf
    for peer in range(trips.shape[1]):
        if chosen >> peer & 1:
            np.minimum(trip, trips[left, peer], trip)


@compiled_inside
def _fill_whole(
    step: Step,
    stages: Stages,
    sets: PeerSets,
    times: Floats,
    used: int,
    chosen: int,
    final: int,
    begun: bool,
    ceiling: float,
    whole: Floats,
) -> None:
    """Set the seconds until all that a stage computes is reduced, shape (2, P), with what ends share: between a first
    stage and those of `final`, or these and a first stage among the peers in use."""
    whole[:] = times[:, chosen, :, WHOLE]
    if step.tied_bytes == 0 or (used == 0) == (chosen == final):
        return
    layers, exactly = stages.number.shape[0] - 1, used == 0 or not begun
    for border in range(1, layers):
        stage = stages.number[border, layers] if used else stages.number[0, border]
        for anew in range(2):
            if not whole[anew, stage] < ceiling:
                continue
            least = np.inf
            if used == 0:
                least = _whole_seconds(stages, sets, chosen, final, exactly, stage, anew, step.micro_batches)
            elif begun:
                least = _whole_seconds(stages, sets, chosen, used, exactly, stage, anew, step.micro_batches)
            else:
                for peer in range(sets.members.shape[1]):
                    if used >> peer & 1:
                        seconds = _whole_seconds(
                            stages, sets, chosen, 1 << peer, exactly, stage, anew, step.micro_batches
                        )
                        least = min(least, seconds)
            whole[anew, stage] = max(whole[anew, stage], least)


@compiled_inside
def _hop(
    step: Step,
    stages: Stages,
    sets: PeerSets,
    out: Floats,
    home: Floats,
    used: int,
    last: int,
    chosen: int,
    first: int,
    final: int,
) -> Hop:
    """Return the way from the stage before, on the set `last`, that ends before layer `first`; there may be none."""
    if used == 0:
        shared = 0.0
        if chosen != final and step.tied_bytes > 0:
            shared = _shared_seconds(stages, sets, chosen, final, step.tied_bytes)
        return Hop(0.0, 0.0, shared, 0.0, 0.0, False)
    left, returned = out[used, last, first], home[used, last, first]
    late = sets.delay[chosen, last] + returned
    return Hop(
        left + sets.ahead[last, chosen],
        left + step.micro_batches * step.ahead_bytes / sets.rate[last, chosen] + sets.delay[last, chosen],
        sets.back[chosen, last] + returned,
        step.micro_batches * step.back_bytes / sets.rate[chosen, last] + late,
        late,
        True,
    )


@compiled_inside
def _stage_seconds(
    step: Step, time: Floats, whole: float, hop: Hop, trip: float, is_alone: bool, is_last: bool
) -> float:
    """Return the seconds of a step that a stage takes at least.

    Args:
        time: what is known of it, shape (`KINDS`,).
        whole: `WHOLE`, with what ends share.
        trip: seconds of a round trip from it to the end.
        is_alone: whether one peer serves it.
    """
    through = time[THROUGH] + trip
    way = max(time[WAY], time[TURN] + trip, np.ceil(step.micro_batches / time[HELD]) * through)
    if is_alone and time[HELD] < step.micro_batches:
        # It begins to go back before its last forward, so that what it awaits then is apart from what it awaits first.
        idle = max(0.0, trip - (time[HELD] - 1) * time[AHEAD]) + max(0.0, trip - (time[HELD] - 1) * time[BACK])
        way = max(way, time[WAY] + idle, through + trip)
    seconds = max(hop.arrives + way + hop.home, hop.arrives + whole)
    if hop.is_hop:
        seconds = max(seconds, hop.has_all + through + hop.home, hop.arrives + through + hop.home_with_all)
        if not is_last:
            seconds = max(seconds, hop.arrives + time[LINE] + hop.late)
    return float(seconds)
