"""A model whose weights are kept in bf16: modules compute with them in fp32, and their gradients are summed in fp32."""

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from dtfm_node.engine.weight_gradients import is_product
from dtfm_protocol.errors import UserError

_CAN_SUM_FP32 = hasattr(torch.Tensor, "grad_dtype")
"""Whether this torch lets a gradient have another type than its tensor."""


class _Widened(torch.autograd.Function):
    """A weight in fp32, whose gradient stays fp32: torch's own conversion would round it to bf16."""

    @staticmethod
    def forward(_: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.float()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class _InFp32(nn.Module):
    """What a module sees of a weight: it in fp32, each time that it is asked for."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = _Widened.apply(weight)  # type: ignore[no-untyped-call]
        return wide


def keep_in_bf16(model: nn.Module, *, own_products: bool) -> None:
    """Round a model's parameters to bf16, in which they are kept from now on. Parameters stay the same objects.

    Args:
        own_products: whether matrix products are those of `weight_gradients`, which take weights as they are kept, and
            widen no more than a part of a matrix at a time.

    Raises:
        UserError: this torch cannot sum fp32 gradients of bf16 weights.
    """
    if not _CAN_SUM_FP32:
        raise UserError(
            f"this job keeps its weights in bf16, which torch {torch.__version__} cannot train with gradients in fp32: "
            "install torch 2.10 or later"
        )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
        parameter.grad_dtype = torch.float32
    for module in list(model.modules()):
        if own_products and is_product(module):
            continue
        for name, _ in list(module.named_parameters(recurse=False)):
            widen(module, name)


def widen(module: nn.Module, name: str) -> None:
    """Have a module see one of its parameters in fp32, whatever it is kept in."""
    parametrize.register_parametrization(module, name, _InFp32(), unsafe=True)
