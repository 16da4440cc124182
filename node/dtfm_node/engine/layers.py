"""Ways to run a stage's decoder layers: plainly, with activations recomputed, or compiled."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtfm_protocol.errors import UserError
from dtfm_protocol.model.stage import Stage


def recompute(stage: Stage) -> None:
    """Have every layer keep only its input for the backward, and compute the rest again there (Chen et al., 2016)."""
    for layer in stage.layers():
        _recompute(layer)


def _recompute(layer: nn.Module) -> None:
    plain = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        return checkpoint(plain, *args, use_reentrant=False, **kwargs)

    layer.forward = forward


def compile_layers(stage: Stage) -> None:
    """Have `torch.compile` make kernels of every layer when it first runs."""
    for layer in stage.layers():
        layer.compile()


def check_compiler(device: torch.device) -> None:
    """Try `torch.compile` on a small layer.

    Raises:
        UserError: it does not work on this machine.
    """
    try:
        torch.compile(torch.nn.Linear(4, 4).to(device))(torch.zeros(2, 4, device=device)).sum().backward()
    except Exception as error:  # noqa: BLE001 - compilers fail in any way
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise UserError(
            f"--compile: torch cannot compile here ({reason}): install a C++ compiler, or leave it out"
        ) from None
