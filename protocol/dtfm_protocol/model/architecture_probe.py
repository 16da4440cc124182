"""The probe of an architecture by a tiny donor: where it can be cut, which parameters start as constants."""

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from dtfm_protocol.errors import UserError
from dtfm_protocol.model.model_config import build_config, one_line
from dtfm_protocol.model.random_state import random_state_kept
from dtfm_protocol.model.tiny_model import TINY_VOCAB, tiny_config
from dtfm_protocol.model.whole_model import BUILD_ERRORS, build_skeleton, build_whole, layer_list

LARGEST = 1 << 26
"""Parameters that a donor may have: with more it would no longer be free."""


@dataclass(frozen=True)
class Anatomy:
    """The parts of an architecture, the same at every size of it. Names are those of modules of the whole model."""

    layers: str
    """Name of the list of decoder layers, e.g. `model.layers`."""
    inlet: frozenset[str]
    """Modules with parameters that run before the layers: embeddings."""
    outlet: frozenset[str]
    """Modules that run after the layers: final norm (also one without parameters) and head."""
    constants: dict[str, float]
    """Start value by parameter pattern (the layer's number is `*`) of the parameters that start as one constant."""
    random: frozenset[str]
    """Patterns of the parameters that start random."""
    spread: float
    """Standard deviation of the parameters that start random: the config's `initializer_range`."""

    def pattern(self, name: str) -> str:
        """Replace the layer's number in a canonical parameter name by `*`."""
        return re.sub(rf"^({re.escape(self.layers)})\.\d+\.", r"\1.*.", name)

    def constant(self, name: str) -> float | None:
        """Return the constant that a parameter starts as, or None where it starts random.

        Raises:
            UserError: the tiny donor has no such parameter.
        """
        pattern = self.pattern(name)
        if pattern not in self.constants and pattern not in self.random:
            raise UserError(f"model: cannot tell how this architecture initialises {name}; choose another architecture")
        return self.constants.get(pattern)


def anatomy(config: dict[str, Any]) -> Anatomy:
    """Return the anatomy of a resolved config's architecture. The first call takes some tens of milliseconds.

    Raises:
        UserError: the architecture cannot be cut into stages, or keeps state that is not a parameter.
    """
    return _anatomy(json.dumps(config, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _anatomy(text: str) -> Anatomy:
    name = json.loads(text)["model_type"]
    try:
        config = tiny_config(json.loads(text))
        if sum(parameter.numel() for parameter in build_skeleton(config).parameters()) > LARGEST:
            raise UserError(f"model: {name} has dimensions that cannot be shrunk")
        donor, other = build_whole(config, seed=1), build_whole(config, seed=2)
    except UserError as error:
        raise UserError(f"{error} (tried at tiny size, to see how {name} can be cut)") from None
    parameters = {key for key, _ in donor.named_parameters(remove_duplicate=False)}
    if extra := sorted(donor.state_dict().keys() - parameters):
        raise UserError(
            f"model: {name} keeps {extra[0]}, a buffer that is state but no parameter; it cannot be trained"
        )
    layers, _ = layer_list(donor)
    try:
        inlet, outlet = _sides(donor, layers)
    except BUILD_ERRORS as error:
        raise UserError(f"model: {name} cannot be run at tiny size: {one_line(error)}") from None
    built = build_config(config)
    spread = getattr(built, "initializer_range", getattr(built, "init_std", 0.02))
    found = Anatomy(layers, inlet, outlet, {}, frozenset(), float(spread))
    values: dict[str, set[float | None]] = {}
    for (key, first), (_, second) in zip(donor.named_parameters(), other.named_parameters(), strict=True):
        values.setdefault(found.pattern(key), set()).add(_start(name, key, first.detach(), second.detach()))
    if mixed := [key for key, starts in values.items() if len(starts) > 1]:
        raise UserError(f"model: {name} initialises {mixed[0]} differently from layer to layer; it cannot be trained")
    constants = {key: start for key, starts in values.items() for start in starts if start is not None}
    return Anatomy(layers, inlet, outlet, constants, frozenset(values.keys() - constants.keys()), float(spread))


def _start(architecture: str, name: str, first: torch.Tensor, second: torch.Tensor) -> float | None:
    """Return the constant that a parameter starts as, or None for random, seen from two donors of different seeds."""
    if not torch.equal(first, second):
        return None
    if bool((first == first.flatten()[0]).all()):
        return first.flatten()[0].item()
    raise UserError(f"model: {architecture} starts {name} from a table of its own; it cannot be trained")


def _sides(donor: PreTrainedModel, layers: str) -> tuple[frozenset[str], frozenset[str]]:
    """Find the modules of the inlet and of the outlet, by running the donor once."""
    stack = donor.get_submodule(layers)
    assert isinstance(stack, nn.ModuleList)
    owners = [
        (name, module)
        for name, module in donor.named_modules()
        if not name.startswith(f"{layers}.") and (_owns_parameters(module) or not any(module.children()))
    ]
    place = "before"
    ran: dict[str, set[str]] = {name: set() for name, _ in owners}

    def note(name: str) -> Callable[..., None]:
        return lambda *_: ran[name].add(place)

    def enter(*_: Any) -> None:
        nonlocal place
        place = "between"

    def leave(*_: Any) -> None:
        nonlocal place
        place = "after"

    hooks = [module.register_forward_pre_hook(note(name)) for name, module in owners]
    hooks += [stack[0].register_forward_pre_hook(enter), stack[-1].register_forward_hook(leave)]
    try:
        with torch.no_grad(), random_state_kept():
            donor(input_ids=torch.arange(8).remainder(TINY_VOCAB)[None], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    owning = {name for name, module in owners if _owns_parameters(module)}
    for name in sorted(owning):
        if not ran[name] or "between" in ran[name] or not name or layers.startswith(f"{name}."):
            raise UserError(
                f"model: {donor.config.model_type} uses {name} neither before nor after its layers; it cannot be cut"
            )
    # without parameters: before the layers it is cheap and may be needed (rotary tables), after them it is a norm
    before = frozenset(name for name in owning if "before" in ran[name])
    after = frozenset(
        name for name, places in ran.items() if places == {"after"} or (name in before and "after" in places)
    )
    return before, after


def _owns_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))
