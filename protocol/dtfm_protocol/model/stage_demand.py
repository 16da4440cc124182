"""Demand of a plan on the memory of one of its peers, by the rule that the allocator plans with."""

from typing import Any

from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.model.frozen_parameters import frozen_sizes
from dtfm_protocol.model.memory_model import BOUNDARY_BYTES_PER_VALUE, stage_bytes
from dtfm_protocol.model.model_sizes import activation_bytes, model_sizes
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import actions_of, most_in_flight, most_waiting
from dtfm_protocol.wire.codec_sizes import FED_BACK


def stage_demand(config: dict[str, Any], training: Training, plan: Plan, peer: str) -> int:
    """Return the bytes of memory that `peer` needs for its stage of `plan`, one of a model of `config`.

    Raises:
        ValueError: it has no stage there, or the model has other layers.
    """
    index, sizes = plan.stage_of(peer), model_sizes(config)
    if index is None or plan.layers != sizes.layers:
        raise ValueError(f"a plan of {plan.layers} layers for a model of {sizes.layers}, or without {peer}")
    (first, end), actions = plan.stages[index], actions_of(plan, peer)
    frozen = frozen_sizes(config, training)
    shape = training.micro_batch, training.sequence_length, training.precision
    waiting = most_waiting(actions)
    head = sizes.logits_bytes(*shape) + waiting * sizes.logits_gradient_bytes(*shape)
    return stage_bytes(
        sizes.stage_parameters(first, end) + frozen.added_to(first, end),
        end - first,
        len(plan.stages),
        most_in_flight(actions),
        parameter_bytes=state_table(training.optimizer, training.weights).parameter_bytes,
        activation_bytes=activation_bytes(config, *shape, training.weights),
        boundary_bytes=BOUNDARY_BYTES_PER_VALUE * training.micro_batch * training.sequence_length * sizes.hidden_size,
        waiting=waiting,
        recompute=index in plan.recompute,
        feedback=plan.wire.gradients in FED_BACK and len(plan.replicas(index)) > 1,
        head_bytes=head if end == sizes.layers else 0,
        frozen=frozen.of_stage(first, end),
    )
