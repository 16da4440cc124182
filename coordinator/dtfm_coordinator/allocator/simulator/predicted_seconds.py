"""Cost of one training step: its predicted seconds, in parts that add up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictedSeconds:
    """Predicted seconds of one training step; infinite where a pair that cannot talk would have to."""

    compute: float
    """Seconds of the busiest peer's actions."""
    pipeline: float
    """Seconds from the step's start to the end of its last action, less `compute`: what messages and waiting add."""
    data_parallel: float
    """Seconds from then until every peer holds the reduced gradients and the commit: what the all-reduce adds to what
    it could hide behind other stages' actions."""
    optimizer: float = 0.0
    """Seconds of the slowest peer's optimizer step."""

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.compute + self.pipeline + self.data_parallel + self.optimizer
