"""Final choice among the layouts that searches have found: as plans, judged by the exact simulator.

The searches go by the fast form of the simulated step, with the job's wire over all boundaries. Here each layout comes
with and without a pace, with boundaries in a coarser wire where the job allows one, and with parts of its all-reduces
sized to links; the best is then changed singly, for as long as that makes its step shorter.
"""

from dataclasses import dataclass, replace

import numpy as np

from dtfm_coordinator.allocator.all_reduces.sized_parts import by_links, may_be_sized, shortest, sizings, slot_parts
from dtfm_coordinator.allocator.best_changes import best_changes
from dtfm_coordinator.allocator.coarse_boundaries import Wires, over_wires, settled, weighed, wires_to_try, with_wires
from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.paced_plan import paced, tightened
from dtfm_coordinator.allocator.plan_in_force import InForce
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES, Problem
from dtfm_coordinator.allocator.search.hill_climbing import HillClimber
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.layout_evolution import Evolution
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.workload import Workload, is_soon_predicted, predict
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

FINALISTS = 3
"""Number of layouts of a schedule that the exact simulator chooses among, and as many of other depths."""
LEAST = 1e-6
"""Of a step: so much shorter a single change must make it."""
ALIKE = 1e-3
"""Of a step: so much better another schedule must be than one of those before it."""


@dataclass(frozen=True)
class Finalist:
    """A layout as the plan that is judged."""

    layout: Layout
    posed: Problem
    """Problem that the search had, with the job's wire over all boundaries."""
    plan: Plan
    cost: PredictedSeconds

    @property
    def weighed(self) -> float:
        """Seconds by which finalists are compared."""
        return weighed(self.plan, self.cost.total)

    @property
    def kind(self) -> tuple[str, bool]:
        """The plan's schedule, and whether its orders have a pace."""
        return self.plan.schedule, self.plan.pacing is not None


