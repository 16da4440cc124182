"""How well and how fast the search places 64 devices by the paper's cost, beside greedy, random and in-order.

`python -m benchmarks.allocator --out FILE` keeps the table. Sizes are those of the authors' code (GPT-3 XL, 8 stages x
8 replicas), so that the totals of the five networks compare with what it reports; the irregular networks have the same.
Every total is what the pipelines as written out cost. "Best known" is the least that any run met, with one long run
for each irregular network.

With `--held-out` the table has irregular networks on which nothing of the search was chosen, after ever longer
searches, on one core and on two: how far above the best known, which is the least that any of these searches met.
Seconds are those of each core, so that other programs on the machine make little difference.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator.paper import baselines
from dtfm_coordinator.allocator.paper.evolutionary_search import SearchResult, search
from dtfm_coordinator.allocator.paper.paper_cost import Pipelines, cost_of_pipelines
from dtfm_lab.bounds.paper_bound import lower_bound
from dtfm_lab.networks.catalogue import network
from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, REPLICAS, STAGES
from dtfm_protocol.view.link_matrix import Matrix

FIVE = ("datacenter", "spot", "universities", "regional", "worldwide")
IRREGULAR = ("irregular", "hub-and-spoke", "home")
HELD_OUT = (3, 4, 5, 6, 7)
"""Seeds of irregular networks on which nothing of the search was chosen."""
AFTER = ((2.0, 1), (5.0, 1), (5.0, 2), (20.0, 1))
"""Seconds of the searches of those, and on how many cores."""
HELD_OUT_HEADINGS = (
    "network",
    "best known",
    *(f"after {seconds:g} s" + (f" on {cores} cores" if cores > 1 else "") for seconds, cores in AFTER),
)
DEVICES = STAGES * REPLICAS
CLOSE = 1.001
"""Within 0.1 % of the best known."""


@dataclass(frozen=True)
class Result:
    """The searches of one network; seconds of communication a step."""

    name: str
    runs: tuple[SearchResult, ...]
    best_known: float
    bound: float
    in_order: float
    greedy: float
    random: float
    """The median over the seeds."""


def run(
    alpha: Matrix,
    beta: Matrix,
    seed: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    cores: int = 1,
) -> SearchResult:
    """One search, checked: its pipelines as written cost what it says."""
    found = search(
        alpha,
        beta,
        stages=STAGES,
        replicas=REPLICAS,
        activation_bytes=AUTHORS_ACTIVATION_BYTES,
        gradient_bytes=GRADIENT_BYTES,
        seed=seed,
        seconds=seconds,
        clock=clock,
        cores=cores,
    )
    assert written(alpha, beta, found.pipelines) == found.cost.total
    return found


def written(alpha: Matrix, beta: Matrix, pipelines: Pipelines) -> float:
    """What pipelines cost as they stand."""
    return cost_of_pipelines(alpha, beta, pipelines, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES).total


def measure(name: str, seeds: int, budget: float, long: float) -> Result:
    """Search one network once a seed, and once for `long` seconds."""
    view = network(name, DEVICES, 0)
    alpha, beta = view.alpha(), view.beta()
    runs = tuple(run(alpha, beta, seed, budget) for seed in range(seeds))
    totals = [found.cost.total for found in runs]
    if long > 0:
        totals.append(run(alpha, beta, seeds, long).cost.total)
    drawn = [written(alpha, beta, baselines.random(DEVICES, STAGES, REPLICAS, seed)) for seed in range(seeds)]
    greedy = baselines.greedy(alpha, beta, STAGES, REPLICAS, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES)
    return Result(
        name,
        runs,
        min(totals),
        lower_bound(alpha, beta, STAGES, REPLICAS, AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES).total,
        written(alpha, beta, baselines.in_order(DEVICES, STAGES, REPLICAS)),
        written(alpha, beta, greedy),
        statistics.median(drawn),
    )


HEADINGS = (
    "network",
    "best known",
    "best",
    "median",
    "worst",
    "within 0.1 %",
    "after (median, worst)",
    "evaluations a second",
    "lower bound",
    "greedy",
    "in order",
    "random (median)",
)


def row(result: Result) -> tuple[str, ...]:
    """A result as a row under `HEADINGS`."""
    totals = [found.cost.total for found in result.runs]
    reached = [
        next(seconds for seconds, total in found.history if total <= CLOSE * result.best_known)
        for found in result.runs
        if found.cost.total <= CLOSE * result.best_known
    ]
    after = f"{statistics.median(reached):.2f} s, {max(reached):.2f} s" if reached else "-"
    return (
        result.name,
        f"{result.best_known:.3f}",
        *(f"{value:.3f}" for value in (min(totals), statistics.median(totals), max(totals))),
        f"{len(reached)} of {len(totals)}",
        after,
        f"{statistics.median(found.evaluations / found.seconds for found in result.runs):,.0f}",
        f"{result.bound:.3f}",
        f"{result.greedy:.3f}",
        f"{result.in_order:.3f}",
        f"{result.random:.3f}",
    )


def held_out(number: int, seeds: int) -> list[list[float]]:
    """Totals of one held-out network, one search a seed, after each of `AFTER`."""
    view, found = network("irregular", DEVICES, number), []
    for seconds, cores in AFTER:
        clock = partial(_core_seconds, cores)
        runs = [run(view.alpha(), view.beta(), seed, seconds, clock, cores) for seed in range(seeds)]
        found.append([one.cost.total for one in runs])
    return found


def _core_seconds(cores: int) -> float:
    """Seconds that each of so many cores has worked for this process, in the mean."""
    return time.process_time() / cores


def held_out_rows(found: dict[int, list[list[float]]]) -> Iterator[tuple[str, ...]]:
    """A row for each held-out network, by number, and one for all: median and worst search after each of `AFTER`."""
    every: list[list[float]] = [[] for _ in AFTER]
    for number, totals in found.items():
        best = min(map(min, totals))
        above = [[total / best - 1 for total in some] for some in totals]
        for all_of_them, some in zip(every, above, strict=True):
            all_of_them += some
        yield (f"irregular {number}", f"{best:.3f}", *map(spread, above))
    yield ("all", "", *map(spread, every))


def spread(above: list[float]) -> str:
    """Median and worst of shares above the best known."""
    return f"{statistics.median(above):+.1%} ({max(above):+.1%})"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="searches of each network (20; 3 of each held-out one)")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of each search")
    parser.add_argument("--long", type=float, default=60.0, help="seconds of one more, on the irregular networks")
    parser.add_argument("--held-out", type=int, nargs="*", help="irregular networks instead, by number (1 to 5)")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    if options.held_out is None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core
    command, seeds = "python -m benchmarks.allocator", options.seeds or (20 if options.held_out is None else 3)
    if options.held_out is not None:
        numbers = options.held_out or HELD_OUT
        networks = track(numbers, description="searching", console=Console(stderr=True), transient=True)
        rows = list(held_out_rows({number: held_out(number, seeds) for number in networks}))
        title = "Seconds of communication a step by the paper's cost, above the best known: median and worst of "
        title += f"{seeds} seeds"
        headings = HELD_OUT_HEADINGS
        command += f" --held-out {' '.join(map(str, numbers))} --seeds {seeds}"
    else:
        results = [
            measure(name, seeds, options.budget, options.long if name in IRREGULAR else 0.0)
            for name in track(
                (*FIVE, *IRREGULAR), description="searching", console=Console(stderr=True), transient=True
            )
        ]
        title = f"Seconds of communication a step by the paper's cost: 64 devices, 8 stages x 8 replicas, {seeds} "
        title += f"seeds, {options.budget:g} s of search each on one core"
        rows = [row(result) for result in results]
        headings = HEADINGS
        command += f" --seeds {seeds} --budget {options.budget:g} --long {options.long:g}"
    show(title, headings, rows)
    keep(options.out, "The paper's cost", command, [markdown(title, headings, rows)])


if __name__ == "__main__":
    main()
