"""SGD with momentum, as `torch.optim.SGD` has it, with the bits that are the same on every device."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from dtfm_node.engine.elementwise_update import ElementwiseUpdate, Tensors, UpdateSettings, fp32
from dtfm_protocol.checkpoint import state_slots


@dataclass(frozen=True)
class SGDScalars:
    """Factors of one update."""

    clip: torch.Tensor
    """Factor of the gradient."""
    decay: torch.Tensor
    """Share of a weight that is added to its gradient."""
    momentum: torch.Tensor
    """Factor of what is kept of the gradients before."""
    rate: torch.Tensor
    """Factor of the momentum that is taken off the weight."""


class SGD(ElementwiseUpdate):
    """SGD with momentum, not dampened, of Sutskever et al. (ICML 2013) without Nesterov's change: the momentum is the
    gradient, with the decayed weight, plus a share of what it was, and goes off the weight times the learning rate."""

    table = state_slots.SGD
    signed: ClassVar = {"momentum_buffer": True}

    @staticmethod
    def scalars(step: int, learning_rate: float, clip: float, settings: UpdateSettings) -> SGDScalars:
        """Compute the factors of a step, for gradients that are to be multiplied by `clip`."""
        return SGDScalars(fp32(clip), fp32(settings.weight_decay), fp32(settings.momentum), fp32(learning_rate))

    @staticmethod
    def advance(tensors: Tensors, room: torch.Tensor, scalars: SGDScalars, *, decays: bool) -> None:
        """Update some values, as `ElementwiseUpdate.advance`."""
        weight, gradient, momentum = tensors
        momentum.mul_(scalars.momentum)
        torch.mul(gradient, scalars.clip, out=room)
        momentum.add_(room)
        if decays:
            torch.mul(weight, scalars.decay, out=room)
            momentum.add_(room)
        torch.mul(momentum, scalars.rate, out=room)
        weight.sub_(room)
