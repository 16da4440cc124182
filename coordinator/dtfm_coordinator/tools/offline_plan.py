"""Planning on saved views: what `dtfm-coordinator plan` asks the allocator, and in which words it answers."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `dtfm-coordinator plan`."""

    view: Path
    job: Path | None
    cost: str | None
    """Name of the cost, "paper" or "makespan"; None: "makespan" if there is a job, else "paper"."""
    stages: int | None
    activation_bytes: float | None
    gradient_bytes: float | None
    algorithm: str
    seed: int
    budget: float | None
    evaluations: int | None
    in_force: Path | None
    horizon: float | None


def answer(question: PlanOptions, stop: Callable[[], bool] = lambda: False) -> tuple[Plan, str]:
    """Return the plan, and a line about it; the best so far once `stop` says so.

    Raises:
        UserError: options do not go together, files cannot be read, or no plan is possible.
    """
    if question.budget is not None and question.evaluations is not None:
        raise UserError("--budget and --evaluations exclude each other: give one")
    for name in ("activation_bytes", "gradient_bytes", "budget", "horizon"):
        value = getattr(question, name)
        if value is not None and not math.isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} {value}: give a finite number")
    if question.horizon == 0:
        raise UserError("--horizon 0: nothing pays back at once; give seconds")
    if (question.cost or ("makespan" if question.job else "paper")) == "paper":
        return _by_paper(question, stop)
    return _by_makespan(question, stop)


def _by_paper(question: PlanOptions, stop: Callable[[], bool]) -> tuple[Plan, str]:
    for name in ("stages", "activation_bytes", "gradient_bytes"):
        if getattr(question, name) is None:
            raise UserError(
                f"--{name.replace('_', '-')} is missing: the paper's cost needs --stages, --activation-bytes and "
                "--gradient-bytes (or give --job for the makespan cost)"
            )
    for name in ("job", "in_force", "horizon"):
        if getattr(question, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with the makespan cost: leave out --cost paper")
    from dtfm_coordinator.allocator.paper.paper_plan import allocate_paper

    assert question.stages is not None
    assert question.activation_bytes is not None
    assert question.gradient_bytes is not None
    found = allocate_paper(
        View.load(question.view),
        question.stages,
        question.activation_bytes,
        question.gradient_bytes,
        question.algorithm,
        question.seed,
        question.budget,
        question.evaluations,
        say=_say,
        stop=stop,
    )
    assert found.cost is not None
    return found, (
        f"{found.cost.total:.3f} s (data parallel {found.cost.data_parallel:.3f}, pipeline {found.cost.pipeline:.3f}) "
        f"after {found.evaluations} evaluations in {found.seconds:.2f} s"
    )


def _by_makespan(question: PlanOptions, stop: Callable[[], bool]) -> tuple[Plan, str]:
    from dtfm_protocol.job.job_file import Job

    if question.job is None:
        raise UserError("--job is missing: the makespan cost needs the job file")
    for name in ("activation_bytes", "gradient_bytes"):
        if getattr(question, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with the paper's cost: the job says it for makespan")
    job, view = Job.load(question.job), View.load(question.view)
    in_force = Plan.load(question.in_force) if question.in_force is not None else None
    changes = {key: value for key in ("stages", "horizon") if (value := getattr(question, key)) is not None}

    from dtfm_coordinator.allocator.allocate import allocate
    from dtfm_coordinator.allocator.job_demand import workload
    from dtfm_coordinator.tools.view_notes import view_notes

    for line in view_notes(view):
        _say(line)
    work = workload(job.model_copy(update={"plan": job.plan.model_copy(update=changes)}))
    found = allocate(
        view,
        work,
        question.seed,
        question.budget,
        question.evaluations,
        in_force=in_force,
        algorithm=question.algorithm,
        say=_say,
        stop=stop,
    )
    return found, f"{found.reason}; after {found.evaluations} evaluations in {found.seconds:.2f} s"


def _say(line: str) -> None:
    print(line, file=sys.stderr)
