"""Making of plans on estimates: the links of each are measured, and where they are others than was thought it is made
anew."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable

from dtfm_coordinator.faults.accusations import Quarrel
from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.leader.link_measuring import LinkMeasuring
from dtfm_coordinator.leader.planner import UnmeasuredLinks
from dtfm_coordinator.leader.rehearsal import Rehearsal
from dtfm_coordinator.links.chosen_pairs import in_rounds
from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_coordinator.links.plan_revision import MOST_ROUNDS, PlanRevision
from dtfm_coordinator.links.probe_rounds import Pair
from dtfm_coordinator.links.view_bounds import at_least
from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

AGAIN_SECONDS = 50.0
"""Seconds after which links of an owner's layout that could not be measured are tried again, at least."""
WORTH = 0.95
"""Share of the best step so far that a plan must take no more than for its links to be measured before a run begins."""


class MeasuredPlans:
    """Maker of plans whose links are measured."""

    def __init__(
        self,
        context: LeadContext,
        state: SwarmState,
        say: Callable[[str, str], Awaitable[None]],
        measuring: LinkMeasuring,
    ) -> None:
        """Take the tools; `say` tells the swarm what is done, by name and text of a phase, as `Announcer.say`."""
        self._context, self._state, self._say, self._measuring = context, state, say, measuring
        self._links = state.links
        self._rehearsal: Rehearsal | None = None
        """The last one; None: there was none, or it was broken off."""
        self._tried_again = dict[tuple[str, str], float]()
        """When links of an owner's layout were tried again last."""

    async def make(
        self,
        members: list[Member],
        horizon: float | None,
        standstill: float,
        apart: Collection[Quarrel] = frozenset(),
        *,
        hurried: bool = False,
    ) -> Plan:
        """Return a layout for `members`, where the pairs of `apart` have nothing to do with each other. Its links are
        measured, and it is made anew where they are others than was thought.

        Args:
            hurried: as for `PlanRevision`.

        Raises:
            UserError: no layout fits.
        """
        return await self._make(members, horizon, standstill, apart, rehearsed=False, hurried=hurried)

    async def rehearse(self, members: list[Member]) -> None:
        """Make a plan for `members` before all are here, so that its links are known when there is a first one to make.
        That is another one if it is worth measuring its links.

        Raises:
            UserError: no layout fits.
        """
        self._rehearsal, settings = None, self._context.planner.settings
        plan = await self._make(members, None, 0.0, (), rehearsed=True)
        self._rehearsal = Rehearsal.of(plan, settings, members)

    async def _make(
        self,
        members: list[Member],
        horizon: float | None,
        standstill: float,
        apart: Collection[Quarrel],
        *,
        rehearsed: bool,
        hurried: bool = False,
    ) -> Plan:
        """Return a plan as `make` does, of which neither the swarm nor the disk hears where it is but `rehearsed`."""
        planner = self._context.planner
        before = self._state.plan
        carried = pairs_of(before, tied=planner.is_tied) if before is not None else frozenset[frozenset[str]]()
        rehearsal, plan = self._rehearsal if before is None else None, None
        revision = PlanRevision(
            self._links,
            tied=planner.is_tied,
            carried=carried,
            first=before is None,
            rehearsed=rehearsal.sessions if rehearsal is not None else (),
            hurried=hurried,
        )
        if rehearsal is not None and not apart:
            plan = rehearsal.plan_for(members, planner.settings)
        made = [] if plan is None else [plan]
        while True:
            if not rehearsed:
                await self._say("planning", f"planning for {len(members)} nodes")
            view = self.view(members, apart)
            seen = await asyncio.to_thread(revision.seen, view)  # estimates of many links take a while
            try:
                plan = await asyncio.to_thread(planner.plan, seen, self._state.plan, horizon, standstill, plan)
            except UnmeasuredLinks as error:
                if not (again := self._to_try_again(error.pairs, apart)):
                    raise
                await self._measuring.rounds_of_plan(again, members)
                continue
            if before is None and (best := await asyncio.to_thread(self._kept, made, plan, view)) is not None:
                self._save(view, rehearsed)
                return best
            made.append(plan)
            rounds = await asyncio.to_thread(revision.planned, plan, view)
            if rounds:
                await self._measuring.rounds_of_plan(rounds, members)
            if doors := revision.doors():
                await self._measuring.doors_of_plan(doors, members)
                if shut := await asyncio.to_thread(revision.shut):
                    await self._measuring.rounds_of_plan(shut, members)
                    rounds += shut
            view = self.view(members, apart)
            if not rounds or revision.stands():
                self._save(view, rehearsed)
                if before is None and (best := await asyncio.to_thread(self._kept, made[:-1], plan, view, 1.0)):
                    return best
                return await asyncio.to_thread(planner.priced, plan, view) if rounds else plan

    def _to_try_again(self, pairs: Iterable[tuple[str, str]], apart: Collection[Quarrel]) -> list[list[Pair]]:
        """Return rounds of those of `pairs` that were tried in vain, and not again for a while: they may be well."""
        now = self._state.clock.now()
        again = [
            pair
            for pair in pairs
            if frozenset(pair) not in apart
            and None in (self._links.gbps(*pair), self._links.gbps(*pair[::-1]))
            and now - self._tried_again.get(pair, -math.inf) >= AGAIN_SECONDS
        ]
        self._tried_again.update((pair, now) for pair in again)
        return in_rounds(again)[:MOST_ROUNDS]

    def _save(self, view: View, rehearsed: bool) -> None:
        if not rehearsed:
            view.save(self._context.folder / "view.json")

    def _kept(self, made: list[Plan], plan: Plan, view: View, worth: float = WORTH) -> Plan | None:
        """Return the best of the plans that were made before a run begins, by what is known of their links now, where
        `plan`, the next one, does not take less than `worth` of its step; else None."""
        planner = self._context.planner
        found = [(planner.seconds(one, view), place) for place, one in enumerate(made)]
        seconds, place = min(found, default=(math.inf, 0))
        if seconds == math.inf or planner.seconds(plan, view) < worth * seconds:
            return None
        return planner.priced(made[place], view)

    def view(self, members: list[Member], apart: Collection[Quarrel] = frozenset()) -> View:
        """Return what is known of `members` and the links between them, of whom the pairs of `apart` have nothing to do
        with each other. Links that nobody has measured carry at least what training's frames have shown."""
        state, precision = self._state, self._context.job.training.precision
        view = self._links.view(members, precision, state.pace.factors(), apart)
        return at_least(view, self._links.carried(state.link_watch.carried))
