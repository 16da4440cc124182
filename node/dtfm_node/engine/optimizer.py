"""Optimizer that swarm and `solo` share, the gradient clip, and their state by name."""

import math
from collections.abc import Iterable, Iterator

import torch

MOMENTS = ("exp_avg", "exp_avg_sq")
_CHUNK = 1 << 20
"""Number of values that are widened to fp64 at a time."""


def make_optimizer(parameters: dict[str, torch.nn.Parameter], weight_decay: float) -> torch.optim.AdamW:
    """Return an AdamW with weight decay on matrices only; its learning rate is to be set at every step.

    It is fused where there is a kernel for that: one pass over weights, gradients and moments instead of a dozen.
    """
    matrices = [parameter for _, parameter in sorted(parameters.items()) if parameter.ndim >= 2]
    vectors = [parameter for _, parameter in sorted(parameters.items()) if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = all(parameter.device.type in {"cpu", "cuda"} for parameter in parameters.values())
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=0.0, betas=(0.9, 0.95), eps=1e-8, fused=fused
    )


def sum_of_squares(values: torch.Tensor) -> float:
    """Return the sum of squares of all values, computed in fp64 without a copy of the whole."""
    return math.fsum(float(chunk.cpu().double().square().sum()) for chunk in values.reshape(-1).split(_CHUNK))


def clip_factor(grad_norm: float, clip_norm: float) -> float:
    """Return the factor by which gradients are multiplied so that their global norm stays within `clip_norm` (0: no
    clipping)."""
    return min(1.0, clip_norm / (grad_norm + 1e-6)) if clip_norm > 0 else 1.0


def state_tensors(
    parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights and moments as a checkpoint names them: "weight/NAME", "exp_avg/NAME", "exp_avg_sq/NAME"."""
    for name, parameter in sorted(parameters.items()):
        yield f"weight/{name}", parameter.detach()
        for moment in MOMENTS:
            if moment in optimizer.state.get(parameter, {}):
                yield f"{moment}/{name}", optimizer.state[parameter][moment]


def set_step(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, step: int) -> None:
    """Set the number of steps that the moments of a parameter have seen."""
    # The fused kernel reads the count where the parameter is, the other one on the CPU.
    where = parameter.device if optimizer.defaults["fused"] else torch.device("cpu")
    optimizer.state[parameter]["step"] = torch.tensor(float(step), device=where)


def load_tensor(
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    step: int,
    key: str,
    value: torch.Tensor,
) -> None:
    """Put one tensor of the state after `step`, named as in a checkpoint, in its place."""
    kind, _, name = key.partition("/")
    parameter = parameters[name]
    if kind == "weight":
        with torch.no_grad():
            parameter.copy_(value)
        return
    state = optimizer.state[parameter]
    if "step" not in state:
        set_step(optimizer, parameter, step)
    state[kind] = value.to(parameter.device, parameter.dtype).clone()


def state_keys(names: Iterable[str], step: int) -> tuple[str, ...]:
    """Return the keys that a checkpoint of `step` holds for the parameters `names`; step 0 has no moments."""
    kinds = ("weight", *MOMENTS) if step > 0 else ("weight",)
    return tuple(f"{kind}/{name}" for name in sorted(names) for kind in kinds)
