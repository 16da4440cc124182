"""Which numbers of stages and replicas a swarm could take, most promising first."""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from dtfm_coordinator.allocator.step.problem import Problem
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


def ranked(shapes: tuple[Shape, ...], problem: Problem) -> tuple[Shape, ...]:
    """The shapes by a rough guess of their step (middling peers and links, a bubble), and by their width."""
    seconds = float(np.median(problem.forward + problem.backward))
    apart = ~np.eye(len(problem.alpha), dtype=bool)
    delay = float(np.median(problem.alpha[apart])) if apart.any() else 0.0
    usable = problem.beta[apart & (problem.beta > 0)]
    bandwidth = float(np.median(usable)) if usable.size else 1.0
    gradients = float(problem.gradient_before[-1]) + problem.embedding_gradients + problem.head_gradients

    def guess(shape: Shape) -> float:
        stage = seconds * (problem.layers + problem.head_layers) / shape.stages
        message = problem.message_bytes / bandwidth if shape.stages > 1 else 0.0
        step = (problem.micro_batches / shape.replicas + shape.stages - 1) * max(stage, 2 * message)
        step += 2 * (shape.stages - 1) * (delay + message)
        part = gradients / (shape.stages * shape.replicas * bandwidth)
        return step + 2 * (shape.replicas - 1) * part + (2 * delay if shape.replicas > 1 else 0.0)

    promising = sorted(shapes, key=guess)
    # A guess by what is middling fails where links are very unequal. There one fast chain of peers beats all others,
    # so that chains, then pairs and so on, have every other turn.
    narrow = sorted(promising, key=lambda shape: (shape.replicas & (shape.replicas - 1) != 0, shape.replicas))
    turns = chain.from_iterable(zip(promising, narrow, strict=True))
    return tuple(dict.fromkeys(turns))
