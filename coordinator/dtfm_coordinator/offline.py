"""The allocator on saved views: what `dtfm-coordinator plan` asks, and in which words it answers."""

from dataclasses import dataclass, replace
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.plan import Plan
from dtfm_protocol.view import View


@dataclass(frozen=True, kw_only=True)
class Question:
    """The options of the command."""

    view: Path
    job: Path | None
    cost: str | None
    """"paper" or "makespan"; by whether there is a job where it is None."""
    stages: int | None
    activation_bytes: float | None
    gradient_bytes: float | None
    algorithm: str
    seed: int
    budget: float | None
    evaluations: int | None
    in_force: Path | None
    horizon: float | None


def answer(question: Question) -> tuple[Plan, str]:
    """The plan, and a line about it.

    Raises:
        UserError: options that do not go together, files that cannot be read, or no plan is possible.
    """
    if question.budget is not None and question.evaluations is not None:
        raise UserError("--budget and --evaluations exclude each other: give one")
    if (question.cost or ("makespan" if question.job else "paper")) == "paper":
        return _by_paper(question)
    return _by_makespan(question)


def _by_paper(question: Question) -> tuple[Plan, str]:
    from dtfm_coordinator.allocator.paper.plan import allocate_paper

    for name in ("stages", "activation_bytes", "gradient_bytes"):
        if getattr(question, name) is None:
            raise UserError(
                f"--{name.replace('_', '-')} is missing: the paper's cost needs --stages, --activation-bytes and "
                "--gradient-bytes (or give --job for the makespan cost)"
            )
    for name in ("in_force", "horizon"):
        if getattr(question, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with the makespan cost: give --job")
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
    )
    assert found.cost is not None
    return found, (
        f"{found.cost.total:.3f} s (data parallel {found.cost.data_parallel:.3f}, pipeline {found.cost.pipeline:.3f}) "
        f"after {found.evaluations} evaluations in {found.seconds:.2f} s"
    )


def _by_makespan(question: Question) -> tuple[Plan, str]:
    from dtfm_coordinator.allocator.allocate import allocate
    from dtfm_coordinator.requirements import workload
    from dtfm_protocol.job import Job

    if question.job is None:
        raise UserError("--job is missing: the makespan cost needs the job file")
    for name in ("activation_bytes", "gradient_bytes"):
        if getattr(question, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with the paper's cost: the job says it for makespan")
    view, work = View.load(question.view), workload(Job.load(question.job))
    if question.stages is not None:
        work = replace(work, planning=work.planning.model_copy(update={"stages": question.stages}))
    if question.horizon is not None:
        work = replace(work, planning=work.planning.model_copy(update={"horizon": question.horizon}))
    found = allocate(
        view,
        work,
        question.seed,
        question.budget,
        question.evaluations,
        in_force=Plan.load(question.in_force) if question.in_force is not None else None,
        algorithm=question.algorithm,
    )
    return found, f"{found.reason}; after {found.evaluations} evaluations in {found.seconds:.2f} s"
