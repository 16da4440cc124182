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
from dtfm_coordinator.archive import Archive, mark_of
from dtfm_coordinator.history import Event, append
from dtfm_coordinator.linkmap import LinkMap
from dtfm_coordinator.members import Member, Members
from dtfm_coordinator.pace import Pace
from dtfm_coordinator.planning import Planner
from dtfm_coordinator.recovery import resume_from, safe_mark, shadows_of, source_of
from dtfm_coordinator.succession import Succession
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.control import (
    CHALLENGE,
    EPOCH,
    LEDGER,
    PHASE,
    PLAN,
    PRESENCE,
    PROBE,
    REPORT,
    Challenge,
    Ledger,
    Phase,
    Presence,
    ProbeRound,
    Report,
)
from dtfm_protocol.errors import Refused, UserError
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

SETTLE_SECONDS = 1.5
"""Nobody must have joined or left for so long before a plan is made: volunteers arrive in bursts."""
QUICK_SECONDS = 0.2
ROUND_SECONDS = 60.0
"""A round of probes that takes longer goes on without the slow ones."""
PARK_SECONDS = 60.0
"""For a checkpoint before a peer leaves without which there is no plan."""
RETURN_SECONDS = 15.0
"""How long a returning coordinator waits for the peers of its last plan before it plans anew."""
GOODBYE_SECONDS = 15.0
FRUITLESS_SECONDS = 30.0
"""Longest pause after plans that broke before their first step."""
LOST_STEPS = 5
"""Steps under a plan after which those before it, if nobody has reported them, count as lost."""
SHOW_SECONDS = 2.0
"""Steps that follow each other faster share a line of the log."""


Situation = tuple[frozenset[str], frozenset[str], frozenset[str]]


