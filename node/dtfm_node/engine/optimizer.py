"""Gradient norm and clip that swarm and `solo` share, and the state of weights and moments by name."""

import math
from collections.abc import Iterable, Iterator

import torch

from dtfm_node.engine.adamw import MOMENTS, AdamW

_CHUNK = 1 << 20
"""Number of values that are widened to fp64 at a time."""


def sum_of_squares(values: torch.Tensor) -> float:
    """Return the sum of squares of all values, computed in fp64 without a copy of the whole."""
    return math.fsum(float(chunk.cpu().double().square().sum()) for chunk in values.reshape(-1).split(_CHUNK))


def clip_factor(grad_norm: float, clip_norm: float) -> float:
    """Return the factor by which gradients are multiplied so that their global norm stays within `clip_norm` (0: no
    clipping)."""
    return min(1.0, clip_norm / (grad_norm + 1e-6)) if clip_norm > 0 else 1.0


def state_tensors(parameters: dict[str, torch.nn.Parameter], optimizer: AdamW) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights and moments as a checkpoint names them: "weight/NAME", "exp_avg/NAME", "exp_avg_sq/NAME"."""
    for name, parameter in sorted(parameters.items()):
        yield f"weight/{name}", parameter.detach()
        for moment in MOMENTS:
            if (key := f"{moment}/{name}") in optimizer.moments:
                yield key, optimizer.moments[key]


def load_tensor(parameters: dict[str, torch.nn.Parameter], optimizer: AdamW, key: str, value: torch.Tensor) -> None:
    """Put a copy of one tensor of a state, named as in a checkpoint, in its place."""
    kind, _, name = key.partition("/")
    parameter = parameters[name]
    if kind == "weight":
        with torch.no_grad():
            parameter.copy_(value)
    else:
        optimizer.moments[key] = value.to(parameter.device, parameter.dtype).clone()


def state_keys(names: Iterable[str], step: int) -> tuple[str, ...]:
    """Return the keys that a checkpoint of `step` holds for the parameters `names`; step 0 has no moments."""
    kinds = ("weight", *MOMENTS) if step > 0 else ("weight",)
    return tuple(f"{kind}/{name}" for name in sorted(names) for kind in kinds)
