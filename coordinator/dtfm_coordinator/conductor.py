"""What a coordinator decides, one thing after the other: wait, measure, plan, watch, and again when a plan breaks.

It is not needed for a step: peers train on under the plan in force while it is away, and hand in what it missed.
"""

import asyncio
import math
import time
from dataclasses import dataclass
from functools import partial

from dtfm_coordinator.archive import mark_of
from dtfm_coordinator.gathering import Gathering
from dtfm_coordinator.hearing import Hearing, Tools
from dtfm_coordinator.history import Event
from dtfm_coordinator.linkwatch import Pair
from dtfm_coordinator.recovery import resume_from, shadows_of, source_of
from dtfm_coordinator.succession import Succession
from dtfm_protocol.control import EPOCH, PLAN
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity import short
from dtfm_protocol.logs import log
from dtfm_protocol.plan import Plan
from dtfm_protocol.standing import Mark, Standing
from dtfm_protocol.statedir import write_atomically

PARK_SECONDS = 60.0
"""For a checkpoint before a peer leaves without which there is no plan."""
RETURN_SECONDS = 20.0
"""How long a returning coordinator waits for the peers of its last plan before it plans anew."""
GOODBYE_SECONDS = 15.0
TRUSTED_SECONDS = 60.0
"""At least so soon a move must pay back to which only a changed link gives cause; later, where no plan has changed for
longer."""
FRUITLESS_SECONDS = 30.0
"""Longest pause after plans that broke before their first step."""

Situation = tuple[frozenset[str], frozenset[str], frozenset[str]]
"""Who came, who wants to leave, who has become slow."""
CALM: Situation = (frozenset(), frozenset(), frozenset())


@dataclass(frozen=True)
class Change:
    """A new plan is due."""

    why: str
    gently: bool = False
    """Whether all is well under the one in force."""
    layout: Plan | None = None
    """What is to be served, where that is known."""
    links_only: bool = False
    """Whether nothing else gives cause than links that may have changed."""


class Failed(UserError):
    """The run cannot go on, whatever the swarm does."""


