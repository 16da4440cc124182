"""The metrics of a committed step: one row of `metrics.jsonl`."""

import math
from operator import not_
from typing import Annotated, Self

from pydantic import Field

from dtfm_protocol.bounds import MOST_AMOUNT, MOST_UINT32, Count, Loss, Norm, Seconds, Time, Version
from dtfm_protocol.job.evaluation_set import MOST_SETS, SetName
from dtfm_protocol.schema import Message

MOST_EXPONENT = math.log(MOST_AMOUNT)
"""Loss of the largest perplexity that is told."""


class SetMetrics(Message):
    """The metrics of one set of an evaluation."""

    name: SetName
    """Name of the set, as the job has it."""
    loss: Loss
    """Mean loss over its target tokens, in nats."""
    perplexity: Annotated[float, Field(ge=0, le=MOST_AMOUNT)]
    """e to the power of the loss."""
    accuracy: Annotated[float, Field(ge=0, le=1)]
    """Share of its target tokens that the model foretold as the likeliest ones."""
    tokens: Count
    """Its target tokens."""

    def __str__(self) -> str:
        return f"loss {self.loss:.4f}, perplexity {self.perplexity:,.4g}, {self.accuracy:.1%} of tokens foretold"

    @classmethod
    def of(cls, name: str, loss: float, right: int, tokens: int) -> Self:
        """Return the metrics of a set by its sums over so many target tokens, of which there is one at least."""
        mean = loss / tokens
        perplexity = math.exp(min(mean, MOST_EXPONENT - 1e-9))
        return cls(name=name, loss=mean, perplexity=perplexity, accuracy=right / tokens, tokens=tokens)


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
    sets: tuple[SetMetrics, ...] = Field(default=(), max_length=MOST_SETS, exclude_if=not_)
    """Metrics of each of the job's sets, after this step; left out where there are none, or none were evaluated. Their
    mean loss over all target tokens is `eval_loss`."""
    at: Time | None = None
    """Unix seconds when the step was final, by the clock of whoever reported it; null in files of earlier versions."""
