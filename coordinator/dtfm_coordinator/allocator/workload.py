"""Workload for which a plan is made, and what a step of one would take on a view."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.bucket_cut import buckets_of
from dtfm_coordinator.allocator.problem.model_demand import (
    ModelDemand,
    boundary_bytes,
    layer_seconds,
    optimizer_seconds,
    stage_seconds,
)
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES, Problem, problem
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.simulator.simulated_timeline import Simulation
from dtfm_coordinator.allocator.simulator.simulator import simulate
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Planning, ScheduleName
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.plan.reductions import reductions
from dtfm_protocol.view.view import View

EXACT_TRANSFERS = 30_000
"""Number of transfers of a step up to which it is simulated exactly: some seconds of it."""


@dataclass(frozen=True)
class Workload:
    """Workload for which a plan is made: a model's demand, and the owner's choices for its placement."""

    demand: ModelDemand
    micro_batches: int
    """Number of micro-batches of a step, over the whole swarm."""
    planning: Planning

    @property
    def schedules(self) -> tuple[ScheduleName, ...]:
        """Names of the schedules that a plan may have."""
        return SCHEDULES if self.planning.schedule == "auto" else (self.planning.schedule,)


def predict(view: View, work: Workload, plan: Plan) -> Simulation:
    """Play one step of `plan` on the peers and links of `view`, exactly.

    Raises:
        UserError: the view lacks a peer of the plan, or nothing is known of any peer's speed.
    """
    missing = [peer for peer in plan.peers if peer not in set(view.ids)]
    if missing:
        raise UserError(f"the view has no node {missing[0]!r}, which the plan gives work to: use the plan's own view")
    speeds = layer_seconds(view.nodes, work.demand)
    return simulate(
        plan,
        Links.of(view),
        stage_seconds(plan, work.demand, speeds),
        work.demand.message_bytes(plan.wire),
        [work.demand.gradient_bytes(first, end, plan.wire) for first, end in plan.stages],
        optimizer_seconds(plan, work.demand, speeds),
        work.demand.tied_gradient_bytes(plan.wire),
        boundary_bytes(plan, work.demand),
        buckets_of(plan, work.demand),
    )


def is_soon_predicted(work: Workload, plan: Plan, times: int = 1) -> bool:
    """Whether `predict` takes some seconds at most, for so many plans like this one."""
    messages = 2 * work.micro_batches * (len(plan.stages) - 1)
    cut = buckets_of(plan, work.demand)
    reduced = sum(
        2 * len(one.holders) * (len(one.holders) - 1) * len(cut(one, 1.0).sizes)
        for one in reductions(plan, tied=work.demand.trained_tied_parameters > 0)
    )
    return times * (messages + reduced) <= EXACT_TRANSFERS


def as_cost(cost: PredictedSeconds) -> Cost:
    """Return a simulated step's cost as plans carry it."""
    return Cost(
        kind="makespan",
        total=cost.total,
        data_parallel=cost.data_parallel,
        pipeline=cost.pipeline,
        compute=cost.compute,
        optimizer=cost.optimizer,
    )


def pose(
    view: View, work: Workload, peers: Collection[str], schedule: ScheduleName | None = None, *, paced: bool = False
) -> Problem:
    """Return the arrays of `work` on `peers` of `view`, for the compiled cost.

    Args:
        schedule: name of the schedule; the job's, or the first of those that it leaves open, unless given.
        paced: whether orders go by what actions and messages take; gpipe's do not.

    Raises:
        UserError: nothing is known of any peer's speed.
    """
    nodes = [node for node in view.nodes if node.id in set(peers)]
    name = schedule or work.schedules[0]
    return problem(
        tuple(peers),
        Links.of(view),
        layer_seconds(nodes, work.demand),
        {node.id: np.inf if node.memory_bytes is None else node.memory_bytes for node in nodes},
        work.demand,
        work.micro_batches,
        name,
        work.planning.wire,
        paced and name != "gpipe",
        {node.id: node.host_bytes for node in nodes if node.host_bytes is not None},
    )
