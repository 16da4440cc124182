"""What a coordinator decides, one thing after the other: wait, measure, plan, watch, and again when a plan breaks.

It is not needed for a step: peers train on under the plan in force while it is away, and hand in what it missed.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtfm_coordinator.allocator.step.shapes import NotEnoughNodes
from dtfm_coordinator.archive import Archive
from dtfm_coordinator.linkmap import LinkMap
from dtfm_coordinator.members import Member, Members
from dtfm_coordinator.planning import Planner
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.control import (
    LEDGER,
    PHASE,
    PLAN,
    PRESENCE,
    PROBE,
    REPORT,
    Ledger,
    Phase,
    Presence,
    ProbeRound,
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
from dtfm_protocol.statedir import write_atomically

SETTLE_SECONDS = 1.5
"""Nobody must have joined or left for so long before a plan is made: volunteers arrive in bursts."""
ROUND_SECONDS = 60.0
"""A round of probes that takes longer goes on without the slow ones."""
RETURN_SECONDS = 10.0
"""How long a returning coordinator waits for the peers of its last plan before it plans anew."""
GOODBYE_SECONDS = 15.0
FRUITLESS_SECONDS = 30.0
"""Longest pause after plans that broke before their first step."""
SHOW_SECONDS = 2.0
"""Steps that follow each other faster share a line of the log."""


class Failed(UserError):
    """The run cannot go on, whatever the swarm does."""


@dataclass(frozen=True)
class Tools:
    """What a conductor works with."""

    job: ResolvedJob
    folder: Path
    identity: Identity
    swarm: str
    planner: Planner
    archive: Archive
    control: ControlPlane
    discovery: Discovery
    registry: Registry


class Conductor:
    """Leads one job to its end."""

    def __init__(self, tools: Tools, min_nodes: int | None, exit_when_done: bool) -> None:
        self._job, self._folder, self._identity, self._swarm = tools.job, tools.folder, tools.identity, tools.swarm
        self._planner, self._archive, self._control = tools.planner, tools.archive, tools.control
        self._discovery, self._registry = tools.discovery, tools.registry
        self._min_nodes, self._exit_when_done = min_nodes, exit_when_done
        self._members, self._links = Members(), LinkMap()
        self._rows = RowFile(tools.folder / "metrics.jsonl")
        self._changed = asyncio.Event()
        self._phase = Phase(name="waiting", text="starting")
        self._plan: Plan | None = None
        self._version = 0
        self._kept = 0
        """The step of the newest checkpoint."""
        self._shown = 0.0
        self._fruitless = 0
        """Plans in a row that broke before their first step."""
        self._archive.on_kept = self._keep
        self._archive.on_rows = self._record_for_good
        self._control.on(PRESENCE, self._hear_presence)
        self._control.on(REPORT, self._hear_report)

    # -- hearing ----------------------------------------------------------------------------------------------------

    async def look(self, seconds: float) -> None:
        """Keep reading the DHT, and keep the status file fresh, until cancelled."""
        while True:
            try:
                self._members.listed(await self._registry.profiles(self._discovery))
                self._changed.set()
            except (OSError, RuntimeError) as error:
                log.warning("cannot read the DHT: %s", error)
            self.save_status()
            await asyncio.sleep(seconds)

    def _keep(self, manifest: Manifest) -> None:
        """A checkpoint is whole."""
        self._kept = manifest.step
        log.info("kept the checkpoint of step %d", manifest.step)
        self._changed.set()

    async def _hear_presence(self, peer: str, message: Presence) -> None:
        before = self._members.get(peer)
        was_online = before is not None and before.online
        self._members.seen(peer, message)
        if message.online != was_online:
            log.info("%s %s", short(peer), "joined" if message.online else "left")
            if not message.online:
                self._links.forget(peer)
        self._changed.set()

    async def _hear_report(self, peer: str, message: Report) -> None:
        self._members.reported(peer, message)
        plan = self._plan
        if plan is not None and plan.stage_of(peer) is not None:  # only who trains knows what a step was
            self._record(message.rows)
        if message.rows:
            await self._control.publish(LEDGER, self._ledger())
        self._changed.set()

    def _record_for_good(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down what leads to a checkpoint, past the operating system's buffers, as the checkpoint will be."""
        self._record(rows)
        self._rows.sync()

    def _record(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down those of `rows` that continue the history."""
        steps = self._job.training.steps
        recorded = [
            row
            for row in rows
            if row.step <= steps and self._is_valid(row.plan_version, row.step) and self._rows.append(row)
        ]
        if recorded:
            self._show(recorded)

    async def _wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something that was heard makes `condition` true; whether it did within `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return condition()

    async def _say(self, name: str, text: str) -> None:
        """Change the phase, for nodes, log and status."""
        phase = Phase.model_validate({"name": name, "text": text[:480]})
        if phase != self._phase:
            self._phase = phase
            log.info("%s: %s", name, text)
            await self._control.publish(PHASE, phase)

    # -- deciding ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From waiting to the last step, planning anew whenever a plan breaks.

        Raises:
            Failed: no plan can help.
        """
        plan = await self._return_to()
        try:
            while not self._is_done():
                if plan is None:
                    plan = await self._make_plan()
                plan = await self._watch(plan)
        except Failed as error:
            await self._say("failed", str(error))
            await self._farewell()
            raise
        done = f"all {self._job.training.steps} steps are done; the model is in {self._folder / 'checkpoints'}"
        await self._say("done", done)
        self.save_status()
        if self._exit_when_done:
            await self._farewell()
            return
        await asyncio.Event().wait()

    def _is_done(self) -> bool:
        return self._kept >= self._job.training.steps and self._rows.last >= self._job.training.steps

    async def _farewell(self) -> None:
        """Let the nodes hear the last phase and leave."""
        await self._wait(lambda: not self._members.online(), GOODBYE_SECONDS)

    async def _return_to(self) -> Plan | None:
        """The plan of an earlier life, if its peers still train under it."""
        newest = await asyncio.to_thread(self._archive.newest)
        self._kept = newest.step if newest else 0
        path = self._folder / "plan.json"
        if self._kept >= self._job.training.steps or not path.exists():
            self._rows.forget_after(self._kept)
            return None
        plan = Plan.load(path)
        self._version = plan.version

        def states() -> list[Report | None]:
            return [member.report if (member := self._members.get(peer)) else None for peer in plan.peers]

        def trains(report: Report | None) -> bool:
            return report is not None and report.plan_version == plan.version and report.state == "training"

        def decided() -> bool:
            fresh = any(report is not None and report.plan_version == 0 for report in states())
            return fresh or all(map(trains, states()))

        self._plan = plan
        await self._wait(decided, RETURN_SECONDS)
        if all(map(trains, states())):
            self._archive.expect(plan)
            await self._control.publish(PLAN, plan)
            await self._say("training", f"plan {plan.version}, found in force: {plan.reason}")
            return plan
        self._plan = None
        self._rows.forget_after(self._kept)
        return None

    async def _make_plan(self) -> Plan:
        """Wait for enough nodes, measure the links between them, plan, publish."""
        # --min-nodes is for the start: a run that has lost a node goes on as soon as the others suffice.
        needed = self._planner.fewest_nodes
        if self._plan is None and self._min_nodes is not None:
            needed = self._min_nodes
        why = ""
        while True:
            members = await self._gather(needed, why)
            await self._probe(members)
            members = self._links.reachable([member for member in members if member.online])
            await self._say("planning", f"planning for {len(members)} nodes")
            view = self._links.view(members, self._job.training.precision)
            try:
                plan = await asyncio.to_thread(self._planner.plan, view, self._plan)
            except UserError as error:
                # A view that no plan fits may be followed by one that does: another node, or one with more memory.
                needed, why = len(members) + (error.missing if isinstance(error, NotEnoughNodes) else 1), str(error)
            else:
                break
        newest = await asyncio.to_thread(self._archive.newest)
        self._kept = newest.step if newest else 0
        self._rows.forget_after(self._kept)
        self._version += 1
        plan = plan.model_copy(update={"version": self._version, "resume_step": self._kept})
        plan = plan.signed(self._identity, self._swarm)
        view.save(self._folder / "view.json")
        write_atomically(self._folder / "plan.json", plan.model_dump_json(indent=1))
        self._archive.expect(plan)
        self._plan = plan
        await self._control.publish(PLAN, plan)
        await self._control.publish(LEDGER, self._ledger())
        await self._say("training", f"plan {plan.version}: {plan.reason}")
        return plan

    async def _gather(self, needed: int, why: str) -> list[Member]:
        """Wait until at least `needed` nodes are ready and nobody has come or gone for a while.

        Args:
            why: what fewer nodes lack, where it is more than their number.
        """
        while True:
            if len(self._members.ready()) < needed:
                text = self._members.waiting_for(needed)
                await self._say("waiting", why or text)

                def told(text: str = text) -> bool:
                    return self._members.waiting_for(needed) != text

                await self._wait(told)
                continue
            ready = {member.peer for member in self._members.ready()}
            busy = len(self._members.online()) > len(ready)

            def moved(ready: set[str] = ready) -> bool:
                return {member.peer for member in self._members.ready()} != ready

            if not await self._wait(moved, SETTLE_SECONDS * (4 if busy else 1)):
                return self._members.ready()

    async def _probe(self, members: list[Member]) -> None:
        """Have all unknown links between `members` measured, in rounds of disjoint pairs."""
        peers = [member.peer for member in members]
        addresses = {member.peer: member.profile.addresses for member in members if member.profile}
        rounds = list(self._links.rounds(peers))
        for number, pairs in enumerate(rounds, 1):
            await self._say("probing", f"measuring links: round {number} of {len(rounds)}")
            # Unique over restarts of the coordinator, too: nodes report the last round that they have finished.
            turn = ProbeRound(id=time.time_ns() // 1_000_000, pairs=tuple(pairs), addresses=addresses)
            await self._control.publish(PROBE, turn)

            def finished(turn: ProbeRound = turn) -> bool:
                return all(self._has_probed(peer, turn.id) for peer, _ in turn.pairs)

            if not await self._wait(finished, ROUND_SECONDS):
                log.warning("round %d of link measurements was not finished in %.0f s", number, ROUND_SECONDS)
            self._links.tried(pairs)
        for peer in peers:
            try:
                report = await self._registry.links(self._discovery, peer)
            except (OSError, RuntimeError) as error:
                log.warning("cannot read the links of %s: %s", short(peer), error)
                continue
            if report is not None:
                self._links.reported(peer, report)

    def _has_probed(self, peer: str, turn: int) -> bool:
        member = self._members.get(peer)
        if member is None or not member.online:
            return True  # nothing to wait for
        return member.report is not None and member.report.probed >= turn

    async def _watch(self, plan: Plan) -> Plan | None:
        """Stay with `plan` until the job is done, or until it breaks: then None.

        Raises:
            Failed: the training itself has gone wrong.
        """

        def over() -> bool:
            return bool(
                self._archive.fault
                or self._is_done()
                or self._members.missing(plan.peers)
                or self._members.broken(plan.peers, plan.version)
            )

        await self._wait(over)
        if self._archive.fault:
            raise Failed(self._archive.fault)
        if self._is_done():
            return plan
        broken = self._members.broken(plan.peers, plan.version)
        if broken is not None and broken.report is not None and broken.report.state == "diverged":
            raise Failed(f"training diverged: {broken.report.text}")
        missing = self._members.missing(plan.peers)
        if missing:
            why = f"{', '.join(map(short, missing))} left"
        else:
            assert broken is not None
            why = f"{short(broken.peer)} stalled" + (f" ({broken.report.text})" if broken.report else "")
            for lost in broken.report.lost if broken.report else ():
                self._links.forget(lost)  # it is connected to the broker; whether peers reach it is measured anew
        if self._rows.last <= plan.resume_step:
            # A plan that achieved nothing: the next one may fail in the same way, so do not try them in a rush.
            self._fruitless += 1
            await asyncio.sleep(min(FRUITLESS_SECONDS, 2.0 ** (self._fruitless - 1)))
        else:
            self._fruitless = 0
        newest = await asyncio.to_thread(self._archive.newest)
        back = newest.step if newest else 0
        await self._say("planning", f"{why}: going on from step {back} with a new plan")
        return None

    def _is_valid(self, plan_version: int, step: int) -> bool:
        """Whether a row belongs to the history that leads to the present state."""
        plan = self._plan
        return plan is not None and (plan_version == plan.version or step <= plan.resume_step)

    def _show(self, rows: list[StepMetrics]) -> None:
        """Say how training goes: the newest step, and every evaluation."""
        steps = self._job.training.steps
        for row in rows:
            due = row.step == steps or time.monotonic() - self._shown >= SHOW_SECONDS
            if row.eval_loss is not None or (row is rows[-1] and due):
                self._shown = time.monotonic()
                log.info("%s", row.line(steps), extra={"fields": row.model_dump(mode="json")})

    def _ledger(self) -> Ledger:
        return Ledger(recorded=self._rows.last, kept=self._kept)

    # -- status -----------------------------------------------------------------------------------------------------

    def save_status(self) -> None:
        """Write the status file that `dtfm-coordinator status` reads."""
        plan = self._plan
        status: dict[str, Any] = {
            "at": time.time(),
            "swarm": self._swarm,
            "phase": self._phase.name,
            "text": self._phase.text,
            "step": self._rows.last,
            "steps": self._job.training.steps,
            "checkpoint": self._kept,
            "plan_version": plan.version if plan else None,
            "dropped": {"records": dict(self._registry.dropped), "messages": dict(self._control.dropped)},
            "nodes": [
                {
                    "id": member.peer,
                    "listed": member.profile is not None,
                    "device": member.profile.device if member.profile else None,
                    "state": member.report.state if member.report else None,
                    "text": member.report.text if member.report else None,
                    "stage": plan.stage_of(member.peer) if plan else None,
                    "micro_batches": len(plan.micro_batches(member.peer)) if plan else 0,
                    "step": member.report.step if member.report else None,
                }
                for member in self._members.online()
            ],
        }
        write_atomically(self._folder / "status.json", json.dumps(status, indent=1))
