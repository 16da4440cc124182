"""The command `dtfm-coordinator compare`: each algorithm's plans for one view, over several seeds."""

import contextlib
import csv
import io
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

if TYPE_CHECKING:
    from rich.console import Console

ALGORITHMS = ("evolutionary", "greedy", "in-order", "random", "exhaustive")
"""Names of the algorithms that are compared, in the order in which they run."""
SMALL = 20_000
"""Placements up to which all are looked at by the simulated step: some seconds, whatever the budget."""
SMALL_PAPER = 200_000
"""Placements up to which all are looked at by the paper's cost."""
COLUMNS = (
    "algorithm", "seed", "cost", "total", "data_parallel", "pipeline", "compute", "optimizer", "evaluations", "seconds",
    "evaluations_per_second", "failure",
)  # fmt: skip
"""Columns of the CSV file."""
STANDARD_OUTPUT = Path("-")
"""Path that stands for standard output."""

Run = Callable[[str, int, int | None], Plan]
"""A function that makes a plan by an algorithm and a seed, within so many evaluations or, if None, within the budget;
it raises `UserError` where it finds none."""
WARM_UP = 500
"""Evaluations that are made before anything is timed."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of `dtfm-coordinator compare`."""

    view: Path
    job: Path | None
    stages: int | None
    activation_bytes: float | None
    gradient_bytes: float | None
    seeds: int
    """Number of seeds with which each algorithm runs."""
    budget: float
    """Seconds of each search."""
    csv: Path | None
    """The file to which a row of each run is written; "-" is standard output."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one algorithm with one seed."""

    algorithm: str
    seed: int
    plan: Plan | None
    failure: str = ""
    """The reason why there is no plan, in one line."""

    @property
    def total(self) -> float:
        """Seconds by the cost model; infinite where there is no plan."""
        return math.inf if self.plan is None or self.plan.cost is None else self.plan.cost.total

    def row(self) -> dict[str, object]:
        """Return the values of `COLUMNS`; empty text for what there is not."""
        values: dict[str, object] = dict.fromkeys(COLUMNS, "")
        values |= {"algorithm": self.algorithm, "seed": self.seed, "failure": self.failure}
        if self.plan is None or self.plan.cost is None:
            return values
        cost = self.plan.cost
        values |= {"cost": cost.kind, "total": cost.total, "data_parallel": cost.data_parallel}
        values |= {"pipeline": cost.pipeline, "evaluations": self.plan.evaluations, "seconds": self.plan.seconds}
        values |= {name: given for name in ("compute", "optimizer") if (given := getattr(cost, name)) is not None}
        if self.plan.evaluations and self.plan.seconds:
            values["evaluations_per_second"] = self.plan.evaluations / self.plan.seconds
        return values


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of one algorithm over its seeds, in seconds. Runs that failed count in `failures` alone."""

    algorithm: str
    runs: int
    failures: int
    failure: str
    """The reason for which the first failed run had no plan; "" where none failed."""
    mean: float
    """Mean seconds by the cost model; infinite where every run failed."""
    deviation: float
    """Standard deviation of those seconds, of a sample; 0 of a single run."""
    least: float
    most: float
    data_parallel: float
    pipeline: float
    rate: float
    """Evaluations a second."""
    seconds: float
    """Mean seconds that a run took."""


def outcomes(
    algorithms: Iterable[str], seeds: Sequence[int], run: Run, done: Callable[[], object] = lambda: None
) -> list[Outcome]:
    """Run each algorithm with each seed; one that finds no plan is an outcome, too.

    Args:
        done: a function that is called after each run.

    Raises:
        UserError: no algorithm finds any plan; it says what the first one said.
    """
    found = []
    for algorithm in algorithms:
        for seed in seeds:
            try:
                found.append(Outcome(algorithm, seed, run(algorithm, seed, None)))
            except UserError as error:
                found.append(Outcome(algorithm, seed, None, " ".join(str(error).split())))
            done()
    if found and all(outcome.plan is None for outcome in found):
        raise UserError(found[0].failure)
    return found


def summaries(found: Sequence[Outcome]) -> list[Summary]:
    """Summarise each algorithm, in the order in which they ran."""
    return [
        _summary(algorithm, [outcome for outcome in found if outcome.algorithm == algorithm])
        for algorithm in dict.fromkeys(outcome.algorithm for outcome in found)
    ]


def _summary(algorithm: str, found: Sequence[Outcome]) -> Summary:
    rows = [outcome.row() for outcome in found if math.isfinite(outcome.total)]
    totals = [outcome.total for outcome in found if math.isfinite(outcome.total)]

    def mean(column: str) -> float:
        given = [value for row in rows if isinstance(value := row[column], int | float)]
        return fmean(given) if given else math.nan

    return Summary(
        algorithm=algorithm,
        runs=len(found),
        failures=len(found) - len(totals),
        failure=next((outcome.failure for outcome in found if outcome.failure), ""),
        mean=fmean(totals) if totals else math.inf,
        deviation=stdev(totals) if len(totals) > 1 else 0.0,
        least=min(totals, default=math.inf),
        most=max(totals, default=math.inf),
        data_parallel=mean("data_parallel"),
        pipeline=mean("pipeline"),
        rate=mean("evaluations") / mean("seconds") if mean("seconds") > 0 else math.nan,
        seconds=mean("seconds"),
    )


def as_csv(found: Sequence[Outcome]) -> str:
    """Format a header, and a row for each outcome, as CSV."""
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(outcome.row() for outcome in found)
    return written.getvalue()


def compare(question: CompareOptions) -> None:
    """Run every algorithm with every seed, print the table, write the rows.

    Raises:
        UserError: options that do not go together, files that cannot be read or written, or no plan is possible.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from dtfm_protocol.process.console import console
    from dtfm_protocol.process.state_dir import write_atomically

    view = View.load(question.view)
    run, small = _by_paper(question, view) if question.job is None else _by_makespan(question, view)
    with contextlib.suppress(UserError):
        run(ALGORITHMS[0], 0, WARM_UP)  # what is compiled on first use is on nobody's budget
    algorithms = ALGORITHMS if small else ALGORITHMS[:-1]
    seeds = range(question.seeds)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console(to_stderr=True), transient=True) as progress:
        task = progress.add_task("planning", total=len(algorithms) * len(seeds))
        found = outcomes(algorithms, seeds, run, lambda: progress.advance(task))
    to_stdout = question.csv == STANDARD_OUTPUT
    show(console(to_stderr=to_stdout), found)
    if to_stdout:
        sys.stdout.write(as_csv(found))
    elif question.csv is not None:
        write_atomically(question.csv, as_csv(found))


