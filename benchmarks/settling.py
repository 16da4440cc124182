"""What single changes of the best layout bring at the end of a search, and whether any is left that would bring more.

    python -m benchmarks.settling [--members 8 16 32] [--seeds 3] [--out benchmarks/results/settling.md]

The job is that of `benchmarks.orders`, on the paper's networks and on volunteers at home. Both searches look at as many
layouts, with the same seed: one anneals to the end, the other changes its best layouts singly in the last part of each
schedule's search; and then, for 0.15 of the budget more at most, the chosen plan. `left` is what the best single change
that `explain` finds would still save, by the exact simulator.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from unittest import mock

from rich.progress import track

from benchmarks.orders import NETWORKS, work
from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator import allocate as allocator
from dtfm_coordinator.allocator.allocate import allocate, compile_now
from dtfm_coordinator.allocator.search import hill_climbing
from dtfm_coordinator.tools.explain.single_changes import single_changes
from dtfm_lab.networks.catalogue import network

MICRO_BATCHES = 32
EVALUATIONS_A_MEMBER = 1200
HEADINGS = (
    "network", "members", "annealed to the end", "left, at most", "then changed singly", "left, at most",
    "changed / annealed",
)  # fmt: skip


def searched(name: str, members: int, seed: int, *, is_changed: bool) -> tuple[float, float]:
    """Return a plan's seconds of a step, and the share of these that the best single change would save; `is_changed`:
    a part of the search is set aside for single changes, and the chosen plan is changed."""
    view, job = network(name, members, seed), work(MICRO_BATCHES, open_pace=False)
    most, more = (hill_climbing.MOST_SETTLING, allocator.CHANGED) if is_changed else (-1.0, -0.5)
    with mock.patch.object(hill_climbing, "MOST_SETTLING", most), mock.patch.object(allocator, "CHANGED", more):
        plan = allocate(view, job, seed, None, EVALUATIONS_A_MEMBER * members)
    assert plan.cost is not None
    total = plan.cost.total
    best = min((change.seconds for change in single_changes(plan, view, job, total).best), default=total)
    return total, max(0.0, 1 - best / total)


def rows(members: list[int], seeds: int) -> Iterator[tuple[str, ...]]:
    """A row for each network and number of members."""
    for name in NETWORKS:
        for count in members:
            annealed, changed = (
                [searched(name, count, seed, is_changed=is_changed) for seed in range(seeds)]
                for is_changed in (False, True)
            )
            ratios = [after / before for (before, _), (after, _) in zip(annealed, changed, strict=True)]
            cells = (
                cell
                for runs in (annealed, changed)
                for cell in (f"{median(total for total, _ in runs):.3g} s", f"{max(left for _, left in runs):.2%}")
            )
            yield (name, str(count), *cells, f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--seeds", type=int, default=3, help="of networks and searches")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    compile_now(print)
    total = len(NETWORKS) * len(options.members)
    found = list(track(rows(options.members, options.seeds), "searching", total, transient=True))
    title = f"Simulated seconds of a step, medians of {options.seeds} networks"
    show(title, HEADINGS, found)
    command = f"python -m benchmarks.settling --members {' '.join(map(str, options.members))} --seeds {options.seeds}"
    keep(options.out, "Single changes at the end of a search", command, [markdown(title, HEADINGS, found)])


if __name__ == "__main__":
    main()
