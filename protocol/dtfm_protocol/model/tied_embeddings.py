"""The parameters that first and last stage share: those of tied embeddings."""

from typing import Any

import torch

from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage import build_stage


def shared_names(config: dict[str, Any]) -> tuple[str, ...]:
    """List the names, in the whole model, of the parameters that both first and last stage hold; no memory is taken."""
    sizes = model_sizes(config)
    if not sizes.tied or sizes.layers < 2:
        return ()
    nowhere = torch.device("meta")
    first = build_stage(config, 0, 1, nowhere).named_state()
    last = build_stage(config, sizes.layers - 1, sizes.layers, nowhere).named_state()
    return tuple(sorted(first.keys() & last.keys()))
