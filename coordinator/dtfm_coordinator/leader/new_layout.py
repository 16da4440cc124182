"""Making of a new layout: who is there, how they are connected, and the best layout for them."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Iterator

from dtfm_coordinator.allocator.foundations.shapes import NotEnoughNodes
from dtfm_coordinator.faults.accusations import Quarrel
from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.leader.link_measuring import LinkMeasuring
from dtfm_coordinator.leader.measured_plans import MeasuredPlans
from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.links.chosen_pairs import FEW
from dtfm_coordinator.links.line_estimate import FAN
from dtfm_coordinator.links.link_degradation import Pair
from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts
from dtfm_protocol.view.view import View

MOST_HERE = 0.75
"""Share of the nodes that are waited for that must be here for their links to be measured as if they were all."""

RESTLESS = 40
"""Times the calm that is waited for, for which it is waited for at most once there are enough: who comes and goes all
the time would hold everybody up."""


class LayoutMaker:
    """Maker of layouts for the peers that are ready."""

    def __init__(
        self,
        context: LeadContext,
        state: SwarmState,
        say: Callable[[str, str], Awaitable[None]],
        min_nodes: int | None,
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        self._timeouts = timeouts
        self._context, self._state, self._say, self._min_nodes = context, state, say, min_nodes
        self._members, self._links = state.members, state.links
        self._measuring = LinkMeasuring(context, state, say, timeouts)
        self._plans = MeasuredPlans(context, state, say, self._measuring)
        self._rehearsed = frozenset[str]()
        """Peers for whom a plan was made last while others were waited for."""

    async def layout(self) -> Plan:
        """Wait until enough nodes are ready for a plan, and return its layout."""
        # --min-nodes is for the start: a run that has lost a node goes on as soon as the others suffice.
        needed = self._context.planner.fewest_nodes
        if self._state.plan is None and self._min_nodes is not None:
            needed = self._min_nodes
        if self._state.plan is not None:
            needed = await _enough_in_run(self._context.planner, self._state, needed, self._say, self._timeouts)
        why = ""
        while True:
            members = await self._gather(needed, why)
            if self._state.plan is not None:
                # A run that stands still does not wait for measurements if it can do without: who has just come back
                # is measured, and made use of, once it goes on.
                known = self._links.acquainted(members)
                if len(known) < len(members):
                    with contextlib.suppress(UserError):
                        return await self.plan_for(known)
            if self._state.plan is not None or why:  # else that was done while others were waited for
                await self.probe(members, limits=self._state.plan is None)
            try:
                return await self.plan_for(members)
            except UserError as error:
                # A view that no plan fits may be followed by one that does: another node, or one with more memory.
                needed, why = len(members) + (error.missing if isinstance(error, NotEnoughNodes) else 1), str(error)

    async def plan_for(
        self, members: list[Member], horizon: float | None = None, standstill: float = 0.0, *, hurried: bool = False
    ) -> Plan:
        """Return a layout for those of `members` that are still there.

        Args:
            horizon: seconds within which a move must pay back, if that is less than the job allows.
            standstill: seconds that a change takes besides moving state.
            hurried: whether a layout is wanted soon, and a better one later.

        Raises:
            UserError: no layout fits.
        """
        heard = {member.peer for member in self._members.ready()}
        members = self._links.reachable([member for member in members if member.peer in heard])
        if not members:
            raise UserError("no node is left, or none of them reaches another one: `dtfm-node doctor` says why")
        for some, apart in self._doubting(members):
            with contextlib.suppress(UserError):
                return await self._plans.make(some, horizon, standstill, apart, hurried=hurried)
        return await self._plans.make(members, horizon, standstill, hurried=hurried)

    async def step_seconds(self, plan: Plan) -> float:
        """Return what a step of a plan is predicted to take as links are now; 0 where that is not known."""
        view = self.view(self._members.ready())
        if not set(plan.peers) <= set(view.ids):
            return 0.0
        cost = (await asyncio.to_thread(self._context.planner.priced, plan, view)).cost
        return 0.0 if cost is None else cost.total

    def _doubting(self, members: list[Member]) -> Iterator[tuple[list[Member], frozenset[Quarrel]]]:
        """Yield what to try before all of `members` as they are: who is to take part, and who is kept apart."""
        here, doubted = {member.peer for member in members}, self._state.doubted
        trusted = [member for member in members if member.peer not in doubted]
        apart = frozenset(quarrel for quarrel in self._state.accusations.apart if quarrel <= here)
        if trusted and apart:
            yield trusted, apart
        if 0 < len(trusted) < len(members):
            yield trusted, frozenset()
            if apart:
                yield members, apart

    def reachable(self) -> list[Member]:
        """Return who is ready and can be reached by others."""
        return self._links.reachable(self._members.ready())

    def view(self, members: list[Member]) -> View:
        """Return what is known of `members` and the links between them."""
        return self._plans.view(members)

    async def _gather(self, needed: int, why: str) -> list[Member]:
        """Wait until at least `needed` nodes are ready and nobody has come or gone for a while.

        Before the first plan those who are ready have their links measured meanwhile, in the end those, too, that a
        plan for them would use: who comes last, and with it all others, then waits for its own links alone.

        Args:
            why: what fewer nodes lack beside their number, for people; "": nothing.
        """
        is_first, clock = self._state.plan is None, self._state.clock
        ready, since, enough = frozenset[str](), clock.now(), math.inf
        calm = self._timeouts.settle if is_first else self._timeouts.settle_in_run
        while True:
            members = self._members.ready()
            if (there := frozenset(member.peer for member in members)) != ready:
                ready, since = there, clock.now()
            enough = min(enough, clock.now()) if len(members) >= needed else math.inf
            is_over = clock.now() > enough + RESTLESS * calm
            if is_first and await self._acquaint(members, needed) and not is_over:
                continue
            if is_over and len(known := self._links.acquainted(self._members.ready())) >= needed:
                return known
            if is_first and await self._rehearse(members, needed):
                continue
            if len(members) < needed:
                text = self._members.waiting_for(needed)
                await self._say("waiting", why or text)

                def told(text: str = text, needed: int = needed) -> bool:
                    return self._members.waiting_for(needed) != text

                if await self._state.wait(told, self._timeouts.layout_retry if why else None) or not why:
                    continue
                needed = min(needed, len(self._members.ready()))  # links that could not be measured may be well again
            busy = len(self._members.online()) - len(self._members.paused()) > len(ready)
            left = min(since + calm * (4 if busy else 1), enough + RESTLESS * calm) - clock.now()
            if left <= 0 or not await self._state.wait(self._moved(ready), left):
                return self._members.ready()

    def _moved(self, there: frozenset[str]) -> Callable[[], bool]:
        """Return a condition that holds once others are ready than those."""
        return lambda: {member.peer for member in self._members.ready()} != there

    async def _acquaint(self, members: list[Member], needed: int) -> bool:
        """Have what is yet to be known of the links between `members` measured; whether there was anything."""
        peers = [member.peer for member in members]
        # Fewer would hardly show what a line carries in all; of four, the first three do not keep the last one waiting.
        limits = len(peers) > FAN or len(peers) >= needed or len(peers) == FAN == needed - 1
        if not self._links.untried(peers) and not (limits and self._links.limits.unasked(peers)):
            return False
        await self.probe(members, limits=limits)
        return True

    async def _rehearse(self, members: list[Member], needed: int) -> bool:
        """Have the links measured that a plan for `members` would use, while the last nodes are waited for: the plan
        for all will use most of them. Return whether there was anything to do. Who becomes ready does not wait."""
        there = frozenset(member.peer for member in members)
        if not MOST_HERE * needed <= len(there) < needed or len(there) <= FEW or there == self._rehearsed:
            return False
        self._rehearsed = there

        async def rehearse() -> None:
            with contextlib.suppress(UserError):  # whether one fits is seen when all are here
                if reached := self._links.reachable(members):
                    await self._plans.rehearse(reached)

        await self._state.unless(self._moved(there), rehearse())
        return True

    async def hears_all(self, plan: Plan, unless: Callable[[], bool]) -> bool:
        """Wait until all of the plan's peers are heard of, as they are while it goes well; False if they were not in
        time.

        A peer that is not would be left out of the next plan. A moment of deafness, because this machine or the way to
        the
        broker was busy, must not cost a peer its place: whether it is gone is for others to say.

        Args:
            unless: condition that ends the wait when it becomes true.
        """

        def heard() -> bool:
            return set(plan.peers) <= {member.peer for member in self._members.heard()}

        await self._state.wait(lambda: heard() or unless(), self._timeouts.report_return)
        return heard() and not unless()

    async def recall(self, peers: Collection[str]) -> None:
        """Take over what `peers` have measured, as `LinkMeasuring.recall`."""
        await self._measuring.recall(peers)

    async def measure_beside(self, pairs: list[Pair], members: list[Member]) -> None:
        """Have disjoint pairs measured beside training, as `LinkMeasuring.beside`."""
        await self._measuring.beside(pairs, members)

    async def probe(
        self,
        members: list[Member],
        anew: Collection[Pair] = (),
        *,
        limits: bool = True,
        busy: Collection[str] = frozenset(),
    ) -> None:
        """Have links between `members` measured, as `LinkMeasuring.probe`."""
        await self._measuring.probe(members, anew, limits=limits, busy=busy)


async def _enough_in_run(
    planner: Planner,
    state: SwarmState,
    needed: int,
    say: Callable[[str, str], Awaitable[None]],
    timeouts: Timeouts,
) -> int:
    """Return the number of nodes to wait for in the middle of a run: `needed`, unless fewer will do, and others have
    not come for a while."""

    def are_here() -> bool:
        return len(state.members.ready()) >= needed

    if planner.fewest_in_run >= needed or are_here():
        return needed
    seconds = timeouts.fewer_nodes
    missing = state.members.waiting_for(needed)
    await say("waiting", f"{missing}; after {seconds:.0f} s the run goes on with those that are here")
    return needed if await state.wait(are_here, seconds) else planner.fewest_in_run
