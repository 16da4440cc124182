"""Learning rate of a step: a linear warm-up to its peak, then one of a few schedules down to a floor. Pure.

Sums, products and quotients in fp64 alone, in a stated order: the C library's cosine differs between systems in its
last bit, and the weights of replicas would follow it.
"""

import math
from typing import Literal

RateSchedule = Literal["cosine", "linear", "constant", "warmup-stable-decay"]
"""Name of a schedule: how the learning rate falls after warm-up."""


def learning_rate_of(
    step: int, peak: float, schedule: RateSchedule, *, warmup: int, end: int, floor: float, decay: int
) -> float:
    """Return the learning rate of a step.

    Args:
        step: the step, from 1.
        peak: the rate that warm-up leads to.
        schedule: "cosine" falls as half a period of one (Loshchilov and Hutter, arXiv 1608.03983), "linear" along a
            line; "constant" does not; "warmup-stable-decay" keeps the peak, and falls along a line in the last `decay`
            steps (Hu et al., arXiv 2404.06395).
        warmup: steps in which it rises along a line.
        end: step at which it has come down to its floor, where it stays.
        floor: the lowest rate, as a share of the peak.
        decay: steps of the fall of "warmup-stable-decay"; the others fall from `warmup` to `end`.
    """
    if step < warmup:
        return peak * step / warmup
    if schedule == "constant":
        return peak
    begin = end - decay if schedule == "warmup-stable-decay" else warmup
    progress = min(1.0, max(0, step - begin) / max(1, end - begin))
    if schedule == "cosine":
        root = _cosine(progress * math.pi / 2)
        return peak * (floor + (1.0 - floor) * root * root)
    return peak * (floor + (1.0 - floor) * (1.0 - progress))


def _cosine(angle: float) -> float:
    """Return the cosine of an angle in [0, pi/2], to 1e-15."""
    result, square = 1.0, angle * angle
    for power in range(24, 0, -2):
        result = 1.0 - result * square / (power * (power - 1))
    return result
