"""Pace of steps beside what the plan said of it, in words for people. Pure."""

from collections.abc import Sequence
from statistics import median

from dtfm_coordinator.swarm.overview.spoken_numbers import duration
from dtfm_protocol.job.step_metrics import StepMetrics

FASTER, SLOWER = 3.0, 2.0
"""How many times faster, or slower, than the plan said steps may be before that is worth a word."""
ENOUGH = 5
"""Steps under one plan by which its prediction is judged: the first ones of a run take longer."""


def pace_in_words(rows: Sequence[StepMetrics], *, is_over: bool = False) -> str:
    """Return in sentences that steps are much faster or slower than their plan said, and what that means; "": they are
    not, or there are too few.

    Args:
        rows: the newest steps, oldest first.
        is_over: whether the run has ended.
    """
    newest = rows[-1] if rows else None
    mine = [row for row in rows if newest is not None and row.plan_version == newest.plan_version]
    if newest is None or not newest.predicted_seconds or len(mine) < ENOUGH:
        return ""
    usual, planned = median(row.seconds for row in mine), newest.predicted_seconds
    takes = "took" if is_over else "takes"
    if usual * FASTER <= planned:
        said = (
            f"A step {takes} {duration(usual)}, far less than the {duration(planned)} that were planned: a machine was "
            "busy with something else while it was measured."
        )
        anew = " Once it has left and joined again, it is measured anew, and the work may be divided better."
        return said if is_over else said + anew
    if usual >= SLOWER * planned:
        return (
            f"A step {takes} {duration(usual)}, far more than the {duration(planned)} that were planned: a machine or "
            "a link was slower than when it was measured."
        )
    return ""
