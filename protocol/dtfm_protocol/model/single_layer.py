"""A single decoder layer, which a peer times and weighs before it knows its stage."""

from typing import Any

import torch

from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.job.job_file import Lora, Training
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.frozen_parameters import frozen_sizes
from dtfm_protocol.model.lora import ADAPTED
from dtfm_protocol.model.memory_model import BOUNDARY_BYTES_PER_VALUE, makes_copies, stage_bytes
from dtfm_protocol.model.model_config import build_config
from dtfm_protocol.model.model_sizes import kept_activations, model_sizes
from dtfm_protocol.model.stage import Stage, build_stage
from dtfm_protocol.model.tiny_model import with_layers


def build_layer(config: dict[str, Any], device: torch.device, lora: Lora | None = None) -> Stage:
    """Build the middle decoder layer of a resolved config, initialised, in training mode.

    A stage that is neither first nor last: hidden `[batch, sequence, hidden]` in and out. Its values are of the size
    that initial weights have, drawn on `device`; they are not those of any job.

    Args:
        lora: adapters, if they are what is trained of it; None: all of it is.

    Raises:
        UserError: the architecture cannot be cut, or has none of the adapters' targets.
    """
    count = build_config(config).num_hidden_layers
    middle = count // 2
    if count < 3:  # every layer is at an end: put the same kind between two others
        config, middle = with_layers(config, [middle] * 3), 1
    stage = build_stage(config, middle, middle + 1, device)
    if lora is not None:
        for parameter in stage.parameters():
            parameter.requires_grad_(False)
        stage.adapt(config, lora)
    parts = anatomy(config)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in stage.named_state().items():
            constant = None if name.startswith(ADAPTED) else parts.constant(name)
            if constant is None:
                parameter.normal_(0.0, parts.spread, generator=generator)
            else:
                parameter.fill_(constant)
    return stage


def layer_bytes(config: dict[str, Any], training: Training) -> int:
    """Return the bytes that such a layer takes while it is trained as a job has it, with one micro-batch in flight.

    Raises:
        UserError: the architecture cannot be cut, or has none of the adapters' targets.
    """
    sizes, table = model_sizes(config), state_table(training.optimizer, training.weights)
    frozen = sizes.layer_parameters[sizes.layers // 2] if training.method == "lora" else 0
    added = frozen_sizes(config, training).adapters[sizes.layers // 2]
    parameters = sizes.layer_parameters[sizes.layers // 2] + added
    values = training.micro_batch * training.sequence_length * sizes.hidden_size
    return stage_bytes(
        parameters,
        layers=1,
        stages=2,
        in_flight=1,
        parameter_bytes=table.parameter_bytes,
        activation_bytes=kept_activations(config, training),
        boundary_bytes=BOUNDARY_BYTES_PER_VALUE * values,
        frozen=frozen,
        copied=parameters if makes_copies(training.precision, table) else 0,
    )
