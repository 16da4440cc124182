"""The parts of a bucket of gradients that its holders sum, sized to their links.

Integers, so that every holder cuts a bucket at the same elements on any machine. A peer whose links are slow may have a
small part, or none: it then sends its gradients to those that sum, and is sent the sums.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dtfm_protocol.bounds import MOST_PEERS, MOST_STAGES
from dtfm_protocol.schema import Schema

WHOLE = 1 << 16
"""Number that the parts of a bucket add up to."""

Parts = Annotated[tuple[Annotated[int, Field(ge=0, le=WHOLE)], ...], Field(max_length=MOST_PEERS)]
"""Parts of a bucket in 65536ths, one for each holder, in the order of the sum; empty: all sum equally much."""


class SummedParts(Schema):
    """The parts of each reduction of a plan."""

    stages: Annotated[tuple[Parts, ...], Field(max_length=MOST_STAGES)]
    """Parts of each stage's replicas, in the order of `Plan.replicas`."""
    shared: Parts = ()
    """Parts of what first and last stage share, where embeddings are tied: those of the first stage's replicas, then
    those of the last one's."""

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        for name, parts in [*((f"stage {at + 1}", parts) for at, parts in enumerate(self.stages)), *self._ends()]:
            if parts and sum(parts) != WHOLE:
                raise ValueError(f"parts of {name} that add up to {sum(parts)}, not to {WHOLE}")
        return self

    def _ends(self) -> list[tuple[str, Parts]]:
        return [("what first and last stage share", self.shared)]

    def check(self, replicas: list[int]) -> None:
        """Check that these are the parts of a plan with so many replicas of each stage.

        Raises:
            ValueError: they are not.
        """
        if len(self.stages) != len(replicas):
            raise ValueError(f"parts: of {len(self.stages)} stages, for {len(replicas)}")
        for stage, (parts, count) in enumerate(zip(self.stages, replicas, strict=True)):
            if parts and len(parts) != count:
                raise ValueError(f"parts: {len(parts)} parts for the {count} peers of stage {stage + 1}")
        both = replicas[0] + replicas[-1] if len(replicas) > 1 else 0
        if self.shared and len(self.shared) != both:
            raise ValueError(f"parts: {len(self.shared)} shared parts for the {both} peers of first and last stage")
