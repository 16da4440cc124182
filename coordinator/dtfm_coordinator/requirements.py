"""What a job asks of its peers: its model's sizes, for the allocator."""

from typing import Any

from dtfm_coordinator.allocator.step.demand import ModelDemand
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.data.tokenizer import vocabulary_size
from dtfm_protocol.job import Job, Training
from dtfm_protocol.model.config import resolve_config
from dtfm_protocol.model.sizes import activation_bytes, model_sizes


def requirements(config: dict[str, Any], training: Training) -> ModelDemand:
    """What a model of `config` and one micro-batch of `training` ask of peers.

    Raises:
        UserError: the config makes no model.
    """
    sizes = model_sizes(config)
    kept = activation_bytes(config, training.micro_batch, training.sequence_length, training.precision)
    tokens = training.micro_batch * training.sequence_length
    per_layer = sum(sizes.layer_parameters) / sizes.layers
    return ModelDemand(
        layer_parameters=sizes.layer_parameters,
        embedding_parameters=sizes.embedding_parameters,
        head_parameters=sizes.head_parameters,
        tied_parameters=sizes.tied_parameters,
        message_values=tokens * sizes.hidden_size,
        layer_activation_bytes=kept,
        head_bytes=sizes.logits_bytes(training.micro_batch, training.sequence_length, training.precision),
        logits_gradient_bytes=sizes.logits_gradient_bytes(
            training.micro_batch, training.sequence_length, training.precision
        ),
        head_layers=sizes.head_layers,
        layer_flops=2 * per_layer * tokens,
    )


def workload(job: Job) -> Workload:
    """A job file as the allocator sees it, without reading its text.

    Raises:
        UserError: the model or the tokenizer cannot be made.
    """
    config = resolve_config(job.model, vocabulary_size(job.data), job.training.sequence_length)
    return Workload(requirements(config, job.training), job.training.micro_batches, job.plan)
