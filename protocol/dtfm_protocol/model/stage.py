"""A stage: embedding, decoder layers `[first, end)`, final norm and head, taken out of the whole model's skeleton."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Lora
from dtfm_protocol.model.architecture_probe import Anatomy, anatomy
from dtfm_protocol.model.lora import ADAPTED, add_adapters
from dtfm_protocol.model.tiny_model import per_layer_fields
from dtfm_protocol.model.whole_model import build_skeleton

NO_TARGET = -100
"""What stands in the place of a target whose loss does not count."""


class Stage(nn.Module):
    """A stage of a model: the architecture's own forward over a part of its layers, so that masks and positions are
    its own.

    Parameters are fp32; a caller who wants bf16 uses `torch.autocast`.
    """

    def __init__(
        self, model: PreTrainedModel, first: int, end: int, parts: Anatomy, last: bool, state: dict[str, nn.Parameter]
    ) -> None:
        super().__init__()
        self.model = model
        self.first = first
        self.end = end
        self.is_first = first == 0
        self.is_last = last
        self._parts = parts
        self._state = state

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Compute hidden `[batch, sequence, hidden]`, or on the last stage logits `[batch, sequence, vocab]`.

        Args:
            x: int64 tokens `[batch, sequence]` on the first stage, else hidden `[batch, sequence, hidden]`.
            positions: int64 `[batch, sequence]`, of each token in its document. Wherever they do not count on by one a
                document begins, which attends to itself alone; None: each sequence is one document.
        """
        places = {} if positions is None else {"position_ids": positions}
        if self.is_first:
            return self._run(input_ids=x, **places)
        # the residual stream is fp32, also under autocast: rotary tables and masks take their dtype from it
        x = x.to(torch.float32)
        # whatever the architecture does before its layers (scales, positions) was done by the first stage
        hook = self.layers()[0].register_forward_pre_hook(_Replace(x), with_kwargs=True)
        try:
            return self._run(inputs_embeds=x, **places)
        finally:
            hook.remove()

    def named_state(self) -> dict[str, nn.Parameter]:
        """Return every parameter by its name in the whole model, in the whole model's order.

        A head that is tied to the embedding has the embedding's name, also on a last stage that has no embedding.
        """
        return dict(self._state)

    def adapt(self, config: dict[str, Any], lora: Lora) -> None:
        """Put adapters (`lora`), without values yet, beside the matrices of a resolved config's model."""
        device = next(iter(self._state.values())).device
        self._state |= add_adapters(self.model, config, lora, device, self.first)

    def layers(self) -> list[nn.Module]:
        """List the stage's decoder layers, in order."""
        return list(self.model.get_submodule(self._parts.layers).children())

    def backward_order(self) -> list[list[str]]:
        """Group the names of `named_state` in the order in which a backward is through with them.

        First what follows the layers, then each layer from the last to the first, then the embedding: `layers + 2`
        groups, of which the ends may be empty. A matrix that both ends of a whole model share is the embedding's.
        """
        outlet: list[str] = []
        layers: list[list[str]] = [[] for _ in range(self.end - self.first)]
        inlet: list[str] = []
        numbered = re.compile(rf"(?:{re.escape(ADAPTED)})?{re.escape(self._parts.layers)}\.(\d+)\.")
        for name in sorted(self._state):
            if found := numbered.match(name):
                layers[self.end - 1 - int(found[1])].append(name)
            elif self.is_first and name.rpartition(".")[0] in self._parts.inlet:
                inlet.append(name)
            else:
                outlet.append(name)
        return [outlet, *layers, inlet]

    def _run(self, **inputs: torch.Tensor) -> torch.Tensor:
        if self.is_last:
            logits: torch.Tensor = self.model(**inputs, use_cache=False).logits
            return logits
        hidden: torch.Tensor = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        return hidden


