"""What happens in a simulated training step, and when: for charts, and to say where the time goes."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from dtfm_coordinator.allocator.step.step_cost import StepCost

SpanKind = Literal["forward", "backward", "weight", "optimizer"]
TransferKind = Literal["activation", "gradient", "all-reduce"]


class SimulatedSpan(NamedTuple):
    """One piece of compute; times in seconds since the step began."""

    peer: str
    kind: SpanKind
    micro_batch: int | None
    """None for the optimizer."""
    start: float
    end: float


class Transfer(NamedTuple):
    """One message; times in seconds since the step began, `ready <= start <= end <= arrival`."""

    sender: str
    receiver: str
    kind: TransferKind
    micro_batch: int | None
    """None in an all-reduce."""
    bytes: float
    ready: float
    """When it was handed over; until `start` it waits for earlier messages of its link."""
    start: float
    end: float
    """When its last byte left; from `start` on it shares uplink and downlink with other links' messages."""
    arrival: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """One training step played out. What cannot happen, behind a pair that cannot talk, is missing."""

    cost: StepCost
    compute: tuple[SimulatedSpan, ...]
    """By start."""
    transfers: tuple[Transfer, ...]
    """By start."""
    last_backward: float
    """When the last backward ends, seconds; where weights come apart, the last of both."""
    committed: float
    """When the last peer learns of the commit, seconds."""
