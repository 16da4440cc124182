"""AdamW (Loshchilov and Hutter, arXiv 1711.05101), with the bits that are the same on every device."""

import functools
import math
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import torch

from dtfm_node.engine.elementwise_update import ElementwiseUpdate, Tensors, UpdateSettings, fp32
from dtfm_protocol.checkpoint.state_slots import ADAMW


@dataclass(frozen=True)
class AdamWScalars:
    """Factors of one update."""

    kept_mean: torch.Tensor
    """Factor of the first moment."""
    to_mean: torch.Tensor
    """Factor of the gradient that goes to the first moment; the clip is in it."""
    kept_square: torch.Tensor
    """Factor of the second moment."""
    to_root: torch.Tensor
    """Factor of the gradient whose square goes to the second moment; the clip is in it."""
    epsilon: torch.Tensor
    """Summand of the second moment's root; the second moment's bias is in it."""
    rate: torch.Tensor
    """Factor of the quotient; both moments' biases are in it."""
    kept_weight: torch.Tensor
    """Factor of the weights that decay: what that leaves of them."""

    @functools.cached_property
    def numbers(self) -> tuple[np.float32, ...]:
        """All of them, in order, for `compiled_adamw`."""
        return tuple(np.float32(getattr(self, field.name).item()) for field in fields(self))


class AdamW(ElementwiseUpdate):
    """AdamW, with the biases of both moments moved into two scalars, as section 2 of Adam's paper (arXiv 1412.6980) has
    it."""

    table = ADAMW
    signed: ClassVar = {"exp_avg": True, "exp_avg_sq": False}

    @staticmethod
    def scalars(step: int, learning_rate: float, clip: float, settings: UpdateSettings) -> AdamWScalars:
        """Compute the factors of `step`, counted from 1, for gradients that are to be multiplied by `clip`."""
        first, second = settings.betas
        unbiased, root = 1.0 - _power(first, step), math.sqrt(1.0 - _power(second, step))
        return AdamWScalars(
            kept_mean=fp32(first),
            to_mean=fp32(clip * (1.0 - first)),
            kept_square=fp32(second),
            to_root=fp32(clip * math.sqrt(1.0 - second)),
            epsilon=fp32(settings.eps * root),
            rate=fp32(learning_rate * root / unbiased),
            kept_weight=fp32(1.0 - learning_rate * settings.weight_decay),
        )

    @staticmethod
    def advance(tensors: Tensors, room: torch.Tensor, scalars: AdamWScalars, *, decays: bool) -> None:
        """Update some values, as `ElementwiseUpdate.advance`."""
        weight, gradient, mean, square = tensors
        if weight.device.type == "cpu":
            _advance_on_cpu(tensors, scalars, decays=decays)
            return
        torch.mul(gradient, scalars.to_mean, out=room)
        mean.mul_(scalars.kept_mean)
        mean.add_(room)
        torch.mul(gradient, scalars.to_root, out=room)
        room.mul_(room)
        square.mul_(scalars.kept_square)
        square.add_(room)
        torch.sqrt(square, out=room)
        room.add_(scalars.epsilon)
        torch.div(mean, room, out=room)
        room.mul_(scalars.rate)
        if decays:
            weight.mul_(scalars.kept_weight)
        weight.sub_(room)


def _advance_on_cpu(tensors: Tensors, scalars: AdamWScalars, *, decays: bool) -> None:
    # Loaded when the first update wants it: numba takes half a second, and a GPU's node needs none of it.
    from dtfm_node.engine.compiled_adamw import advance

    advance(*(values.numpy() for values in tensors), *scalars.numbers, decays)


def load_compiled() -> None:
    """Load now what the first update on a processor would."""
    import dtfm_node.engine.compiled_adamw  # noqa: F401


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by products alone: the C library's power differs between systems in its last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
