"""Cost of a change of plan: the seconds for which everybody stands still, as those before it have shown. Pure."""

from collections.abc import Sequence

from dtfm_coordinator.records.event_log import PlanEvent

USUAL_SECONDS = 2.0
"""Seconds of a change of which nothing is known yet: the step under way ends, all promise, stages are built."""
NEWEST = 5
"""Number of changes that tell what the next one costs."""


def standstill_seconds(events: Sequence[PlanEvent]) -> float:
    """Return the seconds for which peers stand still from one plan to the next, besides what moving state takes.

    That is the shortest of the newest changes: it had the least to move.

    Args:
        events: changes of the run so far, oldest first; the first plan followed none, and does not count.
    """
    took = [event.started_at - event.called_at for event in events if event.plan > 1 and event.started_at]
    return max(0.0, min(took[-NEWEST:], default=USUAL_SECONDS))


def step_patience(elapsed: float, present: float, next_: float) -> float:
    """Return the seconds for which the step under way is waited for, before it is given up and done anew under the next
    plan; 0 where that is the quicker way.

    Whoever waits for no longer than doing it anew takes loses at most twice as much as with foresight: how long it
    still takes is not known, and the call may come too late for it, when another one has begun.

    Args:
        elapsed: seconds since it began.
        present: seconds of a step under the plan in force, as links are now.
        next_: seconds of a step under the next plan.
    """
    return 0.0 if present - elapsed > next_ else next_
