"""The weights in a model's folder, read layer by layer as `transformers` loads them: never more than one is in memory.

`transformers` renames, and for some architectures converts, what a folder's files have. Its own loader does so here,
too, on the tensors of one layer at a time.
"""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from dtfm_protocol.errors import UserError
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.model_config import one_line
from dtfm_protocol.model.pretrained_weights import weight_files
from dtfm_protocol.model.quiet_loading import no_progress_bar
from dtfm_protocol.model.whole_model import BUILD_ERRORS, build_skeleton

AT_ONCE_BYTES = 4 << 30
"""Bytes of files up to which what cannot be read by layer is read as a whole."""


def part_of(config: dict[str, Any], name: str) -> int:
    """Return the number of the part that has the parameter `name` of the whole model: 0 is what comes before the
    layers, a matrix that the head shares included, 1 the first layer, and the last one what follows them."""
    return _parts(json.dumps(config, sort_keys=True)).of(name)


def read_parts(folder: Path, config: dict[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the fp32 values of each part of a model, by the parameter's name in the whole model: what comes before the
    layers, each layer, what follows them. They are those that `from_pretrained` gives.

    Raises:
        UserError: a file cannot be read, or the folder lacks a parameter, or has another one.
    """
    source = _Source(folder, config)
    with no_progress_bar():
        yield from source.read()


class _Parts(NamedTuple):
    """The parts of a model."""

    layer: re.Pattern[str]
    """Matches the names of decoder layers' parameters, up to the layer's number."""
    inlet: frozenset[str]
    """Modules that run before the layers."""
    number: int
    """How many parts there are."""

    def of(self, name: str) -> int:
        if layer := self.layer.match(name):
            return int(layer[1]) + 1
        return 0 if name.rpartition(".")[0] in self.inlet else self.number - 1


@functools.lru_cache(maxsize=16)
def _parts(text: str) -> _Parts:
    config = json.loads(text)
    found = anatomy(config)
    layers = len(list(build_skeleton(config).get_submodule(found.layers).children()))
    return _Parts(re.compile(rf"{re.escape(found.layers)}\.(\d+)\."), found.inlet, layers + 2)


class _Source:
    """A model's folder, opened."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import GroupWeightRename, WeightConverter, WeightRenaming

        self._folder, self._model = folder, build_skeleton(config)
        self._parts = _parts(json.dumps(config, sort_keys=True))
        first = {id(one): name for name, one in self._model.named_parameters()}
        aliases = {name: id(one) for name, one in self._model.named_parameters(remove_duplicate=False)}
        self._names = {name: first[one] for name, one in aliases.items()}
        """The name of each parameter by each of its names: tied ones have several."""
        # A skeleton's small parameters have values, by which one that lacks would not be noticed.
        self._model.to("meta")
        self._blank = {name: self._model.get_parameter(name) for name in self._names}
        self._mapping = get_model_conversion_mapping(self._model)
        self._renamings = [one for one in self._mapping if isinstance(one, WeightRenaming)]
        self._converters = [one for one in self._mapping if isinstance(one, WeightConverter)]
        # A renaming that remembers what it has seen must see all.
        self._is_whole = any(isinstance(one, GroupWeightRename) for one in self._mapping)
        self._files = weight_files(folder)

    def read(self) -> Iterator[dict[str, torch.Tensor]]:
        found: list[dict[str, Any]] = [{} for _ in range(self._parts.number)]
        size = 0
        for path in self._files:
            try:
                file: Any = safe_open(path, framework="pt")
                for key in file.keys():  # noqa: SIM118 - it is no mapping
                    if (name := self._target(key)) is not None:
                        found[self._parts.of(name)][key] = file.get_slice(key)
                size += path.stat().st_size
            except (OSError, SafetensorError) as error:
                raise UserError(f"model.path: cannot read the weights in {path}: {error}; fetch it again") from None
        if not self._is_whole:
            for number, slices in enumerate(found):
                yield self._load(slices, number)
            return
        if size > AT_ONCE_BYTES:
            raise UserError(
                f"model.path: the weights in {self._folder} are of an architecture that cannot be read layer by layer, "
                "and too large to be read at once: save them again with `save_pretrained` of this version of "
                "transformers"
            )
        everything = self._load({key: one for slices in found for key, one in slices.items()}, None)
        for number in range(self._parts.number):
            yield {name: value for name, value in everything.items() if self._parts.of(name) == number}

    def _target(self, key: str) -> str | None:
        """Return the parameter that a file's tensor becomes, or the first of them; None: the model has no such."""
        from transformers.core_model_loading import rename_source_key

        prefix = self._model.base_model_prefix
        name, _ = rename_source_key(key, self._renamings, self._converters, prefix, self._blank)
        if name not in self._blank and key in self._blank:
            name, _ = rename_source_key(key, [], [], prefix, self._blank)
        return self._names.get(name)

    def _load(self, slices: dict[str, Any], number: int | None) -> dict[str, torch.Tensor]:
        """Load tensors of one part, or of all (None), and return what they become, by the parameters' names."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        options = LoadStateDictConfig(
            dtype=torch.float32, weight_mapping=get_model_conversion_mapping(self._model), use_safetensors=True
        )
        try:
            info, _ = convert_and_load_state_dict_in_model(self._model, slices, options)
        except BUILD_ERRORS as error:
            raise UserError(f"model.path: cannot load the weights in {self._folder}: {one_line(error)}") from None
        if wrong := sorted(map(str, info.mismatched_keys)) + sorted(info.conversion_errors) + sorted(info.error_msgs):
            raise UserError(f"model.path: the weights in {self._folder} do not fit its config.json: {wrong[0]}")
        return self._taken(number)

    def _taken(self, number: int | None) -> dict[str, torch.Tensor]:
        """Take the values out of the model again, and leave it blank."""
        values = dict[str, torch.Tensor]()
        for alias, name in self._names.items():
            parameter = self._model.get_parameter(alias)
            if parameter.is_meta:
                continue
            owner, _, last = alias.rpartition(".")
            setattr(self._model.get_submodule(owner), last, self._blank[alias])
            value = parameter.detach()
            if name in values and not torch.equal(values[name], value):
                raise UserError(
                    f"model.path: {name} and {alias} differ in {self._folder}, whose config.json says that they are "
                    "one matrix: set tie_word_embeddings to false there"
                )
            values.setdefault(name, value)
        wanted = {name for name in self._names.values() if number is None or self._parts.of(name) == number}
        if lacking := sorted(wanted - values.keys()):  # `transformers` would draw them at random, and only warn
            raise UserError(
                f"model.path: the weights in {self._folder} lack {lacking[0]}, which its config.json asks for: "
                "take both files from the same model"
            )
        return values
