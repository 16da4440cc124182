"""The sizes of a model: parameters of each part, and the memory that a micro-batch's activations take."""

import functools
import json
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dtfm_protocol.job.job_file import Lora, Precision, Training, WeightsName
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.lora import MATRICES, adapter_shapes
from dtfm_protocol.model.model_config import build_config
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.model.tiny_model import with_layers
from dtfm_protocol.model.whole_model import BUILD_ERRORS, build_skeleton


@dataclass(frozen=True)
class ModelSizes:
    """The numbers of parameters of a model, by part."""

    hidden_size: int
    vocab_size: int
    embedding_parameters: int
    """Parameters that the first stage holds before its layers."""
    layer_parameters: tuple[int, ...]
    """Parameters of each decoder layer."""
    head_parameters: int
    """Parameters that the last stage holds after its layers: final norm and head, a tied head included."""
    tied_parameters: int
    """Parameters of the embedding that the head shares; 0 where they are not tied."""

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layer_parameters)

    @property
    def head_layers(self) -> float:
        """Compute of the head, in decoder layers: a matrix of p parameters costs 2 p FLOP a token in both."""
        return self.head_parameters * self.layers / sum(self.layer_parameters)

    @property
    def tied(self) -> bool:
        """Whether first and last stage share a matrix."""
        return self.tied_parameters > 0

    @property
    def total(self) -> int:
        """Parameters of the whole model, a tied matrix counted once."""
        return self.stage_parameters(0, self.layers)

    def stage_parameters(self, first: int, end: int) -> int:
        """Count the parameters that the stage of layers `[first, end)` holds."""
        held = sum(self.layer_parameters[first:end])
        if first == 0:
            held += self.embedding_parameters
        if end == self.layers:
            held += self.head_parameters
        return held - (self.tied_parameters if first == 0 and end == self.layers else 0)

    def product_parameters(self, first: int, end: int) -> int:
        """Count those of them that products take, and no table: of the layers and the head."""
        return sum(self.layer_parameters[first:end]) + (self.head_parameters if end == self.layers else 0)

    def logits_bytes(self, batch: int, sequence: int, precision: Precision) -> int:
        """Return the bytes that the loss of one micro-batch takes on the last stage, at its peak in the backward.

        Logits, log-probabilities, and the gradients of both, each `[batch, sequence, vocab]`: four in fp32; in bf16
        logits and their gradient once more in two bytes.
        """
        each = 16 if precision == "fp32" else 20
        return batch * sequence * self.vocab_size * each

    def logits_gradient_bytes(self, batch: int, sequence: int, precision: Precision) -> int:
        """Return the bytes of one micro-batch's logits' gradient, which the gradient of the head's matrix takes."""
        return batch * sequence * self.vocab_size * (4 if precision == "fp32" else 2)


def model_sizes(config: dict[str, Any]) -> ModelSizes:
    """Count the parameters of a resolved config's model on its skeleton, which takes no memory.

    Raises:
        UserError: the architecture cannot be built or cut.
    """
    return _model_sizes(json.dumps(config, sort_keys=True))


@functools.lru_cache(maxsize=64)
def _model_sizes(text: str) -> ModelSizes:
    config = json.loads(text)
    parts, whole = anatomy(config), build_skeleton(config)
    layers = whole.get_submodule(parts.layers)
    inlet = {id(p): p.numel() for name in parts.inlet for p in whole.get_submodule(name).parameters(recurse=False)}
    outlet = {id(p): p.numel() for name in parts.outlet for p in whole.get_submodule(name).parameters(recurse=False)}
    return ModelSizes(
        hidden_size=whole.config.hidden_size,
        vocab_size=whole.config.vocab_size,
        embedding_parameters=sum(inlet.values()),
        layer_parameters=tuple(sum(p.numel() for p in layer.parameters()) for layer in layers.children()),
        head_parameters=sum(outlet.values()),
        tied_parameters=sum(inlet[key] for key in inlet.keys() & outlet.keys()),
    )


