"""Which numbers of stages and replicas a swarm could take, most promising first."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from dtfm_coordinator.allocator.layout import Swarm
from dtfm_protocol.errors import UserError
from dtfm_protocol.job import Planning


class NotEnoughNodes(UserError):
    """More nodes are needed than there are."""

    def __init__(self, message: str, missing: int) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Shape:
    """A grid of stages and replicas."""

    stages: int
    replicas: int


def feasible_shapes(nodes: int, layers: int, micro_batches: int, planning: Planning) -> tuple[Shape, ...]:
    """Every grid that the owner's choices, the layers and the micro-batches allow on `nodes` peers.

    Raises:
        NotEnoughNodes: the owner's choices need more nodes.
        UserError: more stages than layers, or more replicas than micro-batches.
    """
    stages, replicas = planning.stages, planning.replicas
    if stages != "auto" and stages > layers:
        raise UserError(f"[plan] stages = {stages}, but the model has {layers} layers to share out: lower stages")
    if replicas != "auto" and replicas > micro_batches:
        raise UserError(
            f"[plan] replicas = {replicas}, but a step has {micro_batches} micro-batches to share out: "
            "lower replicas or micro_batch"
        )
    needed = (1 if stages == "auto" else stages) * (1 if replicas == "auto" else replicas)
    if nodes < needed:
        raise NotEnoughNodes(
            f"the job's [plan] needs {needed} nodes and {nodes} are here: waiting for {needed - nodes} more",
            needed - nodes,
        )
    return tuple(
        Shape(count, each)
        for count in (range(1, min(nodes, layers) + 1) if stages == "auto" else (stages,))
        for each in (range(1, min(nodes // count, micro_batches) + 1) if replicas == "auto" else (replicas,))
        if count * each <= nodes
    )


def ranked(shapes: tuple[Shape, ...], swarm: Swarm) -> tuple[Shape, ...]:
    """The shapes by a rough guess of their step: middling peers and links, a full pipeline with its bubble."""
    seconds = median(layer.forward + layer.backward for layer in swarm.layer_seconds.values())
    apart = ~np.eye(len(swarm.links.alpha), dtype=bool)
    delay = float(np.median(swarm.links.alpha[apart])) if apart.any() else 0.0
    usable = swarm.links.beta[apart & (swarm.links.beta > 0)]
    bandwidth = float(np.median(usable)) if usable.size else 1.0
    demand = swarm.demand
    gradients = demand.gradient_bytes(0, demand.layers, swarm.wire)

    def guess(shape: Shape) -> float:
        stage = seconds * (demand.layers + demand.head_layers) / shape.stages
        step = (swarm.micro_batches / shape.replicas + shape.stages - 1) * stage
        step += 2 * (shape.stages - 1) * (delay + demand.message_bytes(swarm.wire) / bandwidth)
        part = gradients / (shape.stages * shape.replicas * bandwidth)
        return step + 2 * (shape.replicas - 1) * (delay + part)

    return tuple(sorted(shapes, key=guess))
