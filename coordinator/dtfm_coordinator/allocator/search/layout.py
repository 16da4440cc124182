"""Layout: which peer stands in which slot, and how micro-batches and layers are shared out; its cost and its plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled, compiled_in_place_inside, compiled_inside
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.simulator.fast_simulator import EQUAL_PARTS, play
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.simulator.slot_course import NO_COURSE, ROUNDS, Course, course_of, no_course
from dtfm_coordinator.allocator.simulator.slot_memory import most_layers
from dtfm_coordinator.allocator.simulator.slot_routes import assign_shares, route_micro_batches
from dtfm_protocol.job.job_file import ScheduleName, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import plain_in_flight

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Peers in slots, with shares of micro-batches and layers. Peers are numbers; slots are numbered stage by stage."""

    peers: tuple[int, ...]
    """Number of the peer in each slot."""
    counts: tuple[int, ...]
    """Number of peers of each stage."""
    shares: tuple[int, ...]
    """Number of micro-batches of each slot."""
    layers: tuple[int, ...]
    """Number of decoder layers of each stage."""
    ahead: tuple[int, ...] = ()
    """Micro-batches that each peer of a stage may have in flight beyond those that keep equally fast stages with free
    links busy; (): none. Without effect where orders do not go by what messages take (`Problem.paced`)."""

    @classmethod
    def of(cls, problem: Problem, stages: Sequence[Sequence[int]]) -> Self | None:
        """Return the peers of each stage with shares that follow their speeds, and layers that follow the stages'.

        Where orders go by what messages take, as much is in flight as fits without recomputing; if that cannot be, as
        much as fits. It is None where no split of the layers fits in the peers' memory.

        Raises:
            ValueError: a stage has more peers than a step has micro-batches, or there are more stages than layers.
        """
        if len(stages) > problem.layers:
            raise ValueError(f"{problem.layers} layers cannot make {len(stages)} stages")
        if max(map(len, stages)) > problem.micro_batches:
            raise ValueError(f"{problem.micro_batches} micro-batches cannot keep {max(map(len, stages))} peers busy")
        peers = np.array([peer for members in stages for peer in members], dtype=np.int64)
        counts = np.array([len(members) for members in stages], dtype=np.int64)
        shares = shares_by_speed(problem, peers, counts)
        layers, ahead = laid_out(problem, peers, counts, shares)
        if not layers.size:
            return None
        return cls.from_arrays(peers, counts, shares, layers, ahead)

    @classmethod
    def from_arrays(cls, peers: Ints, counts: Ints, shares: Ints, layers: Ints, ahead: Ints) -> Self:
        """Return the layout with which a compiled search ended."""
        more: tuple[int, ...] = tuple(ahead.tolist()) if ahead.any() else ()
        return replace(cls(*(tuple(array.tolist()) for array in (peers, counts, shares, layers))), ahead=more)

    @classmethod
    def of_plan(cls, plan: Plan, peers: Sequence[str]) -> Self | None:
        """Return the layout of a plan on `peers`; None where the plan has one that is not among them.

        Routes that no layout makes (a forced plan's) come out as the nearest one: the same peers, shares and layers.
        """
        index = {peer: number for number, peer in enumerate(peers)}
        if any(peer not in index for peer in plan.peers):
            return None
        stages, shares = [plan.replicas(0)], plan.shares()
        for stage in range(1, len(plan.stages)):
            place = {peer: slot for slot, peer in enumerate(stages[-1])}
            # Those who are fed by the same peers stand across from them.
            fed: dict[str, list[int]] = {}
            for route in plan.routes:
                fed.setdefault(route[stage], []).append(place[route[stage - 1]])
            stages.append(tuple(sorted(fed, key=lambda peer: sum(fed[peer]) / len(fed[peer]))))
        ahead = more_in_flight(plan)
        return cls(
            peers=tuple(index[peer] for members in stages for peer in members),
            counts=tuple(map(len, stages)),
            shares=tuple(shares[peer] for members in stages for peer in members),
            layers=tuple(end - first for first, end in plan.stages),
            ahead=ahead if any(ahead) else (),
        )

    def by_speed(self, problem: Problem) -> Self | None:
        """Return the same peers in the same stages, with shares and layers as `of` gives them."""
        ends = tuple(accumulate(self.counts))
        return self.of(problem, [self.peers[end - count : end] for end, count in zip(ends, self.counts, strict=True)])

    def arrays(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return peers, counts, shares and layers as arrays, for compiled functions."""
        peers, counts, shares, layers = (
            np.array(values, dtype=np.int64) for values in (self.peers, self.counts, self.shares, self.layers)
        )
        return peers, counts, shares, layers

    @property
    def more(self) -> Ints:
        """Micro-batches more in flight of each stage's peers, shape (K,)."""
        return np.array(self.ahead or (0,) * len(self.counts), dtype=np.int64)

    def course(self, problem: Problem) -> Course:
        """Return routes and order of compute."""
        return course_of(problem, *self.arrays(), self.more, NO_COURSE)

    def cost(self, problem: Problem, parts: Floats = EQUAL_PARTS) -> PredictedSeconds:
        """Return the predicted seconds of a step, by the fast form of the simulated step.

        Args:
            parts: the part of each reduction that each slot sums, as `play` takes it.
        """
        peers, counts, _, layers = self.arrays()
        busiest, last, committed, applied = play(problem, peers, counts, layers, self.course(problem), parts)
        if not np.isfinite(applied):
            return PredictedSeconds(busiest, np.inf, np.inf, 0.0)
        return PredictedSeconds(busiest, last - busiest, committed - last, applied - committed)

    def fits(self, problem: Problem) -> bool:
        """Whether every peer's memory holds its stage and what the schedule keeps in flight, recomputed if need be."""
        return bool(self.course(problem).fits)

    def recomputed(self, problem: Problem) -> tuple[int, ...]:
        """Return the stages that recompute because a peer's memory would not hold them otherwise."""
        return tuple(np.flatnonzero(self.course(problem).again).tolist())

    def in_flight(self, problem: Problem, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return how many micro-batches each peer may have between forward and backward, and may keep in all."""
        pace = self.course(problem).pace
        numbers = zip(self.peers, pace.in_flight.tolist(), pace.kept.tolist(), strict=True)
        return {names[peer]: (flying, kept) for peer, flying, kept in numbers}

    def plan(self, names: Sequence[str], schedule: ScheduleName, wire: Wire, recompute: tuple[int, ...] = ()) -> Plan:
        """Return the plan of this layout; peers that stand in no slot are idle."""
        routes = route_micro_batches(*self.arrays()[1:3])[0]
        ends = tuple(accumulate(self.layers))
        standing = set(self.peers)
        return Plan(
            stages=tuple(zip((0, *ends[:-1]), ends, strict=True)),
            routes=tuple(tuple(names[self.peers[slot]] for slot in route) for route in routes.tolist()),
            idle=tuple(name for peer, name in enumerate(names) if peer not in standing),
            schedule=schedule,
            wire=wire,
            recompute=recompute,
        )


@compiled
def shares_by_speed(problem: Problem, peers: Ints, counts: Ints) -> Ints:
    """Return the micro-batches of each slot, in proportion to its peer's speed within its stage."""
    shares = np.empty(len(peers), dtype=np.int64)
    slot = int(np.int64(0))
    for stage in range(len(counts)):
        share_out(problem, peers, counts, shares, stage, slot)
        slot += counts[stage]
    return shares


@compiled_inside
def share_out(problem: Problem, peers: Ints, counts: Ints, shares: Ints, stage: int, first: int) -> None:
    """Set the shares of one stage, whose first slot is `first`, in proportion to its peers' speeds."""
    speeds = np.empty(counts[stage], dtype=np.float64)
    for member in range(counts[stage]):
        peer = peers[first + member]
        speeds[member] = 1.0 / (problem.forward[peer] + problem.backward[peer])
    fresh = assign_shares(speeds, problem.micro_batches)
    for member in range(counts[stage]):
        shares[first + member] = fresh[member]


@compiled
def laid_out(problem: Problem, peers: Ints, counts: Ints, shares: Ints) -> tuple[Ints, Ints]:
    """Return layers of each stage and micro-batches more in flight; no layers where memory holds none.

    It is as much in flight as fits without recomputing, by halves; else as much as fits.
    """
    stages = len(counts)
    ahead = np.zeros(stages, dtype=np.int64)
    course = course_of(problem, peers, counts, shares, np.ones(stages, dtype=np.int64), ahead, no_course())
    if not problem.paced or stages == 1:
        return layers_for(problem, peers, counts, shares, ahead, course), ahead
    best, most = ahead[:0], ahead
    more = problem.micro_batches
    while True:
        ahead = np.full(stages, more, dtype=np.int64)
        layers = layers_for(problem, peers, counts, shares, ahead, course)
        if layers.size > 0:
            if not course_of(problem, peers, counts, shares, layers, ahead, course).again.any():
                return layers, ahead
            if best.size == 0:
                best, most = layers, ahead
        if more == 0:
            return best, most
        more //= 2


@compiled
def layers_for(problem: Problem, peers: Ints, counts: Ints, shares: Ints, ahead: Ints, course: Course) -> Ints:
    """Return the number of layers of each stage (`layers_by_load`) that fits with the orders which follow from it;
    empty where none is found.

    Args:
        course: any course of these counts and shares.
    """
    if not problem.paced:
        anew, kept = most_layers(problem, peers, counts, course.orders)
        return layers_by_load(problem, peers, counts, shares, anew, kept)
    everywhere = np.full(len(counts), problem.layers, dtype=np.int64)
    layers = layers_by_load(problem, peers, counts, shares, everywhere, everywhere)
    for _ in range(ROUNDS):
        now = course_of(problem, peers, counts, shares, layers, ahead, course)
        if now.fits and not now.again.any():
            return layers
        anew, kept = most_layers(problem, peers, counts, now.orders)
        fresh = layers_by_load(problem, peers, counts, shares, anew, kept)
        if fresh.size == 0 or (fresh == layers).all():
            break
        layers = fresh
    if course_of(problem, peers, counts, shares, layers, ahead, course).fits:
        return layers
    return layers[:0]


@compiled_inside
def layers_by_load(problem: Problem, peers: Ints, counts: Ints, shares: Ints, anew: Ints, kept: Ints) -> Ints:
    """Return the number of layers of each stage: each layer goes where the slowest peer's work is then least.

    No stage recomputes where a split fits without. It is empty where none leaves every peer within its memory.

    Args:
        anew, kept: most layers of each stage with recomputing, and without, as `slot_memory.most_layers` returns them.
    """
    layers, load = np.empty(len(counts), dtype=np.int64), np.empty(len(counts), dtype=np.float64)
    if layers_by_load_into(problem, peers, counts, shares, anew, kept, layers, load):
        return layers
    return layers[:0]


@compiled_in_place_inside
def layers_by_load_into(
    problem: Problem, peers: Ints, counts: Ints, shares: Ints, anew: Ints, kept: Ints, layers: Ints, load: Floats
) -> bool:
    """Set what `layers_by_load` returns, and return whether any split leaves every peer within its memory.

    Args:
        load: set to the seconds of each of a stage's layers, of all micro-batches, shape (K,).
    """
    stages, slot = len(counts), 0
    again = not _are_enough(kept, kept, stages, problem.layers)
    if again and not _are_enough(anew, kept, stages, problem.layers):
        return False
    # A stage is as slow as its slowest peer's share, for each of its layers.
    for stage in range(stages):
        load[stage], layers[stage] = 0.0, 1
        for member in range(slot, slot + counts[stage]):
            peer = peers[member]
            load[stage] = max(load[stage], shares[member] * (problem.forward[peer] + problem.backward[peer]))
        slot += counts[stage]
    for _ in range(problem.layers - stages):
        chosen, least = -1, np.inf
        for stage in range(stages):
            extra = problem.head_layers if stage == stages - 1 else 0.0
            work = (layers[stage] + 1 + extra) * load[stage]
            most = max(anew[stage], kept[stage]) if again else kept[stage]
            if layers[stage] < most and work < least:
                chosen, least = stage, work
        layers[chosen] += 1
    return True


@compiled_in_place_inside
def _are_enough(anew: Ints, kept: Ints, stages: int, layers: int) -> bool:
    """Whether stages that hold so many layers, or so many others, hold all, and one at least each."""
    held = int(np.int64(0))
    for stage in range(stages):
        most = max(anew[stage], kept[stage])
        if most < 1:
            return False
        held += most
    return bool(held >= layers)


def more_in_flight(plan: Plan) -> tuple[int, ...]:
    """Return how many micro-batches the peers of each stage may have in flight beyond what a plan without a pace of its
    own would let them, at most."""
    if plan.pacing is None:
        return (0,) * len(plan.stages)
    given, shares = dict(zip(plan.peers, plan.pacing.in_flight, strict=True)), plan.shares()
    return tuple(
        max(0, *(given[peer] - plain_in_flight(plan, stage, shares, peer)[0] for peer in plan.replicas(stage)))
        for stage in range(len(plan.stages))
    )