def _by_paper(question: CompareOptions, view: View) -> tuple[Run, bool]:
    """Return a `Run` by the paper's cost, and whether there are few enough placements to look at all."""
    from dtfm_coordinator.allocator.paper.exhaustive import partitions, provable
    from dtfm_coordinator.allocator.paper.paper_plan import allocate_paper
    from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, STAGES

    nodes = len(view.nodes)
    stages = question.stages or min(STAGES, max(1, nodes // 2))
    activation_bytes, gradient_bytes = question.activation_bytes, question.gradient_bytes
    if activation_bytes is None:
        activation_bytes = float(AUTHORS_ACTIVATION_BYTES)
    if gradient_bytes is None:
        gradient_bytes = GRADIENT_BYTES * STAGES / stages
    if None in (question.stages, question.activation_bytes, question.gradient_bytes):
        print(
            f"the rest is as for GPT-3 XL: {stages} stages, {activation_bytes:.10g} bytes of activations, "
            f"{gradient_bytes:.10g} of gradients (--stages, --activation-bytes, --gradient-bytes, or --job)",
            file=sys.stderr,
        )

    def run(algorithm: str, seed: int, evaluations: int | None) -> Plan:
        budget = question.budget if evaluations is None else None
        return allocate_paper(view, stages, activation_bytes, gradient_bytes, algorithm, seed, budget, evaluations)

    small = nodes >= stages and provable(nodes, stages) and partitions(nodes, stages, nodes // stages) <= SMALL_PAPER
    return run, small


def _by_makespan(question: CompareOptions, view: View) -> tuple[Run, bool]:
    """Return a `Run` by the simulated step, and whether there are few enough placements to look at all."""
    from dtfm_coordinator.allocator.allocate import allocate, compile_now
    from dtfm_coordinator.allocator.foundations.shapes import feasible_shapes
    from dtfm_coordinator.allocator.job_demand import workload
    from dtfm_coordinator.allocator.search.starts import placements
    from dtfm_coordinator.allocator.workload import pose
    from dtfm_protocol.job.job_file import Job

    assert question.job is not None
    for name in ("stages", "activation_bytes", "gradient_bytes"):
        if getattr(question, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with the paper's cost: the job says it for makespan")
    work = workload(Job.load(question.job))
    compile_now(lambda line: print(line, file=sys.stderr))
    shapes = feasible_shapes(len(view.nodes), work.demand.layers, work.micro_batches, work.planning)
    count = placements(pose(view, work, view.ids), shapes, work.planning.replicas == "auto") * len(work.schedules)

    def run(algorithm: str, seed: int, evaluations: int | None) -> Plan:
        budget = question.budget if evaluations is None else None
        return allocate(view, work, seed, budget, evaluations, algorithm=algorithm)

    return run, count <= SMALL


def figures(value: float) -> str:
    """Format a number to four figures, without an exponent."""
    if 0 < value < 1e-3:
        return f"{value:.6f}"
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def show(out: "Console", found: Sequence[Outcome]) -> None:
    """Print the table, and a line for each algorithm that failed somewhere."""
    from rich.table import Table

    best = min(outcome.total for outcome in found)
    rows = summaries(found)
    table = Table(
        "algorithm", "mean s", "± s", "least - most s", "mean / best", "data parallel s", "pipeline s",
        "evaluations/s", "seconds", caption_justify="left",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        if row.failures == row.runs:
            table.add_row(row.algorithm, "no placement", *[""] * 7)
            continue
        ratio = f"{row.mean / best:.3f}" if best > 0 else ""
        rate = "" if math.isnan(row.rate) else f"{row.rate:.0f}"
        table.add_row(
            row.algorithm + (f" ({row.failures} of {row.runs} failed)" if row.failures else ""),
            figures(row.mean), figures(row.deviation), f"{figures(row.least)} - {figures(row.most)}", ratio,
            figures(row.data_parallel), figures(row.pipeline), rate, figures(row.seconds),
        )  # fmt: skip
    out.print(table)
    for row in rows:
        if row.failures:
            out.print(f"{row.algorithm}, {row.failures} of {row.runs} runs: {row.failure}", soft_wrap=True)
