"""Foretelling of steps: a long one's seconds from two short ones, of many placements, side by side."""

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.foundations.side_by_side import side_by_side
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.starts import Stages, near_by_message, starts
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds

SHORT = 48
"""Micro-batches of the short steps from which a long one is foretold, at least."""
A_PEER = 8
"""Micro-batches that each peer has in these at least: with fewer they are mostly fill, drain and reduction, which tell
nothing of more micro-batches."""


class Foretelling:
    """Foretelling for one problem, on one budget."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self._problem, self._budget, self._lock = problem, budget, threading.Lock()
        self.fitted = False
        """Whether any placement was within every peer's memory."""

    def seconds(self, stages: Stages) -> float:
        """Return the seconds of a step: what a long one takes more for more micro-batches is steady, and no less than
        what the busiest peer computes of them."""
        most = max(map(len, stages))
        if most > self._problem.micro_batches:
            return np.inf
        longer = min(self._problem.micro_batches, max(SHORT, A_PEER * most))
        shorter = longer // 2
        counts = [longer, shorter] if longer < self._problem.micro_batches else [longer]
        costs = list[PredictedSeconds]()
        for count in counts:
            short = self._problem._replace(micro_batches=count)
            layout = Layout.of(short, stages)
            if layout is None:
                return np.inf
            self.fitted = True
            self._budget.spend(1)
            costs.append(layout.cost(short))
        seconds = costs[0].total
        if len(costs) == 1 or not np.isfinite(seconds):
            return seconds
        each = max((seconds - costs[1].total) / (longer - shorter), costs[0].compute / longer)
        return seconds + each * (self._problem.micro_batches - longer)

    def best_of(
        self, shapes: Sequence[Shape], enough: float, *, uneven: bool, has_some: bool
    ) -> list[tuple[float, Stages]]:
        """Return seconds and stages of the best first placement of each number of stages.

        Args:
            enough: share of the budget at which that ends, as soon as anything was found.
            uneven: whether stages may have other numbers of peers than each other.
            has_some: whether something was found before.
        """
        near, turns = near_by_message(self._problem), iter(shapes)
        foretold: dict[int, tuple[float, Stages]] = {}

        def look(number: int) -> None:
            while True:
                with self._lock:
                    shape = next(turns, None)
                if shape is None or (self._budget.used() >= enough and (foretold or has_some)):
                    break
                for stages in starts(self._problem, near, shape, uneven):
                    seconds = self.seconds(stages)
                    with self._lock:
                        if np.isfinite(seconds) and seconds < foretold.get(len(stages), (np.inf, []))[0]:
                            foretold[len(stages)] = (seconds, stages)

        side_by_side(look, self._budget.cores)
        return list(foretold.values())

    def soonest(self, placements: Iterable[Stages]) -> tuple[float, Stages]:
        """Return the least seconds of any of some placements, and which that is; infinite where none fits."""
        turns, found = iter(placements), list[tuple[float, Stages]]()

        def look(number: int) -> None:
            best: tuple[float, Stages] = (np.inf, [])
            while True:
                with self._lock:
                    stages = next(turns, None)
                if stages is None or self._budget.spent():
                    break
                best = min(best, (self.seconds(stages), stages))
            found.append(best)

        side_by_side(look, self._budget.cores)
        return min(found)
