"""Hill climbing: a layout is changed singly as long as any change makes it better. So a search's best in the end, and
the layout in force in the beginning."""

from collections.abc import Callable, Iterator

import numpy as np

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.neighbours import ALIKE, Neighbours, Priced, priced

SWEEPS = 3.0
"""Looks at all single changes of a search's best layout for which budget is set aside at its end, one costing what an
annealed one does; each is dearer, and what is found leads to more."""
MOST_SETTLING = 0.2
"""Share of the budget that is set aside for them at most."""


class HillClimber:
    """Hill climber among the layouts of one problem, as long as the budget lasts."""

    def __init__(
        self,
        problem: Problem,
        objective_of: Callable[[Layout], float],
        budget: Budget,
        *,
        any_counts: bool,
        any_depth: bool,
    ) -> None:
        """Take what is searched.

        Args:
            any_counts: whether stages may have other numbers of peers.
            any_depth: whether, where they may, the number of stages may change as well.
        """
        self._problem, self._objective_of, self._budget = problem, objective_of, budget
        self._any_counts, self._any_depth = any_counts, any_counts and any_depth

    def is_due(self, layout: Layout) -> bool:
        """Whether what is left of the budget is about what it takes to look at all changes of a layout."""
        budget, used = self._budget, self._budget.used()
        each = used * budget.cores / max(1, budget.spent_evaluations)  # one thread looks at them
        return 1 - used <= min(MOST_SETTLING, SWEEPS * self._of(layout).count * each)

    def by_first(self, objective: float, layout: Layout) -> Iterator[tuple[float, Layout]]:
        """Yield ever better layouts with their objectives, each a single change of the one before, from the first that
        is found; the last has none that is better, if the budget lasts.

        Args:
            objective, layout: with which to begin.
        """
        number, seen, neighbours = 0, 0, self._of(layout)
        while seen < neighbours.count and not self._budget.spent():
            found = self._better(objective, layout, neighbours, number % neighbours.count)
            number, seen = number + 1, seen + 1
            if found is not None:
                (objective, layout), seen = found, 0
                neighbours = self._of(layout)
                yield objective, layout

    def by_best(self, objective: float, layout: Layout, until: float) -> Iterator[tuple[float, Layout]]:
        """Yield the same, but each the best single change of the one before, until that share of the budget is used:
        where that is too little for all changes, the best of some that are drawn."""
        found: tuple[float, Layout] | None = objective, layout
        while found is not None:
            (objective, layout), found = found, None
            neighbours = self._of(layout)
            for number in np.random.default_rng(0).permutation(neighbours.count).tolist():
                if self._budget.used() >= until:
                    break
                found = self._better(found[0] if found else objective, layout, neighbours, number) or found
            if found is not None:
                yield found

    def _of(self, layout: Layout) -> Neighbours:
        paced, peers = self._problem.paced, len(self._problem.forward)
        return Neighbours(layout, peers, paced=paced, any_depth=self._any_depth)

    def _better(
        self, objective: float, layout: Layout, neighbours: Neighbours, number: int
    ) -> tuple[float, Layout] | None:
        """Return what the change of that number makes of a layout, where that is better than `objective`."""
        found = self._changed(layout, neighbours, number)
        if found is None or found.seconds >= objective:
            return None  # what moving takes only comes on top
        better = self._objective_of(found.layout)
        return (better, found.layout) if better < (1 - ALIKE) * objective else None

    def _changed(self, layout: Layout, neighbours: Neighbours, number: int) -> Priced | None:
        change = neighbours.change(number)
        if change is None or max(change.counts) > self._problem.micro_batches:
            return None
        if change.counts != layout.counts and not self._any_counts:
            return None
        self._budget.spend(1)
        return priced(self._problem, layout, change)
