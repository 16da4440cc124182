"""The frozen parameters: those that training leaves as they begin, a function of the job and a parameter's name.

A frozen parameter is no part of a state: it has no gradient and no moments, is in no snapshot, vote or checkpoint, and
is not moved with its stage. Whoever needs it draws it from the job's seed, or takes it from the job's pretrained
weights, the checkpoint of step 0.
"""

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.whole_model import build_skeleton


@dataclass(frozen=True)
class FrozenSizes:
    """The numbers of frozen parameters of a model, by part. What follows the layers is always trained."""

    layers: tuple[int, ...]
    """Frozen parameters of each decoder layer."""
    embedding: int
    """Frozen parameters before the layers."""

    def of_stage(self, first: int, end: int) -> int:
        """Count the frozen parameters that the stage of layers `[first, end)` holds."""
        return sum(self.layers[first:end]) + (self.embedding if first == 0 else 0)


def frozen_names(config: dict[str, Any], training: Training) -> frozenset[str]:
    """Return the names, in the whole model, of the parameters that a job leaves as they begin.

    Under "frozen-layers" these are the parameters of the decoder layers `[first, end)`, and, where `first` is 0, those
    of what runs before the layers (embeddings), but for a matrix that the head shares: the head is trained.
    """
    return frozenset(_frozen(config, training))


def frozen_sizes(config: dict[str, Any], training: Training) -> FrozenSizes:
    """Count what `frozen_names` names."""
    prefix, counts, embedding = f"{anatomy(config).layers}.", [0] * _layer_count(config), 0
    for name, elements in _frozen(config, training).items():
        if name.startswith(prefix):
            counts[int(name.removeprefix(prefix).partition(".")[0])] += elements
        else:
            embedding += elements
    return FrozenSizes(tuple(counts), embedding)


def check_frozen(config: dict[str, Any], training: Training) -> None:
    """Check that the layers which a job freezes are there.

    Raises:
        UserError: they are not.
    """
    count = _layer_count(config)
    if training.layers is not None and training.layers[1] > count:
        raise UserError(
            f"training.layers: {list(training.layers)}, but the model has {count} layers: give a run of them that ends "
            f"with {count} at the most"
        )


def _layer_count(config: dict[str, Any]) -> int:
    return len(list(build_skeleton(config).get_submodule(anatomy(config).layers).children()))


def _frozen(config: dict[str, Any], training: Training) -> dict[str, int]:
    """Return the number of elements of each frozen parameter, by name."""
    return {} if training.layers is None else _in_layers(json.dumps(config, sort_keys=True), *training.layers)


@functools.lru_cache(maxsize=16)
def _in_layers(text: str, first: int, end: int) -> dict[str, int]:
    config = json.loads(text)
    parts, whole = anatomy(config), build_skeleton(config)
    numbered = re.compile(rf"{re.escape(parts.layers)}\.(\d+)\.")
    after = {id(p) for name in parts.outlet for p in whole.get_submodule(name).parameters(recurse=False)}
    found: dict[str, int] = {}
    for name, parameter in whole.named_parameters():
        if layer := numbered.match(name):
            is_frozen = first <= int(layer[1]) < end
        else:
            is_before = name.rpartition(".")[0] in parts.inlet and id(parameter) not in after
            is_frozen = first == 0 and is_before
        if is_frozen:
            found[name] = parameter.numel()
    return found
