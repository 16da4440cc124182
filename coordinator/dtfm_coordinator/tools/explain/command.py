"""Command `explain`: reads the files, asks for what follows from them, prints it and draws it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import CodecName, ScheduleName
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

if TYPE_CHECKING:
    from rich.console import Console

    from dtfm_coordinator.tools.trace.aligned_traces import AlignedTraces
    from dtfm_coordinator.tools.trace.measured_step import MeasuredStep

SUFFIXES = (".svg", ".png", ".pdf")
"""File endings of the formats in which figures are drawn."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of `dtfm-coordinator explain`."""

    plan: Path
    view: Path
    job: Path | None
    activation_bytes: float | None
    gradient_bytes: float | None
    wire: CodecName | None
    """Codec to explain the plan with; None: the plan's own, or the job's where it has none."""
    schedule: ScheduleName | None
    """Schedule to explain the plan with; None: as of `wire`."""
    figure: Path | None
    trace: tuple[Path, ...] = ()
    """Traces of the nodes that ran the plan, and folders of them; none: nothing measured is set beside."""
    step: int | None = None
    """Number of the step of the traces; None: the one of median length."""
    seed: int
    budget: float
    """Seconds of each of the two searches for what the next node would bring; 0 leaves the searches out."""


def explain(question: ExplainOptions) -> None:
    """Print the findings about a plan, and draw them where a figure is asked for.

    Raises:
        UserError: files cannot be read or written, or do not go together.
    """
    from dtfm_protocol.process.console import console

    if question.trace and question.job is None:
        raise UserError("--trace goes with --job: a measured step is set beside a simulated one")
    if question.step is not None and not question.trace:
        raise UserError("--step goes with --trace: it says which of the measured steps")
    if question.figure is not None and question.figure.suffix not in SUFFIXES:
        raise UserError(f"--figure {question.figure}: a figure is drawn as {', '.join(SUFFIXES)}")
    plan, view = Plan.load(question.plan), View.load(question.view)
    if question.job is not None:
        _by_job(question, question.job, plan, view, console())
    else:
        _by_paper(question, plan, view, console())
    if question.figure is not None:
        print(f"drew {question.figure}")


def _by_job(question: ExplainOptions, job: Path, plan: Plan, view: View, out: "Console") -> None:
    from dtfm_coordinator.allocator.allocate import compile_now
    from dtfm_coordinator.allocator.job_demand import workload
    from dtfm_coordinator.allocator.workload import predict
    from dtfm_coordinator.tools.explain.estimated_links import estimate_lines
    from dtfm_coordinator.tools.explain.explained_plan import explained_plan, workload_of
    from dtfm_coordinator.tools.explain.idle_peers import tried
    from dtfm_coordinator.tools.explain.next_node import growth
    from dtfm_coordinator.tools.explain.single_changes import single_changes
    from dtfm_coordinator.tools.explain.step_findings import check, step_findings
    from dtfm_coordinator.tools.explain.step_report import show, what_if_line
    from dtfm_coordinator.tools.view_notes import view_notes
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.process.console import console

    for name in ("activation_bytes", "gradient_bytes"):
        if getattr(question, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with the paper's cost: the job says it for makespan")
    work = workload(Job.load(job))
    check(plan, work)
    asked = explained_plan(plan, work.planning, question.wire, question.schedule)
    as_it_is = explained_plan(plan, work.planning).plan
    plan, work = asked.plan, workload_of(asked.plan, work, question.wire, question.schedule)
    with console(to_stderr=True).status("simulating the step"):
        played = predict(view, work, plan)
        found = step_findings(plan, view, work, played)
        tied = work.demand.trained_tied_parameters > 0
        lines = [*view_notes(view), *estimate_lines(plan, view, tied=tied), *asked.lines]
        if asked.is_what_if:
            lines.append(what_if_line(predict(view, work, as_it_is).cost.total, found.cost.total))
    measured, clocks = _measured(question, plan) if question.trace else (None, None)
    if question.figure is not None:
        from dtfm_coordinator.tools.explain.figure import step_figure, write

        write(step_figure(plan, view, work, played, found, measured), question.figure)
    compile_now(lambda line: print(line, file=sys.stderr))
    with console(to_stderr=True).status("asking what single changes, idle peers and the next node would bring"):
        changes = single_changes(plan, view, work, found.cost.total)
        idle = tried(plan, view, work, found.idle)
        next_node = growth(view, work, plan, question.seed, question.budget) if question.budget > 0 else None
    for line in lines:
        out.print(line, soft_wrap=True)
    show(out, found, changes, idle, next_node, asked_growth=question.budget > 0, is_what_if=asked.is_what_if)
    if measured is not None and clocks is not None:
        from dtfm_coordinator.tools.explain.measured_report import show_measured

        show_measured(out, plan, played, measured, clocks)


def _measured(question: ExplainOptions, plan: Plan) -> "tuple[MeasuredStep, AlignedTraces]":
    from dtfm_coordinator.tools.trace.aligned_traces import read_aligned
    from dtfm_coordinator.tools.trace.measured_step import measured_step
    from dtfm_protocol.process.console import console

    with console(to_stderr=True).status("reading the traces") as progress:
        aligned = read_aligned(question.trace, begins=progress.update)
        return measured_step(aligned, plan, question.step), aligned


def _by_paper(question: ExplainOptions, plan: Plan, view: View, out: "Console") -> None:
    from dtfm_coordinator.tools.explain.paper_findings import paper_findings
    from dtfm_coordinator.tools.explain.paper_report import show

    for name in ("wire", "schedule"):
        if getattr(question, name) is not None:
            raise UserError(f"--{name} goes with --job: the paper's cost knows no {name}")
    if plan.cost is not None and plan.cost.kind == "makespan":
        raise UserError("--job is missing: the plan was made by simulated step, which needs the job file")
    if question.activation_bytes is None or question.gradient_bytes is None:
        raise UserError(
            "--activation-bytes and --gradient-bytes are missing: a plan does not keep the sizes of the paper's cost; "
            "give those that it was made with (or --job to simulate a step)"
        )
    found = paper_findings(plan, view, question.activation_bytes, question.gradient_bytes)
    if question.figure is not None:
        from dtfm_coordinator.tools.explain.figure import paper_figure, write

        write(paper_figure(plan, view, question.activation_bytes, question.gradient_bytes, found), question.figure)
    show(out, found)
