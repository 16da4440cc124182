"""How well and how fast the search places the paper's five networks, beside random and in-order placements.

`python -m benchmarks.allocator` prints the table; `--out FILE` keeps it, `--json FILE` keeps every figure. Sizes are
those of the authors' code (GPT-3 XL, 8 stages x 8 replicas), so that totals compare with what it reports.
"""

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from dtfm_coordinator.allocator import baselines
from dtfm_coordinator.allocator.networks import (
    AUTHORS_ACTIVATION_BYTES,
    GRADIENT_BYTES,
    REPLICAS,
    STAGES,
    paper_network,
)
from dtfm_coordinator.allocator.paper_cost import Pipelines, cost_of_pipelines
from dtfm_coordinator.allocator.search import search

NAMES = {
    1: "data centre, on demand",
    2: "data centre, spot",
    3: "two universities",
    4: "regional",
    5: "worldwide",
}


def measure(case: int, seeds: int, budget: float) -> dict[str, Any]:
    """Search one network once a seed; totals in seconds of communication a step."""
    view = paper_network(case)
    alpha, beta = view.alpha(), view.beta()

    def total(pipelines: Pipelines) -> float:
        return cost_of_pipelines(alpha, beta, pipelines, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES).total

    runs = [
        search(
            alpha,
            beta,
            stages=STAGES,
            replicas=REPLICAS,
            activation_bytes=AUTHORS_ACTIVATION_BYTES,
            gradient_bytes=GRADIENT_BYTES,
            seed=seed,
            seconds=budget,
        )
        for seed in range(seeds)
    ]
    devices = len(view.nodes)
    return {
        "case": case,
        "totals": [run.cost.total for run in runs],
        "seconds_to_best": [run.history[-1][0] for run in runs],
        "evaluations_per_second": [run.evaluations / run.seconds for run in runs],
        "exact_evaluations_per_second": [run.exact_evaluations / run.seconds for run in runs],
        "random": [total(baselines.random(devices, STAGES, REPLICAS, seed)) for seed in range(seeds)],
        "in_order": total(baselines.in_order(devices, STAGES, REPLICAS)),
    }


HEADINGS = ("network", "best", "median", "worst", "found after", "random (median)", "in order", "looked at")


def rows(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The results as rows of text under `HEADINGS`."""
    shown = []
    for result in results:
        totals = result["totals"]
        looked, exact = (
            statistics.median(result[key]) for key in ("evaluations_per_second", "exact_evaluations_per_second")
        )
        shown.append(
            (
                f"{result['case']} {NAMES[result['case']]}",
                *(f"{value:.3f}" for value in (min(totals), statistics.median(totals), max(totals))),
                f"{max(result['seconds_to_best']):.3f} s",
                f"{statistics.median(result['random']):.3f}",
                f"{result['in_order']:.3f}",
                f"{looked:,.0f}/s, {exact:.0f} exactly",
            )
        )
    return shown


def markdown(results: list[dict[str, Any]], title: str) -> str:
    """The table, and the command that makes it."""
    lines = [" | ".join(row) for row in (HEADINGS, ["---"] * len(HEADINGS), *rows(results))]
    return f"{title}. Command: `make bench-allocator`.\n\n" + "".join(f"| {line} |\n" for line in lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="searches of each network")
    parser.add_argument("--budget", type=float, default=1.2, help="seconds of each search")
    parser.add_argument("--out", type=Path, help="where to write the table")
    parser.add_argument("--json", type=Path, help="where to write every figure")
    options = parser.parse_args()
    console = Console()
    results = [
        measure(case, options.seeds, options.budget)
        for case in track(NAMES, description="searching", console=console, transient=True)
    ]
    title = f"Seconds of communication a step by the paper's cost, 64 devices, {options.seeds} seeds, "
    title += f"{options.budget:g} s of search each on one core"
    shown = Table(*HEADINGS, title=title)
    for row in rows(results):
        shown.add_row(*row)
    console.print(shown)
    if options.out is not None:
        options.out.write_text(markdown(results, title), encoding="utf-8")
    if options.json is not None:
        figures = {"machine": platform.processor() or platform.machine(), "budget": options.budget, "networks": results}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
