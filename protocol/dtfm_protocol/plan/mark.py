"""Names of states of the model, and of parts of them."""

from typing import Annotated

from pydantic import Field

from dtfm_protocol.bounds import MOST_UINT32, Step, Version
from dtfm_protocol.job.resolved_job import Sha256
from dtfm_protocol.schema import Schema

LayerRange = tuple[Annotated[int, Field(ge=0, le=MOST_UINT32)], Annotated[int, Field(gt=0, le=MOST_UINT32)]]
"""A run of decoder layers, `[first, end)`."""


class Mark(Schema):
    """The name of a state of the model: the one after `step`, which plan `plan` made final.

    A step may be run again under a later plan; what the two lead to differs in rounding, so it is not the same state.
    """

    step: Step = 0
    plan: Version = 0

    @property
    def order(self) -> tuple[int, int]:
        """The key by which states are compared: later states are greater."""
        return self.step, self.plan

    def __str__(self) -> str:
        return f"step {self.step} (plan {self.plan})"


class StateDigest(Schema):
    """The digest of a part of a state: one hash of all its tensors (`digest_of_state`)."""

    mark: Mark
    layers: LayerRange
    """Decoder layers `[first, end)` of the stage whose part it is."""
    digest: Sha256