@dataclass(frozen=True)
class FinalChoice:
    """The choice for one job on one swarm."""

    view: View
    work: Workload
    peers: tuple[str, ...]
    """Those that may take part; layouts have them by number."""
    old: InForce

    def whole(self, one: Finalist) -> float:
        """Return the seconds by which finalists are compared, and what moving there takes spread over the horizon."""
        return one.weighed + self.old.moving(one.layout) / self.old.horizon

    def finalists(self, searched: list[tuple[Problem, list[Evolution]]]) -> list[Finalist]:
        """Return the best layouts of the searches under each schedule, simulated exactly where that does not take too
        long, in the schedules' order.

        Where they have a pace, they come without one first.

        Args:
            searched: each schedule's problem, with the job's wire over all boundaries, and its searches.
        """
        tries = list[tuple[Layout, Problem]]()
        for posed, searches in searched:
            best = list(dict.fromkeys(layout for search in searches for layout in search.finalists(FINALISTS)))
            if posed.paced:
                plain = posed._replace(paced=False)
                bare = dict.fromkeys(replace(layout, ahead=()) for layout in best)
                tries += [(layout, plain) for layout in bare if layout.fits(plain)]
            tries += [(layout, posed) for layout in best]
        made, least = dict[int, Finalist](), np.inf
        for number in sorted(range(len(tries)), key=lambda one: tries[one][0].cost(tries[one][1]).total):
            layout, problem = tries[number]
            moving = self.old.moving(layout) / self.old.horizon
            made[number] = self._over_best_wires(problem, layout, least - moving)
            least = min(least, self.whole(made[number]))
        return [made[number] for number in range(len(tries)) if np.isfinite(made[number].cost.total)]

    def best(self, finalists: list[Finalist]) -> Finalist:
        """Return the finalist with the shortest step, what moving there takes and coarse wires included, with each
        boundary in that wire with which the exact simulator finds it better.

        Args:
            finalists: in the schedules' order, those without a pace first.
        """
        seconds = [self.whole(one) for one in finalists]
        near = [number for number, one in enumerate(seconds) if one <= (1 + ALIKE) * min(seconds)]
        kind = finalists[near[0]].kind
        alike = [number for number in near if finalists[number].kind == kind]
        return self._in_best_wires(finalists[min(alike, key=lambda number: seconds[number])])

    def changed_singly(self, chosen: Finalist, limits: Budget) -> Finalist:
        """Return the chosen finalist after single changes for the better, as long as the budget lasts: those that the
        fast form finds, then again and again the best of those that `explain` looks at, by the exact simulator's
        word."""

        def spent() -> bool:
            limits.spend(1)
            return limits.spent()

        over = over_wires(self.work, chosen.posed, chosen.plan.boundaries)

        def objective(layout: Layout) -> float:
            return layout.cost(over).total + self.old.moving(layout) / self.old.horizon

        begun, uneven = (objective(chosen.layout), chosen.layout), self.work.planning.replicas == "auto"
        # The search has looked at other depths; boundaries have their wires by number, which would shift here.
        climber = HillClimber(over, objective, limits, any_counts=uneven, any_depth=False)
        *_, (_, last) = (begun, *climber.by_first(*begun))
        # Shares that the fast form prefers to those by speed need not be better.
        for layout in (last, last.by_speed(over)):
            if layout is not None and layout != chosen.layout and is_soon_predicted(self.work, chosen.plan):
                other = self._made(chosen.posed, layout, chosen.plan.boundaries)
                chosen = min(chosen, other, key=self.whole)
        while is_soon_predicted(self.work, chosen.plan) and not limits.spent():
            plan = tightened(chosen.plan)
            found = best_changes(plan, self.view, self.work, self.peers, spent, any_depth=False).best
            made = [self._made(chosen.posed, one.layout, one.wires) for one in found]
            best = min(made, key=self.whole, default=chosen)
            if not self.whole(best) < (1 - LEAST) * self.whole(chosen):
                break
            chosen = best
        return chosen

    def _over_best_wires(self, problem: Problem, layout: Layout, least: float) -> Finalist:
        """Return a layout as a plan, with boundaries in a coarser wire where the job wants that and each is worth
        it."""
        tries = ((), *wires_to_try(self.work, problem, layout))
        return min((self._made(problem, layout, wires, least) for wires in tries), key=lambda one: one.weighed)

    def _in_best_wires(self, chosen: Finalist) -> Finalist:
        """Return the chosen finalist with each boundary in the better wire, where all can soon be tried."""
        plan, either = chosen.plan, (self.work.planning.wire, self.work.planning.coarse_wire)
        if either[0] == either[1] or not is_soon_predicted(self.work, plan, len(plan.wires)):
            return chosen
        made = {plan.wires: chosen}

        def seconds(wires: Wires) -> float:
            if wires not in made:
                made[wires] = self._made(chosen.posed, chosen.layout, wires)
            return made[wires].weighed

        return made[settled(plan.wires, either, seconds)]

    def _made(self, problem: Problem, layout: Layout, wires: Wires, least: float = np.inf) -> Finalist:
        """Return a layout as a plan whose boundaries have these wires; if memory does not hold it, its step never ends.

        Args:
            least: seconds of a step that another plan takes: this one's parts are not sized where they cannot make it
                as short.
        """
        over = over_wires(self.work, problem, wires)
        schedule, wire = SCHEDULES[problem.schedule], self.work.planning.wire
        plan = with_wires(layout.plan(self.peers, schedule, wire, layout.recomputed(over)), wires)
        if problem.paced:
            plan = paced(self.view, self.work, plan, layout.in_flight(over, self.peers))
        plan, cost = self._priced(plan, layout, over, least)
        if not layout.fits(over):
            cost = PredictedSeconds(cost.compute, np.inf, np.inf, 0.0)
        return Finalist(layout, problem, plan, cost)

    def _priced(self, plan: Plan, layout: Layout, problem: Problem, least: float) -> tuple[Plan, PredictedSeconds]:
        """Return a layout's plan, with parts of its all-reduces that are sized to links where the job wants that and it
        saves time, and what its step takes."""
        sizes = self.work.planning.parts == "auto" and max(layout.counts) > 1
        if is_soon_predicted(self.work, plan):
            if sizes:
                return by_links(self.view, self.work, plan, least)
            return plan, predict(self.view, self.work, plan).cost
        names, cost = [self.peers[peer] for peer in layout.peers], layout.cost(problem)
        others = sizings(self.view, self.work, plan, {}) if sizes and may_be_sized(cost, least) else ()
        return shortest(plan, cost, [(other, layout.cost(problem, slot_parts(other, names))) for other in others])
