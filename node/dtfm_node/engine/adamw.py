"""AdamW as elementwise IEEE arithmetic in a stated order: the same bits on every device.

Replicas of a stage take the same reduced bytes, and must stay bit-identical where one is a CPU and another a GPU. A
library's own AdamW may fuse a product and a sum into one rounding, or divide by multiplying, and which of it is chosen
depends on the device, on the vector unit, and on where a tensor ends. So the update is written here as single
operations, each of which IEEE 754 defines to the last bit: products, sums, differences, quotients and square roots of
fp32 tensors, without a reduction, and without a quotient by a scalar.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from dtfm_protocol.checkpoint.state_slots import ADAMW

BETAS = (0.9, 0.95)
"""Shares of the first and second moment that are kept at a step."""
EPSILON = 1e-8

_CPU_CHUNK = 1 << 17
"""Values that a thread updates at a time where it is alone: so few that four tensors' share and the scratch, 2.5 MiB,
stay in a cache between operations; so many that calls do not count. Another thread is worth its start for as many."""
_THREAD_CHUNK = (1 << 15) - 16
"""Values that each of several threads updates at a time: on more, torch would start threads of its own, which wait for
each other after every operation."""
_GPU_CHUNK = 1 << 21
"""Values that a GPU updates at a time: enough to keep it busy, and little beside the model."""

Tensors = Sequence[torch.Tensor]
"""Weight, gradient, first and second moment of a parameter or of some of its values, fp32 [elements] each."""


@dataclass(frozen=True)
class Scalars:
    """Factors of one update, fp32 [] on the CPU, where torch takes them for numbers: computed in fp64, and rounded by
    `of` alone."""

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
    """Factor of the weights of matrices: what decay leaves of them."""

    @classmethod
    def of(cls, step: int, learning_rate: float, clip: float, weight_decay: float) -> "Scalars":
        """Compute the factors of `step`, counted from 1, for gradients that are to be multiplied by `clip`."""
        first, second = BETAS
        unbiased, root = 1.0 - _power(first, step), math.sqrt(1.0 - _power(second, step))
        return cls(
            kept_mean=_fp32(first),
            to_mean=_fp32(clip * (1.0 - first)),
            kept_square=_fp32(second),
            to_root=_fp32(clip * math.sqrt(1.0 - second)),
            epsilon=_fp32(EPSILON * root),
            rate=_fp32(learning_rate * root / unbiased),
            kept_weight=_fp32(1.0 - learning_rate * weight_decay),
        )


class AdamW:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) of named fp32 parameters, with weight decay on matrices only.

    With the biases of both moments moved into two scalars, as section 2 of Adam's paper (arXiv 1412.6980) has it.
    """

    table = ADAMW
    """What training keeps for each parameter under this update."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], weight_decay: float) -> None:
        self._parameters, self._weight_decay = parameters, weight_decay
        self.moments: dict[str, torch.Tensor] = {}
        """Tensors of the table's moments by key, "SLOT/NAME", each of its parameter's shape and on its device; none
        before the first step."""

    @torch.no_grad()
    def update(self, step: int, learning_rate: float, clip: float = 1.0, weight_decay: float | None = None) -> None:
        """Make weights and moments those after `step`, counted from 1, by gradients that count `clip` times.

        Gradients stay as they are. Parameters without one are left alone.

        Args:
            weight_decay: that of this step; None: the one given at first.
        """
        scalars = Scalars.of(step, learning_rate, clip, self._weight_decay if weight_decay is None else weight_decay)
        work = [
            (self._tensors(name, parameter.grad), parameter.ndim >= 2)
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        ]
        if not work:
            return
        device, elements = work[0][0][0].device, sum(len(tensors[0]) for tensors, _ in work)
        if device.type != "cpu":
            _update(work, _Share(0, 1, _GPU_CHUNK), scalars)
        elif (threads := min(torch.get_num_threads(), elements // _CPU_CHUNK)) > 1:
            with ThreadPoolExecutor(threads, "update") as pool:
                shares = [_Share(index, threads, _THREAD_CHUNK) for index in range(threads)]
                for future in [pool.submit(_update, work, share, scalars) for share in shares]:
                    future.result()
        else:
            _update(work, _Share(0, 1, _CPU_CHUNK), scalars)

    def _tensors(self, name: str, gradient: torch.Tensor) -> Tensors:
        parameter = self._parameters[name].detach()
        keys = [f"{slot.name}/{name}" for slot in self.table.moments]
        for key in keys:
            if key not in self.moments:
                self.moments[key] = torch.zeros_like(parameter)
        moments = [self.moments[key].view(-1) for key in keys]
        return parameter.view(-1), gradient.reshape(-1), *moments


@dataclass(frozen=True)
class _Share:
    """What one thread does of an update."""

    index: int
    count: int
    """Number of shares."""
    most: int
    """Values that it updates at a time."""


def _update(work: Sequence[tuple[Tensors, bool]], share: _Share, scalars: Scalars) -> None:
    """Update a share of `work`, which holds each parameter's tensors and whether it decays: every so-manieth of the
    small parameters, and a run of values of each large one."""
    scratch = torch.empty(share.most, device=work[0][0][0].device)
    for number, (tensors, decays) in enumerate(work):
        elements = len(tensors[0])
        if elements <= share.most:
            if number % share.count == share.index:
                _advance(tensors, scratch[:elements], scalars, decays=decays)
            continue
        first, end = (elements * index // share.count for index in (share.index, share.index + 1))
        for pieces in zip(*(tensor[first:end].split(share.most) for tensor in tensors), strict=True):
            _advance(pieces, scratch[: len(pieces[0])], scalars, decays=decays)


def _advance(tensors: Tensors, room: torch.Tensor, scalars: Scalars, *, decays: bool) -> None:
    """Update some values through `room`, fp32 [elements] as they are, whose contents do not matter.

    Each line is one rounding of each value, and their order is part of what replicas agree on.
    """
    weight, gradient, mean, square = tensors
    torch.mul(gradient, scalars.to_mean, out=room)
    mean.mul_(scalars.kept_mean)
    mean.add_(room)
    torch.mul(gradient, scalars.to_root, out=room)
    room.mul_(room)
    square.mul_(scalars.kept_square)
    square.add_(room)
    _square_root(square, room)
    room.add_(scalars.epsilon)
    torch.div(mean, room, out=room)
    room.mul_(scalars.rate)
    if decays:
        weight.mul_(scalars.kept_weight)
    weight.sub_(room)


def _square_root(values: torch.Tensor, out: torch.Tensor) -> None:
    """Put the correctly rounded square roots of `values` in `out`."""
    if values.device.type == "cpu":
        # Not torch's: with MKL it is an ulp off for one value in six.
        np.sqrt(values.numpy(), out=out.numpy())
    else:
        torch.sqrt(values, out=out)


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by products alone: the C library's power differs between systems in its last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _fp32(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)
