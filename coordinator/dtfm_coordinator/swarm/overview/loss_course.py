"""Course of the loss for people: whether it goes down, rises, or is not finite any more, and what to do. Pure."""

from typing import NamedTuple, Self

from dtfm_coordinator.records.step_history import LATELY, StepHistory
from dtfm_coordinator.swarm.overview.overview import Storage

RISEN_TIMES = 1.25
RISEN_BY = 0.25
"""A loss of late that is greater than so many times the lowest one, and so many nats, has risen: noise, a first
evaluation or a warm-up do not do that."""

SPOILT = (
    "Weights that are spoilt stay so, whatever the settings: `dtfm-coordinator fork NEW.toml --from STATE_DIR@STEP` "
    "begins a new run with those of an earlier checkpoint"
)
LOWER = "A lower rate (`dtfm-coordinator set training.learning_rate=...`) helps as long as the weights are sound."


class LossCourse(NamedTuple):
    """The way that the loss has come."""

    lowest: float = 0.0
    """The lowest loss of late so far, in nats."""
    at: int = 0
    """The step at which that was; 0: there are too few steps."""
    lately: float = 0.0
    """The loss of late, in nats."""
    has_diverged: bool = False
    """Whether the loss or a gradient is not finite any more, and that is believed."""
    checkpoints: tuple[int, ...] = ()
    """Steps of the checkpoints on the coordinator's disk, newest first."""

    @classmethod
    def of(cls, history: StepHistory, storage: Storage, *, has_diverged: bool) -> Self:
        """Return the course of a run's loss."""
        checkpoints, lately = tuple(one.step for one in storage.checkpoints), history.lately
        if history.lowest is None or lately is None:
            return cls(has_diverged=has_diverged, checkpoints=checkpoints)
        return cls(*history.lowest, lately, has_diverged, checkpoints)

    @property
    def rises(self) -> bool:
        """Whether the loss has risen far above the lowest one."""
        return bool(self.at) and self.lately > max(self.lowest * RISEN_TIMES, self.lowest + RISEN_BY)

    @property
    def risen_in_words(self) -> str:
        """From what to what the loss has risen."""
        return f"from {self.lowest:.3g} at step {self.at:,} to {self.lately:.3g}"

    @property
    def advice(self) -> str:
        """What to do about a loss that rises, or is not finite; "" about one that does neither."""
        if not (self.rises or self.has_diverged):
            return ""
        # A step's loss is that of the weights before it, and of the steps of late some may be higher already.
        sound = (step for step in self.checkpoints if step <= self.at - LATELY)
        good = next(sound, None) if self.rises else None
        if good is None:
            return f"{LOWER} {SPOILT}."
        keep = f"; that after step {good} is from before the loss rose, and `dtfm-coordinator checkpoints keep {good}`"
        return f"{LOWER} {SPOILT}{keep} has it stay."


UNKNOWN = LossCourse()
"""Course of a run of which there are too few steps."""
