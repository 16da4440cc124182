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
