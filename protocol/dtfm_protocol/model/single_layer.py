"""A single decoder layer, which a peer times and weighs before it knows its stage."""

from typing import Any

import torch

from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.model_config import build_config
from dtfm_protocol.model.stage import Stage, build_stage
from dtfm_protocol.model.tiny_model import with_layers


def build_layer(config: dict[str, Any], device: torch.device) -> Stage:
    """Build the middle decoder layer of a resolved config, initialised, in training mode.

    A stage that is neither first nor last: hidden `[batch, sequence, hidden]` in and out. Its values are of the size
    that initial weights have, drawn on `device`; they are not those of any job.

    Raises:
        UserError: the architecture cannot be cut.
    """
    count = build_config(config).num_hidden_layers
    middle = count // 2
    if count < 3:  # every layer is at an end: put the same kind between two others
        config, middle = with_layers(config, [middle] * 3), 1
    stage = build_stage(config, middle, middle + 1, device)
    parts = anatomy(config)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in stage.named_state().items():
            constant = parts.constant(name)
            if constant is None:
                parameter.normal_(0.0, parts.spread, generator=generator)
            else:
                parameter.fill_(constant)
    return stage
