"""Words for people on a committed step, and on how far the training is with it. Pure."""

from collections.abc import Collection
from statistics import median

from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.process.quantities import time_in_words

PACE_STEPS = 20
"""Steps, the newest ones, that tell how long the rest takes."""


SETTLED_STEPS = 5
"""Steps whose median is the usual time; of fewer, the shortest comes closer, as the first ones of a run take longer."""


def usual_seconds(seconds: Collection[float]) -> float:
    """Return the usual seconds of a step, by those of the newest ones, of which there is one at least."""
    return median(seconds) if len(seconds) >= SETTLED_STEPS else min(seconds)


def step_in_words(row: StepMetrics, steps: int, seconds: Collection[float]) -> str:
    """Return how far the training is after the step `row`, of `steps` in all.

    Args:
        seconds: seconds of the newest steps, which tell how long the rest takes; none: that is not known.
    """
    told = f"Step {row.step:,} of {steps:,}"
    rest = steps - row.step
    if rest > 0 and seconds:
        left = rest * usual_seconds(seconds)
        told += f", {'' if left < 60 else 'about '}{time_in_words(left)} left"
    if not row.tokens:
        return f"{told}. Nothing is learned: no token of its documents is a target."
    evaluated = f", on held-out text {row.eval_loss:.4f}" if row.eval_loss is not None else ""
    if row.sets:
        evaluated += f" ({', '.join(f'{one.name} {one.loss:.4f}' for one in row.sets)})"
    return f"{told}. Loss {row.loss:.4f}{evaluated}; {row.tokens / max(row.seconds, 1e-9):,.0f} tokens/s."
