"""The metrics of a committed step: one row of `metrics.jsonl`."""

from typing import Annotated

from pydantic import Field

from dtfm_protocol.bounds import MOST_UINT32, Count, Loss, Norm, Seconds, Time, Version
from dtfm_protocol.schema import Message


class StepMetrics(Message):
    """The metrics of a committed training step; but for the time, the same on every peer that took part."""

    step: Annotated[int, Field(gt=0, le=MOST_UINT32)]
    """Number of the step, from 1."""
    loss: Loss
    """Mean loss over all target tokens of the global batch, in nats; 0 where there is none."""
    tokens: Count
    """Target tokens of this step; 0: no token of its documents is one, and nothing was learned."""
    seconds: Seconds
    """Seconds from the commit before (or from the plan's start) to this one, the optimizer included; evaluations left
    out."""
    plan_version: Version
    """The plan under which the step was made; 0 under `dtfm-node solo`."""
    learning_rate: float
    grad_norm: Norm
    """Norm of the whole model's gradient, before clipping."""
    predicted_seconds: float | None
    """Seconds that the plan's cost said the step would take; null where no plan is in force."""
    bytes_sent: Count = 0
    """Bytes that all peers together sent each other for this step, headers included; 0 under `dtfm-node solo`."""
    eval_loss: Loss | None = None
    """Mean loss over the target tokens of the evaluation, after this step, in nats; null when not evaluated."""
    at: Time | None = None
    """Unix seconds when the step was final, by the clock of whoever reported it; null in files of earlier versions."""
