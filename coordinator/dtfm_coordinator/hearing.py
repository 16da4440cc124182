"""What a coordinator hears of the swarm, and what it writes down of it."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtfm_coordinator.acquaintances import Acquaintances
from dtfm_coordinator.archive import Archive, mark_of
from dtfm_coordinator.history import Event, append
from dtfm_coordinator.linkmap import LinkMap
from dtfm_coordinator.linkwatch import LinkWatch
from dtfm_coordinator.members import Members
from dtfm_coordinator.pace import Pace
from dtfm_coordinator.planning import Planner
from dtfm_coordinator.recovery import safe_mark
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.control import (
    CHALLENGE,
    LEDGER,
    PHASE,
    PRESENCE,
    REPORT,
    Challenge,
    Ledger,
    Phase,
    Presence,
    Report,
)
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity import Identity, short
from dtfm_protocol.logs import log
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.control import ControlPlane
from dtfm_protocol.planes.discovery import Discovery, Registry
from dtfm_protocol.resolved import ResolvedJob
from dtfm_protocol.rows import RowFile
from dtfm_protocol.standing import Mark, Standing
from dtfm_protocol.statedir import write_atomically

LOST_STEPS = 5
"""Steps under a plan after which those before it, if nobody has reported them, count as lost."""
PATIENCE, RARELY_SECONDS = 1.5, 20.0
"""While a profile is missing, the next lookup comes so many times later, and so much later at most: it costs many peers
an answer."""
SHOW_SECONDS = 2.0
"""Steps that follow each other faster share a line of the log."""


@dataclass(frozen=True)
class Tools:
    """What a coordinator leads with."""

    job: ResolvedJob
    folder: Path
    identity: Identity
    swarm: str
    coordinators: tuple[str, ...]
    """All that may lead, this one among them."""
    planner: Planner
    archive: Archive
    control: ControlPlane
    discovery: Discovery
    registry: Registry


class Hearing:
    """The swarm as this coordinator knows it."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.members, self.links, self.pace = Members(), LinkMap(), Pace()
        self.link_watch = LinkWatch(time.monotonic)
        self._acquaintances = Acquaintances(tools.folder)
        self.rows = RowFile(tools.folder / "metrics.jsonl")
        self.plan: Plan | None = None
        """The one in force."""
        self.kept = Mark()
        """The newest checkpoint."""
        self.event: Event | None = None
        """What is to be written down when the plan has begun."""
        self.on_standing: Callable[[str, Standing], Awaitable[None]] | None = None
        """Called with what a peer stands by."""
        self.on_training: Callable[[Plan], Awaitable[bool]] | None = None
        """Called when all peers of the plan train; whether that is news."""
        self._changed = asyncio.Event()
        self._phase = Phase(name="waiting", text="starting")
        self._safe = Mark()
        self._lost_up_to = 0
        """The last step of which nobody may be left who knows how it was."""
        self._shown = 0.0
        tools.archive.on_kept = self._keep
        tools.archive.on_rows = self._record_for_good
        tools.control.on(PRESENCE, self._hear_presence)
        tools.control.on(REPORT, self._hear_report)
        tools.control.on(CHALLENGE, self._hear_challenge)

    async def look(self, seconds: float) -> None:
        """Read the DHT when there is something to find in it, and keep the status file fresh, until cancelled."""
        due, pause = 0.0, seconds
        missing: dict[str, str] = {}
        while True:
            before, missing = missing, self.members.unlisted()
            if missing.items() - before.items():
                due, pause = 0.0, seconds
            if missing and time.monotonic() >= due:
                await self._read_profiles(missing)
                pause = min(PATIENCE * pause, RARELY_SECONDS)
                due = time.monotonic() + pause
            self._changed.set()
            try:
                self.save_status()
            except UserError as error:
                log.warning("%s", error)
            await asyncio.sleep(seconds)

    async def _read_profiles(self, peers: Collection[str]) -> None:
        try:
            self.members.listed(await self._tools.registry.profiles(self._tools.discovery, peers))
        except (OSError, RuntimeError) as error:
            log.warning("cannot read the DHT: %s", error)
            return
        here = self.members.online()
        self._acquaintances.remember({m.peer: m.profile.addresses for m in here if m.profile is not None})

    def _keep(self, manifest: Manifest) -> None:
        """A checkpoint is whole."""
        self.kept = mark_of(manifest)
        log.info("kept the checkpoint of step %d", manifest.step)
        self._changed.set()

    async def _hear_presence(self, peer: str, message: Presence) -> None:
        if peer in self._tools.coordinators:
            return
        before = self.members.get(peer)
        was_online = before is not None and before.online
        self.members.seen(peer, message)
        member = self.members.get(peer)
        is_online = member is not None and member.online
        if is_online != was_online:
            log.info("%s %s", short(peer), "joined" if is_online else "left")
            if not is_online:
                self.links.forget(peer)
        self._changed.set()

    async def _hear_challenge(self, peer: str, _: Challenge) -> None:
        """A daemon enters: it learns the time from whatever is said now."""
        await self.tell_ledger()

    async def _hear_report(self, peer: str, message: Report) -> None:
        if not self.members.reported(peer, message):
            return
        if message.probed is not None:
            self.links.answered(peer, message.probed)
        if self.on_standing is not None:
            await self.on_standing(peer, message.standing)
        plan = self.plan
        if plan is not None and message.plan_version == plan.version and message.state == "training":
            self.pace.reported(peer, plan.version, message.step, message.busy_seconds)
            self.link_watch.reported(peer, plan.version, message.step, message.received_gbps)
            trains = all(map(self.trains, plan.peers))
            if trains and self.on_training is not None and await self.on_training(plan):
                self._note_start(plan)
        if plan is not None and plan.stage_of(peer) is not None:  # only who trains knows what a step was
            self._record(message.rows)
        if plan is not None and message.step > plan.resume.mark.step + LOST_STEPS > self.rows.last + LOST_STEPS:
            # Training has gone on for a while, and nobody has brought the rows up to where this plan began.
            log.warning("the metrics of steps %d to %d are lost", self.rows.last + 1, plan.resume.mark.step)
            self._lost_up_to = plan.resume.mark.step
        if message.rows or self._is_safer():
            await self.tell_ledger()
        self._changed.set()

    def _note_start(self, plan: Plan) -> None:
        """Write down that a plan has begun."""
        if self.event is None or self.event.plan != plan.version:
            return
        reports = [member.report for peer in plan.peers if (member := self.members.get(peer)) and member.report]
        moved = sum(report.fetched_bytes for report in reports)
        append(self._tools.folder, self.event.model_copy(update={"started_at": time.time(), "moved_bytes": moved}))
        self.event = None

    def _is_safer(self) -> bool:
        """Whether the swarm has a newer state whole than when this was last asked."""
        safe = safe_mark(self.standings, [self.kept], self._tools.planner.layers)
        newer, self._safe = safe.order > self._safe.order, max(self._safe, safe, key=lambda mark: mark.order)
        return newer

    def _record_for_good(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down what leads to a checkpoint, past the operating system's buffers, as the checkpoint will be."""
        self._record(rows)
        self.rows.sync()

    def _record(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down those of `rows` that continue the history."""
        steps = self._tools.job.training.steps
        try:
            recorded = [
                row
                for row in rows
                if row.step <= steps
                and self._is_valid(row.plan_version, row.step)
                and self.rows.append(row, self._lost_up_to)
            ]
        except UserError as error:
            log.warning("%s: peers keep what they have measured until there is room", error)
            return
        if recorded:
            self._show(recorded)

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something that was heard makes `condition` true; whether it did within `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return condition()

    async def unless(self, condition: Callable[[], bool], work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`, but give it up once something that was heard makes `condition` true; whether it was done."""
        working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(self.wait(condition))
        try:
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            working.cancel()
            waiting.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)

    async def say(self, name: str, text: str) -> None:
        """Change the phase, for nodes, log and status."""
        phase = Phase.model_validate({"name": name, "text": text[:480]})
        if phase != self._phase:
            self._phase = phase
            log.info("%s: %s", name, text)
            await self._tools.control.publish(PHASE, phase)

    @property
    def standings(self) -> dict[str, Standing]:
        """Where those stand who are heard of."""
        return {member.peer: member.report.standing for member in self.members.heard() if member.report}

    def trains(self, peer: str) -> bool:
        member, plan = self.members.get(peer), self.plan
        report = member.report if member is not None else None
        return bool(plan and report and report.plan_version == plan.version and report.state == "training")

    def _is_valid(self, plan_version: int, step: int) -> bool:
        """Whether a row belongs to the history that leads to the present state."""
        plan = self.plan
        return plan is not None and (plan_version == plan.version or step <= plan.resume.mark.step)

    def _show(self, rows: list[StepMetrics]) -> None:
        """Say how training goes: the newest step, and every evaluation."""
        steps = self._tools.job.training.steps
        for row in rows:
            due = row.step == steps or time.monotonic() - self._shown >= SHOW_SECONDS
            if row.eval_loss is not None or (row is rows[-1] and due):
                self._shown = time.monotonic()
                log.info("%s", row.line(steps), extra={"fields": row.model_dump(mode="json")})

    async def tell_ledger(self) -> None:
        """Say what is on disk."""
        ledger = Ledger(recorded=self.rows.last, kept=self.kept.step, safe=self._safe)
        await self._tools.control.publish(LEDGER, ledger)

    def save_status(self) -> None:
        """Write the status file that `dtfm-coordinator status` reads."""
        plan = self.plan
        status: dict[str, Any] = {
            "at": time.time(),
            "tasks": len(asyncio.all_tasks()),
            "swarm": self._tools.swarm,
            "phase": self._phase.name,
            "text": self._phase.text,
            "step": self.rows.last,
            "steps": self._tools.job.training.steps,
            "checkpoint": self.kept.step,
            "plan_version": plan.version if plan else None,
            "dropped": {"records": dict(self._tools.registry.dropped), "messages": dict(self._tools.control.dropped)},
            "nodes": [
                {
                    "id": member.peer,
                    "listed": member.is_listed,
                    "device": member.profile.device if member.profile else None,
                    "state": member.report.state if member.report else None,
                    "text": member.report.text if member.report else None,
                    "stage": plan.stage_of(member.peer) if plan else None,
                    "micro_batches": len(plan.micro_batches(member.peer)) if plan else 0,
                    "step": member.report.step if member.report else None,
                }
                for member in self.members.online()
            ],
        }
        write_atomically(self._tools.folder / "status.json", json.dumps(status, indent=1))
