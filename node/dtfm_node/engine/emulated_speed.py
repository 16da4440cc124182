"""Emulation of a slower device: actions take as long as they would at a stated speed.

With it many peers on one machine behave as so many devices, as long as all that they really compute fits into it.
"""

from typing import Any

from dtfm_protocol.job.job_file import Training
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Kind
from dtfm_protocol.view.view import LayerSeconds


def paced_layer(config: dict[str, Any], training: Training, flops: float, measured: LayerSeconds) -> LayerSeconds:
    """Return the seconds of one decoder layer on one micro-batch at `flops` FLOP/s; the optimizer's are `measured`
    ones.

    A forward takes two FLOP for each parameter and token, and each of the backward's two gradients as many.
    """
    sizes = model_sizes(config)
    tokens = training.micro_batch * training.sequence_length
    forward = 2 * sum(sizes.layer_parameters) / sizes.layers * tokens / flops
    return LayerSeconds(forward=forward, backward=2 * forward, weight=forward, optimizer=measured.optimizer)


def least_seconds(
    config: dict[str, Any], training: Training, plan: Plan, stage: int, flops: float | None
) -> dict[Kind, float]:
    """Return the least seconds that each kind of action of `stage` takes at `flops` FLOP/s; 0 where `flops` is None."""
    if flops is None:
        return {"forward": 0.0, "backward": 0.0, "weight": 0.0}
    first, end = plan.stages[stage]
    layer = paced_layer(config, training, flops, LayerSeconds(forward=1, backward=1))
    layers = end - first + (model_sizes(config).head_layers if end == plan.layers else 0.0)
    weight = layers * layer.weight_part if plan.schedule == "zero-bubble" else 0.0
    again = (end - first) * layer.forward if stage in plan.recompute else 0.0
    return {"forward": layers * layer.forward, "backward": layers * layer.backward - weight + again, "weight": weight}
