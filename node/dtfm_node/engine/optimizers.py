"""Optimizers by the names that a job has for them."""

from collections.abc import Mapping

import torch

from dtfm_node.engine.adamw import AdamW, load_compiled
from dtfm_node.engine.elementwise_update import ElementwiseUpdate, UpdateSettings
from dtfm_node.engine.gradient_norm import clip_factor, load_sums
from dtfm_node.engine.sgd import SGD
from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.job.job_file import OptimizerName, Training

OPTIMIZERS: dict[OptimizerName, type[ElementwiseUpdate]] = {"adamw": AdamW, "adamw-8bit": AdamW, "sgd": SGD}
"""The rule of each; how what it keeps is kept, its table says."""


def optimizer_of(training: Training, parameters: Mapping[str, torch.nn.Parameter]) -> ElementwiseUpdate:
    """Return the job's optimizer, before its first step."""
    table = state_table(training.optimizer, training.weights, training.offload)
    return OPTIMIZERS[training.optimizer](parameters, UpdateSettings.of(training), table)


def update_after(optimizer: ElementwiseUpdate, training: Training, step: int, grad_norm: float) -> None:
    """Make weights and moments those after `step`, clipped by the norm of the whole model's gradient.

    Args:
        training: values by which the update of that step goes.
    """
    factor, rate = clip_factor(grad_norm, training.clip_norm), training.learning_rate_at(step)
    optimizer.update(step, rate, factor, UpdateSettings.of(training))


def load_update(training: Training, device: torch.device) -> None:
    """Load now what the first update of a job's optimizer on `device` would, and the sums before it."""
    if device.type == "cpu":
        load_sums()
        if OPTIMIZERS[training.optimizer] is AdamW:
            load_compiled()
