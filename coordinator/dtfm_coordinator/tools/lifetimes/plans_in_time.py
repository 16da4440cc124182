"""Plans of a run in virtual time: what the allocator makes of the machines that are there, and how long state moves."""

from collections.abc import Collection
from dataclasses import replace

from dtfm_coordinator.allocator.allocate import COARSE, allocate, search_seconds
from dtfm_coordinator.allocator.foundations.shapes import fewest_nodes, for_fewer_nodes
from dtfm_coordinator.allocator.plan_in_force import InForce
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import Workload, pose
from dtfm_coordinator.leader.change_cost import standstill_seconds
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View


class PlansInTime:
    """Maker of the plans of one job on the machines of one view; alike questions get one answer."""

    def __init__(self, view: View, work: Workload, seed: int, evaluations: int) -> None:
        """`evaluations` are the layouts that each search looks at: the same plans come out on any machine."""
        self._view, self._work, self._seed, self._evaluations = view, work, seed, evaluations
        self._made: dict[tuple[frozenset[str], tuple[object, ...] | None], Plan] = {}
        self.standstill = standstill_seconds(())
        """Seconds of a change besides moving state: of a swarm that has seen none yet."""
        self._step = 0.0
        """Seconds of a step under the newest plan."""

    def search_seconds(self, machines: int) -> float:
        """Return the seconds that a coordinator searches for a plan of so many machines."""
        planning = self._work.planning
        searches = 1.0 + COARSE if planning.coarse_wire != planning.wire else 1.0
        return searches * search_seconds(machines, self._work.micro_batches, self._step)

    def plan(self, here: Collection[str], in_force: Plan | None) -> Plan:
        """Return the plan for the machines that are there; that in force, where no other pays back its change.

        A run that has begun goes on with fewer machines than the job's `[plan]` fixes, as `serve` has it.

        Raises:
            UserError: no plan is possible.
        """
        if not here:
            raise UserError("no machine is there")
        key = frozenset(here), None if in_force is None else (in_force.stages, in_force.routes, in_force.schedule)
        if key not in self._made:
            planning = self._work.planning
            if in_force is not None and not planning.strict and len(key[0]) < fewest_nodes(planning):
                planning = for_fewer_nodes(planning, len(key[0]))
            self._made[key] = allocate(
                self._view.part([peer for peer in self._view.ids if peer in key[0]]),
                replace(self._work, planning=planning),
                self._seed,
                evaluations=self._evaluations,
                in_force=in_force,
                standstill=self.standstill,
            )
        made = self._made[key]
        self._step = made.cost.total if made.cost is not None else 0.0
        return made

    def moving_seconds(self, here: Collection[str], before: Plan | None, after: Plan) -> float:
        """Return the seconds until all of a plan's peers have the state, which those of the plan before hold that are
        still there; 0 where there was none, as each makes the initial weights itself."""
        if before is None:
            return 0.0
        peers = tuple(peer for peer in self._view.ids if peer in set(here))
        posed = pose(self._view, self._work, peers, after.schedule)
        layout = Layout.of_plan(after, peers)
        assert layout is not None
        return InForce.of(self._view, self._work, posed, peers, before).moving(layout)
