"""The compute of a stage, counted in decoder layers: what a micro-batch takes there, of which some may not be trained.

Of what is not trained no gradient of weights is computed, and before the first parameter that is trained none at all.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StageCompute(NamedTuple):
    """The compute of a stage on one micro-batch, as multiples of a layer that is trained."""

    forward: float
    through: float
    """Multiple of the backward without the gradients of weights."""
    weight: float
    """Multiple of the gradients of weights."""


def untrained_prefix(trained: Sequence[bool], *, embedding: bool) -> int:
    """Return the number of layers before the first parameter that is trained.

    Args:
        trained: whether anything of each layer is trained.
        embedding: whether anything of what comes before the layers is.
    """
    return 0 if embedding else next((number for number, one in enumerate(trained) if one), len(trained))


def stage_compute(
    first: int, end: int, trained: Sequence[bool], head_layers: float, *, embedding: bool, head: bool
) -> StageCompute:
    """Return the compute of the stage of layers `[first, end)`.

    Args:
        trained: whether anything of each layer of the model is trained.
        head_layers: compute of the head and the loss, as a multiple of a layer's.
        embedding: whether anything of what comes before the layers is trained.
        head: whether anything of what follows them is.
    """
    beyond = head_layers if end == len(trained) else 0.0
    idle = min(untrained_prefix(trained, embedding=embedding), end) if first == 0 else 0
    return StageCompute(
        forward=end - first + beyond,
        through=end - first - idle + beyond,
        weight=sum(trained[first:end]) + (beyond if head else 0.0),
    )
