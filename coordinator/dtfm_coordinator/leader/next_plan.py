"""Making of the next plan: a layout, and where it goes on from."""

from collections.abc import Collection, Mapping

from dtfm_coordinator.plan_change.judged_holdings import Copy
from dtfm_coordinator.plan_change.resume_point import resume_from, shadows_of, source_of
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan


def next_plan(
    layout: Plan, version: int, copies: Collection[Copy], kept: Mapping[str, list[Mark]], follows: Plan | None
) -> Plan:
    """Return `layout` as the plan of `version`, not signed yet: where it goes on from, and who keeps copies.

    Args:
        copies: what peers hold that can give any, as far as it counts.
        kept: whole checkpoints, by the id of the coordinator that keeps them.
        follows: newest plan that this one follows; None: it is the first.
    """
    chain = follows.chain if follows is not None else Chain()
    resume = resume_from(copies, kept, layout.layers, chain)
    changes = {"version": version, "resume": resume, "lineage": chain.up_to(resume.mark), "shadows": shadows_of(layout)}
    return layout.model_copy(update=changes)


def event_of(plan: Plan, why: str, called_at: float, recorded: int, copies: Collection[Copy]) -> PlanEvent:
    """Return what is to be written down of the change to `plan`, once it has begun.

    Args:
        called_at: time of the call, in Unix seconds.
        recorded: last step whose metrics are on disk.
        copies: what peers hold that have promised the plan, as far as it counts.
    """
    live = [copy.mark.step for copy in copies if copy.live and not copy.is_prepared]
    return PlanEvent(
        plan=plan.version,
        why=why,
        called_at=called_at,
        in_force_at=0.0,
        step=plan.resume.mark.step,
        repeated=max(0, max([recorded, *live]) - plan.resume.mark.step),
        source=source_of(plan.resume, copies),
    )
