"""Measurement of a device's speed: matrix products in each precision, and the job's own decoder layer, forward and
backward."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dtfm_node.engine.bf16_weights import keep_in_bf16
from dtfm_node.engine.device import autocast, free_memory, synchronise
from dtfm_node.engine.layers import compile_layers
from dtfm_node.engine.optimizers import optimizer_of
from dtfm_node.engine.weight_gradients import WeightGradients, accumulate
from dtfm_protocol.job.job_file import Precision, Training
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.single_layer import build_layer
from dtfm_protocol.view.view import LayerSeconds

_DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
_PRODUCT_SECONDS = 0.15
_REPEATS = 3


@dataclass(frozen=True)
class DeviceSpeed:
    """Measured speed and memory of a device."""

    flops: dict[Precision, float]
    """Effective FLOP/s of a large square matrix product, by precision."""
    layer_seconds: LayerSeconds
    memory_bytes: int


def measure(
    config: dict[str, Any],
    training: Training,
    device: torch.device,
    compiled: bool = False,
    flops: dict[Precision, float] | None = None,
) -> DeviceSpeed:
    """Measure `device` on one decoder layer of `config`, trained on one micro-batch as `training` has it.

    Args:
        flops: what `product_speeds` has found; None: it is asked.
    """
    return DeviceSpeed(
        product_speeds(device) if flops is None else flops,
        layer_seconds(config, training, device, compiled),
        free_memory(device),
    )


def measuring_flop(config: dict[str, Any], micro_batch: int, sequence_length: int) -> float:
    """Return about how much `layer_seconds` computes, in FLOP: products with weights, and attention of all to all."""
    sizes, tokens = model_sizes(config), micro_batch * sequence_length
    forward = 2 * sum(sizes.layer_parameters) / sizes.layers * tokens + 4 * tokens * sequence_length * sizes.hidden_size
    return 3.0 * forward * (1 + _REPEATS)


def product_speeds(device: torch.device) -> dict[Precision, float]:
    """Return the effective FLOP/s of a large square matrix product, by precision."""
    return {name: product_flops(dtype, device) for name, dtype in _DTYPES.items()}


def product_flops(dtype: torch.dtype, device: torch.device, seconds: float = _PRODUCT_SECONDS) -> float:
    """Return the effective FLOP/s of a square matrix product that is large enough to fill the device, repeated for
    `seconds`."""
    size = 512 if device.type == "cpu" else 4096
    a = torch.ones(size, size, dtype=dtype, device=device)
    a @ a
    synchronise(device)
    rounds, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        a @ a
        synchronise(device)
        rounds += 1
    return 2 * size**3 * rounds / elapsed


def layer_seconds(
    config: dict[str, Any], training: Training, device: torch.device, compiled: bool = False
) -> LayerSeconds:
    """Return median seconds of one decoder layer on one micro-batch, and of its optimizer step, after a warm-up.

    The layer runs as in the engine: gradients of matrices are taken apart from the rest of the backward, unless it is
    compiled. Of a job that trains adapters alone the layer has those, and no other gradients.
    """
    is_adapted = training.method == "lora"
    layer = build_layer(config, device, training.lora if is_adapted else None)
    parameters = {name: value for name, value in layer.named_state().items() if value.requires_grad}
    if training.weights == "bf16":
        compiled = False  # as in the engine
        keep_in_bf16(layer, own_products=True)
    for parameter in parameters.values():
        parameter.grad = torch.zeros(parameter.shape, device=device)
    matrices = WeightGradients([] if compiled else layer.modules())
    if compiled:
        compile_layers(layer)
    update = optimizer_of(training, parameters)
    hidden = model_sizes(config).hidden_size
    x = torch.ones(training.micro_batch, training.sequence_length, hidden, device=device).mul_(0.1).requires_grad_()
    forwards, inputs, matrix_gradients, updates = [], [], [], []
    for _ in range(1 + _REPEATS):
        with autocast(device, training.precision):
            output: torch.Tensor
            seconds, output = _timed(lambda: layer(x), device)
        forwards.append(seconds)
        gradient = torch.ones_like(output)
        matrices.defer()
        inputs.append(_timed(lambda: output.backward(gradient), device)[0])  # noqa: B023 - called at once
        pending = matrices.take_deferred()
        matrix_gradients.append(_timed(lambda: [accumulate(one) for one in pending], device)[0])  # noqa: B023
        updates.append(_timed(lambda: update.update(1, 0.0), device)[0])
        matrices.forget()
    weight = statistics.median(matrix_gradients[1:])
    return LayerSeconds(
        forward=statistics.median(forwards[1:]),
        backward=statistics.median(inputs[1:]) + weight,
        weight=weight,
        optimizer=statistics.median(updates[1:]),
    )


def _timed(action: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = action()
    synchronise(device)
    return time.perf_counter() - begun, result
