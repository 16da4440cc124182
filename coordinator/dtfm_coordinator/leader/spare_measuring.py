"""Measuring, while training goes well, of the links that would change the plan most."""

import asyncio
from collections.abc import Callable

from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.links.chosen_pairs import in_rounds
from dtfm_coordinator.links.filled_rounds import filled
from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_coordinator.links.view_bounds import at_best, is_measured
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts
from dtfm_protocol.view.view import View

PATIENCE = 20.0
"""Multiple of the time that making a plan takes for which there is no other look: it keeps a processor busy."""


class SpareMeasuring:
    """Measuring of links that nobody has measured, a few at a time, where a better plan than the one in force might use
    them.

    Which these are a plan says that is made as if each of them were as good as it may well be: optimism in the face of
    uncertainty (Lai and Robbins, Advances in Applied Mathematics, 1985). Each look makes such a plan, and has one round
    of disjoint pairs of it measured, with others where estimates are poor. Where it is the plan in force, nothing that
    is left to learn is worth a move, and there is no further look until another plan is in force, somebody comes or
    leaves, or something else is measured.
    """

    def __init__(
        self,
        state: SwarmState,
        planner: Planner,
        layout_maker: LayoutMaker,
        standstill: Callable[[], float],
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        """Nothing was looked at yet.

        Args:
            standstill: returns the seconds that a change of plan takes besides moving state.
        """
        self._state, self._planner, self._layout_maker = state, planner, layout_maker
        self._standstill, self._timeouts = standstill, timeouts
        self._took = 0.0
        """Seconds for which the last plan was made."""
        self._looked: tuple[int, set[frozenset[str]]] = (0, set())
        """Version of a plan, and the pairs that were looked at under it."""
        self._settled: object = None
        """Plan, peers and knowledge of links of which nothing is to be learned."""

    @property
    def pause(self) -> float | None:
        """Seconds for which all must have been well before the next look; None: there is none."""
        return None if self._planner.is_forced else max(self._timeouts.spare_look, PATIENCE * self._took)

    async def look(self, plan: Plan) -> bool:
        """Have some links measured that would make another plan better than `plan`, were they good; whether one seems
        to be, now."""
        if self._situation(plan) == self._settled:
            return False
        try:
            return await self._look(plan)
        except UserError:  # no plan for those who are here
            self._settled = self._situation(plan)
            return False

    async def _look(self, plan: Plan) -> bool:
        links, members = self._state.links, self._layout_maker.reachable()
        view = self._layout_maker.view(members)
        hoped = await self._better(plan, at_best(view, self._looked_at(plan))) if not is_measured(view) else None
        tied = self._planner.is_tied
        used = pairs_of(plan, tied=tied)  # what these carry, training's frames tell, which a look would hold up
        wanted = pairs_of(hoped, tied=tied) - used if hoped is not None else frozenset()
        unknown = links.unmeasured(wanted)
        pairs = [pair for pair in unknown if pair not in self._looked_at(plan)]
        if not pairs:
            self._settled = self._situation(plan)
            return hoped is not None and not unknown
        (turn,) = filled(in_rounds(pairs)[:1], view)
        turn = [pair for pair in turn if frozenset(pair) not in used]
        self._looked[1].update(map(frozenset, turn))
        named = ", ".join(" and ".join(map(short, pair)) for pair in turn)
        log.debug("measuring the links between %s beside training, which a better plan might use", named)
        await self._layout_maker.measure_beside(turn, members)
        return await self._better(plan, self._layout_maker.view(members)) is not None

    def _looked_at(self, plan: Plan) -> set[frozenset[str]]:
        """Return the pairs that were looked at under `plan`: one whose lines training shares tells no more the next
        time."""
        if self._looked[0] != plan.version:
            self._looked = plan.version, set()
        return self._looked[1]

    async def _better(self, plan: Plan, view: View) -> Plan | None:
        """Return a plan that would be better than `plan`; None: there is none."""
        begun = self._state.clock.now()
        found = await asyncio.to_thread(self._planner.plan, view, plan, None, self._standstill())
        self._took = self._state.clock.now() - begun
        return None if found.is_laid_out_as(plan) else found

    def _situation(self, plan: Plan) -> object:
        peers = frozenset(member.peer for member in self._state.members.ready())
        return plan.version, peers, self._state.links.changes