@dataclass(frozen=True)
class Change:
    """A new plan is due."""

    why: str
    gently: bool = False
    """Whether all is well under the one in force."""
    layout: Plan | None = None
    """What is to be served, where that is known."""


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

    def __init__(
        self,
        tools: Tools,
        min_nodes: int | None,
        exit_when_done: bool,
        *,
        coordinators: tuple[str, ...],
        without_quorum: bool = False,
        taken_over: bool = False,
    ) -> None:
        """Args:
        min_nodes: how many to wait for at the start.
        coordinators: all that may lead, this one among them.
        without_quorum: whether peers that do not answer are gone for good.
        taken_over: whether another one has led so far.
        """
        self._job, self._folder, self._identity, self._swarm = tools.job, tools.folder, tools.identity, tools.swarm
        self._planner, self._archive, self._control = tools.planner, tools.archive, tools.control
        self._discovery, self._registry = tools.discovery, tools.registry
        self._min_nodes, self._exit_when_done = min_nodes, exit_when_done
        self._coordinators, self._taken_over = coordinators, taken_over
        self._members, self._links = Members(), LinkMap()
        self._rows = RowFile(tools.folder / "metrics.jsonl")
        self._changed = asyncio.Event()
        self._phase = Phase(name="waiting", text="starting")
        self._plan: Plan | None = None
        self._version = 0
        self._kept = Mark()
        """The newest checkpoint."""
        self._safe = Mark()
        self._lost_up_to = 0
        """The last step of which nobody may be left who knows how it was."""
        self._event: Event | None = None
        """The plan that is about to begin."""
        self._pace = Pace()
        self._considered: Situation = (frozenset(), frozenset(), frozenset())
        """What the plan in force was last compared for."""
        self._shown = 0.0
        self._fruitless = 0
        """Plans in a row that broke before their first step."""
        self._archive.on_kept = self._keep
        self._archive.on_rows = self._record_for_good
        self._control.on(PRESENCE, self._hear_presence)
        self._control.on(REPORT, self._hear_report)
        self._control.on(CHALLENGE, self._hear_challenge)
        self._succession = Succession(
            tools.folder,
            tools.identity.peer_id,
            self._members,
            lambda epoch: tools.control.publish(EPOCH, epoch),
            self._wait,
            lambda text: self._say("waiting", text),
            is_genuine=self._is_genuine,
            alone=len(coordinators) == 1,
            without_quorum=without_quorum,
        )

    # -- hearing ----------------------------------------------------------------------------------------------------

    async def look(self, seconds: float) -> None:
        """Keep reading the DHT, and keep the status file fresh, until cancelled."""
        while True:
            try:
                self._members.listed(await self._registry.profiles(self._discovery))
                self._changed.set()
            except (OSError, RuntimeError) as error:
                log.warning("cannot read the DHT: %s", error)
            try:
                self.save_status()
            except UserError as error:
                log.warning("%s", error)
            await asyncio.sleep(seconds)

    def _keep(self, manifest: Manifest) -> None:
        """A checkpoint is whole."""
        self._kept = mark_of(manifest)
        log.info("kept the checkpoint of step %d", manifest.step)
        self._changed.set()

    async def _hear_presence(self, peer: str, message: Presence) -> None:
        if peer in self._coordinators:
            return
        before = self._members.get(peer)
        was_online = before is not None and before.online
        self._members.seen(peer, message)
        if message.online != was_online:
            log.info("%s %s", short(peer), "joined" if message.online else "left")
            if not message.online:
                self._links.forget(peer)
        self._changed.set()

    async def _hear_challenge(self, peer: str, _: Challenge) -> None:
        """A daemon enters: it learns the time from whatever is said now."""
        await self._control.publish(LEDGER, self._ledger())

    async def _hear_report(self, peer: str, message: Report) -> None:
        self._members.reported(peer, message)
        await self._succession.heard(peer, message.standing)
        plan = self._plan
        if plan is not None and message.plan_version == plan.version and message.state == "training":
            self._pace.reported(peer, plan.version, message.step, message.busy_seconds)
            if self._succession.epoch.started < plan.version and all(map(self._trains, plan.peers)):
                await self._succession.started(plan)
                self._note_start(plan)
        if plan is not None and plan.stage_of(peer) is not None:  # only who trains knows what a step was
            self._record(message.rows)
        if plan is not None and message.step > plan.resume.mark.step + LOST_STEPS > self._rows.last + LOST_STEPS:
            # Training has gone on for a while, and nobody has brought the rows up to where this plan began.
            log.warning("the metrics of steps %d to %d are lost", self._rows.last + 1, plan.resume.mark.step)
            self._lost_up_to = plan.resume.mark.step
        if message.rows or self._is_safer():
            await self._control.publish(LEDGER, self._ledger())
        self._changed.set()

    def _note_start(self, plan: Plan) -> None:
        """Write down that a plan has begun."""
        if self._event is None or self._event.plan != plan.version:
            return
        reports = [member.report for peer in plan.peers if (member := self._members.get(peer)) and member.report]
        moved = sum(report.fetched_bytes for report in reports)
        append(self._folder, self._event.model_copy(update={"started_at": time.time(), "moved_bytes": moved}))
        self._event = None

    def _is_safer(self) -> bool:
        """Whether the swarm has a newer state whole than when this was last asked."""
        standings = {member.peer: member.report.standing for member in self._members.heard() if member.report}
        safe = safe_mark(standings, [self._kept], self._planner.layers)
        newer, self._safe = safe.order > self._safe.order, max(self._safe, safe, key=lambda mark: mark.order)
        return newer

    def _record_for_good(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down what leads to a checkpoint, past the operating system's buffers, as the checkpoint will be."""
        self._record(rows)
        self._rows.sync()

    def _record(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down those of `rows` that continue the history."""
        steps = self._job.training.steps
        try:
            recorded = [
                row
                for row in rows
                if row.step <= steps
                and self._is_valid(row.plan_version, row.step)
                and self._rows.append(row, self._lost_up_to)
            ]
        except UserError as error:
            log.warning("%s: peers keep what they have measured until there is room", error)
            return
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
        """From waiting to the last step, planning anew whenever a plan breaks or a better one is possible.

        Raises:
            Failed: no plan can help.
        """
        change: Change | None = await self._return()
        try:
            while not self._is_done():
                if change is not None:
                    await self._change(change)
                change = await self._watch()
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
        return self._kept.step >= self._job.training.steps and self._rows.last >= self._job.training.steps

    async def _farewell(self) -> None:
        """Let the nodes hear the last phase and leave."""
        await self._wait(lambda: not self._members.online(), GOODBYE_SECONDS)

    async def _return(self) -> Change | None:
        """Take up an earlier life's plan, which peers may still train under; what to do first."""
        self._kept = await self._newest()
        path = self._folder / "plan.json"
        if self._kept.step >= self._job.training.steps or not path.exists():
            self._rows.forget_after(self._kept.step)
            return Change("the first plan")
        plan = self._plan = Plan.load(path)
        self._archive.expect(plan)
        await self._control.publish(PLAN, plan)
        await self._succession.repeat()
        await self._control.publish(LEDGER, self._ledger())
        if self._succession.epoch.called > plan.version:
            return Change("the coordinator is back, and was about to plan anew")

        def decided() -> bool:
            return bool(self._members.broken(plan.peers, plan.version)) or all(map(self._trains, plan.peers))

        await self._say("training", f"back: looking for the peers of plan {plan.version}")
        await self._wait(decided, RETURN_SECONDS)
        if self._taken_over:
            return Change("another coordinator leads now", gently=all(map(self._trains, plan.peers)), layout=plan)
        if all(map(self._trains, plan.peers)):
            await self._say("training", f"plan {plan.version}, found in force: {plan.reason}")
            return None
        return Change("the coordinator is back, and the plan's peers are not all training")

    def _trains(self, peer: str) -> bool:
        member, plan = self._members.get(peer), self._plan
        report = member.report if member is not None else None
        return bool(plan and report and report.plan_version == plan.version and report.state == "training")

    async def _newest(self) -> Mark:
        """The newest whole checkpoint of this coordinator."""
        newest = await asyncio.to_thread(self._archive.newest)
        return mark_of(newest) if newest is not None else Mark()

    async def _change(self, change: Change) -> None:
        """Bring a new plan into force."""
        before, called_at = self._plan, time.time()
        if not change.gently:
            if before is not None:
                await self._say("planning", change.why)
            version = await self._succession.call(before)
            layout = await self._layout()
        else:
            found = change.layout or await self._better(change)
            if found is None:
                return
            await self._say("planning", f"{change.why}: {found.reason}")
            version = await self._succession.call(before, gently=True)
            layout = found
        while True:
            standings = await self._succession.agree(before, version)
            plan = await self._ordered(layout, version, standings)
            self._archive.expect(plan)
            await self._control.publish(PLAN, plan)
            if await self._succession.establish(plan, self._hold):
                break
            log.info("plan %d was not taken by all its peers: planning anew", version)
            version = await self._succession.call(before)
            layout = await self._layout()
        mark = plan.resume.mark
        reached = max([self._rows.last, *(h.mark.step for s in standings.values() for h in s.holdings if h.live)])
        self._event = Event(
            plan=plan.version,
            why=change.why,
            called_at=called_at,
            in_force_at=time.time(),
            step=mark.step,
            repeated=max(0, reached - mark.step),
            source=source_of(plan.resume, standings),
        )
        self._rows.forget_after(mark.step)
        await self._control.publish(LEDGER, self._ledger())
        await self._say("training", f"plan {plan.version} from step {mark.step}{self._event.said}: {plan.reason}")

    def _is_genuine(self, plan: Plan) -> bool:
        """Whether a plan that a peer shows is a coordinator's."""
        try:
            plan.verify(self._coordinators, self._swarm)
        except Refused as error:
            log.warning("%s", error)
            return False
        return True

    def _hold(self, plan: Plan) -> None:
        """Have `plan` be the one that this coordinator comes back to: before anyone may act under it."""
        write_atomically(self._folder / "plan.json", plan.model_dump_json(indent=1), lasting=True)
        self._plan = plan

    async def _layout(self) -> Plan:
        """Wait until enough nodes are ready for a plan; its layout."""
        # --min-nodes is for the start: a run that has lost a node goes on as soon as the others suffice.
        needed = self._planner.fewest_nodes
        if self._plan is None and self._min_nodes is not None:
            needed = self._min_nodes
        why = ""
        while True:
            members = await self._gather(needed, why)
            await self._probe(members)
            try:
                return await self._plan_for(members)
            except UserError as error:
                # A view that no plan fits may be followed by one that does: another node, or one with more memory.
                needed, why = len(members) + (error.missing if isinstance(error, NotEnoughNodes) else 1), str(error)

    async def _plan_for(self, members: list[Member]) -> Plan:
        """A layout for those of `members` that are still there.

        Raises:
            UserError: none fits.
        """
        heard = {member.peer for member in self._members.ready()}
        members = self._links.reachable([member for member in members if member.peer in heard])
        await self._say("planning", f"planning for {len(members)} nodes")
        view = self._links.view(members, self._job.training.precision, self._pace.factors())
        plan = await asyncio.to_thread(self._planner.plan, view, self._plan)
        view.save(self._folder / "view.json")
        return plan

    async def _better(self, change: Change) -> Plan | None:
        """A layout for those who are here now, while training goes on; None if it is the one in force.

        Where a peer wants to leave and no plan is possible without it, the run is parked: all stop at the end of a
        step, and hand in a checkpoint.
        """
        assert self._plan is not None
        members = self._members.ready()
        await self._probe(members)
        try:
            found = await self._plan_for(members)
        except UserError as error:
            leaving = self._members.leaving(self._plan.peers)
            if leaving:
                await self._park(", ".join(map(short, leaving)), error)
            else:
                log.info("%s: %s", change.why, error)
            return None
        finally:
            await self._say("training", f"plan {self._plan.version}: {self._plan.reason}")
        same = found.routes == self._plan.routes and found.stages == self._plan.stages
        return None if same else found

    async def _park(self, leaving: str, why: UserError) -> None:
        """Stop at the end of a step with a checkpoint of it, so that those who leave take nothing with them."""
        before = self._plan
        assert before is not None
        await self._say("planning", f"{leaving} leaves, and without it {why}: keeping a checkpoint first")
        await self._succession.call(before, gently=True, parked=True)
        reached = self._rows.last
        await self._wait(lambda: self._kept.step >= max(reached, self._rows.last), PARK_SECONDS)

    async def _ordered(self, layout: Plan, version: int, standings: dict[str, Standing]) -> Plan:
        """`layout` as the plan of `version`: where it goes on from, and who keeps copies."""
        self._kept = await self._newest()
        me = self._identity.peer_id
        kept = {me: [self._kept]} if self._kept.step or self._job.pretrained else {}
        resume = resume_from(standings, kept, layout.layers)
        plan = layout.model_copy(update={"version": version, "resume": resume, "shadows": shadows_of(layout)})
        return plan.signed(self._identity, self._swarm)

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

            # In the middle of a run everyone waits: who is there is known.
            calm = SETTLE_SECONDS if self._plan is None else QUICK_SECONDS
            if not await self._wait(moved, calm * (4 if busy else 1)):
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

    async def _watch(self) -> Change | None:
        """Stay with the plan until the job is done (None), or something is to be changed.

        Raises:
            Failed: the training itself has gone wrong.
        """
        plan = self._plan
        assert plan is not None

        def due() -> bool:
            return bool(self._archive.fault or self._is_done() or self._broken(plan) or self._wish(plan))

        await self._wait(due)
        if self._archive.fault:
            raise Failed(self._archive.fault)
        if self._is_done():
            return None
        why = self._broken(plan)
        if not why:
            wish, self._considered = self._wish(plan), self._situation(plan)
            return Change(wish, gently=True)
        if self._rows.last <= plan.resume.mark.step:
            # A plan that achieved nothing: the next one may fail in the same way, so do not try them in a rush.
            self._fruitless += 1
            await asyncio.sleep(min(FRUITLESS_SECONDS, 0.5 * 2.0 ** (self._fruitless - 1)))
        else:
            self._fruitless = 0
        return Change(why)

    def _situation(self, plan: Plan) -> Situation:
        """What might make another plan better: who came, who wants to leave, who has become slow."""
        came = () if self._planner.is_forced else self._members.newcomers({*plan.peers, *plan.idle})
        slow = frozenset() if self._planner.is_forced else self._pace.slow()
        return frozenset(came), frozenset(self._members.leaving(plan.peers)), slow

    def _wish(self, plan: Plan) -> str:
        """Why another plan might be better than `plan`, if that was not looked into yet."""
        now = self._situation(plan)
        if now == self._considered or not any(now):
            return ""
        words = zip(now, ("came", "wants to leave", "has become slow"), strict=True)
        return "; ".join(f"{', '.join(map(short, sorted(who)))} {word}" for who, word in words if who)

    def _broken(self, plan: Plan) -> str:
        """Why `plan` cannot go on, if it cannot.

        Raises:
            Failed: no other plan could, either.
        """
        broken = self._members.broken(plan.peers, plan.version)
        if broken is not None and broken.report is not None:
            if broken.report.state == "diverged":
                raise Failed(f"training diverged: {broken.report.text}")
            for lost in broken.report.lost:
                self._links.forget(lost)  # whether peers reach it is measured anew
            return f"{short(broken.peer)} stalled ({broken.report.text})"
        missing = self._members.missing(plan.peers)
        return f"{', '.join(map(short, missing))} left" if missing else ""

    def _is_valid(self, plan_version: int, step: int) -> bool:
        """Whether a row belongs to the history that leads to the present state."""
        plan = self._plan
        return plan is not None and (plan_version == plan.version or step <= plan.resume.mark.step)

    def _show(self, rows: list[StepMetrics]) -> None:
        """Say how training goes: the newest step, and every evaluation."""
        steps = self._job.training.steps
        for row in rows:
            due = row.step == steps or time.monotonic() - self._shown >= SHOW_SECONDS
            if row.eval_loss is not None or (row is rows[-1] and due):
                self._shown = time.monotonic()
                log.info("%s", row.line(steps), extra={"fields": row.model_dump(mode="json")})

    def _ledger(self) -> Ledger:
        return Ledger(recorded=self._rows.last, kept=self._kept.step, safe=self._safe)

    # -- status -----------------------------------------------------------------------------------------------------

    def save_status(self) -> None:
        """Write the status file that `dtfm-coordinator status` reads."""
        plan = self._plan
        status: dict[str, Any] = {
            "at": time.time(),
            "tasks": len(asyncio.all_tasks()),
            "swarm": self._swarm,
            "phase": self._phase.name,
            "text": self._phase.text,
            "step": self._rows.last,
            "steps": self._job.training.steps,
            "checkpoint": self._kept.step,
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
