"""Trying placements: lay one out, play its step, remember what came of it; and small changes for the better."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dtfm_coordinator.allocator.layout import DoesNotFit, Stages, Swarm, lay_out
from dtfm_coordinator.allocator.makespan import StepCost, makespan
from dtfm_protocol.plan import Plan


@dataclass(frozen=True, slots=True)
class Trial:
    """A placement with its plan and what a step of it is predicted to cost."""

    stages: Stages
    plan: Plan
    cost: StepCost

    @property
    def counts(self) -> tuple[int, ...]:
        """Peers of each stage."""
        return tuple(len(peers) for peers in self.stages)


class Trials:
    """Every placement tried so far."""

    def __init__(self, swarm: Swarm, peers: tuple[str, ...], elapsed: Callable[[], float]) -> None:
        """`peers` may take part; `elapsed` gives the seconds since the start, for `history`."""
        self.swarm, self._peers, self._elapsed = swarm, peers, elapsed
        self._known: dict[Stages, Trial | None] = {}
        self.best_of: dict[tuple[int, ...], Trial] = {}
        """By peers of each stage."""
        self.history: list[tuple[float, float]] = []
        """(seconds, total) of each trial that was the best so far."""
        self.fitted = False
        """Whether any placement was within every peer's memory."""

    @property
    def count(self) -> int:
        """Placements tried."""
        return len(self._known)

    def best(self) -> Trial | None:
        """The cheapest so far."""
        return min(self.best_of.values(), key=lambda trial: trial.cost.total, default=None)

    def attempt(self, stages: Stages) -> Trial | None:
        """Lay out and play `stages`; None where memory is too small or a pair that cannot talk would have to."""
        if stages not in self._known:
            self._known[stages] = trial = self._play(stages)
            if trial is not None:
                known, best = self.best_of.get(trial.counts), self.best()
                if known is None or trial.cost.total < known.cost.total:
                    self.best_of[trial.counts] = trial
                if best is None or trial.cost.total < best.cost.total:
                    self.history.append((self._elapsed(), trial.cost.total))
        return self._known[stages]

    def _play(self, stages: Stages) -> Trial | None:
        swarm, placed = self.swarm, {peer for peers in stages for peer in peers}
        try:
            plan = lay_out(swarm, stages, [peer for peer in self._peers if peer not in placed])
        except DoesNotFit:
            return None
        self.fitted = True
        demand = swarm.demand
        seconds = {
            peer: demand.stage_seconds(first, end, swarm.layer_seconds[peer])
            for (first, end), peers in zip(plan.stages, stages, strict=True)
            for peer in peers
        }
        gradients = [demand.gradient_bytes(first, end, swarm.wire) for first, end in plan.stages]
        cost = makespan(plan, swarm.links, seconds, demand.message_bytes(swarm.wire), gradients)
        return Trial(stages, plan, cost) if np.isfinite(cost.total) else None


def improve(trials: Trials, start: Trial, uneven: bool, rng: np.random.Generator, stop: Callable[[], bool]) -> Trial:
    """Take the first change that shortens the step, again and again, until none does or `stop()`.

    Changes exchange two peers, idle ones included; where `uneven` they also move one peer to another stage, add an
    idle one, or send one home. The paper's cost knows neither unequal devices nor shares; this is where they count.
    """
    best = start
    while True:
        changes = list(_changes(best, uneven))
        for number in rng.permutation(len(changes)):
            if stop():
                return best
            trial = trials.attempt(changes[int(number)])
            if trial is not None and trial.cost.total < best.cost.total * (1 - 1e-9):
                best = trial
                break
        else:
            return best


def _changes(trial: Trial, uneven: bool) -> Iterator[Stages]:
    """Every placement one change away."""
    stages, idle = trial.stages, trial.plan.idle
    limit = len(trial.plan.routes)
    places = [(stage, slot) for stage, peers in enumerate(stages) for slot in range(len(peers))]
    for number, here in enumerate(places):
        for there in places[number + 1 :]:
            if here[0] != there[0]:
                first, second = stages[here[0]][here[1]], stages[there[0]][there[1]]
                yield _put(_put(stages, here, second), there, first)
        for peer in idle:
            yield _put(stages, here, peer)
    if not uneven:
        return
    roomy = [stage for stage, peers in enumerate(stages) if len(peers) < limit]
    for stage in roomy:
        for peer in idle:
            yield _add(stages, stage, peer)
    for stage, slot in places:
        if len(stages[stage]) > 1:
            less = _take(stages, stage, slot)
            yield less
            for other in roomy:
                if other != stage:
                    yield _add(less, other, stages[stage][slot])


def _put(stages: Stages, place: tuple[int, int], peer: str) -> Stages:
    stage, slot = place
    peers = (*stages[stage][:slot], peer, *stages[stage][slot + 1 :])
    return (*stages[:stage], peers, *stages[stage + 1 :])


def _add(stages: Stages, stage: int, peer: str) -> Stages:
    return (*stages[:stage], (*stages[stage], peer), *stages[stage + 1 :])


def _take(stages: Stages, stage: int, slot: int) -> Stages:
    peers = (*stages[stage][:slot], *stages[stage][slot + 1 :])
    return (*stages[:stage], peers, *stages[stage + 1 :])
