"""Standby: follows what another coordinator does, and returns when the swarm has none for a while."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path

from dtfm_coordinator.owner.owner_wishes import Paused, Resumed
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_coordinator.serve.standby_words import StandbyView
from dtfm_protocol.control.messages import EPOCH, JOB, PHASE, PLAN, PRESENCE, REPORT, Epoch, Phase, Presence, Report
from dtfm_protocol.control.mqtt import ControlPlane
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.job_timeline import TimelineCache
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.process.timeouts import TIMEOUTS

STANDBY_LOOK_SECONDS = 0.2


class Standby:
    """Coordinator that does not lead, and what it knows; all of it lies in its state dir, from which it goes on."""

    def __init__(
        self,
        folder: Path,
        me: str,
        coordinators: Collection[str],
        swarm: str,
        job: ResolvedJob,
        control: ControlPlane,
        clock: MonotonicClock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._folder, self._me, self._job, self._control = folder, me, job, control
        self._timelines = TimelineCache(job)
        self._coordinators, self._swarm = coordinators, swarm
        self._rows = MetricsFile(folder / "metrics.jsonl")
        self._leader = ""
        self._is_paused = False
        """Whether the owner has paused the run, as the one who led has said last."""
        self._seen = self._clock.now()
        known = folder / "plan.json"
        self._plan = Plan.load(known) if known.exists() else None
        self._noted = self._plan.version if self._plan is not None else 0
        """Version of the plan in force that is on the disk."""
        self._record = PlanRecord.of(folder)
        self._fault: str | None = None
        self._heard_step = 0
        """Newest step of which a peer has told."""
        self.followed = False
        """Whether another coordinator has led meanwhile."""
        control.on(JOB, self._hear_job)
        control.on(PLAN, self._hear_plan)
        control.on(EPOCH, self._hear_epoch)
        control.on(PRESENCE, self._hear_presence)
        control.on(REPORT, self._hear_report)
        control.on(PHASE, self._hear_phase)

    async def follow(self, *, is_first: bool, tell: Callable[[StandbyView], None] = lambda view: None) -> bool:
        """Keep the connection to the broker until this coordinator is to lead; return whether another one has led.

        Args:
            is_first: whether it is the swarm's first coordinator, which looks for others for a short while only.
            tell: is told how things stand, again and again.

        Raises:
            UserError: this one was started with another job than the swarm's.
        """
        if not is_first:
            log.info("Standing by: taking over when no coordinator was heard of for %.0f s.", TIMEOUTS.takeover)
        async with asyncio.TaskGroup() as tasks:
            connection = tasks.create_task(self._control.run())
            await self.until_needed(TIMEOUTS.first_look if is_first else TIMEOUTS.takeover, tell)
            connection.cancel()
        if self.followed:
            log.warning("Nobody leads the swarm any more: this coordinator takes over.")
            self.keep_paused()
        return self.followed

    async def until_needed(self, seconds: float, tell: Callable[[StandbyView], None] = lambda view: None) -> None:
        """Wait until no coordinator has been heard of for `seconds`; `tell` is told how things stand meanwhile.

        Raises:
            UserError: this one was started with another job than the swarm's.
        """
        self._seen, first = self._clock.now(), True
        while self._clock.now() - self._seen < (seconds if first or not self._leader else TIMEOUTS.takeover):
            if self._fault is not None:
                raise UserError(self._fault)
            if self._leader and self._control.connected.is_set():
                if first:
                    log.info("Standing by: %s leads. There is nothing to do for you.", short(self._leader))
                first, self.followed = False, True
                self._seen = self._clock.now()
            tell(self._view(seconds if first or not self._leader else TIMEOUTS.takeover))
            await self._clock.sleep(STANDBY_LOOK_SECONDS)

    def _view(self, limit: float) -> StandbyView:
        """Return how things stand, where no word of a coordinator for `limit` seconds is too long."""
        is_led = bool(self._leader) and self._control.connected.is_set()
        return StandbyView(
            leader=self._leader,
            is_connected=self._control.connected.is_set(),
            takes_over_in=None if is_led else max(0.0, limit - (self._clock.now() - self._seen)),
            step=self._rows.last,
            heard_step=max(self._heard_step, self._rows.last),
            plan_version=self._noted or None,
            is_paused=self._is_paused,
        )

    def keep_paused(self) -> None:
        """Write down, as the owner's wish, whether the run was paused under whoever led before.

        Raises:
            UserError: it cannot be written.
        """
        file = WishFile(self._folder)
        if self._is_paused != file.wishes.is_paused:
            file.add((Paused if self._is_paused else Resumed)(at=time.time()))

    def _hear_phase(self, sender: str, phase: Phase) -> None:
        if sender != self._me:
            self._is_paused = phase.paused

    def _hear_presence(self, peer: str, presence: Presence) -> None:
        if peer == self._me or peer not in self._coordinators:
            return
        if presence.online:
            self._leader = peer
        elif peer == self._leader:
            self._leader = ""
            log.warning(
                "%s, who led, is gone: this coordinator takes over in %.0f s unless it comes back.",
                short(peer),
                TIMEOUTS.takeover,
            )

    def _hear_job(self, _: str, job: ResolvedJob) -> None:
        if job != self._job:
            self._fault = (
                "the swarm trains another job: start the standby with the same job file and text, as they were when "
                "it began; what was changed since comes by itself"
            )

    def _hear_plan(self, _: str, plan: Plan) -> None:
        if self._plan is None or plan.version > self._plan.version:
            plan.verify(self._coordinators, self._swarm)
            self._plan = plan
            self._note()

    def _hear_epoch(self, sender: str, epoch: Epoch) -> None:
        if sender != self._me and epoch.called >= self._record.epoch.called:  # an older one is an older broker's
            calm = epoch.model_copy(update={"gently": False, "parked": False})
            self._record = self._record.model_copy(update={"epoch": calm})
            self._note()

    def _note(self) -> None:
        """Write down the plan in force, so that this coordinator can go on from it."""
        plan = self._plan
        try:
            if plan is not None and self._record.epoch.in_force == plan.version > self._noted:
                self._rows.forget_after(plan.resume.mark.step)
                write_atomically(self._folder / "plan.json", plan.model_dump_json(indent=1), lasting=True)
                self._noted = plan.version
            self._record.save(self._folder)
        except UserError as error:
            log.warning("%s: this coordinator could not take over from what is on its disk", error)

    def _hear_report(self, peer: str, report: Report) -> None:
        plan = self._plan
        if plan is not None and plan.stage_of(peer) is not None:
            try:
                last_step = self._timelines.under(plan.amendments).last_step
            except UserError as error:
                self._fault = f"the job was changed as this coordinator cannot follow: {error}"
                return
            self._heard_step = max(self._heard_step, min(report.step, last_step))
            for row in report.rows:
                if row.step > last_step:
                    continue
                if row.plan_version == plan.version or row.step <= plan.resume.mark.step:
                    with contextlib.suppress(UserError):  # a full disk; it matters when this one is to lead
                        self._rows.append(row, row.step - 1)  # what was before it came, it never hears
