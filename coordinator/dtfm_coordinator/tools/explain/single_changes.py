"""Single changes of a plan, and how long a step would be with each: why these peers stand where they stand."""

from dataclasses import dataclass

from dtfm_coordinator.allocator.best_changes import best_changes
from dtfm_coordinator.allocator.search.neighbours import ALIKE
from dtfm_coordinator.allocator.workload import Workload
from dtfm_coordinator.tools.formatting import named
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View


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


def single_changes(plan: Plan, view: View, work: Workload, total: float) -> TriedChanges:
    """Return the best single change of each kind, as `best_changes` finds them, in words.

    Args:
        total: seconds of a step of the plan, exactly simulated.
    """
    found, names = best_changes(plan, view, work, view.ids), list(map(named, view.ids))
    told = [
        SingleChange(one.change.words.format(*names), one.seconds)
        for one in sorted(found.best, key=lambda one: one.seconds)
        if abs(one.seconds - total) > ALIKE * total
    ]
    return TriedChanges(tuple(told), found.looked_at, found.is_all)
