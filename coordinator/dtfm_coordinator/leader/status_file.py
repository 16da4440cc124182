"""Writer of `status.json`, which `dtfm-coordinator status` reads."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.owner.owner_acts import OwnerActs
from dtfm_coordinator.swarm.announcer import Announcer
from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed
from dtfm_coordinator.swarm.overview.overview_maker import OverviewMaker
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.process.state_dir import write_atomically


class StatusFile:
    """Status of the swarm in a file, for people and for tests: its overview, and what only programs want to know."""

    def __init__(
        self,
        context: LeadContext,
        state: SwarmState,
        announcer: Announcer,
        rows: MetricsFile,
        job: Callable[[], ResolvedJob] | None = None,
    ) -> None:
        """Write nothing yet; `job` returns the job as it is now, None: it is as it began."""
        self._job = job or (lambda: context.job)
        self._context, self._state, self._announcer, self._rows = context, state, announcer, rows
        acts = context.acts or OwnerActs(context.folder)
        self._maker = OverviewMaker(
            context.folder, context.swarm, self._job, state, lambda: announcer.phase, context.names,
            context.banned, board=context.board, acts=acts.take_up,
        )  # fmt: skip
        self.feed = context.feed or OverviewFeed(self._maker.history)
        """Each overview that was written, for whoever looks at the page."""
        self.feed.begin(self._maker.history)

    def listening(self) -> contextlib.AbstractContextManager[None]:
        """Have the log's warnings told in overviews, within the block."""
        return self._maker.listening()

    def write(self) -> None:
        """Write the present status.

        Raises:
            UserError: there is no room on the disk.
        """
        context, state, phase = self._context, self._state, self._announcer.phase
        plan, overview = state.plan, self._maker.make()
        values = overview.model_dump(mode="json")
        stages = {peer: stage for route in plan.pipelines for stage, peer in enumerate(route)} if plan else {}
        shares = plan.shares() if plan else {}
        self.feed.put(overview, values)
        status: dict[str, Any] = {
            "at": time.time(),
            "tasks": len(asyncio.all_tasks()),
            "swarm": context.swarm,
            "phase": phase.name,
            "text": phase.text,
            "paused": phase.paused,
            "step": self._rows.last,
            "steps": self._job().training.steps,
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
                    "stage": stages.get(member.peer),
                    "micro_batches": shares.get(member.peer, 0),
                    "step": member.report.step if member.report else None,
                }
                for member in state.members.online()
            ],
            "overview": values,
        }
        # Python's own JSON takes ten times as long where lines are indented.
        write_atomically(context.folder / "status.json", to_json(status, indent=1))
