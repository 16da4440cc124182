"""LoRA: small matrices that are trained beside matrices which are not (Hu et al., arXiv 2106.09685), named as `peft`
names them.

Beside each matrix W of a target there are A, `[r, in]`, and B, `[out, r]`; its output is W x + (lora_alpha / r) B A x.
B begins as zero, so that the model begins as it is.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.job_file import Lora
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.whole_model import build_skeleton

ADAPTED = "base_model.model."
"""What precedes a module's name in the names of the matrices beside it, in a file that `peft` has saved."""
MATRICES = (nn.Linear, Conv1D)
"""Modules that can be targets: the product with one matrix, which the second has transposed."""


class LoraMatrix(nn.Module):
    """A matrix that is not trained, and the two beside it that are."""

    def __init__(self, base: nn.Module, lora: Lora, device: torch.device) -> None:
        """Put A and B, without values yet, beside `base`."""
        super().__init__()
        inner, outer, _ = _Target.of(base)
        self.base_layer = base
        self.lora_A, self.lora_B = _empty(inner, lora.r, device), _empty(lora.r, outer, device)
        self.scaling = lora.scaling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute `[..., out]` of `[..., in]`."""
        y: torch.Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scaling
        return y


def _empty(inner: int, outer: int, device: torch.device) -> Any:
    """Return a product with a matrix without values yet. (`skip_init` does not take fake tensors.)"""
    made = nn.Linear(inner, outer, bias=False, device="meta")
    made.weight = nn.Parameter(torch.empty(outer, inner, device=device))
    return made


def adapter_shapes(config: dict[str, Any], lora: Lora) -> dict[str, tuple[int, int]]:
    """Return the shapes of all A and B of a job, by name, in the order of the model.

    A target is the last part, or the last parts, of the names of modules, as `peft` takes them: "q_proj" or
    "self_attn.q_proj".

    Raises:
        UserError: a target names no module, or one that is no matrix of a decoder layer.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, (inner, outer, _) in _targets(json.dumps(config, sort_keys=True), lora.target_modules).items():
        found[f"{ADAPTED}{name}.lora_A.weight"] = (lora.r, inner)
        found[f"{ADAPTED}{name}.lora_B.weight"] = (outer, lora.r)
    return found


def add_adapters(
    model: nn.Module, config: dict[str, Any], lora: Lora, device: torch.device, first: int = 0
) -> dict[str, nn.Parameter]:
    """Put adapters, without values yet, into a model or a stage of one; return them by name.

    Args:
        first: number, in the whole model, of the first of the layers that are there.
    """
    prefix, made = anatomy(config).layers, dict[str, nn.Parameter]()
    targets = _targets(json.dumps(config, sort_keys=True), lora.target_modules)
    for number, layer in enumerate(model.get_submodule(prefix).children(), first):
        for inner, module in list(layer.named_modules()):
            name = f"{prefix}.{number}.{inner}"
            if name in targets:
                adapted = LoraMatrix(module, lora, device)
                parent, _, child = inner.rpartition(".")
                setattr(layer.get_submodule(parent), child, adapted)
                made[f"{ADAPTED}{name}.lora_A.weight"] = adapted.lora_A.weight
                made[f"{ADAPTED}{name}.lora_B.weight"] = adapted.lora_B.weight
    return made


@torch.no_grad()
def merge_adapters(config: dict[str, Any], lora: Lora, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of the whole model, by name, with what its adapters, which are among `weights`, add.

    Raises:
        Refused: an adapter is not among them.
    """
    if missing := sorted(adapter_shapes(config, lora).keys() - weights.keys()):
        raise Refused(f"it lacks {missing[0]}")
    found = {name: value for name, value in weights.items() if not name.startswith(ADAPTED)}
    for name, target in _targets(json.dumps(config, sort_keys=True), lora.target_modules).items():
        a, b = (weights[f"{ADAPTED}{name}.{matrix}.weight"] for matrix in ("lora_A", "lora_B"))
        more = (b @ a).mul_(lora.scaling)
        found[f"{name}.weight"] = found[f"{name}.weight"] + (more.t() if target.is_transposed else more)
    return found


def is_transposed(config: dict[str, Any], lora: Lora) -> bool:
    """Whether the targets' matrices are stored `[in, out]`, as GPT-2's are."""
    return any(one.is_transposed for one in _targets(json.dumps(config, sort_keys=True), lora.target_modules).values())


class _Target(NamedTuple):
    """A matrix product of the model."""

    inner: int
    """Number of values that go in."""
    outer: int
    """Number of values that come out."""
    is_transposed: bool
    """Whether the matrix is stored `[in, out]`."""

    @classmethod
    def of(cls, module: Any) -> Self:
        """Return what a module is."""
        rows, columns = module.weight.shape
        return cls(rows, columns, True) if isinstance(module, Conv1D) else cls(columns, rows, False)


@functools.lru_cache(maxsize=16)
def _targets(text: str, targets: tuple[str, ...]) -> dict[str, _Target]:
    """Return the matrices that are targets, by the module's name in the whole model."""
    config = json.loads(text)
    prefix, whole = f"{anatomy(config).layers}.", build_skeleton(config)
    found: dict[str, _Target] = {}
    for target in targets:
        named = {name: one for name, one in whole.named_modules() if name == target or name.endswith(f".{target}")}
        if not named:
            inner = {
                name.rpartition(".")[2]
                for name, one in whole.named_modules()
                if name.startswith(prefix) and type(one) in MATRICES
            }
            raise UserError(
                f"training.lora.target_modules: {target} names nothing in a {config['model_type']}; "
                f"its matrices are {', '.join(sorted(inner))}"
            )
        for name, module in named.items():
            if not name.startswith(prefix) or type(module) not in MATRICES:
                raise UserError(
                    f"training.lora.target_modules: {target} names {name}, a {type(module).__name__}: "
                    "name matrices of decoder layers"
                )
            found[name] = _Target.of(module)
    return found
