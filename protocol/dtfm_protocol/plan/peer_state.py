"""Where a peer stands: under which plans it may still act, and which states of the model it holds."""

from typing import Annotated

from pydantic import Field

from dtfm_protocol.identity.keys import PeerName
from dtfm_protocol.schema import Schema

LayerRange = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0)]]
"""Decoder layers `[first, end)`."""
Version = Annotated[int, Field(ge=0)]
HOLDINGS_LIMIT = 32


class Mark(Schema):
    """Names a state of the model: that after `step`, which plan `plan` made final.

    A step may be run again under a later plan; what the two lead to differs in rounding, so it is not the same state.
    """

    step: Annotated[int, Field(ge=0)] = 0
    plan: Version = 0

    @property
    def order(self) -> tuple[int, int]:
        """Later states are greater."""
        return self.step, self.plan

    def __str__(self) -> str:
        return f"step {self.step} (plan {self.plan})"


class Holding(Schema):
    """A part of a state that a peer can give to others."""

    mark: Mark
    layers: LayerRange
    """Decoder layers `[first, end)`; with the first one goes the embedding, with the last one norm and head."""
    live: bool = False
    """Whether it is in the peer's memory, and not a file."""
    norm: float | None = None
    """The gradient norm with which its last step was applied: what others need to apply it, too."""
    prepared: Mark | None = None
    """What it becomes when the reduced gradients that are held are applied."""


class Promise(Schema):
    """What a peer has bound itself to; on disk before anyone hears of it, so that it outlives the peer's process.

    Promises make a new plan the only one: a peer acts under no plan older than `version`, and takes a plan of that
    version from `to` alone. A peer that still acts under an older one stops first, and then promises.
    """

    version: Version = 0
    to: PeerName = ""
    """The coordinator that called for the version."""
    accepted: Version = 0
    """The newest plan that was taken; it binds once most of its electors have taken it."""


class PeerState(Schema):
    """All that a new plan must know of a peer."""

    promise: Promise = Promise()
    holdings: Annotated[tuple[Holding, ...], Field(max_length=HOLDINGS_LIMIT)] = ()
