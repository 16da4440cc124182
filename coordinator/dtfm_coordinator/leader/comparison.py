"""Comparison of the plan in force with a better one, while training goes on."""

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from dtfm_coordinator.leader.change_cost import standstill_seconds, step_patience
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.plan_watch import TRUSTED_SECONDS, Change, PlanWatch
from dtfm_coordinator.links.link_degradation import SLOWER, Pair, Rates, both_ways
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.swarm.overview.owner_words import reason_in_words
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS

SENDERS_TELL = 4.0
"""Seconds within which senders would tell of a link that fails, once receivers have: two seconds in which it is busy
(`BUSY_SECONDS` of dtfm_node.engine.send_rates), where it is so half of the time."""
URGENT_HORIZON = TRUSTED_SECONDS
"""Seconds within which a move must pay back, where any does, for which everybody stands still: after so many
(`FIRST_PAUSE` of link_degradation) the link is measured again, and state is moved ahead for what is better then."""
MEASURED = 20.0
"""Seconds after which measuring is broken off for links that fail: whoever answers is measured by then."""


class Comparison:
    """Comparison of the plan in force with the best one for the peers that are here now."""

    def __init__(
        self,
        state: SwarmState,
        watch: PlanWatch,
        layout_maker: LayoutMaker,
        driver: PlanChangeDriver,
        rows: MetricsFile,
        say: Callable[[str, str], Awaitable[None]],
        horizon: Callable[[], float],
        events: Callable[[], Sequence[PlanEvent]] = tuple,
    ) -> None:
        """Take what to compare with; nothing is compared yet.

        Args:
            say: tells the swarm what is done, by name and text of a phase, as `Announcer.say`.
            horizon: returns the seconds within which a move must pay back, as the job says.
            events: returns the changes of plan so far.
        """
        self._state, self._watch, self._layout_maker, self._driver = state, watch, layout_maker, driver
        self._rows, self._say, self._horizon = rows, say, horizon
        self._events = events
        self.is_urgent = False
        """Whether the layout that was found last is to come at once, as a link fails."""
        self.is_broken_off = False
        """Whether the change that was looked into last is yet to be, as a link has failed meanwhile."""

    async def better(self, plan: Plan, change: Change) -> Plan | None:
        """Return the best layout for the peers that are here now, while training goes on; None if `plan`'s is the best.

        It is None, too, if no plan is possible, or if the one in force breaks meanwhile.

        Where a peer wants to leave and no plan is possible without it, the run is parked: all stop at the end of a
        step, and hand in a checkpoint.
        """

        def broken() -> bool:
            return bool(self._watch.broken(plan))

        log.debug("looking for a better division of the work: %s", reason_in_words(change.why))
        horizon = self._watch.horizon(change)
        self.is_urgent = self.is_broken_off = False
        if change.passing == "links" and self._watch.is_doubted():
            # Senders tell soon whether their kernels see it, too; measuring holds up what goes over that link.
            await self._state.wait(lambda: bool(self._watch.failing()) or broken(), SENDERS_TELL)
        failing = self._watch.failing() if change.passing == "links" else {}
        if failing:
            found = await self._around(failing, plan, change, horizon, broken)
            self.is_urgent = found is not None
            if found is not None:
                return found
            still = self._watch.still_failing(failing)
            self._state.link_watch.excuse(failing.keys() - still)
            if not failing.keys() <= still.keys() and not self._watch.suspects():
                return None
            failing = {pair: gbps for pair, gbps in failing.items() if pair in still}
        before = {pair: self._state.links.gbps(*pair) for pair in failing}
        members = self._state.members.ready()
        anew = self._watch.suspects() | failing.keys()
        begun = self._state.clock.now()

        def urgent() -> bool:
            # Who comes, and does not answer, keeps nobody from doing without a link that fails.
            is_long = self._state.clock.now() > begun + MEASURED
            is_late = is_long and not failing and change.passing != "links"
            return broken() or (is_late and bool(self._watch.failing()))

        if not await self._state.unless(urgent, self._layout_maker.probe(members, anew, busy=plan.peers)):
            if broken():
                return None  # who is gone must not wait until links are measured, which may take minutes
            return await self._around_first(plan, change, broken)
        if not await self._hears_all(plan, broken):
            return None
        planned: list[Plan] = []
        soon = [URGENT_HORIZON] if _are_slow(before, self._state.links.gbps) else []

        async def look() -> None:
            planned.append(await self._planned(plan, change, *soon, horizon))

        try:
            if not await self._state.unless(broken, look()):
                return None
        except UserError as error:
            leaving = self._state.members.leaving(plan.peers)
            if leaving:
                await self._park(", ".join(map(short, leaving)), error)
            else:
                log.info("The work stays divided as it is, though %s: %s.", reason_in_words(change.why), error)
            return None
        finally:
            await self._say("training", f"plan {plan.version}: {plan.reason}")
        (found,) = planned
        same = found.is_laid_out_as(plan)
        self.is_urgent = not same and _are_slow(before, self._state.links.gbps)
        if same and horizon is not None and horizon < self._horizon():
            self._watch.again_after(horizon)
        return None if same else found

    async def _around_first(self, plan: Plan, change: Change, broken: Callable[[], bool]) -> Plan | None:
        """Look into links that fail, as if nothing else were to be looked into; `change` is after that."""
        found = await self.better(plan, replace(change, passing="links"))
        self.is_broken_off = True
        self._watch.forget()
        return found

    async def _around(
        self,
        failing: Mapping[Pair, float],
        plan: Plan,
        change: Change,
        horizon: float | None,
        broken: Callable[[], bool],
    ) -> Plan | None:
        """Return a layout that does without the links that fail under frames on their way; measured are only some that
        it uses and nobody knows, for everybody waits.

        None: it has not lasted, or nothing better is known.

        Args:
            failing: their Gbit/s now.
        """
        state = self._state
        undo = [state.links.failing(pair, gbps) for pair, gbps in both_ways(failing, state.links.gbps).items()]
        planned: list[Plan] = []

        async def look() -> None:
            planned.append(await self._planned(plan, change, URGENT_HORIZON, horizon, hurried=True))

        try:
            with contextlib.suppress(UserError):
                await state.unless(broken, look())
        finally:
            for one in undo:
                one()  # a link is judged by what was measured
            await self._say("training", f"plan {plan.version}: {plan.reason}")
        # Planning takes seconds: what has not lasted so long is no reason to move. Other links that have begun to fail
        # are looked into by themselves.
        still = self._watch.still_failing(failing)
        if not planned or broken() or not failing.keys() <= still.keys():
            return None
        now = both_ways(still, state.links.gbps)
        if not await self._hears_all(plan, broken):
            return None
        (found,) = planned
        before = {pair: gbps for pair in now if (gbps := state.links.gbps(*pair)) is not None}
        if found.is_laid_out_as(plan) or len(before) < len(now):  # an end has left meanwhile, and come back
            return None
        undo = [state.links.failing(pair, gbps) for pair, gbps in now.items()]
        present = await self._layout_maker.step_seconds(plan)
        if found.cost is not None and 0 < present <= found.cost.total:  # its links were measured since
            for one in undo:
                one()
            return None
        state.link_watch.looked(now, before, now)
        return found

    async def _planned(self, plan: Plan, change: Change, *horizons: float | None, hurried: bool = False) -> Plan:
        """Return the layout for the peers that are here now to which a move from `plan`, the one in force, pays back
        within the first of `horizons` for which there is any; else that of `plan`.

        Raises:
            UserError: no layout fits.
        """
        for horizon in dict.fromkeys(horizons):
            members, standstill = self._state.members.ready(), self.standstill(change)
            found = await self._layout_maker.plan_for(members, horizon, standstill, hurried=hurried)
            if not found.is_laid_out_as(plan):
                break
        return found

    async def patience(self, plan: Plan, found: Plan) -> float:
        """Return the seconds for which a step under way is waited for at most, on the way from `plan` to the layout
        that was `found` last; infinite: for as long as usual."""
        if not self.is_urgent or found.cost is None:
            return math.inf
        present = await self._layout_maker.step_seconds(plan)
        return step_patience(self._state.progress.seconds(), present, found.cost.total)

    async def _hears_all(self, plan: Plan, broken: Callable[[], bool]) -> bool:
        heard = await self._layout_maker.hears_all(plan, broken)
        if not heard:
            self._watch.forget()
        return heard

    def standstill(self, change: Change) -> float:
        """Return the seconds that a change takes besides moving state: twice, where the way back is likely, too."""
        try:
            events = self._events()
        except (UserError, ValueError):  # a line of the history may be broken off, and no plan depends on it
            events = ()
        return standstill_seconds(events) * (2 if change.passing == "pace" else 1)

    async def _park(self, leaving: str, why: UserError) -> None:
        """Have all stop at the end of a step with a checkpoint of it, so that peers that leave take nothing along."""
        await self._say("planning", f"{leaving} leaves or pauses, and without it {why}: keeping a checkpoint first")
        await self._driver.call(gently=True, parked=True)
        reached = self._rows.last
        await self._state.wait(lambda: self._state.kept.step >= max(reached, self._rows.last), TIMEOUTS.park)


def _are_slow(before: Mapping[Pair, float | None], gbps: Rates) -> bool:
    """Whether any link was found slow that carried so many Gbit/s before: steps wait for it until it is done without,
    so that moving state beside them first would take longer than it saves."""
    return any(was is not None and (gbps(*pair) or 0.0) * SLOWER < was for pair, was in before.items())
