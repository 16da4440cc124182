"""The end of a search: its best layout is changed singly, as long as any change makes it better."""

from collections.abc import Callable, Iterator

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.neighbours import ALIKE, Neighbours, priced

SWEEPS = 3.0
"""Looks at all single changes of the best layout for which budget is set aside, one costing what an annealed one does;
each is dearer, and what is found leads to more."""
MOST_SETTLING = 0.2
"""Share of the budget that is set aside at most."""


def is_to_settle(changes: int, budget: Budget) -> bool:
    """Whether what is left of the budget is about what it takes to look at so many single changes of a layout."""
    used = budget.used()
    each = used * budget.cores / max(1, budget.spent_evaluations)  # one thread looks at them
    return 1 - used <= min(MOST_SETTLING, SWEEPS * changes * each)


def improvements(
    problem: Problem,
    best: tuple[float, Layout],
    objective_of: Callable[[Layout], float],
    budget: Budget,
    *,
    any_counts: bool,
    any_depth: bool,
) -> Iterator[tuple[float, Layout]]:
    """Yield ever better layouts with their objectives, each a single change of the one before, from the first that is
    found; the last has none that is better, if the budget lasts.

    Args:
        best: objective and layout from which to begin.
        any_counts: whether stages may have other numbers of peers.
        any_depth: whether, where they may, the number of stages may change as well.
    """
    objective, layout = best
    peers, number, seen = len(problem.forward), 0, 0
    neighbours = Neighbours(layout, peers, paced=problem.paced, any_depth=any_counts and any_depth)
    while seen < neighbours.count and not budget.spent():
        change = neighbours.change(number % neighbours.count)
        number, seen = number + 1, seen + 1
        if change is None or max(change.counts) > problem.micro_batches:
            continue
        if change.counts != layout.counts and not any_counts:
            continue
        budget.spend(1)
        found = priced(problem, layout, change)
        if found is None or found.seconds >= objective:
            continue  # what moving takes only comes on top
        better = objective_of(found.layout)
        if better < (1 - ALIKE) * objective:
            objective, layout, seen = better, found.layout, 0
            neighbours = Neighbours(layout, peers, paced=problem.paced, any_depth=any_counts and any_depth)
            yield objective, layout