def build_stage(
    config: dict[str, Any],
    first: int,
    end: int,
    device: torch.device,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Stage:
    """Build the stage of layers `[first, end)` of a resolved config, on `device`, in training mode.

    Its buffers are computed; its parameters have no values yet: see `initialise`. No more memory is taken than the
    stage's own.

    Args:
        dtypes: types of parameters that are not fp32, by their names in the whole model; None: all are.

    Raises:
        ValueError: the model has no such layers.
        UserError: the architecture cannot be cut.
    """
    parts = anatomy(config)
    whole = build_skeleton(config)
    layers = whole.get_submodule(parts.layers)
    assert isinstance(layers, nn.ModuleList)
    count = len(layers)
    if not 0 <= first < end <= count:
        raise ValueError(f"no stage [{first}, {end}) of {count} layers")
    names = {id(parameter): name for name, parameter in whole.named_parameters()}
    originals = list(whole.parameters())  # kept alive, so that no id is given to another
    _cut(whole, parts, layers, first, end)
    if first > 0 or end < count:
        owner = whole.get_submodule(parts.layers.rpartition(".")[0])
        owner.config = _config_of_layers(whole.config, config, first, end)
    made = _materialise(whole, device, {one: dtypes[name] for one, name in names.items() if dtypes and name in dtypes})
    if unknown := made.keys() - names.keys():
        raise UserError(f"model: {config['model_type']} has {len(unknown)} parameters without a name; it cannot be cut")
    state = {names[id(old)]: made[id(old)] for old in originals if id(old) in made}
    return Stage(whole, first, end, parts, end == count, state)


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the cross entropy over all targets, in nats, as an fp32 scalar.

    Args:
        logits: `[batch, sequence, vocab]`, any floating dtype.
        targets: int64 `[batch, sequence]`, the token that follows each position; `NO_TARGET` where it does not count.
    """
    flat = logits.flatten(0, 1).float()
    return nn.functional.cross_entropy(flat, targets.flatten(), reduction="sum", ignore_index=NO_TARGET)


def right_count(logits: torch.Tensor, targets: torch.Tensor) -> int:
    """Count the targets that the logits foretell as the likeliest token; arguments are as of `loss_sum`."""
    return int((logits.argmax(-1) == targets).sum())


class _Replace:
    """A forward pre-hook that puts a hidden state in place of the one that a layer is given."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (self.hidden, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self.hidden}


class _Absent(nn.Module):
    """A module in the place of one that another stage has: it hands hidden states on, and answers all else with 0.

    All else are learned positions.
    """

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return x if x.is_floating_point() and x.ndim == 3 else torch.zeros((), device=x.device)


def _cut(whole: PreTrainedModel, parts: Anatomy, layers: nn.ModuleList, first: int, end: int) -> None:
    """Delete all but the stage's modules from `whole`."""
    kept = (parts.inlet if first == 0 else frozenset()) | (parts.outlet if end == len(layers) else frozenset())
    for name in (parts.inlet | parts.outlet) - kept:
        parent, _, child = name.rpartition(".")
        setattr(whole.get_submodule(parent), child, _Absent())
    parent, _, child = parts.layers.rpartition(".")
    setattr(whole.get_submodule(parent), child, nn.ModuleList(list(layers)[first:end]))


def _config_of_layers(built: Any, config: dict[str, Any], first: int, end: int) -> Any:
    """Return the config that the loop over the layers sees: it counts from 0 over the stage's layers.

    The layers themselves keep the whole config and their own numbers.
    """
    part = copy.deepcopy(built)
    for key in per_layer_fields(config):
        setattr(part, key, getattr(built, key)[first:end])
    part.num_hidden_layers = end - first
    return part


def _materialise(model: nn.Module, device: torch.device, dtypes: Mapping[int, torch.dtype]) -> dict[int, nn.Parameter]:
    """Allocate every parameter on `device` and move the buffers; shared parameters stay shared.

    Args:
        dtypes: types of parameters that are not fp32, by `id`.

    Returns:
        The new parameter for the id of each old one.
    """
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(old) not in made:
                dtype = dtypes.get(id(old), old.dtype)
                made[id(old)] = nn.Parameter(
                    torch.empty_like(old, device=device, dtype=dtype), old.requires_grad and dtype.is_floating_point
                )
            setattr(module, name, made[id(old)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
    return made
