"""Plan by the paper's communication cost alone: what `dtfm-coordinator plan --cost paper` writes."""

import time
from collections.abc import Callable
from math import log10
from typing import Literal

import numpy as np
from scipy.sparse.csgraph import connected_components

from dtfm_coordinator.allocator.foundations.links import Matrix
from dtfm_coordinator.allocator.foundations.search_budget import CUT_SHORT
from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.allocator.paper import baselines
from dtfm_coordinator.allocator.paper.evolutionary_search import LARGEST_ENUMERATION, search, warm_up
from dtfm_coordinator.allocator.paper.exhaustive import partitions, provable
from dtfm_coordinator.allocator.paper.hamiltonian_path import LARGEST_EXACT
from dtfm_coordinator.allocator.paper.paper_cost import PaperCost, Pipelines, cost_of_pipelines
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.view.view import View

Algorithm = Literal["evolutionary", "random", "in-order", "greedy", "exhaustive"]

LARGEST_EXHAUSTIVE = 3_000_000
"""Number of placements, at most, that an exhaustive search looks at: seconds, up to a minute where stages are many."""


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
    say: Callable[[str], object] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> Plan:
    """Place as many pipelines of `stages` devices as the view has devices for; the rest stay idle.

    The plan has one placeholder layer a stage and one route a pipeline.

    Args:
        activation_bytes: bytes that a pipeline's whole share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.
        algorithm: "evolutionary"; "exhaustive", which proves the optimum of a small swarm, whatever the limits;
            "greedy", "random" or "in-order", which do not search.
        seed: seed of the search's or the random placement's random numbers.
        budget: seconds of search; 1.2 where neither limit is given.
        evaluations: placements that the search may look at. Without `budget`, the same seed gives the same plan.
        say: told that the search is being compiled, if it is.
        stop: whether to end now with the best plan so far, whose reason says so.

    Raises:
        NotEnoughNodes: fewer nodes than stages.
        UserError: an unknown algorithm; too many placements to look at all of them; too few nodes that reach each
            other; or the placement needs a pair of nodes that cannot talk.
    """
    devices = len(view.nodes)
    replicas = _replicas(devices, stages)
    alpha, beta = view.alpha(), view.beta()
    _check_parts(beta, stages, replicas)
    exhaustive = algorithm == "exhaustive"
    if exhaustive:
        _check_exhaustible(devices, stages, replicas)
    warm_up(say)
    started, looked_at, history = clock(), 1, None
    if algorithm in ("evolutionary", "exhaustive"):
        found = search(
            alpha,
            beta,
            stages=stages,
            replicas=replicas,
            activation_bytes=activation_bytes,
            gradient_bytes=gradient_bytes,
            seed=seed,
            seconds=float("inf") if exhaustive else budget,
            evaluations=None if exhaustive else evaluations,
            clock=clock,
            enumerate_up_to=LARGEST_EXHAUSTIVE if exhaustive else LARGEST_ENUMERATION,
            stop=stop,
        )
        pipelines, cost = found.pipelines, found.cost
        looked_at, history = found.evaluations, found.history
    else:
        pipelines = _without_search(algorithm, alpha, beta, stages, replicas, activation_bytes, gradient_bytes, seed)
        cost = cost_of_pipelines(alpha, beta, pipelines, activation_bytes, gradient_bytes)
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
        f"by the paper's cost{CUT_SHORT if stop() else ''}",
        history=history if history is not None else ((seconds, cost.total),),
    )


def _replicas(devices: int, stages: int) -> int:
    """How many pipelines there are devices for.

    Raises:
        NotEnoughNodes: not for one.
    """
    if devices < stages:
        raise NotEnoughNodes(
            f"{stages} stages need at least {stages} nodes and the view has {devices}: ask for fewer stages",
            stages - devices,
        )
    return devices // stages


def _without_search(
    algorithm: str,
    alpha: Matrix,
    beta: Matrix,
    stages: int,
    replicas: int,
    activation_bytes: float,
    gradient_bytes: float,
    seed: int,
) -> Pipelines:
    if algorithm == "random":
        return baselines.random(len(alpha), stages, replicas, seed)
    if algorithm == "in-order":
        return baselines.in_order(len(alpha), stages, replicas)
    if algorithm == "greedy":
        return baselines.greedy(alpha, beta, stages, replicas, activation_bytes, gradient_bytes)
    raise UserError(f"there is no algorithm {algorithm!r}: choose evolutionary, exhaustive, greedy, random or in-order")


def _check_exhaustible(devices: int, stages: int, replicas: int) -> None:
    """Refuse an exhaustive search that would take too long, or could not prove the best.

    Raises:
        UserError: there are too many placements, or too many stages.
    """
    count = partitions(devices, stages, replicas)
    if count > LARGEST_EXHAUSTIVE:
        shown = f"{count:,}" if count < 10**12 else f"about 10^{int(log10(count))}"
        raise UserError(
            f"{devices} nodes have {shown} placements of {stages} stages x {replicas} replicas, and the exhaustive "
            f"search looks at {LARGEST_EXHAUSTIVE:,} at most: use the evolutionary search, or leave nodes out"
        )
    if not provable(devices, stages):
        raise UserError(
            f"the exhaustive search proves the order of {LARGEST_EXACT} stages at most, not of {stages}: "
            "use the evolutionary search, or ask for fewer stages"
        )


def _check_parts(beta: Matrix, stages: int, replicas: int) -> None:
    """Refuse a view none of whose parts is large enough: all nodes of a placement have to reach each other.

    Raises:
        UserError: the view falls apart.
    """
    _, part = connected_components((beta > 0) & (beta.T > 0), directed=False)
    sizes = sorted(np.bincount(part).tolist(), reverse=True)
    if sizes[0] < stages * replicas:
        shown = ", ".join(map(str, sizes[:6])) + (", ..." if len(sizes) > 6 else "")
        raise UserError(
            f"the view falls apart into {len(sizes)} parts with 0 Gbit/s between them, of {shown} nodes, and {stages} "
            f"stages x {replicas} replicas need {stages * replicas} nodes that reach each other: open a port between "
            "the parts, or plan on the nodes of one part alone"
        )


def _as_cost(cost: PaperCost) -> Cost:
    return Cost(kind="paper", total=cost.total, data_parallel=cost.data_parallel, pipeline=cost.pipeline)


def _unreachable(stages: int, replicas: int, algorithm: str) -> str:
    if algorithm in ("evolutionary", "exhaustive"):
        found = "was found" if algorithm == "evolutionary" else "exists"
        return (
            f"no placement of {stages} stages x {replicas} replicas {found} in which every pair that must talk can: "
            "too many pairs of the view have 0 Gbit/s; ask for fewer stages, or leave nodes out"
        )
    return f"the {algorithm} placement needs a pair of nodes with 0 Gbit/s between them: use the evolutionary search"
