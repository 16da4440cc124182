"""Amender of the job: takes the owner's wishes for other values into the next plan, and tells what holds when."""

import asyncio

from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.owner.amending import described, place, placed_as
from dtfm_coordinator.owner.owner_desk import OwnerDesk
from dtfm_coordinator.owner.owner_wishes import Amended
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import Amendment, spoken
from dtfm_protocol.job.job_timeline import JobTimeline, TimelineCache
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log


class JobAmender:
    """Amender of one job. What plans say counts; wishes count once a plan has them."""

    def __init__(
        self, job: ResolvedJob, planner: Planner, state: SwarmState, rows: MetricsFile, owner: OwnerDesk
    ) -> None:
        """Take where to look; nothing is changed before a plan is made.

        Args:
            owner: tells what is wished for, and is answered.
        """
        self._planner, self._state, self._rows, self._owner = planner, state, rows, owner
        self._cache = TimelineCache(job)
        self._former: tuple[Amendment, ...] = ()

    @property
    def timeline(self) -> JobTimeline:
        """The job as the plan in force has it."""
        plan = self._state.plan
        return self._cache.under(plan.amendments if plan is not None else self._former)

    @property
    def wanted(self) -> JobTimeline:
        """The job with the owner's open wishes."""
        return self._with_wishes(self.timeline, self._rows.last)

    @property
    def job(self) -> ResolvedJob:
        """The job as it is for the next step, with the number of steps that it has in all."""
        return self.wanted.job_at(self._rows.last + 1)

    def recall(self, plan: Plan) -> JobTimeline:
        """Take up the amendments of the last plan of an earlier process, and return the job as it has it."""
        self._former = plan.amendments
        self._answer(self.timeline)
        return self.timeline

    def _with_wishes(self, timeline: JobTimeline, resumed: int) -> JobTimeline:
        """Return a job with the open wishes that can be fulfilled; the others are answered."""
        wishes = tuple(wish for wish in self._owner.wishes.open(Amended) if isinstance(wish, Amended))
        if not wishes:
            return timeline
        timeline, refused = place(timeline, wishes, resumed, self._rows.last, self._planner.check)
        for wish, why in refused:
            self._owner.answer(wish, why, done=False)
        return timeline

    @property
    def has_news(self) -> bool:
        """Whether there are open wishes that a plan can take up."""
        return self.wanted.amendments != self.timeline.amendments

    def why_due(self, plan: Plan) -> str:
        """Return why another plan is due, because the job changes; "": none is."""
        now, wanted = self.timeline, self.wanted
        if new := wanted.amendments[len(now.amendments) :]:
            later = self._rows.last + 1
            said = (spoken(one.values) if one.from_step <= later else str(one) for one in new)
            return f"the owner changes {'; '.join(said)}"
        end = now.plan_end(plan.resume.mark.step + 1)
        if end < now.last_step and self._rows.last >= end:
            return f"the job changes with step {end + 1}"
        return ""

    async def aim(self) -> bool:
        """Have the planner plan for the next step as the owner wishes it; whether that needs another layout.

        Raises:
            UserError: no layout can be of such steps.
        """
        return await self._aim_at(self.wanted, self._rows.last + 1)

    async def _aim_at(self, timeline: JobTimeline, step: int) -> bool:
        settings, before = timeline.settings_at(step), self._planner.settings
        if settings.of_a_plan == before.of_a_plan and settings.plan == before.plan:
            return False
        await asyncio.to_thread(self._planner.amend, settings)
        return settings.of_a_plan != before.of_a_plan

    async def give_up(self, why: UserError) -> None:
        """Answer the open wishes: no layout can be found with them for those who are here. What was planned for before
        is planned for again."""
        for wish in self._owner.wishes.open(Amended):
            self._owner.answer(wish, f"{why}; nothing was changed", done=False)
        await self.aim()

    async def follow(self, follows: Plan | None, resumed: int) -> tuple[JobTimeline, bool]:
        """Return the job as the next plan is to have it, and whether it needs another layout than was planned for.

        Args:
            follows: the plan that it follows; None: none that is still in force.
            resumed: step of the state with which it begins.
        """
        before = self.timeline if follows is None else self._cache.under(follows.amendments)
        timeline = self._with_wishes(before, resumed)
        return timeline, await self._aim_at(timeline, resumed + 1)

    def begun(self, plan: Plan, before: JobTimeline) -> None:
        """Answer the wishes that `plan`, which is in force now, has taken up.

        Args:
            before: the job as the plan before had it.
        """
        self._answer(self.timeline)
        for line in described(before, self.timeline):
            log.info("Changed: %s.", line)

    def _answer(self, timeline: JobTimeline) -> None:
        for wish in self._owner.wishes.open(Amended):
            if isinstance(wish, Amended) and (one := placed_as(timeline, wish)) is not None:
                self._owner.answer(wish, f"in force from step {one.from_step}")
