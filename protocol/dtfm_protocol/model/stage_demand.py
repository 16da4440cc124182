"""The demand on the memory of whoever trains a stage of a job, by the rule that the allocator plans with."""

from dataclasses import astuple, dataclass, replace
from typing import Any

from dtfm_protocol.checkpoint.state_slots import WEIGHT, state_table
from dtfm_protocol.job.job_file import CodecName, Training
from dtfm_protocol.model.frozen_parameters import frozen_sizes
from dtfm_protocol.model.memory_model import (
    BOUNDARY_BYTES_PER_VALUE,
    COPY_BYTES_PER_PARAMETER,
    FEEDBACK_BYTES_PER_PARAMETER,
    gathered_beside,
    has_fp32_base,
    layer_kept_bytes,
    makes_copies,
    messages_bytes,
    reduction_bytes,
)
from dtfm_protocol.model.model_sizes import kept_activations, model_sizes
from dtfm_protocol.plan.peer_state import LayerRange
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import actions_of, most_in_flight, most_waiting
from dtfm_protocol.wire.codec_sizes import FED_BACK


@dataclass(frozen=True)
class StageDemand:
    """The bytes that a peer needs to train a stage, by what they are for; in all what `stage_bytes` says."""

    weights: int
    """Weights that are trained."""
    gradients: int
    """Their gradients, what reductions have under way of them, and the error that one in int8 keeps."""
    states: int
    """The optimizer's own tensors, without those in `host`."""
    frozen: int
    """Weights that are not trained."""
    copies: int
    """Copies of weights for products in bf16."""
    activations: int
    """What is kept between forward and backward, of all micro-batches in flight, and messages that have come ahead."""
    head: int
    """Logits, and what the loss takes."""

    host: int = 0
    """The optimizer's tensors that lie in the machine's memory, beside a device that has its own."""

    @property
    def total(self) -> int:
        """All of it that lies in the device's memory."""
        return int(sum(astuple(self)) - self.host)


def layers_demand(
    config: dict[str, Any],
    training: Training,
    layers: LayerRange,
    in_flight: int,
    *,
    waiting: int = 0,
    recompute: bool = False,
    reduced: CodecName | None = None,
    apart: bool = False,
) -> StageDemand:
    """Return what the stage of `layers` takes of a model of `config`; the other arguments are those of `stage_bytes`.

    Args:
        apart: whether the device has memory of its own, apart from the machine's.

    Raises:
        UserError: the architecture cannot be cut, or has not what `training` names.
    """
    (first, end), sizes, frozen = layers, model_sizes(config), frozen_sizes(config, training)
    batch, sequence, precision = training.micro_batch, training.sequence_length, training.precision
    table, still = state_table(training.optimizer, training.weights, training.offload), frozen.of_stage(first, end)
    trained = sizes.stage_parameters(first, end) + frozen.added_to(first, end) - still
    slots = {slot.name: slot.bytes for slot in table.slots}
    moments = sum(slot.bytes for slot in table.moments)
    copied = frozen.added_to(first, end)
    copied += sizes.product_parameters(first, end) if has_fp32_base(training) else 0
    boundary = BOUNDARY_BYTES_PER_VALUE * batch * sequence * sizes.hidden_size
    activation = kept_activations(config, training)
    kept = (end - first) * layer_kept_bytes(in_flight, waiting, activation, boundary, recompute)
    kept += messages_bytes(boundary, 1 if (first, end) == (0, sizes.layers) else 2) + (activation if recompute else 0)
    head = sizes.logits_bytes(batch, sequence, precision)
    head += waiting * sizes.logits_gradient_bytes(batch, sequence, precision)
    beside = table.parameter_bytes - slots[WEIGHT] - moments
    beside += FEEDBACK_BYTES_PER_PARAMETER if reduced in FED_BACK else 0
    shared = sizes.tied_parameters if (first == 0) != (end == sizes.layers) and not frozen.head else 0
    under_way = (reduction_bytes(trained) if reduced else 0.0) + reduction_bytes(shared)
    return StageDemand(
        weights=int(slots[WEIGHT] * trained),
        gradients=int(beside * trained) + int(under_way),
        states=int((moments - table.host_bytes if apart else moments) * trained),
        frozen=frozen.bytes_of_stage(first, end),
        copies=COPY_BYTES_PER_PARAMETER * copied if makes_copies(precision, table) else 0,
        activations=int(kept),
        head=head if end == sizes.layers else 0,
        host=int(table.host_bytes * trained) if apart else 0,
    )


def stage_demand(config: dict[str, Any], training: Training, plan: Plan, peer: str) -> int:
    """Return the bytes of memory that `peer` needs for its stage of `plan`, one of a model of `config`.

    Raises:
        ValueError: it has no stage there, or the model has other layers.
    """
    return peer_demand(config, training, plan, peer).total


def peer_demand(
    config: dict[str, Any], training: Training, plan: Plan, peer: str, *, apart: bool = False
) -> StageDemand:
    """Return what `peer` needs for its stage of `plan`, one of a model of `config`.

    Args:
        apart: whether its device has memory of its own, apart from the machine's.

    Raises:
        ValueError: it has no stage there, or the model has other layers.
    """
    index, sizes = plan.stage_of(peer), model_sizes(config)
    if index is None or plan.layers != sizes.layers:
        raise ValueError(f"a plan of {plan.layers} layers for a model of {sizes.layers}, or without {peer}")
    actions = actions_of(plan, peer)
    demand = layers_demand(
        config,
        training,
        plan.stages[index],
        most_in_flight(actions),
        waiting=most_waiting(actions),
        recompute=index in plan.recompute,
        reduced=plan.wire.gradients if len(plan.replicas(index)) > 1 else None,
        apart=apart,
    )
    frozen, (first, end) = frozen_sizes(config, training), plan.stages[index]
    trained = sizes.stage_parameters(first, end) + frozen.added_to(first, end) - frozen.of_stage(first, end)
    is_tied = sizes.tied_parameters > 0 and not frozen.head
    more = gathered_beside(plan, peer, trained, sizes.tied_parameters if is_tied else 0)
    return replace(demand, gradients=demand.gradients + more)


def smallest_stage_bytes(config: dict[str, Any], training: Training, *, apart: bool = False) -> int:
    """Return the bytes of the least demanding stage of a job, as `smallest_stage` does."""
    return smallest_stage(config, training, apart=apart).total


def smallest_stage(config: dict[str, Any], training: Training, *, apart: bool = False) -> StageDemand:
    """Return what the least demanding stage of a job takes: one layer, with one micro-batch in flight.

    Args:
        apart: whether the device has memory of its own, apart from the machine's.

    Raises:
        UserError: the architecture cannot be cut, or has not what `training` names.
    """
    demands = (
        layers_demand(config, training, (layer, layer + 1), 1, apart=apart)
        for layer in range(model_sizes(config).layers)
    )
    return min(demands, key=lambda one: one.total)