@functools.lru_cache(maxsize=256)
def _activation_bytes(
    text: str, batch: int, sequence: int, precision: Precision, weights: WeightsName, lora: str
) -> int:
    config, adapters = json.loads(text), Lora.model_validate_json(lora) if lora else None
    built = build_config(config)
    chosen = getattr(built, "num_experts_per_tok", None) or 0
    if not chosen:  # a fake token chooses no expert
        try:
            one, two = (_saved_bytes(config, count, batch, sequence, precision, weights, adapters) for count in (1, 2))
        except BUILD_ERRORS:
            pass
        else:
            return two - one
    # Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1: 17 values of any width for each hidden one, without the
    # attention weights, which fused kernels do not keep; an expert keeps its input and output and four inner products
    width = getattr(built, "moe_intermediate_size", None) or getattr(built, "intermediate_size", None) or 0
    values = 17 * built.hidden_size + chosen * (2 * built.hidden_size + 4 * width)
    return int(batch * sequence * values * (4 if precision == "fp32" else 2))


def activation_bytes(
    config: dict[str, Any],
    batch: int,
    sequence: int,
    precision: Precision = "fp32",
    weights: WeightsName = "fp32",
    lora: Lora | None = None,
) -> int:
    """Estimate the bytes that one decoder layer keeps for the backward of one micro-batch.

    Read off the architecture itself: a middle layer runs on fake tensors `[batch, sequence, hidden]`, which have shapes
    and no memory, and autograd is asked what it would save. The difference between two layers and one leaves out what
    layers share (masks, rotary tables). The copies of matrices that products in bf16 take are left out: a stage makes
    each once a step, and not for every micro-batch (`memory_model.copied_bytes`). A mask of attention is in it, as each
    layer keeps one where documents are packed; plain text has none. Kernels that repeat grouped key-value
    heads may keep a little less than is said here. Where an architecture does not run on fake tensors (experts, whose
    choice depends on the data), a closed form is used.

    Args:
        lora: adapters, if they are what is trained: the input of a matrix that is not trained is not kept.
    """
    said = "" if lora is None else lora.model_dump_json()
    return _activation_bytes(json.dumps(config, sort_keys=True), batch, sequence, precision, weights, said)


def kept_activations(config: dict[str, Any], training: Training) -> int:
    """Return `activation_bytes` of a job. A layer that is not trained at all is taken to keep as much as others."""
    shape = training.micro_batch, training.sequence_length, training.precision
    return activation_bytes(config, *shape, training.weights, training.lora if training.method == "lora" else None)


def _saved_bytes(
    config: dict[str, Any],
    count: int,
    batch: int,
    sequence: int,
    precision: Precision,
    weights: WeightsName,
    lora: Lora | None,
) -> int:
    """Return the bytes that autograd saves for a stage of `count` copies of the middle layer, without parameters."""
    middle = build_config(config).num_hidden_layers // 2
    config = with_layers(config, [middle] * (count + 2))
    anatomy(config)  # cached now: a donor must not be made of fake tensors
    if lora is not None:
        adapter_shapes(config, lora)  # as well
    saved: dict[int, torch.UntypedStorage] = {}
    cast: AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
    with _quiet_fake_tensors():
        stage = build_stage(config, 1, 1 + count, torch.device("cpu"))
        if lora is not None:
            for parameter in stage.parameters():
                parameter.requires_grad_(False)
            stage.adapt(config, lora)
        if precision == "bf16":  # in fp32 a product widens what it needs of a matrix, and keeps none of it
            _to_bf16(stage, products_alone=weights == "fp32")
        own = {storage._cdata for storage in _storages(stage)}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                saved[storage._cdata] = storage  # holding it keeps its address from being given to another
            return tensor

        hidden = torch.empty(batch, sequence, build_config(config).hidden_size, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast:
            stage(hidden)
    return sum(storage.nbytes() for storage in saved.values())


def _to_bf16(module: nn.Module, *, products_alone: bool) -> None:
    # `Module.to` cannot change fake tensors.
    for inner in module.modules():
        if products_alone and type(inner) not in MATRICES:
            continue
        for name, parameter in inner.named_parameters(recurse=False):
            setattr(inner, name, nn.Parameter(parameter.detach().to(torch.bfloat16), parameter.requires_grad))


@contextmanager
def _quiet_fake_tensors() -> Iterator[None]:
    """Silence the log of fake tensors in the block: where one fails, the traceback is logged as well as raised."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was, log.disabled = log.disabled, True
    try:
        with FakeTensorMode():
            yield
    finally:
        log.disabled = was


def _storages(module: nn.Module) -> Iterator[torch.UntypedStorage]:
    for tensor in [*module.parameters(), *module.buffers()]:
        yield tensor.untyped_storage()
