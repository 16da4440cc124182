"""A plan by the paper's communication cost alone: what `dtfm-coordinator plan --cost paper` writes."""

import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from dtfm_coordinator.allocator import baselines
from dtfm_coordinator.allocator.paper_cost import PaperCost, cost_of_pipelines
from dtfm_coordinator.allocator.search import search
from dtfm_coordinator.allocator.shapes import NotEnoughNodes
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan import Cost, Plan
from dtfm_protocol.view import View

Algorithm = Literal["evolutionary", "random", "in-order"]


def allocate_paper(
    view: View,
    stages: int,
    activation_bytes: float,
    gradient_bytes: float,
    algorithm: str = "evolutionary",
    seed: int = 0,
    budget: float | None = None,
    evaluations: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """Place as many pipelines of `stages` devices as the view has devices for; the rest stay idle.

    The plan has one placeholder layer a stage and one route a pipeline.

    Args:
        activation_bytes: what a pipeline's whole share of a step sends over one boundary.
        gradient_bytes: of one stage.
        algorithm: "evolutionary", "random" or "in-order".
        seed: of the search's or the random placement's own numbers.
        budget: seconds of search; 1.2 where neither limit is given.
        evaluations: placements that the search may look at. Without `budget`, the same seed gives the same plan.

    Raises:
        NotEnoughNodes: fewer nodes than stages.
        UserError: an unknown algorithm; or the placement needs a pair of nodes that cannot talk.
    """
    devices = len(view.nodes)
    replicas = devices // stages
    if replicas == 0:
        raise NotEnoughNodes(
            f"{stages} stages need at least {stages} nodes and the view has {devices}: ask for fewer stages",
            stages - devices,
        )
    alpha, beta, started = view.alpha(), view.beta(), clock()
    looked_at, history = 1, None
    if algorithm == "evolutionary":
        found = search(
            alpha,
            beta,
            stages=stages,
            replicas=replicas,
            activation_bytes=activation_bytes,
            gradient_bytes=gradient_bytes,
            seed=seed,
            seconds=budget,
            evaluations=evaluations,
            clock=clock,
        )
        pipelines, cost = found.pipelines, found.cost
        looked_at, history = found.evaluations, found.history
    elif algorithm in ("random", "in-order"):
        pipelines = (
            baselines.random(devices, stages, replicas, seed)
            if algorithm == "random"
            else baselines.in_order(devices, stages, replicas)
        )
        cost = cost_of_pipelines(alpha, beta, pipelines, activation_bytes, gradient_bytes)
    else:
        raise UserError(f"there is no algorithm {algorithm!r}: choose evolutionary, random or in-order")
    if not np.isfinite(cost.total):
        raise UserError(_unreachable(stages, replicas, algorithm))

    seconds = clock() - started
    used = {device for route in pipelines for device in route}
    return Plan(
        stages=tuple((stage, stage + 1) for stage in range(stages)),
        routes=tuple(tuple(view.ids[device] for device in route) for route in pipelines),
        idle=tuple(peer for device, peer in enumerate(view.ids) if device not in used),
        cost=_as_cost(cost),
        seed=seed,
        evaluations=looked_at,
        seconds=seconds,
        reason=f"{algorithm}: {stages} stages x {replicas} replicas communicate for {cost.total:.3f} s a step "
        "by the paper's cost",
        history=history if history is not None else ((seconds, cost.total),),
    )


def _as_cost(cost: PaperCost) -> Cost:
    return Cost(kind="paper", total=cost.total, data_parallel=cost.data_parallel, pipeline=cost.pipeline)


def _unreachable(stages: int, replicas: int, algorithm: str) -> str:
    if algorithm == "evolutionary":
        return (
            f"no placement of {stages} stages x {replicas} replicas was found in which every pair that must talk can: "
            "too many pairs of the view have 0 Gbit/s; ask for fewer stages, or leave nodes out"
        )
    return f"the {algorithm} placement needs a pair of nodes with 0 Gbit/s between them: use the evolutionary search"
