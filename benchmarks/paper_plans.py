"""The paper's plans of a job, as kindly read as can be: its placement for every grid, the best by the simulated step.

The paper's cost says nothing of how many stages there should be, nor of unequal devices. So its search places every
grid that the devices, layers and micro-batches allow; layers and shares follow speeds; the fast simulator names the
best few, and the exact one chooses.
"""

from dtfm_coordinator.allocator.foundations.shapes import feasible_shapes
from dtfm_coordinator.allocator.paper.evolutionary_search import search
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import Workload, pose, predict
from dtfm_protocol.job.job_file import ScheduleName
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

FINALISTS = 3


def paper_plan(
    view: View, work: Workload, schedule: ScheduleName, *, seconds: float | None = None, evaluations: int | None = None
) -> tuple[Plan, float] | None:
    """Return the plan, and the seconds of its step by the exact simulator; None where no grid fits in memory.

    Args:
        schedule: order in which each peer works.
        seconds: seconds of all searches together.
        evaluations: placements that each search may look at.
    """
    posed, alpha, beta = pose(view, work, view.ids, schedule), view.alpha(), view.beta()
    demand, wire = work.demand, work.planning.wire
    shapes = feasible_shapes(len(view.nodes), demand.layers, work.micro_batches, work.planning)
    layouts: list[Layout] = []
    for shape in shapes:
        found = search(
            alpha,
            beta,
            stages=shape.stages,
            replicas=shape.replicas,
            activation_bytes=demand.message_bytes(wire)[0] * work.micro_batches / shape.replicas,
            gradient_bytes=demand.gradient_bytes(0, demand.layers, wire) / shape.stages,
            seconds=None if seconds is None else seconds / len(shapes),
            evaluations=evaluations,
        )
        layout = Layout.of(posed, [list(stage) for stage in zip(*found.pipelines, strict=True)])
        if layout is not None:
            layouts.append(layout)
    layouts.sort(key=lambda layout: layout.cost(posed).total)
    plans = [layout.plan(view.ids, schedule, wire, layout.recomputed(posed)) for layout in layouts[:FINALISTS]]
    priced = [(plan, predict(view, work, plan).cost.total) for plan in plans]
    return min(priced, key=lambda one: one[1], default=None)
