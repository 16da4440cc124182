"""The parameters that first and last stage share: those of tied embeddings."""

import functools
import json
from typing import Any

import torch

from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.plan.mark import LayerRange


def shared_names(config: dict[str, Any]) -> tuple[str, ...]:
    """List the names, in the whole model, of the parameters that both first and last stage hold; no memory is taken."""
    return _shared_names(json.dumps(config, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _shared_names(text: str) -> tuple[str, ...]:
    config = json.loads(text)
    sizes = model_sizes(config)
    if not sizes.tied or sizes.layers < 2:
        return ()
    nowhere = torch.device("meta")
    first = build_stage(config, 0, 1, nowhere).named_state()
    last = build_stage(config, sizes.layers - 1, sizes.layers, nowhere).named_state()
    return tuple(sorted(first.keys() & last.keys()))


def kept_names(config: dict[str, Any], layers: LayerRange) -> frozenset[str]:
    """Return the names, in the whole model, of the parameters that the stage of `layers` keeps on disk.

    A matrix that both ends hold is the first one's to keep. No memory is taken.

    Raises:
        ValueError: the model has no such layers.
    """
    return _kept_names(json.dumps(config, sort_keys=True), *layers)


@functools.lru_cache(maxsize=64)
def _kept_names(text: str, first: int, end: int) -> frozenset[str]:
    config = json.loads(text)
    names = frozenset(build_stage(config, first, end, torch.device("meta")).named_state())
    return names if first == 0 else names - frozenset(shared_names(config))
