"""How the search by the paper's cost grows: seconds, memory and quality at 64 to 4,096 devices.

Each search runs in a process of its own, so that its peak memory is its own. "By construction" is the placement that a
network was made to have, written out and priced like any other: half of the stages, or of the pipelines, on each of two
clusters, whichever is cheaper; whole pipelines, or whole stages, in one of eight cities.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator.paper.evolutionary_search import search, warm_up
from dtfm_coordinator.allocator.paper.paper_cost import PaperCost, Pipelines, cost_of_pipelines
from dtfm_lab.bounds.paper_bound import lower_bound
from dtfm_lab.networks.catalogue import network
from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES

GRIDS = {64: (8, 8), 256: (16, 16), 1024: (32, 32), 4096: (64, 64)}
BUDGETS = {64: 2.0, 256: 8.0, 1024: 30.0, 4096: 120.0}
NETWORKS = ("two-clusters", "worldwide", "irregular")


@dataclass(frozen=True)
class Grown:
    """One search."""

    name: str
    devices: int
    seconds: float
    """From reading the network to the placement written out."""
    reached: float
    """When the placement that was the best in the end was found."""
    gigabytes: float
    total: float
    bound: float
    constructed: float | None


def constructed(stages: int, replicas: int) -> list[Pipelines]:
    """Devices in order along the pipelines, and in order across them."""
    order = np.arange(stages * replicas)
    along, across = order.reshape(replicas, stages), order.reshape(stages, replicas).T
    return [tuple(map(tuple, routes.tolist())) for routes in (along, across)]


def grow(name: str, devices: int) -> Grown:
    """Search one network of one size."""
    warm_up()  # compiling is done once a machine
    begun = time.monotonic()
    stages, replicas = GRIDS[devices]
    view = network(name, devices, 0)
    alpha, beta = view.alpha(), view.beta()
    sizes: dict[str, Any] = {"activation_bytes": float(AUTHORS_ACTIVATION_BYTES), "gradient_bytes": GRADIENT_BYTES}
    found = search(alpha, beta, stages=stages, replicas=replicas, seconds=BUDGETS[devices], **sizes)
    seconds, peak = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    known: list[PaperCost] = []
    if name != "irregular":
        known = [cost_of_pipelines(alpha, beta, routes, **sizes) for routes in constructed(stages, replicas)]
    return Grown(
        name,
        devices,
        seconds,
        found.history[-1][0],
        peak,
        found.cost.total,
        lower_bound(alpha, beta, stages, replicas, **sizes).total,
        min((cost.total for cost in known), default=None),
    )


def grown(name: str, devices: int) -> Grown:
    """`grow` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--one", name, str(devices)]
    return Grown(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


HEADINGS = (
    "network",
    "devices",
    "stages x replicas",
    "seconds",
    "best found after",
    "peak memory",
    "total",
    "by construction",
    "total / construction",
    "lower bound",
)


def row(result: Grown) -> tuple[str, ...]:
    """A result as a row under `HEADINGS`."""
    known = result.constructed
    return (
        result.name,
        f"{result.devices:,}",
        " x ".join(map(str, GRIDS[result.devices])),
        f"{result.seconds:.1f} s",
        f"{result.reached:.1f} s",
        f"{result.gigabytes:.2f} GB",
        f"{result.total:.3f} s",
        "-" if known is None else f"{known:.3f} s",
        "-" if known is None else f"{result.total / known:.4f}",
        f"{result.bound:.3f} s",
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "DEVICES"), help="one search; its figures as JSON")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(grow(options.one[0], int(options.one[1])))))
        return
    cases = [(name, devices) for devices in GRIDS for name in NETWORKS]
    rows = [
        row(grown(*case))
        for case in track(cases, description="searching", console=Console(stderr=True), transient=True)
    ]
    title = "The search by the paper's cost as swarms grow, two cores; memory of the whole process"
    show(title, HEADINGS, rows)
    keep(options.out, "Scale", "python -m benchmarks.scale", [markdown(title, HEADINGS, rows)])


if __name__ == "__main__":
    main()
