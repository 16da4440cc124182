"""Neighbours of a layout: all that a single change makes of it, and how long their steps are."""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np

from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout, layers_for
from dtfm_coordinator.allocator.simulator.fast_simulator import EQUAL_PARTS, play
from dtfm_coordinator.allocator.simulator.slot_course import NO_COURSE, course_of
from dtfm_coordinator.allocator.simulator.slot_routes import assign_shares

Kind = Literal["exchange", "idle", "without", "moved", "layer", "in flight", "more stages", "fewer stages"]
"""Kind of a change: two peers exchanged; an idle one used; one left out; one moved to another stage; a layer moved;
more or fewer micro-batches in flight; an idle peer as a stage of its own; a stage left out."""
LAYERED: frozenset[Kind] = frozenset({"layer", "more stages", "fewer stages"})
"""Kinds that say which layers stages have: those that do not fit in memory are none."""
Stages = tuple[tuple[int, ...], ...]
ALIKE = 1e-6
"""Share of a step below which a change changes nothing: two peers exchanged that are alike."""


class LayoutChange(NamedTuple):
    """A single change, and what it makes of a layout."""

    kind: Kind
    words: str
    """What is changed, with `{number}` where a peer is to be named."""
    stages: Stages
    layers: tuple[int, ...]
    ahead: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of peers of each stage."""
        return tuple(map(len, self.stages))


@dataclass(frozen=True)
class Priced:
    """A neighbour, and the seconds of its step by the fast form of the simulated step."""

    layout: Layout
    seconds: float


class Neighbours:
    """All single changes of a layout, by numbers below `count`.

    Args:
        now: the layout.
        peers: number of all peers, idle ones included.
        paced: whether numbers in flight are part of it.
        any_depth: whether it may have another number of stages.
    """

    def __init__(self, now: Layout, peers: int, *, paced: bool, any_depth: bool) -> None:
        self._now = now
        ends = tuple(accumulate(now.counts))
        self._stages: Stages = tuple(now.peers[first:end] for first, end in zip((0, *ends[:-1]), ends, strict=True))
        standing = set(now.peers)
        self._idle = tuple(peer for peer in range(peers) if peer not in standing)
        self._stage_of = {peer: stage for stage, members in enumerate(self._stages) for peer in members}
        self._order = (*now.peers, *self._idle)
        self._places = [(stage, place) for stage, count in enumerate(now.counts) for place in range(count + 1)]
        slots = len(now.peers)
        last = len(now.counts) - 1
        self.few: tuple[LayoutChange, ...] = (
            *self._layers(),
            *(self._in_flight() if paced and last else ()),
            *(self._fewer_stages() if any_depth else ()),
        )
        """Changes of layers, of numbers in flight and to fewer stages: those of the lowest numbers."""
        self._exchanges = slots * (slots - 1) // 2 + slots * len(self._idle)
        self._moves = len(self._order) * (len(self._places) + 1)
        self._added = [
            (place, giver, taken)
            for place in (range(last + 2) if any_depth else ())
            for giver in {max(0, place - 1), min(last, place)}
            for taken in {1, now.layers[giver] // 2}
            if 0 < taken < now.layers[giver]
        ]
        """Places of one more stage, whose layers it takes, and how many."""

    @property
    def count(self) -> int:
        """Number of changes, or of numbers that turn out to be none."""
        return len(self.few) + self._exchanges + self._moves + len(self._added) * len(self._idle)

    def change(self, number: int) -> LayoutChange | None:
        """Return the change of that number; None where it changes nothing, or leaves a stage without a peer."""
        if number < len(self.few):
            return self.few[number]
        number -= len(self.few)
        if number < self._exchanges:
            return self._exchange(number)
        number -= self._exchanges
        if number < self._moves:
            return self._move(number)
        added, idle = divmod(number - self._moves, len(self._idle))
        return self._with_stage(self._idle[idle], *self._added[added])

    def _layers(self) -> list[LayoutChange]:
        found = []
        for stage in range(len(self._stages) - 1):
            for giver, taker in ((stage, stage + 1), (stage + 1, stage)):
                if self._now.layers[giver] > 1:
                    layers = list(self._now.layers)
                    layers[giver] -= 1
                    layers[taker] += 1
                    words = f"a layer from stage {giver + 1} to stage {taker + 1}"
                    found.append(LayoutChange("layer", words, self._stages, tuple(layers), self._now.ahead))
        return found

    def _in_flight(self) -> list[LayoutChange]:
        now, found = self._now.ahead or (0,) * len(self._stages), []
        for stage, kept in enumerate(now):
            for more in sorted({kept + 1, max(0, kept - 1), 2 * kept, kept // 2} - {kept}):
                words = f"{abs(more - kept)} {'more' if more > kept else 'fewer'} in flight at stage {stage + 1}"
                ahead = (*now[:stage], more, *now[stage + 1 :])
                found.append(LayoutChange("in flight", words, self._stages, self._now.layers, ahead))
        return found

    def _fewer_stages(self) -> list[LayoutChange]:
        now, found = self._now, []
        pairs = [(one, other) for one in range(len(now.counts)) for other in (one - 1, one + 1)]
        for stage, taker in pairs:
            if 0 <= taker < len(now.counts):
                layers = list(now.layers)
                layers[taker] += layers[stage]
                del layers[stage]
                words = f"without stage {stage + 1}, whose layers stage {taker + 1} has"
                stages = self._stages[:stage] + self._stages[stage + 1 :]
                ahead = now.ahead[:stage] + now.ahead[stage + 1 :] if len(stages) > 1 else ()
                found.append(LayoutChange("fewer stages", words, stages, tuple(layers), ahead))
        return found

    def _exchange(self, number: int) -> LayoutChange:
        """Return the exchange of that number: of two working peers, or of a working and an idle one."""
        slots = len(self._now.peers)
        here, there = divmod(number, len(self._idle)) if self._idle else (slots, 0)
        if here < slots:
            working, idle = self._order[here], self._idle[there]
            words = f"{self._said(idle)} in place of {self._said(working)}"
            return LayoutChange("idle", words, self._replaced({working: idle}), self._now.layers, self._now.ahead)
        pair = number - slots * len(self._idle)
        later = (1 + math.isqrt(1 + 8 * pair)) // 2
        one, other = self._order[pair - later * (later - 1) // 2], self._order[later]
        words = f"{self._said(one)} and {self._said(other)} exchanged"
        return LayoutChange(
            "exchange", words, self._replaced({one: other, other: one}), self._now.layers, self._now.ahead
        )

    def _move(self, number: int) -> LayoutChange | None:
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

    def _with_stage(self, peer: int, place: int, giver: int, taken: int) -> LayoutChange:
        layers, stages, ahead = list(self._now.layers), self._stages, self._now.ahead
        layers[giver] -= taken
        what = "a layer" if taken == 1 else f"{taken} layers"
        words = f"{self._said(peer)} as a stage of its own, with {what} of stage {giver + 1}"
        return LayoutChange(
            "more stages",
            words,
            (*stages[:place], (peer,), *stages[place:]),
            (*layers[:place], taken, *layers[place:]),
            (*ahead[:place], *ahead[giver : giver + 1], *ahead[place:]),
        )

    def _moved(self, kind: Kind, words: str, stages: list[list[int]]) -> LayoutChange:
        return LayoutChange(kind, words, tuple(map(tuple, stages)), self._now.layers, self._now.ahead)

    def _replaced(self, by: dict[int, int]) -> Stages:
        return tuple(tuple(by.get(peer, peer) for peer in members) for members in self._stages)

    def _said(self, peer: int) -> str:
        stage = self._stage_of.get(peer)
        return f"idle {{{peer}}}" if stage is None else f"{{{peer}}} (stage {stage + 1})"


def priced(problem: Problem, now: Layout, change: LayoutChange) -> Priced | None:
    """Return what `change` makes of the layout `now`; None where it does not fit in memory.

    After peers have changed, their stages' shares of micro-batches stay with the places or follow the speeds, whatever
    is better; layers are shared out anew where they no longer fit, unless they are what the change is about.
    """
    peers = np.array([peer for members in change.stages for peer in members], dtype=np.int64)
    counts = np.array(change.counts, dtype=np.int64)
    by_speed, in_place = list[int](), list[int]()
    ends = tuple(accumulate(now.counts))
    parts = [slice(first, end) for first, end in zip((0, *ends[:-1]), ends, strict=True)]
    kept = {now.peers[part]: now.shares[part] for part in parts}
    for stage, members in enumerate(change.stages):
        if members in kept:
            by_speed += kept[members]
            in_place += kept[members]
            continue
        rows = list(members)
        fresh = assign_shares(1.0 / (problem.forward[rows] + problem.backward[rows]), problem.micro_batches).tolist()
        by_speed += fresh
        is_alike = change.counts == now.counts
        in_place += now.shares[parts[stage]] if is_alike else fresh
    best: Priced | None = None
    for values in dict.fromkeys((tuple(by_speed), tuple(in_place))):
        shares, layers = np.array(values, dtype=np.int64), np.array(change.layers, dtype=np.int64)
        ahead = np.array(change.ahead or (0,) * len(counts), dtype=np.int64)
        course = course_of(problem, peers, counts, shares, layers, ahead, NO_COURSE)
        if not course.fits:
            layers = layers_for(problem, peers, counts, shares, ahead, course)
            if change.kind in LAYERED or not layers.size:
                continue
            course = course_of(problem, peers, counts, shares, layers, ahead, course)
        seconds = float(play(problem, peers, counts, layers, course, EQUAL_PARTS)[3])
        if math.isfinite(seconds) and (best is None or seconds < best.seconds):
            best = Priced(Layout.from_arrays(peers, counts, shares, layers, ahead), seconds)
    return best
