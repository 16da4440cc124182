"""The evolutionary search for a balanced placement that is cheapest by the paper's cost.

A population of placements starts from neighbourhood tilings (`seeds.banded`). A new one comes from crossing two, from
shuffling one, or from nothing; it descends by the best swap (`swaps`) until no swap helps, is priced exactly
(`paper_cost`) and takes the place of the worst. A population that stops improving is restarted around its best.
Small swarms are searched to the end: the result is then the optimum.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.budget import Budget
from dtfm_coordinator.allocator.paper_cost import Matrix, PaperCost, PaperCostModel, Pipelines
from dtfm_coordinator.allocator.seeds import banded, crossed, every_partition, partitions, shuffled
from dtfm_coordinator.allocator.swaps import SwapEstimator

Index = npt.NDArray[np.intp]

POPULATION = 8
STALE = 120
"""Placements without a better one after which the population is restarted."""
SOFTNESS = (0.1, 0.01)
"""Weights of the mean beside the maximum, for the two legs of a descent."""
POLISHED = 128
"""Swaps that are priced exactly after a descent, divided by the number of devices."""
WORTH_POLISHING = 1.05
"""How far from the best a placement may be for that."""
UNTOUCHED = 12
"""How often a new placement is priced before its descent too, divided by the number of devices: a descent by
estimates may lead away from what it is good for."""
SAMPLE = 128
"""Devices among which the swaps of one step of a descent are tried."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best placement that a search met."""

    pipelines: Pipelines
    idle: tuple[int, ...]
    cost: PaperCost
    """What `pipelines` cost as written."""
    evaluations: int
    """Placements looked at: priced exactly, or estimated as one swap away from another."""
    exact_evaluations: int
    seconds: float
    history: tuple[tuple[float, float], ...]
    """(seconds since the start, total) of each placement that was the best so far."""
    proven: bool
    """Whether every placement was looked at."""


def search(
    alpha: Matrix,
    beta: Matrix,
    *,
    stages: int,
    replicas: int,
    activation_bytes: float,
    gradient_bytes: float,
    seed: int = 0,
    seconds: float | None = None,
    evaluations: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    enumerate_up_to: int = 6000,
) -> SearchResult:
    """Search for the cheapest `stages` groups of `replicas` devices; devices left over are idle.

    Without a limit in seconds, the same arguments give the same placement.

    Args:
        alpha: one-way delay, seconds, shape (N, N), N >= stages * replicas.
        beta: bandwidth, bytes a second, shape (N, N); 0 is a pair that cannot talk.
        activation_bytes: bytes a pipeline's share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.
        seed: of the search's own random numbers.
        seconds: time limit by `clock`; 1.2 where neither limit is given.
        evaluations: limit on placements looked at.
        enumerate_up_to: a network with no more placements than this is searched to the end, if the limits allow.
    """
    budget = Budget(seconds, evaluations, clock)
    model = PaperCostModel(alpha, beta, activation_bytes, gradient_bytes, replicas)
    return _Evolution(model, stages, replicas, seed, budget).run(enumerate_up_to)


_Key = frozenset[frozenset[int]]
"""A placement's groups, whatever their order."""


@dataclass(frozen=True, slots=True)
class _Individual:
    total: float
    order: Index
    """Devices, shape (N,): K groups of R in path order, then the idle ones."""
    key: _Key


