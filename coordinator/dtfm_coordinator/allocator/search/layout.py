"""Layout: which peer stands in which slot, and how micro-batches and layers are shared out; its cost and its plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.simulator.compiled_schedule import Course, course_of
from dtfm_coordinator.allocator.simulator.fast_simulator import play
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.simulator.slot_memory import most_layers, recomputed
from dtfm_coordinator.allocator.simulator.slot_routes import assign_shares, route_micro_batches
from dtfm_protocol.job.job_file import ScheduleName, Wire
from dtfm_protocol.plan.plan import Plan

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

    @classmethod
    def of(cls, problem: Problem, stages: Sequence[Sequence[int]]) -> Self | None:
        """Return the peers of each stage with shares that follow their speeds, and layers that follow the stages'.

        It is None where no split of the layers fits in the peers' memory.

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
        layers = layers_by_load(problem, peers, counts, shares, course_of(counts, shares, problem.schedule))
        if not layers.size:
            return None
        return cls.from_arrays(peers, counts, shares, layers)

    @classmethod
    def from_arrays(cls, peers: Ints, counts: Ints, shares: Ints, layers: Ints) -> Self:
        """Return the layout with which a compiled search ended."""
        return cls(*(tuple(array.tolist()) for array in (peers, counts, shares, layers)))

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
        return cls(
            peers=tuple(index[peer] for members in stages for peer in members),
            counts=tuple(map(len, stages)),
            shares=tuple(shares[peer] for members in stages for peer in members),
            layers=tuple(end - first for first, end in plan.stages),
        )

    def arrays(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return peers, counts, shares and layers as arrays, for compiled functions."""
        peers, counts, shares, layers = (
            np.array(values, dtype=np.int64) for values in (self.peers, self.counts, self.shares, self.layers)
        )
        return peers, counts, shares, layers

    def cost(self, problem: Problem) -> PredictedSeconds:
        """Return the predicted seconds of a step, by the fast form of the simulated step."""
        peers, counts, shares, layers = self.arrays()
        course = course_of(counts, shares, problem.schedule)
        busiest, last, committed, applied = play(problem, peers, counts, layers, course)
        if not np.isfinite(applied):
            return PredictedSeconds(busiest, np.inf, np.inf, 0.0)
        return PredictedSeconds(busiest, last - busiest, committed - last, applied - committed)

    def fits(self, problem: Problem) -> bool:
        """Whether every peer's memory holds its stage and what the schedule keeps in flight, recomputed if need be."""
        peers, counts, shares, layers = self.arrays()
        course = course_of(counts, shares, problem.schedule)
        return bool((most_layers(problem, peers, counts, course)[0] >= layers).all())

    def recomputed(self, problem: Problem) -> tuple[int, ...]:
        """Return the stages that recompute because a peer's memory would not hold them otherwise."""
        peers, counts, shares, layers = self.arrays()
        stages = recomputed(problem, peers, counts, layers, course_of(counts, shares, problem.schedule))
        return tuple(np.flatnonzero(stages).tolist())

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
    slot = 0
    for stage in range(len(counts)):
        members = peers[slot : slot + counts[stage]]
        speeds = 1.0 / (problem.forward[members] + problem.backward[members])
        shares[slot : slot + counts[stage]] = assign_shares(speeds, problem.micro_batches)
        slot += counts[stage]
    return shares


@compiled
def layers_by_load(problem: Problem, peers: Ints, counts: Ints, shares: Ints, course: Course) -> Ints:
    """Return the number of layers of each stage: each layer goes where the slowest peer's work is then least.

    No stage recomputes where a split fits without. It is empty where none leaves every peer within its memory.
    """
    stages = len(counts)
    anew, kept = most_layers(problem, peers, counts, course)
    most = kept if kept.min() >= 1 and kept.sum() >= problem.layers else anew
    if most.min() < 1 or most.sum() < problem.layers:
        return np.empty(0, dtype=np.int64)
    # A stage is as slow as its slowest peer's share, for each of its layers.
    load, slot = np.zeros(stages, dtype=np.float64), 0
    for stage in range(stages):
        for member in range(slot, slot + counts[stage]):
            peer = peers[member]
            load[stage] = max(load[stage], shares[member] * (problem.forward[peer] + problem.backward[peer]))
        slot += counts[stage]
    layers = np.ones(stages, dtype=np.int64)
    for _ in range(problem.layers - stages):
        chosen, least = -1, np.inf
        for stage in range(stages):
            extra = problem.head_layers if stage == stages - 1 else 0.0
            work = (layers[stage] + 1 + extra) * load[stage]
            if layers[stage] < most[stage] and work < least:
                chosen, least = stage, work
        layers[chosen] += 1
    return layers