class Conductor:
    """Leads one job to its end."""

    def __init__(
        self,
        tools: Tools,
        min_nodes: int | None,
        exit_when_done: bool,
        *,
        without_quorum: bool = False,
        taken_over: bool = False,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            min_nodes: how many to wait for at the start.
            without_quorum: whether peers that do not answer are gone for good.
            taken_over: whether another coordinator has led so far.
        """
        self._job, self._folder, self._identity, self._swarm = tools.job, tools.folder, tools.identity, tools.swarm
        self._planner, self._archive, self._control = tools.planner, tools.archive, tools.control
        self._coordinators = tools.coordinators
        self._exit_when_done, self._taken_over = exit_when_done, taken_over
        self._hearing = Hearing(tools)
        self._members, self._rows = self._hearing.members, self._hearing.rows
        self._gathering = Gathering(tools, self._hearing, min_nodes)
        self._considered = CALM
        """What the plan in force was last compared for."""
        self._since = time.monotonic()
        """When the plan in force came, or this coordinator."""
        self._again_at = math.inf
        """When links that have changed may be trusted for longer, so that another plan may pay back."""
        self._fruitless = 0
        """Plans in a row that broke before their first step."""
        self._succession = Succession(
            tools.folder,
            tools.identity.peer_id,
            self._members,
            lambda epoch: tools.control.publish(EPOCH, epoch),
            self._hearing.wait,
            lambda text: self._hearing.say("waiting", text),
            is_genuine=self._is_genuine,
            alone=len(tools.coordinators) == 1,
            without_quorum=without_quorum,
        )
        self._hearing.on_standing = self._succession.heard
        self._hearing.on_training = self._succession.started

    async def look(self, seconds: float) -> None:
        """See `Hearing.look`."""
        await self._hearing.look(seconds)

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
            await self._hearing.say("failed", str(error))
            await self._farewell()
            raise
        done = f"all {self._job.training.steps} steps are done; the model is in {self._folder / 'checkpoints'}"
        await self._hearing.say("done", done)
        self._hearing.save_status()
        if self._exit_when_done:
            await self._farewell()
            return
        await asyncio.Event().wait()

    def _is_done(self) -> bool:
        return self._hearing.kept.step >= self._job.training.steps and self._rows.last >= self._job.training.steps

    async def _farewell(self) -> None:
        """Let the nodes hear the last phase and leave."""
        await self._hearing.wait(lambda: not self._members.online(), GOODBYE_SECONDS)

    async def _return(self) -> Change | None:
        """Take up an earlier life's plan, which peers may still train under; what to do first."""
        self._hearing.kept = await self._newest()
        path = self._folder / "plan.json"
        if self._succession.epoch.in_force and not path.exists():
            raise UserError(
                f"plan {self._succession.epoch.in_force} is in force, and this coordinator does not know it: it began "
                "to stand by in the middle of a change of plan; start it again while another one leads"
            )
        if self._hearing.kept.step >= self._job.training.steps or not path.exists():
            self._rows.forget_after(self._hearing.kept.step)
            return Change("the first plan")
        plan = self._hearing.plan = Plan.load(path)
        self._archive.expect(plan)
        await self._control.publish(PLAN, plan)
        await self._succession.repeat()
        await self._hearing.tell_ledger()
        epoch = self._succession.epoch
        if epoch.called > min(plan.version, epoch.in_force):
            await self._gathering.recall({*plan.peers, *plan.idle})
            return Change("the coordinator is back, and was about to plan anew")

        def decided() -> bool:
            return bool(self._members.broken(plan.peers, plan.version)) or all(map(self._hearing.trains, plan.peers))

        await self._hearing.say("training", f"back: looking for the peers of plan {plan.version}")
        await self._hearing.wait(decided, RETURN_SECONDS)
        all_train = all(map(self._hearing.trains, plan.peers))
        await self._gathering.recall({*plan.peers, *plan.idle})
        if self._taken_over:
            return Change("another coordinator leads now", gently=all_train, layout=plan)
        if all_train:
            await self._hearing.say("training", f"plan {plan.version}, found in force: {plan.reason}")
            return None
        return Change("the coordinator is back, and the plan's peers are not all training")

    async def _newest(self) -> Mark:
        """The newest whole checkpoint of this coordinator."""
        newest = await asyncio.to_thread(self._archive.newest)
        return mark_of(newest) if newest is not None else Mark()

    async def _change(self, change: Change) -> None:
        """Bring a new plan into force."""
        before = self._hearing.plan
        if not change.gently:
            if before is not None:
                await self._hearing.say("planning", change.why)
            called_at, version = time.time(), await self._succession.call(before)
            layout = await self._gathering.layout()
        else:
            found = change.layout or await self._better(change)
            if found is None:
                return
            await self._hearing.say("planning", f"{change.why}: {found.reason}")
            called_at, version = time.time(), await self._succession.call(before, gently=True)
            layout = found
        while True:
            standings = await self._succession.agree(before, version)
            plan = await self._ordered(layout, version, standings)
            self._archive.expect(plan)
            await self._control.publish(PLAN, plan)
            live = [holding.mark.step for one in standings.values() for holding in one.holdings if holding.live]
            event = Event(
                plan=plan.version,
                why=change.why,
                called_at=called_at,
                in_force_at=0.0,
                step=plan.resume.mark.step,
                repeated=max(0, max([self._rows.last, *live]) - plan.resume.mark.step),
                source=source_of(plan.resume, standings),
            )
            if await self._succession.establish(plan, partial(self._hold, event)):
                break
            log.info("plan %d was not taken by all its peers: planning anew", version)
            version = await self._succession.call(before)
            layout = await self._gathering.layout()
        self._considered = CALM  # what was compared with the plan before was not with this one
        self._since, self._again_at = time.monotonic(), math.inf
        await self._hearing.tell_ledger()
        await self._hearing.say("training", f"plan {plan.version} from step {event.step}{event.said}: {plan.reason}")

    def _is_genuine(self, plan: Plan) -> bool:
        """Whether a plan that a peer shows is a coordinator's."""
        try:
            plan.verify(self._coordinators, self._swarm)
        except Refused as error:
            log.warning("%s", error)
            return False
        return True

    def _hold(self, event: Event, plan: Plan) -> None:
        """Have `plan` be the one that this coordinator comes back to: before anyone may act under it."""
        write_atomically(self._folder / "plan.json", plan.model_dump_json(indent=1), lasting=True)
        self._rows.forget_after(event.step)
        self._hearing.plan = plan
        self._hearing.event = event.model_copy(update={"in_force_at": time.time()})

    async def _better(self, change: Change) -> Plan | None:
        """A layout for those who are here now, while training goes on; None if that is the one in force.

        None, too, if no plan is possible, or if the one in force breaks meanwhile.

        Where a peer wants to leave and no plan is possible without it, the run is parked: all stop at the end of a
        step, and hand in a checkpoint.
        """
        assert self._hearing.plan is not None
        plan = self._hearing.plan

        def broken() -> bool:
            return bool(self._broken(plan))

        # Links that have changed may do so again: they are trusted for as long as all has stayed as it was.
        horizon = max(TRUSTED_SECONDS, time.monotonic() - self._since) if change.links_only else None
        self._again_at = math.inf
        members = self._members.ready()
        if not await self._hearing.unless(broken, self._gathering.probe(members, anew=self._suspects())):
            return None  # who is gone must not wait until links are measured, which may take minutes
        if not await self._gathering.hears_all(plan, broken):
            self._considered = CALM  # it was not looked into
            return None
        members = self._members.ready()
        try:
            found = await self._gathering.plan_for(members, horizon)
        except UserError as error:
            leaving = self._members.leaving(self._hearing.plan.peers)
            if leaving:
                await self._park(", ".join(map(short, leaving)), error)
            else:
                log.info("%s: %s", change.why, error)
            return None
        finally:
            await self._hearing.say("training", f"plan {self._hearing.plan.version}: {self._hearing.plan.reason}")
        same = found.routes == self._hearing.plan.routes and found.stages == self._hearing.plan.stages
        if same and horizon is not None and horizon < self._job.plan.horizon:
            self._again_at = time.monotonic() + horizon
        return None if same else found

    async def _park(self, leaving: str, why: UserError) -> None:
        """Stop at the end of a step with a checkpoint of it, so that those who leave take nothing with them."""
        before = self._hearing.plan
        assert before is not None
        await self._hearing.say("planning", f"{leaving} leaves, and without it {why}: keeping a checkpoint first")
        await self._succession.call(before, gently=True, parked=True)
        reached = self._rows.last
        await self._hearing.wait(lambda: self._hearing.kept.step >= max(reached, self._rows.last), PARK_SECONDS)

    async def _ordered(self, layout: Plan, version: int, standings: dict[str, Standing]) -> Plan:
        """`layout` as the plan of `version`: where it goes on from, and who keeps copies."""
        self._hearing.kept = await self._newest()
        me = self._identity.peer_id
        kept = {me: [self._hearing.kept]} if self._hearing.kept.step or self._job.pretrained else {}
        resume = resume_from(standings, kept, layout.layers)
        plan = layout.model_copy(update={"version": version, "resume": resume, "shadows": shadows_of(layout)})
        return plan.signed(self._identity, self._swarm)

    async def _watch(self) -> Change | None:
        """Stay with the plan until the job is done (None), or something is to be changed.

        Raises:
            Failed: the training itself has gone wrong.
        """
        plan = self._hearing.plan
        assert plan is not None

        def due() -> bool:
            return bool(self._archive.fault or self._is_done() or self._broken(plan) or self._wish(plan))

        await self._hearing.wait(due)
        if self._archive.fault:
            raise Failed(self._archive.fault)
        if self._is_done():
            return None
        why = self._broken(plan)
        if not why:
            wish, before, self._considered = self._wish(plan), self._considered, self._situation(plan)
            links = self._suspects() or time.monotonic() >= self._again_at
            return Change(wish, gently=True, links_only=bool(links) and self._considered == before)
        broken = self._members.broken(plan.peers, plan.version)
        for lost in broken.report.lost if broken is not None and broken.report is not None else ():
            self._hearing.links.forget(lost)  # whether peers reach it is measured anew, once it is back
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
        slow = frozenset() if self._planner.is_forced else self._hearing.pace.slow()
        return frozenset(came), frozenset(self._members.leaving(plan.peers)), slow

    def _suspects(self) -> frozenset[Pair]:
        """Links that may be others than they were."""
        if self._planner.is_forced:
            return frozenset()
        present = {member.peer for member in self._members.ready()}
        pairs = self._hearing.link_watch.suspects(self._hearing.links.gbps)
        return frozenset(pair for pair in pairs if present.issuperset(pair))

    def _wish(self, plan: Plan) -> str:
        """Why another plan might be better than `plan`, if that was not looked into yet."""
        if self._planner.is_changed:
            return "the owner wants another layout"
        if links := self._suspects():
            return f"{', '.join(' -> '.join(map(short, pair)) for pair in sorted(links))} may have changed"
        now = self._situation(plan)
        if now == self._considered and time.monotonic() >= self._again_at:
            return "links have changed, and have stayed as they are since"
        if now == self._considered or not any(now):
            # Links of spares are measured while all is well: when they are needed, everyone waits.
            there, known = self._members.settled(), self._hearing.links
            new = known.untried(there) or known.unlimited(there)
            return f"{', '.join(map(short, new))} may have links that nobody knows" if new else ""
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
            return f"{short(broken.peer)} stalled ({broken.report.text})"
        missing = self._members.missing(plan.peers)
        return f"{', '.join(map(short, missing))} left" if missing else ""
