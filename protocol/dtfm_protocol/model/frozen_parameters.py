"""The frozen parameters: those that training leaves as they begin, a function of the job and a parameter's name.

A frozen parameter is no part of a state: it has no gradient and no moments, is in no snapshot, vote or checkpoint, and
is not moved with its stage. Whoever needs it draws it from the job's seed, or takes it from the job's pretrained
weights.
"""

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Lora, MethodName, Training, WeightsName
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.base_forms import forms_of
from dtfm_protocol.model.lora import ADAPTED, adapter_shapes
from dtfm_protocol.model.whole_model import build_skeleton


@dataclass(frozen=True)
class FrozenSizes:
    """The numbers of parameters of a model that are not trained, and of those that are trained beside them, by part."""

    layers: tuple[int, ...]
    """Frozen parameters of each decoder layer."""
    embedding: int
    """Frozen parameters before the layers."""
    head: int
    """Frozen parameters after the layers, a tied matrix included."""
    tied: int
    """Those of the head's that are the embedding's."""
    adapters: tuple[int, ...]
    """Parameters of each decoder layer's adapters."""
    layer_bytes: tuple[int, ...]
    """Bytes of the frozen parameters of each decoder layer, in the form in which they are kept."""
    embedding_bytes: int
    """The same of what comes before the layers."""
    head_bytes: int
    """The same of what follows them, a tied matrix included."""
    tied_bytes: int
    """The same of what is tied."""

    def of_stage(self, first: int, end: int) -> int:
        """Count the frozen parameters that the stage of layers `[first, end)` holds."""
        held = sum(self.layers[first:end])
        if first == 0:
            held += self.embedding
        if end == len(self.layers):
            held += self.head
        return held - (self.tied if first == 0 and end == len(self.layers) else 0)

    def bytes_of_stage(self, first: int, end: int) -> int:
        """Count the bytes of those."""
        held = sum(self.layer_bytes[first:end])
        if first == 0:
            held += self.embedding_bytes
        if end == len(self.layers):
            held += self.head_bytes
        return held - (self.tied_bytes if first == 0 and end == len(self.layers) else 0)

    def added_to(self, first: int, end: int) -> int:
        """Count the parameters of adapters that it holds."""
        return sum(self.adapters[first:end])

    def trained_layers(self, whole: Sequence[int]) -> tuple[bool, ...]:
        """Return whether anything is trained of each layer; of the model itself they have `whole` parameters."""
        every = zip(whole, self.layers, self.adapters, strict=True)
        return tuple(size > frozen or adapters > 0 for size, frozen, adapters in every)


def frozen_names(config: dict[str, Any], training: Training) -> frozenset[str]:
    """Return the names, in the whole model, of the parameters that a job leaves as they begin.

    Under "frozen-layers" these are the parameters of the decoder layers `[first, end)`, and, where `first` is 0, those
    of what runs before the layers (embeddings), but for a matrix that the head shares: the head is trained. Under
    "lora" they are all.
    """
    if training.method == "full":
        return frozenset()
    return _frozen(json.dumps(config, sort_keys=True), training.layers)


def trained_names(config: dict[str, Any], training: Training, held: Collection[str]) -> frozenset[str]:
    """Return the names of what is trained of a part of the model that holds the parameters `held`: its adapters, where
    there are any, belong to it."""
    trained = frozenset(held) - frozen_names(config, training)
    if training.method == "lora":
        modules = {f"{ADAPTED}{name.rpartition('.')[0]}" for name in held}
        shapes = adapter_shapes(config, training.lora)
        trained |= {name for name in shapes if name.rpartition(".lora_")[0] in modules}
    return trained


def frozen_sizes(config: dict[str, Any], training: Training) -> FrozenSizes:
    """Count what `frozen_names` names, and the job's adapters.

    Raises:
        UserError: targets of "lora" are none of the model.
    """
    method = {key: getattr(training, key) for key in ("method", "layers", "lora", "weights")}
    return _frozen_sizes(json.dumps(config, sort_keys=True), _Part(**method))


class _Part(NamedTuple):
    """What a job trains of a model, as `Training` has it."""

    method: MethodName
    layers: tuple[int, int] | None
    lora: Lora
    weights: WeightsName


@functools.lru_cache(maxsize=64)
def _frozen_sizes(text: str, part: _Part) -> FrozenSizes:
    config = json.loads(text)
    parts, whole = anatomy(config), build_skeleton(config)
    names = frozenset() if part.method == "full" else _frozen(text, part.layers)
    forms = forms_of(text, part.lora.base if part.method == "lora" else None, part.weights)
    frozen = {id(one): one.numel() for name, one in whole.named_parameters() if name in names}
    kept = {id(one): forms[name].bytes(tuple(one.shape)) for name, one in whole.named_parameters() if name in names}
    before, after = (
        {id(one) for name in side for one in whole.get_submodule(name).parameters(recurse=False)}
        for side in (parts.inlet, parts.outlet)
    )
    layers = [[id(one) for one in layer.parameters()] for layer in whole.get_submodule(parts.layers).children()]
    prefix, adapters = f"{ADAPTED}{parts.layers}.", [0] * len(layers)
    if part.method == "lora":
        for name, (rows, columns) in adapter_shapes(config, part.lora).items():
            adapters[int(name.removeprefix(prefix).partition(".")[0])] += rows * columns
    return FrozenSizes(
        tuple(_count(frozen, layer) for layer in layers),
        _count(frozen, before),
        _count(frozen, after),
        _count(frozen, before & after),
        tuple(adapters),
        tuple(_count(kept, layer) for layer in layers),
        _count(kept, before),
        _count(kept, after),
        _count(kept, before & after),
    )


def check_frozen(config: dict[str, Any], training: Training) -> None:
    """Check that the layers which a job freezes, and the targets of its adapters, are there.

    Raises:
        UserError: they are not.
    """
    count = len(list(build_skeleton(config).get_submodule(anatomy(config).layers).children()))
    if training.layers is not None and training.layers[1] > count:
        raise UserError(
            f"training.layers: {list(training.layers)}, but the model has {count} layers: give a run of them that ends "
            f"with {count} at the most"
        )
    if training.method == "lora":
        adapter_shapes(config, training.lora)


def _count(sizes: Mapping[int, int], which: Collection[int]) -> int:
    return sum(sizes.get(one, 0) for one in which)


@functools.lru_cache(maxsize=16)
def _frozen(text: str, run: tuple[int, int] | None) -> frozenset[str]:
    """Return the names of what is frozen with a run of layers; None: of all."""
    config = json.loads(text)
    parts, whole = anatomy(config), build_skeleton(config)
    if run is None:
        return frozenset(name for name, _ in whole.named_parameters())
    first, end = run
    numbered = re.compile(rf"{re.escape(parts.layers)}\.(\d+)\.")
    after = {id(one) for name in parts.outlet for one in whole.get_submodule(name).parameters(recurse=False)}
    found = set[str]()
    for name, parameter in whole.named_parameters():
        if layer := numbered.match(name):
            is_frozen = first <= int(layer[1]) < end
        else:
            is_before = name.rpartition(".")[0] in parts.inlet and id(parameter) not in after
            is_frozen = first == 0 and is_before
        if is_frozen:
            found.add(name)
    return frozenset(found)
