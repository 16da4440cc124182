"""Modules of a stage whose matrices are not trained and are kept in less than fp32: they compute in fp32, or in what
autocast says, with values that are widened as they are needed."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dtfm_node.engine.bf16_weights import widen
from dtfm_node.engine.weight_gradients import is_product
from dtfm_protocol.model.base_forms import SCALE, Form


def keep_forms(
    model: nn.Module, held: Mapping[str, nn.Parameter], forms: Mapping[str, Form]
) -> dict[str, nn.Parameter]:
    """Have modules compute with parameters that are kept in `forms`; return the scales of those in int8, by name.

    Plain products take matrices as they are (`weight_gradients`); an embedding widens the rows that it looks up, and
    all other modules see the whole parameter in fp32, each time that they ask for it.

    Args:
        held: the parameters of the model, by their names in the whole one, already of their forms' types.
    """
    names = {id(parameter): name for name, parameter in held.items() if name in forms}
    made = dict[str, nn.Parameter]()
    for module in list(model.modules()):
        for attribute, parameter in list(module.named_parameters(recurse=False)):
            name = names.get(id(parameter))
            if name is None or forms[name].dtype == "F32":
                continue
            if forms[name].dtype == "I8":
                shape = [1 if number == forms[name].inner else size for number, size in enumerate(parameter.shape)]
                scale = nn.Parameter(torch.empty(shape, device=parameter.device), requires_grad=False)
                setattr(module, attribute + SCALE, scale)
                made[name + SCALE] = scale
            elif type(module) is nn.Embedding and module.max_norm is None:
                _look_up(module)
            elif not is_product(module):
                widen(module, attribute)
    return made


def _look_up(module: Any) -> None:
    def forward(tokens: torch.Tensor) -> torch.Tensor:
        return functional.embedding(tokens, module.weight).float()

    module.forward = forward
