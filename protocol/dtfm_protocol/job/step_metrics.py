"""One row of `metrics.jsonl`: what a committed step was."""

from typing import Annotated

from pydantic import Field

from dtfm_protocol.schema import Schema


class StepMetrics(Schema):
    """A committed training step; the same on every peer that took part."""

    step: Annotated[int, Field(gt=0)]
    """From 1."""
    loss: float
    """Mean over all target tokens of the global batch."""
    tokens: int
    """Target tokens of this step."""
    seconds: float
    """From the commit before (or from the plan's start) to this one, the optimizer included; evaluations left out."""
    plan_version: int
    """0 under `dtfm-node solo`."""
    learning_rate: float
    grad_norm: float
    """Of the whole model, before clipping."""
    predicted_seconds: float | None
    """What the plan's cost said; null where no plan is in force."""
    bytes_sent: Annotated[int, Field(ge=0)] = 0
    """What all peers together sent each other for this step, headers included; 0 under `dtfm-node solo`."""
    eval_loss: float | None = None
    """Mean over the target tokens of the evaluation sequences, after this step; null when not evaluated."""

    def line(self, steps: int) -> str:
        """The row for people, of a job of so many steps."""
        evaluated = f", eval loss {self.eval_loss:.4f}" if self.eval_loss is not None else ""
        rate = self.tokens / max(self.seconds, 1e-9)
        return f"step {self.step}/{steps}: loss {self.loss:.4f}{evaluated}, {rate:.0f} tokens/s, {self.seconds:.2f} s"
