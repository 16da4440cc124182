"""What planning by the simulated step buys over planning by the paper's cost: both played out by the exact simulator.

A decoder of 1.2 billion parameters (24 layers, hidden 2048, sequences of 1,024, one a micro-batch, 64 a step, bf16 on
the wire) on 32 unequal devices. Every algorithm may choose its own number of stages: each is laid out at every grid
that the devices, layers and micro-batches allow, with shares and layers that follow speeds, and its best is taken; so
the paper's plan is the kindest reading of it (and has twice the seconds). The lower bound holds for every plan.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.paper_plans import paper_plan
from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.workload import Workload
from dtfm_lab.bounds.step_bound import least_bound
from dtfm_lab.networks.catalogue import network
from dtfm_lab.networks.consumer_gpus import MACHINES
from dtfm_protocol.job.job_file import Planning, Wire
from dtfm_protocol.view.view import View

DEVICES, MICRO_BATCHES = 32, 64
NETWORKS = ("regional", "worldwide", "home", "slow-site", "two-clusters", "hub-and-spoke", "irregular")
HIDDEN, LAYERS, SEQUENCE = 2048, 24, 1024
LAYER_PARAMETERS = 12 * HIDDEN**2
DEMAND = ModelDemand(
    layer_parameters=(LAYER_PARAMETERS,) * LAYERS,
    embedding_parameters=32_000 * HIDDEN,
    head_parameters=32_000 * HIDDEN,
    message_values=SEQUENCE * HIDDEN,
    layer_activation_bytes=17 * SEQUENCE * HIDDEN * 2,
    head_bytes=SEQUENCE * 32_000 * 6,
    head_layers=32_000 * HIDDEN / LAYER_PARAMETERS,
    precision="bf16",
    layer_flops=2.0 * LAYER_PARAMETERS * SEQUENCE,
)
WIRE = Wire(activations="bf16", gradients="bf16")
WORK = Workload(DEMAND, MICRO_BATCHES, Planning(schedule="1f1b", wire=WIRE))


def equipped(name: str) -> View:
    """The network with unequal devices; `home` brings its own."""
    view = network(name, DEVICES, 0)
    if name == "home":
        return view
    rng = np.random.default_rng(0)
    chosen = [MACHINES[number] for number in rng.integers(len(MACHINES), size=DEVICES).tolist()]
    nodes = tuple(
        node.model_copy(update={"flops": machine.flops, "memory_bytes": machine.memory_bytes})
        for node, machine in zip(view.nodes, chosen, strict=True)
    )
    return View(nodes=nodes, latency_ms=view.latency_ms, bandwidth_gbps=view.bandwidth_gbps)


def by_paper(view: View, seconds: float) -> float:
    """The shortest step among the paper's placements of every grid."""
    found = paper_plan(view, WORK, "1f1b", seconds=2 * seconds)
    return np.inf if found is None else found[1]


def total(view: View, algorithm: str, seed: int, seconds: float | None = None) -> float:
    """The step of an algorithm's plan."""
    cost = allocate(view, WORK, seed, seconds, algorithm=algorithm).cost
    assert cost is not None
    return cost.total


HEADINGS = ("network", "lower bound", "makespan plan", "paper's plan", "in order", "random (median of 5)")


def row(name: str, seconds: float) -> tuple[str, ...]:
    """Seconds of the bound, and ratios to it."""
    view = equipped(name)
    bound = least_bound(view, WORK)
    found = (
        statistics.median(total(view, "evolutionary", seed, seconds) for seed in range(3)),
        by_paper(view, seconds),
        total(view, "in-order", 0),
        statistics.median(total(view, "random", seed) for seed in range(5)),
    )
    return (name, f"{bound:.3f} s", *(f"{value / bound:.2f}" for value in found))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of each search")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    console = Console(stderr=True)
    rows = [row(name, options.budget) for name in track(NETWORKS, console=console, transient=True)]
    title = (
        f"Simulated seconds of a step over the lower bound, {DEVICES} unequal devices, {options.budget:g} s a search"
    )
    show(title, HEADINGS, rows)
    keep(
        options.out,
        "What the fuller cost buys",
        f"python -m benchmarks.fuller_cost --budget {options.budget:g}",
        [markdown(title, HEADINGS, rows)],
    )


if __name__ == "__main__":
    main()
