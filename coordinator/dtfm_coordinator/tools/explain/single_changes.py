"""Single changes of a plan, and how long a step would be with each: why these peers stand where they stand.

The fast form of the simulated step finds the best of each kind, the exact simulator has the last word on them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np

from dtfm_coordinator.allocator.foundations.shapes import has_shape
from dtfm_coordinator.allocator.paced_plan import paced
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout, layers_for
from dtfm_coordinator.allocator.simulator.compiled_schedule import kinds_of
from dtfm_coordinator.allocator.simulator.fast_simulator import play
from dtfm_coordinator.allocator.simulator.slot_course import NO_COURSE, course_of
from dtfm_coordinator.allocator.simulator.slot_routes import assign_shares
from dtfm_coordinator.allocator.workload import Workload, pose, predict
from dtfm_coordinator.tools.formatting import named
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

Kind = Literal["exchange", "idle", "without", "moved", "layer", "in flight"]
"""Kind of a change: two peers exchanged; an idle one used; one left out; one moved to another stage; a layer moved;
more or fewer micro-batches in flight."""

MOST_PLAYED = 10_000_000
"""Number of actions that the fast form plays for all changes together: some seconds."""
MOST_SIMULATED = 20_000
"""Number of actions that are simulated exactly for the best changes together: a second or two."""
TRIED_EXACTLY = 2
"""Number of changes of a kind that are simulated exactly, where that is soon done."""
ALIKE = 1e-6
"""Share of a step below which a change changes nothing: two peers exchanged that are alike."""

Stages = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SingleChange:
    """Single change of a plan."""

    words: str
    seconds: float
    """Seconds of a step with it, exactly simulated."""


@dataclass(frozen=True, slots=True)
class TriedChanges:
    """Result of trying single changes."""

    best: tuple[SingleChange, ...]
    """Best of each kind that makes a difference, shortest step first."""
    looked_at: int
    """Number of changes whose step was played."""
    is_all: bool
    """Whether those are all that there are."""


class _Change(NamedTuple):
    kind: Kind
    words: str
    stages: Stages
    layers: tuple[int, ...]
    ahead: tuple[int, ...] = ()
    seconds: float = math.inf
    layout: Layout | None = None


def single_changes(plan: Plan, view: View, work: Workload, total: float) -> TriedChanges:
    """Return the best single change of each kind, of all of them or of as many as are soon looked at.

    Memory and the owner's fixed numbers of stages and replicas are kept to. After peers have changed, their stages'
    shares of micro-batches stay with the places or follow the speeds, whatever is better; layers are shared out anew
    where they no longer fit. What moving there would take is not counted.

    Args:
        total: seconds of a step of the plan, exactly simulated.
    """
    posed = pose(view, work, view.ids, plan.schedule, paced=plan.pacing is not None)
    now = Layout.of_plan(plan, view.ids)
    assert now is not None  # predict has refused a plan with a peer that the view lacks
    fast = now.cost(posed).total
    step = kinds_of(posed.schedule) * posed.micro_batches * len(now.counts)
    changes = _Changes(now, view.ids, posed.paced)
    keeps_shape = has_shape(plan, work.planning) and work.planning.replicas != "auto"
    best: dict[Kind, list[_Change]] = {}
    looked_at = 0
    most = max(1, MOST_PLAYED // (2 * step))
    for change in changes.drawn(most):
        if keeps_shape and tuple(map(len, change.stages)) != now.counts:
            continue
        if max(map(len, change.stages)) > posed.micro_batches:
            continue
        looked_at += 1
        priced = _priced(posed, now, change)
        if math.isfinite(priced.seconds) and abs(priced.seconds - fast) > ALIKE * fast:
            kept = best.setdefault(change.kind, [])
            kept.append(priced)
            kept.sort(key=lambda one: one.seconds)
            del kept[TRIED_EXACTLY:]
    exact = _simulated(plan, view, work, posed, best, max(1, MOST_SIMULATED // (step * len(now.counts))))
    told = sorted((one for one in exact if abs(one.seconds - total) > ALIKE * total), key=lambda one: one.seconds)
    return TriedChanges(tuple(told), looked_at, changes.count <= most)


def _simulated(
    plan: Plan, view: View, work: Workload, posed: Problem, best: dict[Kind, list[_Change]], most: int
) -> list[SingleChange]:
    """Return the best of each kind by the exact simulator, which plays `most` of them: first the best of each kind."""
    turns = [
        sorted((found[turn] for found in best.values() if turn < len(found)), key=lambda one: one.seconds)
        for turn in range(TRIED_EXACTLY)
    ]
    exact: dict[Kind, SingleChange] = {}
    for change in [change for turn in turns for change in turn][:most]:
        assert change.layout is not None
        changed = change.layout.plan(view.ids, plan.schedule, plan.wire, change.layout.recomputed(posed))
        if posed.paced:
            changed = paced(view, work, changed, change.layout.in_flight(posed, view.ids))
        seconds = predict(view, work, changed).cost.total
        if math.isfinite(seconds) and (change.kind not in exact or seconds < exact[change.kind].seconds):
            exact[change.kind] = SingleChange(change.words, seconds)
    return list(exact.values())


def _priced(posed: Problem, now: Layout, change: _Change) -> _Change:
    """Return the change with its layout and seconds by the fast form; infinite where it does not fit in memory."""
    peers = np.array([peer for members in change.stages for peer in members], dtype=np.int64)
    counts = np.array([len(members) for members in change.stages], dtype=np.int64)
    by_speed, in_place = list[int](), list[int]()
    begin = 0
    for members, count in zip(change.stages, now.counts, strict=True):
        old, stood = now.shares[begin : begin + count], now.peers[begin : begin + count]
        begin += count
        if members == stood:
            by_speed += old
            in_place += old
            continue
        rows = list(members)
        fresh = assign_shares(1.0 / (posed.forward[rows] + posed.backward[rows]), posed.micro_batches).tolist()
        by_speed += fresh
        in_place += old if len(old) == len(members) else fresh
    best = change
    for values in dict.fromkeys((tuple(by_speed), tuple(in_place))):
        shares, layers = np.array(values, dtype=np.int64), np.array(change.layers, dtype=np.int64)
        ahead = np.array(change.ahead or (0,) * len(counts), dtype=np.int64)
        course = course_of(posed, peers, counts, shares, layers, ahead, NO_COURSE)
        if not course.fits:
            layers = layers_for(posed, peers, counts, shares, ahead, course)
            if change.kind == "layer" or not layers.size:
                continue
            course = course_of(posed, peers, counts, shares, layers, ahead, course)
        seconds = float(play(posed, peers, counts, layers, course)[3])
        if seconds < best.seconds:
            best = change._replace(seconds=seconds, layout=Layout.from_arrays(peers, counts, shares, layers, ahead))
    return best


class _Changes:
    """All single changes of a layout, by numbers."""

    def __init__(self, now: Layout, names: tuple[str, ...], paced: bool) -> None:
        self._now, self._names, self._paced = now, names, paced
        ends = tuple(accumulate(now.counts))
        self._stages: Stages = tuple(now.peers[first:end] for first, end in zip((0, *ends[:-1]), ends, strict=True))
        standing = set(now.peers)
        self._idle = tuple(peer for peer in range(len(names)) if peer not in standing)
        self._stage_of = {peer: stage for stage, members in enumerate(self._stages) for peer in members}
        self._order = (*now.peers, *self._idle)
        self._places = [(stage, place) for stage, count in enumerate(now.counts) for place in range(count + 1)]
        slots = len(now.peers)
        self._exchanges = slots * (slots - 1) // 2 + slots * len(self._idle)
        self._moves = len(self._order) * (len(self._places) + 1)
        self.count = self._exchanges + self._moves
        """Number of changes of peers, or of those that turn out to be none."""

    def drawn(self, most: int) -> Iterator[_Change]:
        """Yield all changes, or about `most` of them: each layer's, and others as drawn, always the same."""
        yield from self._layers()
        yield from self._in_flight()
        rng = np.random.default_rng(0)
        share = min(1.0, most / self.count)
        for count, change in ((self._exchanges, self._exchange), (self._moves, self._move)):
            some = range(count) if share == 1 else sorted(set(rng.integers(count, size=int(share * count)).tolist()))
            for number in some:
                found = change(number)
                if found is not None:
                    yield found

    def _said(self, peer: int) -> str:
        stage = self._stage_of.get(peer)
        return (
            f"idle {named(self._names[peer])}" if stage is None else f"{named(self._names[peer])} (stage {stage + 1})"
        )

    def _layers(self) -> Iterator[_Change]:
        for stage in range(len(self._stages) - 1):
            for giver, taker in ((stage, stage + 1), (stage + 1, stage)):
                if self._now.layers[giver] > 1:
                    layers = list(self._now.layers)
                    layers[giver] -= 1
                    layers[taker] += 1
                    words = f"a layer from stage {giver + 1} to stage {taker + 1}"
                    yield _Change("layer", words, self._stages, tuple(layers), self._now.ahead)

    def _in_flight(self) -> Iterator[_Change]:
        if not self._paced or len(self._stages) == 1:
            return
        now = self._now.ahead or (0,) * len(self._stages)
        for stage in range(len(self._stages)):
            for more in sorted(
                {now[stage] + 1, max(0, now[stage] - 1), 2 * now[stage], now[stage] // 2} - {now[stage]}
            ):
                way = "more" if more > now[stage] else "fewer"
                words = f"{abs(more - now[stage])} {way} in flight at stage {stage + 1}"
                ahead = (*now[:stage], more, *now[stage + 1 :])
                yield _Change("in flight", words, self._stages, self._now.layers, ahead)

    def _exchange(self, number: int) -> _Change:
        """Return the exchange of that number: of two working peers, or of a working and an idle one."""
        slots = len(self._now.peers)
        here, there = divmod(number, len(self._idle)) if self._idle else (slots, 0)
        if here < slots:
            working, idle = self._order[here], self._idle[there]
            words = f"{self._said(idle)} in place of {self._said(working)}"
            return _Change("idle", words, self._replaced({working: idle}), self._now.layers, self._now.ahead)
        pair = number - slots * len(self._idle)
        later = (1 + math.isqrt(1 + 8 * pair)) // 2
        one, other = self._order[pair - later * (later - 1) // 2], self._order[later]
        words = f"{self._said(one)} and {self._said(other)} exchanged"
        return _Change("exchange", words, self._replaced({one: other, other: one}), self._now.layers, self._now.ahead)

    def _replaced(self, by: dict[int, int]) -> Stages:
        return tuple(tuple(by.get(peer, peer) for peer in members) for members in self._stages)

    def _move(self, number: int) -> _Change | None:
        """Return the move of that number; None where it changes nothing, or leaves a stage without a peer."""
        position, target = divmod(number, len(self._places) + 1)
        peer = self._order[position]
        stage = self._stage_of.get(peer)
        to, place = self._places[target] if target < len(self._places) else (None, 0)
        if to == stage or (stage is not None and len(self._stages[stage]) == 1):
            return None
        stages = [list(members) for members in self._stages]
        if stage is not None:
            stages[stage].remove(peer)
        if to is None:
            return self._moved("without", f"without {self._said(peer)}", stages)
        stages[to].insert(place, peer)
        if stage is None:
            return self._moved("idle", f"{self._said(peer)} in stage {to + 1}, too", stages)
        return self._moved("moved", f"{self._said(peer)} in stage {to + 1} instead", stages)

    def _moved(self, kind: Kind, words: str, stages: list[list[int]]) -> _Change:
        return _Change(kind, words, tuple(map(tuple, stages)), self._now.layers, self._now.ahead)
