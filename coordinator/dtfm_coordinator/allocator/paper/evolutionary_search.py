"""Evolutionary search for a balanced placement that is cheapest by the paper's cost.

A population of placements starts from neighbourhood tilings (`crossover`). A new one comes from nothing, from the best,
or from crossing two; each is annealed (`cooling`), from a temperature that depends on how much of its origin is worth
keeping, and takes the place of the worst, or of its like. Where placements freeze, the first annealings find out
between which temperatures it pays: above, nearly everything melts, and below, hardly a change is made. There a
placement is annealed again, less hot, as long as that improves it, by the exact cost or, mostly, a smooth one. How long
an annealing lasts is a share of the budget, if that is small. Where time alone is limited, threads do so side by side,
with one population. Small swarms are searched to the end (`exhaustive`): the result is then the optimum.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiling
from dtfm_coordinator.allocator.foundations.links import Matrix, pipeline_seconds
from dtfm_coordinator.allocator.foundations.neighbourhoods import nearness, tiled
from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.side_by_side import all_cores, side_by_side
from dtfm_coordinator.allocator.paper.annealing_window import BANDS, FROZEN, Window, Windows
from dtfm_coordinator.allocator.paper.cooling import anneal
from dtfm_coordinator.allocator.paper.crossover import crossed, widths
from dtfm_coordinator.allocator.paper.exhaustive import partitions, provable, walk_of, walk_on
from dtfm_coordinator.allocator.paper.hamiltonian_path import LARGEST_EXACT
from dtfm_coordinator.allocator.paper.paper_cost import PaperCost, Pipelines, cost_of_pipelines, data_parallel_seconds
from dtfm_coordinator.allocator.paper.placement_state import (
    look_around,
    network_of,
    refresh,
    reorder,
    routes_of,
    state_of,
)

Index = npt.NDArray[np.int64]

LARGEST_ENUMERATION = 200_000
"""Number of placements up to which all are looked at without being asked to."""
POPULATION = 4
SCOUTED = 0.06
"""Share of the budget that each of the first annealings may take, which find out between which temperatures it
pays."""
FRESH = 0.35
"""Share of the budget that an annealing from a random placement may take."""
ROUND = 0.08
"""Share of the budget that each later annealing may take."""
LONGEST = 1000
"""Number of changes, at most, that an annealing tries, divided by the square of the number of devices: more are better
spent on another annealing."""
LONGEST_FRESH = 200
"""The same from a random placement, where it is known between which temperatures that pays."""
LONGEST_ROUND = 50
"""The same of each later annealing."""
LARGEST_FRESH = 256
"""Number of devices up to which annealing from a random placement pays; larger networks start from their tilings."""
SCOUTS = 3
"""Number of annealings, at most, that find them out by either cost."""
STALE = 6
"""Number of annealings in a row that do not improve a placement, after which another one is begun with."""
CROSSED = 0.5
"""Share of those that are children of two placements of the population."""
MIXED = 0.3
"""Temperature to which a child of two placements is heated then, as a part of `HOT`."""
FOCUS = 0.15
"""Share of the changes that begin with a device on which the cost depends."""
LOOKED = 0.1
"""Share of the changes that are made, below which it pays to keep each device's nearest partners."""
CHUNK = 100_000
"""Number of changes tried between two looks at the clock, times the number of devices."""
TEMPERATURES = 50
"""Number of steps, at least, in which an annealing cools down, where evaluations are counted."""
REORDERED = 8
"""Number of chunks between two searches for a better order of the stages."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Best placement that a search met, and what the search took."""

    pipelines: Pipelines
    idle: tuple[int, ...]
    cost: PaperCost
    """Cost of `pipelines` as written."""
    evaluations: int
    """Number of placements priced."""
    seconds: float
    history: tuple[tuple[float, float], ...]
    """Seconds since the start, and total cost, of each placement that was the best so far."""
    proven: bool
    """Whether it is proven that no placement is cheaper."""


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
    enumerate_up_to: int = LARGEST_ENUMERATION,
    stop: Callable[[], bool] = lambda: False,
    cores: int | None = None,
) -> SearchResult:
    """Search for the cheapest `stages` groups of `replicas` devices; devices left over are idle.

    Without a limit in seconds, the same arguments give the same placement.

    Args:
        alpha: one-way delay, seconds, shape (N, N), N >= stages * replicas.
        beta: bandwidth, bytes a second, shape (N, N); 0 is a pair that cannot talk.
        activation_bytes: bytes that a pipeline's share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.
        seed: seed of the search's own random numbers.
        seconds: time limit by `clock`; 1.2 where neither limit is given.
        evaluations: limit on placements priced.
        enumerate_up_to: a network with no more placements than this is searched to the end, if the limits allow.
        stop: whether to end now with the best placement so far.
        cores: number of this machine's cores to search on; all unless given, and one where `evaluations` are.
    """
    warm_up()
    budget = Budget(seconds, evaluations, clock, stop, cores=cores or (all_cores() if evaluations is None else 1))
    evolution = _Evolution(alpha, beta, stages, replicas, activation_bytes, gradient_bytes, seed, budget)
    return evolution.run(enumerate_up_to)


