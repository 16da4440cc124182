"""Command `lifetimes`: reads the files, has the run lived through, prints and draws what came of it."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.view.view import View

SUFFIXES = (".svg", ".png", ".pdf")
"""File endings of the formats in which figures are drawn."""


@dataclass(frozen=True, kw_only=True)
class LifetimesOptions:
    """Options of `dtfm-coordinator lifetimes`."""

    view: Path
    trace: Path
    job: Path
    hours: float | None
    """Hours that the run lasts; None: until the trace's last event."""
    seed: int
    evaluations: int
    """Number of layouts that the search for each plan looks at."""
    figure: Path | None
    csv: Path | None


def lifetimes(question: LifetimesOptions) -> None:
    """Print what comes of the run, and write what is asked for.

    Raises:
        UserError: files cannot be read or written, or do not go together.
    """
    from dtfm_coordinator.allocator.allocate import compile_now
    from dtfm_coordinator.allocator.job_demand import workload
    from dtfm_coordinator.tools.lifetimes.lifetimes_report import as_csv, show
    from dtfm_coordinator.tools.lifetimes.lived_run import Keeping, live
    from dtfm_coordinator.tools.lifetimes.machine_trace import read_trace
    from dtfm_coordinator.tools.lifetimes.plans_in_time import PlansInTime
    from dtfm_coordinator.tools.view_notes import view_notes
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.process.console import console
    from dtfm_protocol.process.state_dir import write_atomically

    if question.figure is not None and question.figure.suffix not in SUFFIXES:
        raise UserError(f"--figure {question.figure}: a figure is drawn as {', '.join(SUFFIXES)}")
    if question.hours is not None and not 0 < question.hours < math.inf:
        raise UserError(f"--hours {question.hours:g}: give a number above 0")
    view, job = View.load(question.view), Job.load(question.job)
    trace = read_trace(_text_of(question.trace), view.ids, str(question.trace))
    end = trace.end if question.hours is None else question.hours * 3600
    if end == 0:
        raise UserError(f"{question.trace}: nothing happens in it after the beginning; say how long with --hours")
    for line in view_notes(view):
        print(line, file=sys.stderr)
    work = workload(job)
    plans = PlansInTime(view, work, question.seed, question.evaluations)
    compile_now(lambda line: print(line, file=sys.stderr))
    with console(to_stderr=True).status("living through the trace"):
        lived = live(trace, end, plans, Keeping(job.checkpoint.every, job.checkpoint.shadow), work.demand.layers)
        try:
            best = plans.plan(view.ids, None).cost
        except UserError:
            best = None
    tokens_a_step = job.training.global_batch * job.training.sequence_length
    show(console(), lived, end, tokens_a_step, None if best is None else best.total)
    if question.csv is not None:
        write_atomically(question.csv, as_csv(lived))
    if question.figure is not None:
        from dtfm_coordinator.tools.explain.figure import write
        from dtfm_coordinator.tools.lifetimes.lifetimes_chart import lifetimes_figure

        write(lifetimes_figure(lived, view.ids, end, tokens_a_step), question.figure)
        print(f"drew {question.figure}")


def _text_of(path: Path) -> str:
    """Return the text of the trace.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the trace {path}: {error}") from None
