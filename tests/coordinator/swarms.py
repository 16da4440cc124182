"""Swarms to place a model on, drawn at random, for the tests of the allocator."""

import numpy as np

from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.view.view import LayerSeconds, NodeView, View

DEMAND = ModelDemand(
    layer_parameters=(200_000,) * 12,
    embedding_parameters=60_000,
    head_parameters=60_200,
    tied_parameters=60_000,
    message_values=100_000,
    layer_activation_bytes=10_000_000,
    head_layers=0.7,
)


def drawn_view(nodes: int, seed: int, *, limited: bool = False, gbps: float = 0.1) -> View:
    """Unequal peers on unequal, asymmetric links; where `limited`, uplinks and downlinks are what binds.

    Half of the peers have measured what of their backward the gradients of weights take.
    """
    rng = np.random.default_rng(seed)
    weights = np.random.default_rng(seed).uniform(0.002, 0.008, nodes)
    up, down = rng.uniform(0.05, 0.3, nodes), rng.uniform(0.1, 0.6, nodes)
    return View(
        nodes=tuple(
            NodeView(
                id=f"n{number}",
                up_gbps=up[number] if limited else None,
                down_gbps=down[number] if limited else None,
                layer_seconds=LayerSeconds(
                    forward=0.01 * rng.uniform(0.5, 2),
                    backward=0.02 * rng.uniform(0.5, 2),
                    weight=weights[number] if number % 2 else None,
                    optimizer=0.001 * rng.uniform(0.5, 2),
                ),
            )
            for number in range(nodes)
        ),
        latency_ms=rng.uniform(5, 20, (nodes, nodes)),
        bandwidth_gbps=np.full((nodes, nodes), 1.0) if limited else gbps * rng.uniform(0.5, 2, (nodes, nodes)),
    )


def drawn_stages(nodes: int, stages: int, seed: int) -> list[list[int]]:
    """All peers dealt to so many stages, unevenly."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(nodes - 1, stages - 1, replace=False)) + 1 if stages > 1 else []
    return [part.tolist() for part in np.split(rng.permutation(nodes), cuts)]


def workload(micro_batches: int, demand: ModelDemand = DEMAND, **planning: object) -> Workload:
    """A job of so many micro-batches a step."""
    return Workload(demand, micro_batches, Planning.model_validate(planning))
