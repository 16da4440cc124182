"""Emulation of a slower device: actions take as long as they would at a stated speed.

With it many peers on one machine behave as so many devices, as long as all that they really compute fits into it.
"""

from typing import Any

from dtfm_protocol.job.job_file import Training
from dtfm_protocol.model.frozen_parameters import frozen_sizes
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage_compute import stage_compute
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Kind
from dtfm_protocol.view.view import LayerSeconds


def paced_layer(config: dict[str, Any], training: Training, flops: float, measured: LayerSeconds) -> LayerSeconds:
    """Return the seconds of one decoder layer on one micro-batch at `flops` FLOP/s; the optimizer's are `measured`
    ones.

    A forward takes two FLOP for each parameter and token, and so does the gradient of its input; that of the weights
    takes as many for those that are trained.
    """
    sizes, frozen = model_sizes(config), frozen_sizes(config, training)
    each = 2 * training.micro_batch * training.sequence_length / flops / sizes.layers
    adapters = sum(frozen.adapters)
    forward = each * (sum(sizes.layer_parameters) + adapters)
    weight = each * adapters if training.method == "lora" else forward
    return LayerSeconds(forward=forward, backward=forward + weight, weight=weight, optimizer=measured.optimizer)


def least_seconds(
    config: dict[str, Any], training: Training, plan: Plan, stage: int, flops: float | None
) -> dict[Kind, float]:
    """Return the least seconds that each kind of action of `stage` takes at `flops` FLOP/s; 0 where `flops` is None."""
    if flops is None:
        return {"forward": 0.0, "backward": 0.0, "weight": 0.0}
    first, end = plan.stages[stage]
    layer = paced_layer(config, training, flops, LayerSeconds(forward=1, backward=1))
    sizes, frozen = model_sizes(config), frozen_sizes(config, training)
    compute = stage_compute(
        first,
        end,
        frozen.trained_layers(sizes.layer_parameters),
        sizes.head_layers,
        embedding=frozen.embedding < sizes.embedding_parameters,
        head=frozen.head < sizes.head_parameters,
    )
    weight = compute.weight * layer.weight_part
    again = (end - first) * layer.forward if stage in plan.recompute else 0.0
    backward = compute.through * (layer.backward - layer.weight_part) + again
    if plan.schedule != "zero-bubble":
        backward, weight = backward + weight, 0.0
    return {"forward": compute.forward * layer.forward, "backward": backward, "weight": weight}
