"""The layers of a job that fit into a device's memory, and how long they take there. Pure but for the model's sizes."""

from dataclasses import dataclass
from typing import Any

from dtfm_protocol.job.job_file import Training
from dtfm_protocol.model.frozen_parameters import frozen_sizes
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage_compute import stage_compute
from dtfm_protocol.model.stage_demand import StageDemand, layers_demand
from dtfm_protocol.plan.peer_state import LayerRange
from dtfm_protocol.view.view import LayerSeconds


@dataclass(frozen=True)
class FittingStage:
    """The largest stage of its kind that fits, in a pipeline whose stages are all about as large."""

    has_embedding: bool
    """Whether it begins the model."""
    has_head: bool
    """Whether it ends it."""
    layers: int
    stages: int
    """Number of stages of that pipeline."""
    in_flight: int
    """Micro-batches of which it keeps activations at once, under 1F1B."""
    recomputes: bool
    """Whether it fits only where it computes activations anew."""
    demand: StageDemand
    forward_seconds: float
    """Of one micro-batch, as the others."""
    backward_seconds: float
    optimizer_seconds: float
    """Once a step."""
    step_seconds: float
    """What one such device computes in a step, without replicas that share its work."""


def fitting_stages(
    config: dict[str, Any], training: Training, memory: float, layer: LayerSeconds, host: float | None = None
) -> tuple[FittingStage, ...]:
    """Return the largest stages, of those between the ends, of those with the embedding, with the head, and with both,
    that `memory` bytes hold; of which none fits is left out.

    Args:
        layer: measured seconds of one of the layers.
        host: bytes of the machine's memory, where `memory` is a GPU's own; None: they are one.

    Raises:
        UserError: the architecture cannot be cut, or has not what `training` names.
    """
    count = model_sizes(config).layers
    ends = [(False, False), (True, False), (False, True), (True, True)]
    most = {(False, False): count - 2, (True, False): count - 1, (False, True): count - 1, (True, True): count}
    least = {(True, True): count}
    found = []
    for has_embedding, has_head in ends:
        for size in range(most[has_embedding, has_head], least.get((has_embedding, has_head), 1) - 1, -1):
            first = 0 if has_embedding else count - size if has_head else (count - size) // 2
            stage = _fitting(config, training, (memory, host), layer, (first, first + size))
            if stage is not None:
                found.append(stage)
                break
    return tuple(found)


def _fitting(
    config: dict[str, Any],
    training: Training,
    offers: tuple[float, float | None],
    layer: LayerSeconds,
    layers: LayerRange,
) -> FittingStage | None:
    (first, end), sizes, (memory, host) = layers, model_sizes(config), offers
    stages = -(-sizes.layers // (end - first))
    if stages == 1 and end - first < sizes.layers:
        stages = 2
    # Under 1F1B each stage keeps one micro-batch more than the one that follows it.
    place = 0 if first == 0 else stages - 1 if end == sizes.layers else 1
    in_flight = min(training.micro_batches, stages - place)
    for recomputes in (False, True):
        demand = layers_demand(config, training, layers, in_flight, recompute=recomputes, apart=host is not None)
        if demand.total <= memory and demand.host <= (host or 0.0):
            break
    else:
        return None
    frozen = frozen_sizes(config, training)
    trained_layers = frozen.trained_layers(sizes.layer_parameters)
    compute = stage_compute(
        first,
        end,
        trained_layers,
        sizes.head_layers,
        embedding=frozen.embedding < sizes.embedding_parameters,
        head=frozen.head < sizes.head_parameters,
    )
    forward = compute.forward * layer.forward
    backward = compute.through * (layer.backward - layer.weight_part) + compute.weight * layer.weight_part
    backward += (end - first) * layer.forward if recomputes else 0.0
    trained = sizes.stage_parameters(first, end) + frozen.added_to(first, end) - frozen.of_stage(first, end)
    whole = sizes.layer_parameters[sizes.layers // 2] if training.method != "lora" else 0
    measured = whole + frozen.adapters[sizes.layers // 2]
    update = (layer.optimizer or 0.0) * trained / measured if measured else 0.0
    return FittingStage(
        first == 0,
        end == sizes.layers,
        end - first,
        stages,
        in_flight,
        recomputes,
        demand,
        forward,
        backward,
        update,
        training.micro_batches * (forward + backward) + update,
    )
