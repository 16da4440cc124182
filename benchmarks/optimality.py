"""Whether the search finds the optimum, where every placement can be looked at.

By the paper's cost: the evolution alone, enumeration turned off, against the proven optimum of random views of 6, 8 and
9 devices. By the simulated step: the search against every placement of small swarms (any peers on any number of
stages, shares and layers following speeds); it may come out below, as it also moves single micro-batches and layers.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.paper.evolutionary_search import search
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.workload import Workload
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.view.view import LayerSeconds, View

GRIDS = ((3, 2), (2, 3), (4, 2), (2, 4), (3, 3))
"""Stages and replicas: 6, 8 and 9 devices."""
EVALUATIONS = 100_000
SAME = 1 + 1e-9
DEMAND = ModelDemand(
    layer_parameters=(7_000_000,) * 8,
    embedding_parameters=4_000_000,
    head_parameters=4_000_000,
    message_values=512 * 768,
    layer_activation_bytes=60_000_000,
    head_layers=0.6,
)


def by_paper(views: int, *, symmetric: bool) -> list[tuple[str, ...]]:
    """A row for each grid."""
    rows: list[tuple[str, ...]] = []
    for stages, replicas in GRIDS:
        ratios = []
        for seed in range(views):
            view = network("irregular", stages * replicas, 1000 * stages + seed)
            alpha, beta = view.alpha(), view.beta()
            if symmetric:
                alpha, beta = np.maximum(alpha, alpha.T), np.minimum(beta, beta.T)
            sizes: dict[str, Any] = {"activation_bytes": 1e7, "gradient_bytes": 1e7}
            sizes |= {"stages": stages, "replicas": replicas}
            optimum = search(alpha, beta, **sizes)
            found = search(alpha, beta, **sizes, seed=seed, evaluations=EVALUATIONS, enumerate_up_to=0)
            assert optimum.proven
            ratios.append(found.cost.total / optimum.cost.total)
        rows.append(
            (
                f"{stages} x {replicas}",
                "symmetric" if symmetric else "asymmetric",
                f"{sum(ratio <= SAME for ratio in ratios)} of {views}",
                f"{max(ratios):.6f}",
            )
        )
    return rows


def by_step(views: int, peers: int) -> tuple[str, ...]:
    """A row for so many peers."""
    ratios, work = [], Workload(DEMAND, 8, Planning(schedule="1f1b"))
    for seed in range(views):
        rng = np.random.default_rng(seed)
        drawn = network("irregular", peers, seed)
        speeds = [LayerSeconds(forward=0.02 * s, backward=0.04 * s) for s in rng.uniform(0.5, 2, peers).tolist()]
        nodes = tuple(
            node.model_copy(update={"layer_seconds": speed}) for node, speed in zip(drawn.nodes, speeds, strict=True)
        )
        view = View(nodes=nodes, latency_ms=drawn.latency_ms, bandwidth_gbps=drawn.bandwidth_gbps)
        every = allocate(view, work, algorithm="exhaustive").cost
        found = allocate(view, work, seed, evaluations=EVALUATIONS).cost
        assert every is not None
        assert found is not None
        ratios.append(found.total / every.total)
    return (
        f"{peers}",
        f"{sum(ratio <= SAME for ratio in ratios)} of {views}",
        f"{sum(ratio < 1 / SAME for ratio in ratios)}",
        f"{np.median(ratios):.4f}",
        f"{max(ratios):.6f}",
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=40, help="views of each grid by the paper's cost, each way")
    parser.add_argument("--swarms", type=int, default=20, help="views of each size by the simulated step")
    parser.add_argument("--out", type=Path, help="where to keep the tables")
    options = parser.parse_args()
    console = Console(stderr=True)
    paper = [
        row
        for symmetric in track((True, False), description="paper's cost", console=console, transient=True)
        for row in by_paper(options.views, symmetric=symmetric)
    ]
    step = [
        by_step(options.swarms, peers)
        for peers in track((3, 4, 5, 6), description="simulated step", console=console, transient=True)
    ]
    titles = (
        f"The paper's cost: evolution of {EVALUATIONS} evaluations against the proven optimum",
        f"The simulated step: search of {EVALUATIONS} evaluations against every placement",
    )
    headings = (
        ("stages x replicas", "links", "optimum found", "worst ratio"),
        ("peers", "as good or better", "better", "median ratio", "worst ratio"),
    )
    for title, columns, rows in zip(titles, headings, (paper, step), strict=True):
        show(title, columns, rows)
    keep(
        options.out,
        "Optimality",
        f"python -m benchmarks.optimality --views {options.views} --swarms {options.swarms}",
        [markdown(*part) for part in zip(titles, headings, (paper, step), strict=True)],
    )


if __name__ == "__main__":
    main()
