"""A model of 1.2 billion parameters on 8, 16 and 64 members: this search beside the one before, and the paper's.

The job is that of `benchmarks.orders`. "This": everything open (`in_flight`, `parts`, the schedule). "Before": orders
for free links and equal parts, the schedule open. "The paper's": its placement and schedule (GPipe), as
`benchmarks.paper_plans` reads them. The first two look at as many layouts as each other, with the same seed; the exact
simulator prices all. The bound holds for every plan. With 64 members and 1,024 or 4,096 micro-batches it is the step of
the paper's evaluation (a GPT-3 XL, batches of 1,024 and 4,096 sequences), with this project's own messages and codecs.

Rows are kept beside `--out` as they come: a run that was broken off goes on where it was.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.orders import words, work
from benchmarks.paper_plans import paper_plan
from benchmarks.tables import keep, markdown, show, values, values_with
from dtfm_coordinator.allocator.allocate import allocate, compile_now
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_lab.bounds.step_bound import least_bound
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

FIVE = ("datacenter", "spot", "universities", "regional", "worldwide")
NETWORKS = (*FIVE, "home")
MEMBERS = (8, 16, 64)
CASES = (
    *((name, members, count) for members in MEMBERS for count in (32, 256) for name in NETWORKS),
    *((name, 64, count) for count in (1024, 4096) for name in FIVE),
)
PLACEMENTS = 20_000
"""Looked at by each of the paper's searches, one for a grid."""
HEADINGS = (
    "network", "members", "micro-batches", "bound", "this", "before", "the paper's", "this / bound", "this / before",
    "this / the paper's", "this, as", "before, as", "the paper's, as",
)  # fmt: skip


def job(micro_batches: int, *, now: bool) -> Workload:
    """The job, as it is planned now or was before."""
    same = work(micro_batches, open_pace=now)
    planning = Planning.model_validate({"wire": "bf16", "in_flight": "auto", "parts": "auto"})
    return Workload(same.demand, micro_batches, planning) if now else same


def priced(view: View, workload: Workload, plan: Plan) -> float:
    """Seconds of a plan's step by the exact simulator."""
    return predict(view, workload, plan).cost.total


def row(name: str, members: int, micro_batches: int, evaluations: int) -> tuple[str, ...]:
    """A row of the table."""
    view = network(name, members, 0)
    new, old = job(micro_batches, now=True), job(micro_batches, now=False)
    bound = least_bound(view, new)
    now, before = (allocate(view, one, 0, None, evaluations) for one in (new, old))
    this, last = priced(view, new, now), priced(view, old, before)
    papers = paper_plan(view, old, "gpipe", evaluations=PLACEMENTS)
    return (
        name,
        str(members),
        f"{micro_batches:,}",
        f"{bound:.2f} s",
        f"{this:.2f} s",
        f"{last:.2f} s",
        "fits nowhere" if papers is None else f"{papers[1]:.2f} s",
        f"{this / bound:.2f}",
        f"{this / last:.2f}",
        "" if papers is None else f"{this / papers[1]:.2f}",
        words(now),
        words(before),
        "" if papers is None else words(papers[0]),
    )


def rows(evaluations: int, out: Path | None, members: tuple[int, ...], *, only_kept: bool) -> Iterator[tuple[str, ...]]:
    """A row for each case with so many members; those that lie beside the table are read from there."""
    console = Console(stderr=True)
    for name, count, micro_batches in CASES:
        if count in members:
            key = f"{name}, {count} members, {micro_batches} micro-batches, {evaluations} evaluations"
            if key not in values(out) and only_kept:
                console.print(f"not made: {key}")
            elif key not in values(out):
                console.print(key)
                found = row(name, count, micro_batches, evaluations)
                values_with(out, key, found)
                yield found
            else:
                yield tuple(values(out)[key])


def _left_out(members: list[int], found: list[tuple[str, ...]]) -> str:
    """Return a sentence about the rows that were not made."""
    cases = [(name, str(count), f"{micro_batches:,}") for name, count, micro_batches in CASES if count in members]
    left = [" ".join(case) for case in cases if case not in {one[:3] for one in found}]
    return f"Not made (network, members, micro-batches): {', '.join(left)}." if left else "All rows were made."


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=8000, help="layouts that each search may look at")
    parser.add_argument("--members", type=int, nargs="+", default=MEMBERS, help="only these cases")
    parser.add_argument("--kept", action="store_true", help="make no row, show those that are kept")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    if not options.kept:
        compile_now(print)
    found = list(rows(options.evaluations, options.out, tuple(options.members), only_kept=options.kept))
    title = f"Simulated seconds of a step, {options.evaluations} layouts a search"
    show(title, HEADINGS, found)
    keep(
        options.out,
        "A large job on many members",
        f"python -m benchmarks.large_jobs --evaluations {options.evaluations} --members "
        + " ".join(map(str, options.members)),
        [f"Peers by stages. {_left_out(options.members, found)}\n", markdown(title, HEADINGS, found)],
    )


if __name__ == "__main__":
    main()
