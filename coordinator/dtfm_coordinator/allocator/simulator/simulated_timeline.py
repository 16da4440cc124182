"""Timeline of a simulated training step, for charts, and to say where the time goes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds

SpanKind = Literal["forward", "backward", "weight", "optimizer"]
TransferKind = Literal["activation", "gradient", "all-reduce", "tied all-reduce"]
REDUCTIONS: tuple[TransferKind, ...] = ("all-reduce", "tied all-reduce")
"""Kinds of messages that reduce gradients: of a stage's own among its replicas, and of the matrix that first and last
stage share among the peers of both."""


class SimulatedSpan(NamedTuple):
    """Piece of compute; times in seconds since the step began."""

    peer: str
    kind: SpanKind
    micro_batch: int | None
    """Micro-batch that is computed; None for the optimizer."""
    start: float
    end: float


class BucketPart(NamedTuple):
    """Part of a bucket of gradients that a message of a reduction carries."""

    bucket: int
    owner: int
    """Place of the part's owner among the holders."""
    is_total: bool
    """Whether it is the sum over all holders; else over those below the sender in the part's tree."""


class Transfer(NamedTuple):
    """Message between two peers; times in seconds since the step began, `ready <= start <= end <= arrival`."""

    sender: str
    receiver: str
    kind: TransferKind
    micro_batch: int | None
    """Micro-batch to which it belongs; None in an all-reduce."""
    bytes: float
    ready: float
    """Time when it was handed over; until `start` it waits for earlier messages of its link."""
    start: float
    end: float
    """Time when its last byte left; from `start` on it shares uplink and downlink with other links' messages."""
    arrival: float
    part: BucketPart | None = None
    """Part of an all-reduce that it carries."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """Training step played out. What cannot happen, behind a pair that cannot talk, is missing."""

    cost: PredictedSeconds
    compute: tuple[SimulatedSpan, ...]
    """Compute of all peers, by start."""
    transfers: tuple[Transfer, ...]
    """Messages that crossed a link, by start."""
    last_backward: float
    """Seconds when the last backward ends; where weights are an action of their own, the last of both."""
    committed: float
    """Seconds when the last peer learns of the commit."""
    begun: Mapping[tuple[str, TransferKind, int], float]
    """Seconds when each peer began each bucket of each of its reductions."""
