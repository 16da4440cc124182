"""Controller of a job, one thing after the other: wait, measure, plan, watch, and again when a plan breaks.

No step needs it: peers train on under the plan in force while it is away, and hand in what it missed.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from dtfm_coordinator.leader.comparison import Comparison
from dtfm_coordinator.leader.job_amender import JobAmender
from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.leader.moving_ahead import MovingAhead, fails_beside, lacking
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.next_plan import event_of, next_plan
from dtfm_coordinator.leader.plan_watch import Change, Failed, PlanWatch
from dtfm_coordinator.leader.spare_measuring import SpareMeasuring
from dtfm_coordinator.leader.standstill import Standstill
from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.membership import reachable_addresses
from dtfm_coordinator.membership.known_peers import KnownPeers
from dtfm_coordinator.owner.owner_desk import OwnerDesk
from dtfm_coordinator.owner.owner_wishes import PlanWanted, Resumed
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.plan_change.ended_processes import EndedProcesses
from dtfm_coordinator.plan_change.judged_holdings import Copy
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import Role
from dtfm_coordinator.records import event_log
from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector, mark_of
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.records.metrics_recorder import MetricsRecorder
from dtfm_coordinator.swarm.announcer import Announcer
from dtfm_coordinator.swarm.message_handlers import MessageHandlers
from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed
from dtfm_coordinator.swarm.overview.owner_words import again_in_words, begun_in_words
from dtfm_coordinator.swarm.profile_lookup import ProfileLookup
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job import amendments_file
from dtfm_protocol.job.amendments_file import write_amendments
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.process.timeouts import TIMEOUTS


def hold(folder: Path, rows: MetricsFile, state: SwarmState, event: PlanEvent, plan: Plan) -> None:
    """Write `plan` down as the one that this coordinator comes back to, before any peer may act under it.

    Args:
        event: entry of the event log, to be written down when the plan has begun.

    Raises:
        UserError: there is no room on the disk.
    """
    write_atomically(folder / "plan.json", plan.model_dump_json(indent=1), lasting=True)
    write_amendments(folder / amendments_file.NAME, plan.amendments)
    rows.forget_after(event.step)
    append_shares(folder, plan, rows, names={one.peer: one.name for one in state.members.known()})
    state.plan = plan
    state.event = event.model_copy(update={"in_force_at": time.time()})


class Controller:
    """Controller that leads one job to its end."""

    def __init__(
        self,
        context: LeadContext,
        min_nodes: int | None,
        exit_when_done: bool,
        *,
        without_quorum: bool = False,
        taken_over: bool = False,
    ) -> None:
        """Take the tools to lead with; nothing happens before `run`, and `attend` goes on beside that.

        Args:
            min_nodes: number of nodes to wait for at the start; None: as many as a plan needs.
            without_quorum: whether peers that do not answer are gone for good.
            taken_over: whether another coordinator has led so far.

        Raises:
            UserError: what lies in the state folder cannot be read.
        """
        self._context, self._exit_when_done, self._taken_over = context, exit_when_done, taken_over
        self._heard_under = 0
        """Version of the newest plan of this coordinator under which all its peers were heard to train."""
        self._state = state = SwarmState(
            context.folder, context.planner.layers, swarm=context.swarm, owed=context.archive.owed
        )
        self._rows = MetricsFile(context.folder / "metrics.jsonl")
        self._announcer = Announcer(
            context.control, state, self._rows, context.session, lambda: self._driver.epoch.called
        )
        self._say = self._announcer.say
        self._driver = PlanChangeDriver(
            context.folder,
            Role(context.identity.peer_id, len(context.coordinators) == 1, without_quorum),
            state.members,
            state,
            context.control.publish,
            partial(self._say, "waiting"),
            is_genuine=context.is_genuine,
            liveness=EndedProcesses(state.members, partial(reachable_addresses.is_open, dials=context.dials)),
        )
        self._owner = OwnerDesk(WishFile(context.folder))
        self._amender = JobAmender(context.job, context.planner, state, self._rows, self._owner)
        self._standstill = Standstill(
            state, self._driver, self._rows, self._owner, self._say, lambda: self._steps,
            is_receiving=lambda: context.archive.is_receiving,
            can_plan=lambda: len(state.members.ready()) >= context.planner.fewest_in_run,
            keep_for_good=context.archive.keep_for_good,
        )  # fmt: skip
        self._is_binding = False
        """Whether a plan is being offered, or put in force, which nothing may break off."""
        self._status = StatusFile(context, state, self._announcer, self._rows, lambda: self._amender.job)
        recorder = MetricsRecorder(self._rows, lambda: state.plan, lambda: self._amender.timeline.last_step)
        handlers = MessageHandlers(
            state,
            recorder,
            self._announcer,
            context.coordinators,
            stood=self._driver.heard,
            started=self._driver.started,
        )
        handlers.listen(context.control, context.archive)
        context.archive.when_accused(state.leave_out)
        context.archive.when_disputed(state.differ)
        self._profiles = ProfileLookup(state.members, context.discovery, context.registry, KnownPeers(context.folder))
        self._layout_maker = LayoutMaker(context, state, self._say, min_nodes)
        self._watch = PlanWatch(state, context.planner)
        self._comparison = Comparison(
            state, self._watch, self._layout_maker, self._driver, self._rows, self._say,
            horizon=lambda: context.planner.horizon, events=partial(event_log.read, context.folder),
        )  # fmt: skip
        self._moving_ahead = MovingAhead(context, state)
        self._spare_measuring = SpareMeasuring(
            state, context.planner, self._layout_maker, lambda: self._comparison.standstill(Change(""))
        )

    async def attend(self, seconds: float) -> None:
        """Look for profiles every `seconds`, keep the status file fresh, and carry out what is decided, until
        cancelled."""
        with self._status.listening():
            await self._attend(seconds)

    async def _attend(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._announcer.run())
            tasks.create_task(self._driver.run())
            while True:
                await self._profiles.look(seconds)
                self._owner.look()
                self._state.notify()
                self._write_status()
                await asyncio.sleep(seconds)

    def _write_status(self) -> None:
        try:
            self._status.write()
        except UserError as error:
            log.warning("%s", error)

    @property
    def overviews(self) -> OverviewFeed:
        """Overviews of the run, as the status file has them."""
        return self._status.feed

    def peers_in_force(self) -> frozenset[str]:
        """Return the peers that the plan in force names; none before the first."""
        plan = self._state.plan
        return frozenset() if plan is None else frozenset({*plan.peers, *plan.idle})

    def leads(self) -> bool:
        """Whether a plan of this coordinator is in force, and all its peers have been heard under it; or most of those
        who decide have promised to follow it, so that nobody else leads."""
        if self._driver.is_followed:
            return True
        plan = self._state.plan
        if plan is None or plan.author != self._context.identity.peer_id:
            return False
        if self._state.all_train(plan):
            self._heard_under = plan.version
        return self._heard_under == plan.version == self._driver.epoch.in_force

    def kick(self, peer: str) -> None:
        """Go on without a peer until it comes back."""
        log.info("You sent %s away: the others go on without it.", short(peer))
        self._state.members.kick(peer)
        self._state.notify()

    async def run(self) -> None:
        """Lead from waiting to the last step; plan anew whenever a plan breaks or a better one is possible.

        Raises:
            Failed: no plan can help.
        """
        change: Change | None = await self._return()
        try:
            while True:
                await self._lead(change)
                await self._say_done()
                if self._exit_when_done:
                    await self._farewell()
                    return
                await self._stay_over()
                change = Change("resumed by the owner" if self._state.plan is not None else "the first plan")
        except Failed as error:
            await self._say("failed", str(error))
            self._write_status()
            await self._farewell()
            raise

    async def _lead(self, change: Change | None) -> None:
        """Lead until the run is done."""
        still = self._standstill
        while not self._is_done():
            if still.is_wanted and (change is None or not change.keeps):
                change = await still.hold()
            elif change is None:
                change = await self._stay()
            elif await self._state.unless(self._cut_off(change), self._change(change)):
                change = None
            elif change.keeps and still.is_wanted:
                change = None  # it takes too long

    def _cut_off(self, change: Change) -> Callable[[], bool]:
        """Return the condition by which the owner's wish that the run stand still breaks off a change."""
        end = self._state.clock.now() + TIMEOUTS.park if change.keeps else 0.0
        still, now = self._standstill, self._state.clock.now
        return lambda: still.is_wanted and not self._is_binding and now() >= end

    async def _say_done(self) -> None:
        ended = f"ended by the owner after step {self._state.kept.step} of {self._steps}"
        done = ended if self._standstill.is_over else f"all {self._steps} steps are done"
        await self._say("done", f"{done}; the model is in {self._context.folder / 'checkpoints'}")
        self._standstill.answer_over(self._announcer.phase.text)
        self._status.write()

    async def _stay_over(self) -> None:
        """Wait until the owner wants more of a run that has ended."""
        while self._is_done():
            self._standstill.answer_over(self._announcer.phase.text)
            await self._state.wait(lambda: not self._is_done() or self._standstill.is_asked)

    @property
    def _steps(self) -> int:
        return self._amender.wanted.last_step

    def _is_done(self) -> bool:
        has_all = self._state.kept.step >= self._steps and self._rows.last >= self._steps
        return has_all or self._standstill.is_over

    async def _farewell(self) -> None:
        """Let the nodes hear the last phase and leave."""
        await self._state.wait(lambda: not self._state.members.online(), TIMEOUTS.goodbye)

    async def _return(self) -> Change | None:
        """Take up the plan of an earlier process, which peers may still train under, and return what to change first,
        if anything."""
        context = self._context
        self._state.kept = await _newest(context.archive)
        path = context.folder / "plan.json"
        if self._driver.epoch.in_force and not path.exists():
            raise UserError(
                f"plan {self._driver.epoch.in_force} is in force, and this coordinator does not know it: it began "
                "to stand by in the middle of a change of plan; start it again while another one leads"
            )
        loaded = Plan.load(path) if path.exists() else None
        if loaded is None or self._amender.recall(loaded).last_step <= self._state.kept.step:
            self._rows.forget_after(self._state.kept.step)
            return Change("the first plan")
        plan = self._state.plan = context.as_own(loaded)
        self._context.archive.expect(plan)
        self._state.recall_disputes()
        self._driver.returns(plan)
        self._announcer.tell_ledger()
        epoch = self._driver.epoch
        if epoch.called > min(plan.version, epoch.in_force):
            await self._layout_maker.recall({*plan.peers, *plan.idle})
            return Change("the coordinator is back, and was about to plan anew")

        def decided() -> bool:
            return bool(self._state.members.broken(plan.peers, plan.version)) or self._state.all_train(plan)

        await self._say("training", f"back: looking for the peers of plan {plan.version}")
        await self._state.wait(decided, TIMEOUTS.comeback)
        all_train = self._state.all_train(plan)
        await self._layout_maker.recall({*plan.peers, *plan.idle})
        if self._taken_over:
            return Change("another coordinator leads now", gently=all_train, layout=plan)
        if plan.author != loaded.author:
            return Change("the coordinator's key was replaced", gently=all_train, layout=plan)
        if all_train:
            await self._say("training", f"plan {plan.version}, found in force: {plan.reason}")
            return None
        return Change("the coordinator is back, and the plan's peers are not all training")

    async def _change(self, change: Change) -> None:
        """Bring a new plan into force, as `change` asks for; nothing if no other plan is better."""
        before, job = self._state.plan, self._amender.timeline
        self._comparison.is_urgent = False  # as the change before may have been
        if not change.gently or before is None:
            if before is not None:
                await self._say("planning", change.why)
            called_at, version = time.time(), await self._driver.call()
            layout = await self._layout()
        else:
            found = change.layout or await self._better(before, change)
            if found is None:
                if not self._watch.broken(before) and not self._comparison.is_broken_off:
                    stays = "the work stays divided as it is: nothing better is known for the machines that are here"
                    self._owner.answer_all(PlanWanted, stays)
                return
            if not await self._moved_ahead(before, found):
                return
            await self._say("planning", f"{change.why}: {found.reason}")
            patience = await self._comparison.patience(before, found)
            called_at, version = time.time(), await self._driver.call(gently=patience > 0, patience=patience)
            layout = found
        while True:
            standings = await self._driver.agree()
            follows = self._driver.follows
            chain = follows.chain if follows is not None else Chain()
            copies = self._state.judged(self._state.undisputed(standings, chain), chain)
            plan = await self._ordered(layout, version, copies, follows, standings.keys())
            self._context.archive.expect(plan)
            event = event_of(plan, change.why, called_at, self._rows.last, copies)
            keeping = partial(hold, self._context.folder, self._rows, self._state, event)
            if await self._bind(plan, keeping):
                break
            log.debug("plan %d was not taken by all its peers", version)
            log.info("Not all machines took up their part: the work is divided anew.")
            version = await self._driver.call()
            layout = await self._layout()
        self._amender.begun(plan, job)
        if before is None or plan.amendments != before.amendments:
            self._state.divergence.forget()  # the step that has diverged is another one now
        self._watch.follows()
        self._announcer.tell_ledger()
        if event.repeated:
            log.info("%s", again_in_words(event.repeated, event.step))
        await self._say("training", f"plan {plan.version} from step {event.step}{event.said}: {plan.reason}")
        for kind in (PlanWanted, Resumed):
            self._owner.answer_all(kind, begun_in_words(plan, event.step))

    async def _moved_ahead(self, before: Plan, layout: Plan) -> bool:
        """Have the peers of `layout` fetch ahead what they lack for it, while `before` is trained on; whether it is
        still to follow."""
        members, fetching = self._state.members, {*lacking(before, layout)}
        if self._comparison.is_urgent or members.leaving(before.peers) or not fetching:
            return True  # who leaves waits for no longer than it must

        def is_off() -> bool:
            """Whether something else is to be done first."""
            is_due = self._standstill.is_wanted or self._watch.broken(before) or self._is_to_be_mended(before)
            is_failing = fails_beside(self._watch.failing(), fetching)
            return bool(is_due or is_failing or members.leaving(before.peers))

        await self._moving_ahead.move(before, layout, unless=is_off)
        if is_off() or not set(layout.peers) <= {member.peer for member in members.ready()}:
            self._watch.forget()
            return False
        return True

    def _is_to_be_mended(self, plan: Plan) -> bool:
        """Whether training is said to have diverged, and the owner has asked for other values with which to go on."""
        return self._watch.is_said_to_diverge(plan) and self._amender.has_news

    async def _bind(self, plan: Plan, keeping: Callable[[Plan], None]) -> bool:
        """Offer `plan`, and put it in force; whether that was done. No wish of the owner breaks it off."""
        self._is_binding = True
        try:
            return await self._driver.establish(plan, keeping)
        finally:
            self._is_binding = False

    async def _layout(self) -> Plan:
        """Return the best layout for the job as the owner wants it now, once enough nodes are there."""
        found: list[Plan] = []

        async def look() -> None:
            found.append(await self._layout_maker.layout())

        def is_news() -> bool:
            return self._amender.wanted.amendments != wanted

        while not found:
            await self._amender.aim()
            wanted = self._amender.wanted.amendments
            await self._state.unless(is_news, look())
        return found[0]

    async def _better(self, before: Plan, change: Change) -> Plan | None:
        """Return the layout to go over to gently; None: `before` stays in force, as it is the best, or no layout can be
        found for what the owner wants."""
        if not change.amends:
            return await self._comparison.better(before, change)
        try:
            return (
                await self._layout_maker.plan_for(self._state.members.ready()) if await self._amender.aim() else before
            )
        except UserError as error:
            await self._amender.give_up(error)
            await self._say("training", f"plan {before.version}: {before.reason}")
            return None

    async def _ordered(
        self, layout: Plan, version: int, copies: tuple[Copy, ...], follows: Plan | None, here: Collection[str]
    ) -> Plan:
        """Return `layout` as the signed plan of `version`, with what it goes on from.

        Args:
            here: peers that answer.
        """
        context = self._context
        self._state.kept = await _newest(self._context.archive)
        kept = {context.identity.peer_id: [self._state.kept]} if self._state.kept.step else {}
        plan = next_plan(layout, version, copies, kept, follows)
        timeline, needs_other = await self._amender.follow(follows, plan.resume.mark.step)
        if needs_other:  # it goes back to steps, or on to some, of which other layouts are
            plan = next_plan(await self._layout_maker.layout(), version, copies, kept, follows)
        plan = plan.model_copy(update={"amendments": timeline.amendments, "seal_hash": "blake3"})
        mark, chain = plan.resume.mark, follows.chain if follows is not None else Chain()
        digests = context.archive.certified(mark) or self._state.certified(mark, chain, here)
        plan = plan.model_copy(update={"resume": plan.resume.model_copy(update={"digests": digests})})
        return plan.signed(context.identity, context.swarm)

    async def _stay(self) -> Change | None:
        """Stay with the plan until something is to be changed, and return that; None: look again at whether the job is
        done, and at what the owner wishes.

        Raises:
            Failed: the training itself has gone wrong.
        """
        plan, wishes = self._state.plan, self._owner.wishes
        assert plan is not None

        def due() -> bool:
            self._state.look_at_shares()  # while a plan is being made nobody hands anything in
            is_asked = self._standstill.is_wanted or wishes.open(PlanWanted) or wishes.open(Resumed)
            is_due = self._is_done() or is_asked or self._is_to_be_mended(plan) or self._watch.broken(plan)
            return bool(is_due or self._amender.why_due(plan) or self._watch.wish(plan))

        if not await self._state.wait(due, self._spare_measuring.pause):
            return await self._in_spare_moment(plan, due)
        if self._is_done() or self._standstill.is_wanted:
            return None
        self._owner.answer_all(Resumed, f"the run goes on already: step {self._rows.last} of {self._steps} is done")
        if self._is_to_be_mended(plan):
            return Change(self._amender.why_due(plan))
        why = await self._watch.why_broken(plan)
        if why:
            self._watch.forget_lost(plan)
            await asyncio.sleep(self._watch.pause(plan, self._rows.last))
            return Change(why)
        if changes := self._amender.why_due(plan):
            has_news = self._amender.has_news
            return Change(changes, gently=has_news, amends=has_news)
        if wishes.open(PlanWanted):
            return replace(self._watch.look_into(plan), why="asked for by the owner", passing="")
        return self._watch.look_into(plan) if self._watch.wish(plan) else None

    async def _in_spare_moment(self, plan: Plan, unless: Callable[[], bool]) -> Change | None:
        """Have links measured that might make a better plan; return that change where they do. Nothing that is due
        waits for it."""
        found: list[bool] = []

        async def look() -> None:
            found.append(await self._spare_measuring.look(plan))

        await self._state.unless(unless, look())
        return Change("links that nobody knew are better than was thought", gently=True) if any(found) else None


async def _newest(archive: CheckpointCollector) -> Mark:
    """Return the newest whole checkpoint of this coordinator."""
    newest = await asyncio.to_thread(archive.newest)
    return mark_of(newest) if newest is not None else Mark()
