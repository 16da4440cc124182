"""The forms in which weights are kept that a job begins with: fp32, bf16, or int8 with a scale for each output.

What a form does to a value is elementwise, in a stated order of fp32 operations that every device rounds alike, so that
all hold the same bits, and read the same values from them.
"""

import functools
import json
from typing import Any, NamedTuple

import torch

from dtfm_protocol.checkpoint.state_slots import ITEM_BYTES, DType
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.lora import MATRICES
from dtfm_protocol.model.whole_model import build_skeleton

SCALE = "_scale"
"""What the name of an int8 matrix's scales has more than the matrix's, as the folders of compressed-tensors have it."""
LARGEST = 127
"""Largest integer of a matrix in int8; the smallest is its negative."""


class Form(NamedTuple):
    """The form in which a parameter is kept."""

    dtype: DType
    """"F32", "BF16", or "I8", which has scales beside it."""
    inner: int = 0
    """Dimension of an int8 matrix over which the product with it sums: each index of the other has a scale."""

    def bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes that a parameter of a shape takes, scales included."""
        count = torch.Size(shape).numel()
        return count * ITEM_BYTES[self.dtype] + (4 * count // shape[self.inner] if self.dtype == "I8" else 0)


class KeptParameter(NamedTuple):
    """A parameter in its form."""

    value: torch.Tensor
    scale: torch.Tensor | None = None
    """fp32 `[out, 1]`, or `[1, out]` where the matrix is stored `[in, out]`; None: the form has none."""

    def decoded(self) -> torch.Tensor:
        """Return the fp32 values: as they are, widened, or each integer, as fp32, times its scale."""
        return self.value.float() if self.scale is None else self.value.float() * self.scale


def base_forms(config: dict[str, Any], training: Training) -> dict[str, Form]:
    """Return the form of each parameter of the whole model, by name, as a job's pieces and its peers have those that it
    begins with.

    Under "lora", `lora.base` says: matrices, and what has more dimensions, are in bf16, or, where they are matrices of
    a plain product in a decoder layer and it is "int8", in that; the rest, norms and biases, is in fp32.
    """
    base = training.lora.base if training.method == "lora" else None
    return forms_of(json.dumps(config, sort_keys=True), base, training.weights)


def kept(value: torch.Tensor, form: Form) -> KeptParameter:
    """Bring a parameter's fp32 value into a form.

    In bf16 it is rounded to the nearest, to even where two are as near. In int8 the scale is the largest absolute
    value of an output's row over 127 (1 for a row of zeros); a value over it, rounded in the same way, is the integer.
    """
    if form.dtype == "F32":
        return KeptParameter(value)
    if form.dtype == "BF16":
        return KeptParameter(value.to(torch.bfloat16))
    scale = value.abs().amax(form.inner, keepdim=True).div_(LARGEST)
    scale = torch.where(scale > 0, scale, torch.ones(()))
    return KeptParameter((value / scale).round_().clamp_(-LARGEST, LARGEST).to(torch.int8), scale)


@functools.lru_cache(maxsize=16)
def forms_of(text: str, base: str | None, weights: str) -> dict[str, Form]:
    """Return the same of a config as sorted JSON; `base` is that of "lora", None under other methods."""
    config = json.loads(text)
    prefix, whole = f"{anatomy(config).layers}.", build_skeleton(config)
    if base is None:
        form = Form("BF16" if weights == "bf16" else "F32")
        return {name: form for name, _ in whole.named_parameters()}
    products = {
        f"{name}.weight": Form("I8", inner=1 if type(module) is torch.nn.Linear else 0)
        for name, module in whole.named_modules()
        if base == "int8" and name.startswith(prefix) and type(module) in MATRICES
    }
    wide = Form("F32" if base == "fp32" else "BF16")
    return {
        name: products.get(name, wide if parameter.ndim >= 2 else Form("F32"))
        for name, parameter in whole.named_parameters()
    }
