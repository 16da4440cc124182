"""The check that stages of an architecture add up to the whole model, or else the architecture is refused."""

import itertools
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from dtfm_protocol.errors import UserError
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.initial_weights import standard_normal
from dtfm_protocol.model.model_config import build_config, one_line
from dtfm_protocol.model.random_state import random_state_kept
from dtfm_protocol.model.stage import Stage, build_stage, loss_sum
from dtfm_protocol.model.tiny_model import TINY_VOCAB, tiny_config
from dtfm_protocol.model.whole_model import BUILD_ERRORS, build_skeleton, build_whole

TESTED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "olmo",
    "olmo2",
    "phi3",
    "gpt2",
    "gpt_neox",
)
"""Architectures that the tests of this package check at their defaults."""
BATCH, SEQUENCE = 2, 12
TOLERANCE = 1e-5
"""Largest difference that is taken for rounding, as a part of the tensor's largest value: a few thousand roundings of
fp32."""


def check_sliceable(config: dict[str, Any]) -> None:
    """Refuse a resolved config whose architecture, cut into stages, is not the whole model any more.

    At tiny size, 1, 2 and 3 stages must give the logits and every parameter's gradient that `AutoModelForCausalLM`
    gives, without random numbers, and no logit may depend on a later token. Takes well under a second.

    Raises:
        UserError: the architecture cannot be trained in stages; one line has the reason.
    """
    name = config["model_type"]
    parts = anatomy(config)
    for parameter, _ in build_skeleton(config).named_parameters():
        parts.constant(parameter)  # raises where the tiny model has no such parameter
    tiny = tiny_config(config)
    try:
        with random_state_kept():
            before = torch.get_rng_state()
            reason = _difference(tiny)
            if not torch.equal(torch.get_rng_state(), before):
                reason = "draws random numbers"
    except BUILD_ERRORS as error:
        reason = f"fails with {type(error).__name__}: {one_line(error)}"
    if reason is not None:
        raise UserError(f"model.architecture: {name!r} cannot be trained in stages: it {reason}; choose another one")


def _difference(config: dict[str, Any]) -> str | None:
    """Say what an architecture does wrong in stages; None: nothing."""
    whole = build_whole(config, seed=0)
    state = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in state.items():  # far from any constant, so that every parameter counts
            parameter.add_(standard_normal(0, name, parameter.shape), alpha=0.1)
    tokens = torch.arange(BATCH * (SEQUENCE + 1)).mul(37).add(11).remainder(TINY_VOCAB).view(BATCH, SEQUENCE + 1)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if _looks_ahead(whole, inputs):
        return "looks at later tokens"
    logits = whole(input_ids=inputs, use_cache=False).logits
    torch.autograd.backward(loss_sum(logits, targets))
    for count in (1, 2, 3):
        stages = cut(config, count, state)
        x = inputs
        for stage in stages:
            x = stage(x)
        torch.autograd.backward(loss_sum(x, targets))
        if not is_close(x, logits):
            return f"gives other logits in {count} stages"
        if wrong := _other_gradient(stages, state):
            return f"gives another gradient of {wrong} in {count} stages"
    return None


def _looks_ahead(whole: PreTrainedModel, inputs: torch.Tensor) -> bool:
    changed = inputs.clone()
    changed[:, -1] = (changed[:, -1] + 1) % TINY_VOCAB
    with torch.no_grad():
        before, after = (whole(input_ids=x, use_cache=False).logits[:, :-1] for x in (inputs, changed))
    return not is_close(after, before)


def cut(config: dict[str, Any], count: int, state: dict[str, nn.Parameter]) -> list[Stage]:
    """Cut the model into `count` stages, the middle one the longest, with the values of `state`."""
    layers = build_config(config).num_hidden_layers
    bounds = {1: [0, layers], 2: [0, 1, layers], 3: [0, 1, layers - 1, layers]}[count]
    stages = [build_stage(config, first, end, torch.device("cpu")) for first, end in itertools.pairwise(bounds)]
    with torch.no_grad():
        for stage in stages:
            for name, parameter in stage.named_state().items():
                parameter.copy_(state[name])
    return stages


def _other_gradient(stages: list[Stage], state: dict[str, nn.Parameter]) -> str | None:
    """Find the first parameter whose gradient, summed over the stages that hold it, is not the whole model's."""
    held = [stage.named_state() for stage in stages]
    for name, parameter in state.items():
        copies = [names[name] for names in held if name in names]
        if not copies:
            return name
        gradient = sum((_gradient(copy) for copy in copies), torch.zeros_like(parameter))
        if not is_close(gradient, _gradient(parameter)):
            return name
    return None


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether a tensor differs from the wanted one by rounding alone."""
    scale = float(wanted.detach().abs().max())
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=0.0, atol=TOLERANCE * scale)
