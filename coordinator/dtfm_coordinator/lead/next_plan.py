"""Making of the next plan: a layout, and where it goes on from."""

from collections.abc import Mapping

from dtfm_coordinator.plan_change.recovery import resume_from, shadows_of, source_of
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_protocol.plan.peer_state import Mark, PeerState
from dtfm_protocol.plan.plan import Plan


def next_plan(layout: Plan, version: int, standings: Mapping[str, PeerState], kept: Mapping[str, list[Mark]]) -> Plan:
    """Return `layout` as the plan of `version`, not signed yet: where it goes on from, and who keeps copies.

    Args:
    standings: state of each peer that can give any, by peer id.
    kept: whole checkpoints, by the id of the coordinator that keeps them.
    """
    resume = resume_from(standings, kept, layout.layers)
    return layout.model_copy(update={"version": version, "resume": resume, "shadows": shadows_of(layout)})


def event_of(plan: Plan, why: str, called_at: float, recorded: int, standings: Mapping[str, PeerState]) -> PlanEvent:
    """Return what is to be written down of the change to `plan`, once it has begun.

    Args:
    called_at: time of the call, in Unix seconds.
    recorded: last step whose metrics are on disk.
    standings: state of each peer that has promised the plan, by peer id.
    """
    live = [holding.mark.step for one in standings.values() for holding in one.holdings if holding.live]
    return PlanEvent(
        plan=plan.version,
        why=why,
        called_at=called_at,
        in_force_at=0.0,
        step=plan.resume.mark.step,
        repeated=max(0, max([recorded, *live]) - plan.resume.mark.step),
        source=source_of(plan.resume, standings),
    )
