"""Plan in force, as a new one sees it: who holds what, and what going over to another layout takes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from dtfm_coordinator.allocator.foundations.shapes import has_shape
from dtfm_coordinator.allocator.problem.model_demand import apart_of, host_memory_needed, memory_needed
from dtfm_coordinator.allocator.problem.moving_cost import LayersInForce, moving_seconds, standing
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View


@dataclass(frozen=True)
class InForce:
    """Plan in force, or none, and where its peers hold state."""

    posed: Problem
    standing: LayersInForce
    plan: Plan | None = None
    """Plan that can go on; None where there is none, or it cannot go on: a peer of it is gone, or it no longer fits."""
    layout: Layout | None = None
    cost: PredictedSeconds | None = None
    over: str = ""
    """Reason why the plan in force cannot go on; "": it can, or there is none."""

    @classmethod
    def of(cls, view: View, work: Workload, posed: Problem, peers: tuple[str, ...], plan: Plan | None) -> "InForce":
        if plan is None:
            return cls(posed, standing(posed, {}, np.inf))
        if plan.layers != work.demand.layers:
            raise UserError(
                f"the plan in force has {plan.layers} layers and the model {work.demand.layers}: it is another job's"
            )
        index = {peer: number for number, peer in enumerate(peers)}
        spans = {index[peer]: plan.stages[plan.stage_of(peer) or 0] for peer in plan.peers if peer in index}
        over, layout = "", Layout.of_plan(plan, peers)
        if layout is None:
            over = "a peer of it is gone"
        elif len(plan.routes) != work.micro_batches:
            over = f"it has {len(plan.routes)} micro-batches a step and the job {work.micro_batches}"
        elif plan.schedule not in work.schedules or plan.wire != work.planning.wire:
            over = "the job's schedule or wire is another"
        elif any(one not in (plan.wire, work.planning.coarse_wire) for one in plan.boundaries):
            over = "the job's slow_wire is another"
        elif plan.pacing is not None and work.planning.in_flight == "least":
            over = "the job now keeps the least in flight"
        elif (plan.parts or plan.trees) is not None and work.planning.parts == "equal":
            over = "the job now has all replicas sum equally much"
        elif not has_shape(plan, work.planning):
            over = "the job's [plan] fixes other stages or replicas"
        elif not _fits(plan, posed, work, index, apart_of(view.nodes)):
            over = "it no longer fits in its peers' memory"
        else:
            cost = predict(view, work, plan).cost
            if np.isfinite(cost.total):
                horizon = work.planning.horizon / cost.total
                return cls(posed, standing(posed, spans, horizon), plan, layout, cost)
            over = "peers of it no longer reach each other"
        # All must move; that is still cheaper where state lies already.
        guess = plan.cost.total if plan.cost is not None and plan.cost.total > 0 else 1.0
        now = standing(posed, spans, work.planning.horizon / guess)
        return cls(posed, now, over=over)

    @property
    def seconds(self) -> float:
        """Seconds of a step under the plan; infinite where it cannot go on."""
        return np.inf if self.cost is None else self.cost.total

    @property
    def horizon(self) -> float:
        """Number of steps within which a move must pay back."""
        return self.standing.horizon

    def moving(self, layout: Layout) -> float:
        """Return the seconds that it takes to move from the plan to `layout`."""
        if np.isinf(self.horizon):
            return 0.0
        peers, counts, _, layers = layout.arrays()
        return moving_seconds(self.posed, self.standing, peers, counts, layers)


def _fits(plan: Plan, posed: Problem, work: Workload, index: Mapping[str, int], apart: Collection[str]) -> bool:
    """Whether each peer of a plan has the memory that it asks for; `apart`: those whose devices have their own."""
    offers = (
        (posed.memory, memory_needed(plan, work.demand, apart)),
        (posed.host_memory, host_memory_needed(plan, work.demand, apart)),
    )
    return all(had[index[peer]] >= needed for had, asked in offers for peer, needed in asked.items())
