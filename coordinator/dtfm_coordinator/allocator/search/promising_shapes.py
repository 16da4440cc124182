"""Order of shapes in a search: which numbers of stages and replicas are worth it, most promising first."""

from itertools import chain

import numpy as np

from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.problem.problem_arrays import Problem


def ranked(shapes: tuple[Shape, ...], problem: Problem) -> tuple[Shape, ...]:
    """Return the shapes by a rough guess of their step (median peers and links, a bubble), and by their width, in
    turns."""
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
