"""What a second core adds to a search by the simulated step that may take some seconds.

The job is that of `benchmarks.large_jobs`, everything open. Each search has the same seconds by the clock, on one core
and on two in turn, with several seeds: how long a step of its plan takes, by the exact simulator, and how many layouts
were looked at. Run it on a quiet machine.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.large_jobs import job, priced
from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator.allocate import allocate, compile_now
from dtfm_lab.networks.catalogue import network

NETWORKS = ("spot", "universities", "regional", "worldwide", "home")
HEADINGS = (
    "network", "layouts, one core", "layouts, two", "step, one core", "step, two", "two / one, median", "each",
)  # fmt: skip


def rows(members: int, micro_batches: int, seconds: float, seeds: int) -> Iterator[tuple[str, ...]]:
    """A row for each network."""
    console = Console(stderr=True)
    for name in NETWORKS:
        view, work = network(name, members, 0), job(micro_batches, now=True)
        looked_at: dict[int, list[int]] = {1: [], 2: []}
        steps: dict[int, list[float]] = {1: [], 2: []}
        for seed in range(seeds):
            for cores in (1, 2):
                plan = allocate(view, work, seed, seconds, cores=cores)
                looked_at[cores].append(plan.evaluations or 0)
                steps[cores].append(priced(view, work, plan))
            console.print(f"{name}, seed {seed}: {steps[1][-1]:.2f} s, {steps[2][-1]:.2f} s")
        ratios = [two / one for one, two in zip(steps[1], steps[2], strict=True)]
        yield (
            name,
            *(f"{median(looked_at[cores]):,.0f}" for cores in (1, 2)),
            *(f"{median(steps[cores]):.2f} s" for cores in (1, 2)),
            f"{median(ratios):.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in ratios),
        )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each search")
    parser.add_argument("--seeds", type=int, default=3, help="searches of each kind")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    compile_now(print)
    found = list(rows(options.members, options.micro_batches, options.seconds, options.seeds))
    title = f"{options.members} members, {options.micro_batches} micro-batches, {options.seconds:g} s a search"
    show(title, HEADINGS, found)
    command = f"python -m benchmarks.search_cores --members {options.members} --micro-batches {options.micro_batches}"
    keep(
        options.out,
        "A search on two cores",
        f"{command} --seconds {options.seconds:g} --seeds {options.seeds}",
        [markdown(title, HEADINGS, found)],
    )


if __name__ == "__main__":
    main()
