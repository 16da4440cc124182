"""Writer of `status.json`, which `dtfm-coordinator status` reads."""

import asyncio
import json
import time
from typing import Any

from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.swarm.announcer import Announcer
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.state_dir import write_atomically


class StatusFile:
    """Status of the swarm in a file, for people and for tests."""

    def __init__(self, context: LeadContext, state: SwarmState, announcer: Announcer, rows: MetricsFile) -> None:
        self._context, self._state, self._announcer, self._rows = context, state, announcer, rows

    def write(self) -> None:
        """Write the present status.

        Raises:
            UserError: there is no room on the disk.
        """
        context, state, phase = self._context, self._state, self._announcer.phase
        plan = state.plan
        status: dict[str, Any] = {
            "at": time.time(),
            "tasks": len(asyncio.all_tasks()),
            "swarm": context.swarm,
            "phase": phase.name,
            "text": phase.text,
            "step": self._rows.last,
            "steps": context.job.training.steps,
            "checkpoint": state.kept.step,
            "plan_version": plan.version if plan else None,
            "refused_claims": dict(state.refused.counts),
            "dropped": {"records": dict(context.registry.dropped), "messages": dict(context.control.dropped)},
            "nodes": [
                {
                    "id": member.peer,
                    "name": member.name,
                    "listed": member.is_listed,
                    "device": member.profile.device if member.profile else None,
                    "state": member.report.state if member.report else None,
                    "text": member.report.text if member.report else None,
                    "stage": plan.stage_of(member.peer) if plan else None,
                    "micro_batches": len(plan.micro_batches(member.peer)) if plan else 0,
                    "step": member.report.step if member.report else None,
                }
                for member in state.members.online()
            ],
        }
        write_atomically(context.folder / "status.json", json.dumps(status, indent=1))