_warm = False


def warm_up(say: Callable[[str], object] = lambda line: None) -> None:
    """Load the search's machine code, or `say` that it is being compiled (the first time on a machine)."""
    global _warm
    if _warm:
        return
    _warm = True
    rng = np.random.default_rng(0)
    alpha, beta = rng.random((7, 7)), rng.random((7, 7)) + 0.1
    with compiling("placements by the paper", say):
        for enumerated in (0, 1000):
            budget = Budget(None, 400)
            _Evolution(alpha, beta, 3, 2, 1.0, 1.0, 0, budget).run(enumerated)


@dataclass(frozen=True, slots=True)
class _Individual:
    total: float
    order: Index
    """Devices, shape (N,): K groups of R in path order, then the idle ones."""


class _Population:
    """Best placements of a search, and how they have become better; threads share it."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed, self._lock = elapsed, threading.Lock()
        self.placed: list[_Individual] = []
        """Best first; another list whenever that changes."""
        self.history: list[tuple[float, float]] = []
        """Seconds since the start, and total cost, of each placement that was the best so far."""

    def admit(self, admitted: _Individual) -> None:
        """Keep a placement if it is among the best, and like none of them."""
        total = admitted.total
        with self._lock:
            if all(abs(total - individual.total) > 1e-9 * total for individual in self.placed):
                self.placed = sorted([*self.placed, admitted], key=lambda individual: individual.total)[:POPULATION]
        self.note(total)

    def child(self, stages: int, replicas: int, rng: np.random.Generator) -> Index:
        """Return a child of any two of them."""
        placed = self.placed
        one, other = rng.choice(len(placed), 2, replace=False)
        return crossed(placed[one].order, placed[other].order, stages, replicas, rng)

    def note(self, total: float) -> None:
        """Take note of the cost of a placement that was met."""
        with self._lock:
            if not self.history or total < self.history[-1][1]:
                self.history.append((self._elapsed(), total))

    def end_with(self, total: float) -> None:
        """Have the history end with what the best placement costs as written: pairs that cannot talk, and rounding,
        make that differ from what the search went by."""
        since = self._elapsed()
        while self.history and not self.history[-1][1] > total:
            since, _ = self.history.pop()
        self.history.append((since, total))


class _Evolution:
    """State of one search."""

    def __init__(
        self,
        alpha: Matrix,
        beta: Matrix,
        stages: int,
        replicas: int,
        activation_bytes: float,
        gradient_bytes: float,
        seed: int,
        budget: Budget,
    ) -> None:
        self._price: Callable[[Pipelines], PaperCost] = lambda pipelines: cost_of_pipelines(
            alpha, beta, pipelines, activation_bytes, gradient_bytes
        )
        reductions = data_parallel_seconds(alpha, beta, gradient_bytes, replicas)
        self._network = network_of(reductions, pipeline_seconds(alpha, beta, activation_bytes), stages, replicas)
        self._devices, self._stages, self._replicas, self._budget = len(alpha), stages, replicas, budget
        self._seed, self._population, self._windows = seed, _Population(budget.elapsed), Windows(stages, replicas)

    def run(self, enumerate_up_to: int) -> SearchResult:
        """Search until the budget is spent or the optimum is known."""
        near = nearness(self._network.forward)
        for width in widths(self._stages):
            if not self._population.placed or not self._budget.spent():
                self._admit(tiled(near, self._stages, self._replicas, width))
                self._budget.spend(1)
        del near
        is_free = self._population.placed[0].total == 0.0  # one device alone: nothing is better
        count = partitions(self._devices, self._stages, self._replicas)
        enumerable = count <= enumerate_up_to and provable(self._devices, self._stages) and self._budget.allows(count)
        proven = is_free or (enumerable and self._enumerate())
        if not enumerable and not is_free:
            self._evolve()
        pipelines, cost = self._best_as_written()
        used = {device for route in pipelines for device in route}
        return SearchResult(
            pipelines=pipelines,
            idle=tuple(device for device in range(self._devices) if device not in used),
            cost=cost,
            evaluations=self._budget.spent_evaluations,
            seconds=self._budget.elapsed(),
            history=tuple(self._population.history),
            proven=proven,
        )

    def _enumerate(self) -> bool:
        """Look at every placement; False if there was no time for all."""
        walk = walk_of(self._network)
        best = self._population.placed[0].total * (1 - 1e-12)
        while walk.depth[0] >= 0 and not self._budget.spent():
            best, looked_at = walk_on(self._network, walk, best, 2000)
            self._budget.spend(looked_at)
        if walk.best[0] >= 0:
            groups = walk.members[walk.best].astype(np.int64).ravel()
            idle = np.setdiff1d(np.arange(self._devices), groups)
            self._admit(np.concatenate([groups, idle]))
        return bool(walk.depth[0] < 0)

    def _evolve(self) -> None:
        rng = np.random.default_rng(self._seed)
        if self._devices <= LARGEST_FRESH:
            self._scout(rng)
        side_by_side(lambda number: self._search_on(number, rng), self._budget.cores)

    def _search_on(self, number: int, first: np.random.Generator) -> None:
        """Search until the budget is spent, beside other threads.

        Args:
            first: random numbers of the thread of number 0.
        """
        rng = np.random.default_rng([self._seed, number]) if number else first
        line = self._population.placed[0]
        if self._devices <= LARGEST_FRESH:
            longest, is_smooth = LONGEST_FRESH if self._windows else LONGEST, self._windows.is_smooth(rng)
            order = rng.permutation(self._devices)
            found = self._anneal(order, is_smooth, self._window(is_smooth).hot, FRESH, longest, rng)
            line = found if number else self._population.placed[0]
        if self._windows:
            self._improve_lines(line, rng)
        while not self._budget.spent():
            hot, warm, _ = self._window(False)
            choice = rng.random()
            if choice < 0.4 and len(self._population.placed) > 1:
                child = self._population.child(self._stages, self._replicas, rng)
                self._anneal(child, False, MIXED * hot, ROUND, LONGEST, rng)
            elif choice < 0.9 or self._devices > LARGEST_FRESH:
                self._anneal(self._population.placed[0].order, False, warm, ROUND, LONGEST, rng)
            else:
                self._anneal(rng.permutation(self._devices), False, hot, ROUND, LONGEST, rng)

    def _improve_lines(self, line: _Individual, rng: np.random.Generator) -> None:
        """Anneal a placement, less hot, as long as that improves it; then children and new ones in the same way."""
        stale = 0
        while not self._budget.spent():
            is_smooth = self._windows.is_smooth(rng)
            hot, warm, _ = self._window(is_smooth)
            if stale < STALE:
                found = self._anneal(line.order, is_smooth, warm, ROUND, LONGEST_ROUND, rng)
                is_better = found.total < line.total * (1 - 1e-9)
                line, stale = (found, 0) if is_better else (line, stale + 1)
            elif len(self._population.placed) > 1 and rng.random() < CROSSED:
                child = self._population.child(self._stages, self._replicas, rng)
                line, stale = self._anneal(child, is_smooth, warm, ROUND, LONGEST_ROUND, rng), 0
            else:
                line, stale = self._anneal(rng.permutation(self._devices), is_smooth, hot, FRESH, LONGEST_FRESH, rng), 0

    def _window(self, is_smooth: bool) -> Window:
        return self._windows.of(is_smooth, self._population.placed[0].total)

    def _scout(self, rng: np.random.Generator) -> None:
        """Anneal random placements until they are frozen, and remember between which temperatures that happened."""
        for is_smooth in (False, True):
            for _ in range(SCOUTS):
                before, window, made = self._population.placed[0].total, self._window(is_smooth), np.zeros(BANDS)
                order = rng.permutation(self._devices)
                self._anneal(order, is_smooth, window.hot, SCOUTED, LONGEST_FRESH, rng, FROZEN, made)
                # Pairs that cannot talk make all temperatures far too high.
                if self._population.placed[0].total > before / 2:
                    break
            if not self._windows.see(is_smooth, window, made):
                return

    def _anneal(
        self,
        order: Index,
        is_smooth: bool,
        hot: float,
        share: float,
        longest: int,
        rng: np.random.Generator,
        until: float = -1.0,
        made_shares: Matrix | None = None,
    ) -> _Individual:
        """Anneal a placement over a share of the budget, and return and admit the best that was met.

        Args:
            is_smooth: whether changes are judged by the smooth cost.
            hot: temperature to begin with, seconds.
            longest: number of changes, at most, divided by the square of the number of devices.
            until: the annealing ends after a band of temperatures in which no more than this share of the changes is
                made.
            made_shares: set to the share of the changes that were made in each band, shape (BANDS,); not a number where
                none was tried.
        """
        network, budget, cold = self._network, self._budget, self._window(is_smooth).cold
        state = state_of(network, order)
        best_cost = refresh(network, state)
        best, random = state.order.copy(), np.array([rng.integers(1, 2**63)], dtype=np.uint64)
        tries, made, band = np.zeros(BANDS), np.zeros(BANDS), 0
        began, most, tried, chunks, looks = budget.used(), longest * self._devices**2, 0, 0, False
        while not budget.spent():
            done = max((budget.used() - began) / share, tried / most)
            if done >= 1 or (int(done * BANDS) > band and made[band] <= until * tries[band] and until >= 0):
                break
            band = int(done * BANDS)
            steps = budget.left(max(16, min(CHUNK // self._devices, budget.part(share / TEMPERATURES))))
            temperature = hot * (cold / hot) ** done
            best_cost, count = anneal(
                network, state, random, best, best_cost, temperature, steps, FOCUS, is_smooth, looks
            )
            if count >= LOOKED * steps:
                looks = False
            elif not looks:
                look_around(network, state)
                looks = True
            budget.spend(steps)
            tries[band], made[band] = tries[band] + steps, made[band] + count
            tried, chunks = tried + steps, chunks + 1
            if self._stages <= LARGEST_EXACT and chunks % REORDERED == 0:
                refresh(network, state)
                reorder(network, state)
            self._population.note(best_cost)
        if made_shares is not None:
            with np.errstate(invalid="ignore"):
                made_shares[:] = made / tries
        if tries[-1] > 0:
            self._windows.follow(is_smooth, made[-1] / tries[-1])
        return self._admit(best)

    def _admit(self, order: Index) -> _Individual:
        """Put a placement's stages into their best order, keep it if it is among the population's best, and return
        it."""
        state = state_of(self._network, order)
        refresh(self._network, state)
        total = reorder(self._network, state)
        admitted = _Individual(total, state.order)
        self._population.admit(admitted)
        return admitted

    def _best_as_written(self) -> tuple[Pipelines, PaperCost]:
        """Return the best placement's pipelines and their cost, which the history then ends with."""
        state = state_of(self._network, self._population.placed[0].order)
        refresh(self._network, state)
        pipelines: Pipelines = tuple(map(tuple, routes_of(self._network, state).tolist()))
        cost = self._price(pipelines)
        self._population.end_with(cost.total)
        return pipelines, cost
