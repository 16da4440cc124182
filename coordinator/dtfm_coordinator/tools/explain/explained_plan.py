"""Plan as it is explained: with its own wire and schedule, the job's where it names none, or those that one asks for.

Pure: no file is read, and nothing is simulated.
"""

from dataclasses import dataclass, replace
from typing import Any

from dtfm_coordinator.allocator.coarse_boundaries import coarse_wires, coarse_words
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.job.job_file import CodecName, Planning, ScheduleName, Wire
from dtfm_protocol.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ExplainedPlan:
    """Plan that is simulated, and what is to be said of where it differs from the plan's file or from the job."""

    plan: Plan
    is_what_if: bool
    """Whether wire or schedule are others than the plan's, because they were asked for."""
    lines: tuple[str, ...]


def explained_plan(
    plan: Plan, job: Planning, wire: CodecName | None = None, schedule: ScheduleName | None = None
) -> ExplainedPlan:
    """Return the plan to explain for a job.

    Args:
        plan: as its file has it; of a key that is not there the job's value is taken.
        job: `[plan]` table of the job; its schedule may be "auto", and says nothing then.
        wire: codec for activations and gradients, over all boundaries, in place of the plan's; None: the plan's.
        schedule: name of the schedule in place of the plan's; None: the plan's.
    """
    both = None if wire is None else Wire(activations=wire, gradients=wire)
    of_job = {"wire": job.wire, "schedule": None if job.schedule == "auto" else job.schedule}
    changes, lines = dict[str, Any](), list[str]()
    coarse = coarse_words(plan)
    for key, asked in (("wire", both), ("schedule", schedule)):
        wanted, own = of_job[key], getattr(plan, key)
        if key not in plan.model_fields_set and wanted is not None:
            own = changes[key] = wanted
            lines.append(f"the plan names no {key}: the job's is taken, {own}")
        if asked is not None and (asked != own or (key == "wire" and coarse)):
            changes[key] = asked
            more = f" and {coarse}" if key == "wire" and coarse else ""
            lines.append(f"what if: explained with {key} {asked}, not with the plan's {own}{more}")
        elif wanted is not None and wanted != own:
            lines.append(f"explained with the plan's {key}, {own}; the job says {wanted}{_hint(key, wanted)}")
    if coarse and wire is not None:
        changes["boundaries"] = ()
    elif coarse and not set(coarse_wires(plan)) <= {job.coarse_wire}:
        lines.append(f"explained with the plan's {coarse}; the job's slow_wire is {job.slow_wire}")
    is_what_if = any(line.startswith("what if") for line in lines)
    if is_what_if:
        changes["cost"] = None  # the plan's prediction is of another step
    return ExplainedPlan(plan=plan.model_copy(update=changes), is_what_if=is_what_if, lines=tuple(lines))


def _hint(key: str, wanted: object) -> str:
    """Return which option explains the job's value; "" where one name cannot say it."""
    one = not isinstance(wanted, Wire) or wanted.activations == wanted.gradients
    return f" (`--{key} {wanted}` for that)" if one else ""


def workload_of(
    plan: Plan, work: Workload, wire: CodecName | None = None, schedule: ScheduleName | None = None
) -> Workload:
    """Return the workload for which searches go on from an explained plan: with its wire, over all boundaries where one
    was asked for, and with its schedule where one was asked for or the job's is another."""
    changes: dict[str, object] = {"wire": plan.wire}
    if wire is not None:
        changes["slow_wire"] = "none"
    if schedule is not None or plan.schedule not in work.schedules:
        changes["schedule"] = plan.schedule
    return replace(work, planning=work.planning.model_copy(update=changes))
