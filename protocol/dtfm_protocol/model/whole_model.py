"""The whole model: built for real, where it is tiny, or as a skeleton that takes no memory."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from dtfm_protocol.errors import UserError
from dtfm_protocol.model.model_config import build_config, one_line
from dtfm_protocol.model.random_state import random_state_kept

BUILD_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    ImportError,
    RuntimeError,
)
"""Errors that model code raises on a config that it cannot build or run."""
MATRIX = 1 << 20
"""Values from which a tensor is taken for a matrix: norms and computed tables are smaller, experts' matrices larger."""
DRAWS = frozenset({"normal_", "uniform_", "kaiming_uniform_"})
"""Names under which a tensor, `torch.nn.init` and `transformers.initialization` fill with random numbers."""


def build_whole(config: dict[str, Any], seed: int) -> PreTrainedModel:
    """Build the whole model on the CPU in fp32, with the architecture's own random initialisation.

    Takes the whole model's memory, and the time to fill it.

    Raises:
        UserError: `transformers` cannot build it.
    """
    with random_state_kept():  # initialisation of transformers knows no other generator
        torch.default_generator.manual_seed(seed)
        return _from_config(config)


def build_skeleton(config: dict[str, Any]) -> PreTrainedModel:
    """Build the whole model with its matrices on the `meta` device and its buffers computed on the CPU, without memory.

    Raises:
        UserError: `transformers` cannot build it, or a buffer has no computed value.
    """
    with random_state_kept(), _EmptyOnMeta():
        model = _from_config(config)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise UserError(
                f"model: {config['model_type']} leaves the buffer {name} empty; choose another architecture"
            )
    return model


def layer_list(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return the dotted name and the list of the decoder layers of a whole model.

    Raises:
        UserError: there is not exactly one such list.
    """
    wanted = model.config.num_hidden_layers
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == wanted
    ]
    depth = min((name.count(".") for name, _ in lists), default=0)
    outermost = [found for found in lists if found[0].count(".") == depth]
    if len(outermost) != 1:
        raise UserError(f"model: {model.config.model_type} has {len(outermost)} lists of decoder layers, not one")
    return outermost[0]


def _from_config(config: dict[str, Any]) -> PreTrainedModel:
    built = build_config(config)
    try:
        kernel = "sdpa" if MODEL_FOR_CAUSAL_LM_MAPPING[type(built)]._supports_sdpa else "eager"
        return AutoModelForCausalLM.from_config(built, attn_implementation=kernel, dtype=torch.float32)
    except BUILD_ERRORS as error:
        raise UserError(f"model: transformers cannot build this {config['model_type']}: {one_line(error)}") from None


class _EmptyOnMeta(TorchFunctionMode):
    """A mode that puts on `meta` what is allocated without a value, and floating matrices that begin as a constant.

    That is how parameters begin, while buffers such as rotary frequencies are computed and so come out right: with
    `torch.device("meta")` they would be lost, and would have to be found and computed again one by one.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.rand, torch.randn):
            return func(*args, **kwargs | {"device": "meta"})
        if getattr(func, "__name__", None) in DRAWS and (tensor := args[0] if args else kwargs["tensor"]).is_meta:
            return tensor  # nothing to fill, and slow to find that out
        if func in (torch.zeros, torch.ones, torch.full):
            blank = func(*args, **kwargs | {"device": "meta"})
            if blank.is_floating_point() and blank.numel() >= MATRIX:
                return blank
        return func(*args, **kwargs)