class _Evolution:
    """The state of one search."""

    def __init__(self, model: PaperCostModel, stages: int, replicas: int, seed: int, budget: Budget) -> None:
        self._model, self._stages, self._replicas, self._budget = model, stages, replicas, budget
        self._active = stages * replicas
        self._rng = np.random.default_rng(seed)
        self._estimator = SwapEstimator(model.dp_pairs, model.pp_pairs)
        self._population: list[_Individual] = []
        self._priced: set[_Key] = set()
        self._exact = 0
        self._best: tuple[PaperCost, Pipelines, Index] | None = None
        self._history: list[tuple[float, float]] = []

    def run(self, enumerate_up_to: int) -> SearchResult:
        devices = len(self._model.dp_pairs)
        # Wide and narrow tilings first: one of the two is right for most networks.
        widths = sorted(range(1, self._stages + 1), key=lambda width: (min(width - 1, self._stages - width), width))
        tilings = []
        for width in widths:
            if self._best is None or not self._budget.spent():
                tilings.append(banded(self._model.pp_pairs, self._stages, self._replicas, width))
                self._admit(tilings[-1])
        count = partitions(devices, self._stages, self._replicas)
        enumerable = count <= enumerate_up_to and self._budget.allows(count)
        proven = enumerable and self._enumerate(devices)
        if not enumerable:
            for tiling in tilings:
                if not self._budget.spent():
                    self._polish(self._descend(tiling))
            self._evolve(devices)
        assert self._best is not None
        cost, pipelines, order = self._best
        return SearchResult(
            pipelines=pipelines,
            idle=tuple(sorted(order[self._active :].tolist())),
            cost=cost,
            evaluations=self._budget.spent_evaluations,
            exact_evaluations=self._exact,
            seconds=self._budget.elapsed(),
            history=tuple(self._history),
            proven=proven,
        )

    def _enumerate(self, devices: int) -> bool:
        """Look at every placement; whether there was time for it."""
        for order in every_partition(devices, self._stages, self._replicas):
            if self._budget.spent():
                return False
            groups = order[: self._active].reshape(self._stages, self._replicas)
            if self._best is None or self._model.lower_bound(groups) < self._best[0].total:
                self._admit(order)
            else:
                self._budget.spend(1)
        return True

    def _evolve(self, devices: int) -> None:
        stale, leader = 0, np.inf
        while not self._budget.spent():
            choice = self._rng.random()
            if len(self._population) < 2 or choice < 0.05:
                child = self._rng.permutation(devices)
            elif choice < 0.35:
                one, other = self._parent(), self._parent()
                child = crossed(one, other, self._stages, self._replicas, self._rng)
            else:
                child = shuffled(self._parent(), self._rng)
            if self._key(child) in self._priced:
                child = self._rng.permutation(devices)
            if self._rng.random() * devices < UNTOUCHED:
                self._admit(child)
            child = self._descend(child)
            if self._key(child) not in self._priced:
                self._polish(child)
            stale += 1
            if self._population[0].total < leader:
                stale, leader = 0, self._population[0].total
            if stale >= STALE:
                stale = 0
                del self._population[1:]

    def _parent(self) -> Index:
        """The better of two drawn at random."""
        drawn = self._rng.integers(len(self._population), size=2)
        return self._population[int(drawn.min())].order

    def _descend(self, order: Index) -> Index:
        """Take the best swap, again and again, until none helps and no other order of the groups does."""
        for softness in SOFTNESS:
            groups, idle = order[: self._active].reshape(self._stages, self._replicas), order[self._active :]
            now, failures = self._estimator.estimate(groups, softness), 0
            patience = 1 if len(order) <= SAMPLE else 4
            while not self._budget.spent():
                sample = self._sample(len(order))
                totals = self._estimator.after_swaps(groups, idle, sample, softness)
                self._budget.spend(int(np.isfinite(np.triu(totals)).sum()))
                better = now - 1e-9 * abs(now)
                if totals.size and totals.min() < better:
                    x, y = np.unravel_index(int(totals.argmin()), totals.shape)
                    now = float(totals[x, y])
                    order = order.copy()
                    order[sample[[x, y]]] = order[sample[[y, x]]]
                    groups, idle = order[: self._active].reshape(groups.shape), order[self._active :]
                    failures = 0
                    continue
                reordered = self._estimator.reordered(groups, softness)
                after = self._estimator.estimate(reordered, softness)
                if after < better:
                    groups, now = reordered, after
                    order = np.concatenate([groups.ravel(), idle])
                    continue
                failures += 1
                if failures >= patience:
                    break
        return order

    def _polish(self, order: Index) -> None:
        """Follow the exact cost from where the estimates stopped: they are bounds, and may miss the last swaps."""
        total, order = self._admit(order)
        if total > self._population[0].total * WORTH_POLISHING:
            return
        tried, most = 0, max(1, POLISHED // len(order))
        while tried < most and not self._budget.spent():
            groups, idle = order[: self._active].reshape(self._stages, self._replicas), order[self._active :]
            sample = self._sample(len(order))
            bounds = self._estimator.after_swaps(groups, idle, sample, softness=0.0)
            bounds[np.tril_indices(*bounds.shape)] = np.inf
            self._budget.spend(int(np.isfinite(bounds).sum()))
            promising = np.flatnonzero(bounds.ravel() < total * (1 - 1e-9))
            promising = promising[np.argsort(bounds.ravel()[promising], kind="stable")]
            for number in promising:
                x, y = np.unravel_index(int(number), bounds.shape)
                swapped = order.copy()
                swapped[sample[[x, y]]] = order[sample[[y, x]]]
                after, swapped = self._admit(swapped)
                tried += 1
                if after < total * (1 - 1e-9):
                    total, order = after, swapped
                    break
                if tried >= most or self._budget.spent():
                    return
            else:
                return

    def _sample(self, devices: int) -> Index:
        """Positions among which swaps are tried: all, unless there are too many to price at once."""
        if devices <= SAMPLE:
            return np.arange(devices)
        return np.sort(self._rng.choice(devices, SAMPLE, replace=False))

    def _key(self, order: Index) -> _Key:
        groups = order[: self._active].reshape(self._stages, self._replicas)
        return frozenset(frozenset(group) for group in groups.tolist())

    def _admit(self, order: Index) -> tuple[float, Index]:
        """Price a placement exactly, remember it if it is the best, and keep it among the population's best.

        Returns:
            Its total, and the same placement in the order of its pipelines.
        """
        groups = order[: self._active].reshape(self._stages, self._replicas)
        cost, pipelines = self._model.arrange(groups.tolist())
        self._exact += 1
        self._budget.spend(1)
        order = np.concatenate([np.array(pipelines, dtype=np.intp).T.ravel(), order[self._active :]])
        if self._best is None or cost.total < self._best[0].total:
            self._best = (cost, pipelines, order)
            self._history.append((self._budget.elapsed(), cost.total))
        key = self._key(order)
        self._priced.add(key)
        if all(individual.key != key for individual in self._population):
            self._population.append(_Individual(cost.total, order, key))
            self._population.sort(key=lambda individual: individual.total)
            del self._population[POPULATION:]
        return cost.total, order
