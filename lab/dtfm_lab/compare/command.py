"""The command `compare`: runs the algorithms, prints the tables, writes the rows."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dtfm_coordinator.allocator.simulator.peer_time import TimeShares
from dtfm_lab.compare.algorithm_outcomes import Run, SharesOf, as_csv, outcomes
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

ALGORITHMS = ("evolutionary", "greedy", "in-order", "random", "exhaustive")
"""Names of the algorithms that are compared, in the order in which they run."""
SMALL = 20_000
"""Placements up to which all are looked at by the simulated step: some seconds, whatever the budget."""
SMALL_PAPER = 200_000
"""Placements up to which all are looked at by the paper's cost."""
STANDARD_OUTPUT = Path("-")
"""Path that stands for standard output."""

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


class _Contest(NamedTuple):
    """What the algorithms are run on."""

    run: Run
    shares_of: SharesOf
    small: bool
    """Whether there are few enough placements to look at all."""


def compare(question: CompareOptions, stop: Callable[[], bool] = lambda: False) -> None:
    """Run every algorithm with every seed, print the tables, write the rows; those that are done once `stop` says so.

    Raises:
        UserError: options that do not go together, files that cannot be read or written, or no plan is possible.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from dtfm_lab.compare.algorithm_tables import show
    from dtfm_protocol.process.console import console
    from dtfm_protocol.process.state_dir import write_atomically

    view = View.load(question.view)
    contest = _by_paper(question, view, stop) if question.job is None else _by_makespan(question, view, stop)
    with contextlib.suppress(UserError):
        contest.run(ALGORITHMS[0], 0, WARM_UP)  # what is compiled on first use is on nobody's budget
    algorithms = ALGORITHMS if contest.small else ALGORITHMS[:-1]
    seeds = range(question.seeds)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console(to_stderr=True), transient=True) as progress:
        task = progress.add_task("planning", total=len(algorithms) * len(seeds))
        found = outcomes(algorithms, seeds, contest.run, contest.shares_of, lambda: progress.advance(task), stop)
    to_stdout = question.csv == STANDARD_OUTPUT
    if found:
        show(console(to_stderr=to_stdout), found)
    if stop():
        print(f"cut short: {len(found)} of {len(algorithms) * len(seeds)} runs are done", file=sys.stderr)
    if to_stdout:
        sys.stdout.write(as_csv(found))
    elif question.csv is not None:
        write_atomically(question.csv, as_csv(found))


def _by_paper(question: CompareOptions, view: View, stop: Callable[[], bool]) -> _Contest:
    """Return the contest by the paper's cost, which does not say what the peers' time goes into."""
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
        return allocate_paper(
            view, stages, activation_bytes, gradient_bytes, algorithm, seed, budget, evaluations, stop=stop
        )

    small = nodes >= stages and provable(nodes, stages) and partitions(nodes, stages, nodes // stages) <= SMALL_PAPER
    return _Contest(run, lambda plan: None, small)


def _by_makespan(question: CompareOptions, view: View, stop: Callable[[], bool]) -> _Contest:
    """Return the contest by the simulated step."""
    from dtfm_coordinator.allocator.allocate import allocate, compile_now
    from dtfm_coordinator.allocator.foundations.shapes import feasible_shapes
    from dtfm_coordinator.allocator.job_demand import workload
    from dtfm_coordinator.allocator.search.starts import placements
    from dtfm_coordinator.allocator.simulator.peer_time import time_shares
    from dtfm_coordinator.allocator.workload import is_soon_predicted, pose, predict
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
        return allocate(view, work, seed, budget, evaluations, algorithm=algorithm, stop=stop)

    def shares_of(plan: Plan) -> TimeShares | None:
        return time_shares(predict(view, work, plan)) if is_soon_predicted(work, plan) else None

    return _Contest(run, shares_of, count <= SMALL)
