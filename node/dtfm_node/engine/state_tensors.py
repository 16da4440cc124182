"""Tensors of a state, weights and moments, by the names that checkpoints give them."""

from collections.abc import Iterable, Iterator

import torch

from dtfm_node.engine.adamw import MOMENTS, AdamW


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
