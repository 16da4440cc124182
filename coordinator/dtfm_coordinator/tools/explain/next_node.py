"""What the next node would bring: the same search on the view, and on the view with one more node like the median.

Both go on from the same plan, so that what the one finds and the other does not is the node's doing.
"""

from dataclasses import dataclass, replace

import numpy as np

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.step.model_demand import layer_seconds
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import GBIT, LayerSeconds, NodeView, View

NOTICEABLE = 0.005
"""Of a step: gains below it are within what two short searches differ by anyhow."""
MOVES_FREELY = 1e12
"""Seconds of horizon beside which no move counts."""
WARM_UP = 500
"""Evaluations before the clock starts."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Two searches alike: without the next node and with it."""

    now: float
    """Seconds of a step on the view as it is."""
    then: float
    """Seconds of a step with one more node."""
    is_used: bool
    """Whether the plan with it gives it work."""

    @property
    def gain(self) -> float:
        """The share of a step that it saves; negative where the search with it found worse."""
        return 1 - self.then / self.now

    @property
    def is_noticeable(self) -> bool:
        """Whether it brings anything."""
        return self.is_used and self.gain >= NOTICEABLE


def growth(
    view: View,
    work: Workload,
    plan: Plan | None = None,
    seed: int = 0,
    budget: float | None = None,
    evaluations: int | None = None,
) -> Growth | None:
    """Search on the view, and on the view with one more median node; None for a view of one node, without links.

    Args:
        plan: where the searches begin, if they are to begin somewhere.
        budget: seconds of each search.
        evaluations: layouts that each may look at; without `budget` the same arguments give the same answer.

    Raises:
        UserError: no plan is possible.
    """
    if len(view.nodes) < 2:
        return None
    larger = with_median_node(view, work)
    if evaluations is None:
        allocate(view, work, seed, evaluations=WARM_UP)  # what is compiled on first use is on neither search's budget
    free = replace(work, planning=work.planning.model_copy(update={"horizon": MOVES_FREELY}))
    begun = allocate(view, free, seed, budget, evaluations, in_force=plan)
    now, then = (allocate(one, free, seed, budget, evaluations, in_force=begun) for one in (view, larger))
    assert now.cost is not None
    assert then.cost is not None
    return Growth(now.cost.total, then.cost.total, then.stage_of(larger.ids[-1]) is not None)


def with_median_node(view: View, work: Workload) -> View:
    """The view with one more node: the median of its peers' speeds, memories and lines, and of the links to each peer.

    Raises:
        UserError: nothing is known of any peer's speed.
    """
    speeds = layer_seconds(view.nodes, work.demand).values()
    name = "next-node"
    while name in view.ids:
        name += "-"
    node = NodeView(
        id=name,
        layer_seconds=LayerSeconds(
            forward=float(np.median([one.forward for one in speeds])),
            backward=float(np.median([one.backward for one in speeds])),
            weight=float(np.median([one.weight_part for one in speeds])),
            optimizer=float(np.median([one.optimizer or 0.0 for one in speeds])),
        ),
        memory_bytes=_middling([one.memory_bytes for one in view.nodes]),
        up_gbps=_middling([one.up_gbps for one in view.nodes]),
        down_gbps=_middling([one.down_gbps for one in view.nodes]),
    )
    return View(
        nodes=(*view.nodes, node),
        latency_ms=_bordered(view.alpha() * 1e3),
        bandwidth_gbps=_bordered(view.beta() / GBIT),
        ways=view.ways,
    )


def _middling(values: list[float | None]) -> float | None:
    """The median, where what is unknown or unlimited counts as more than anything; None where it is that."""
    middle = float(np.median([np.inf if value is None else value for value in values]))
    return middle if np.isfinite(middle) else None


def _bordered(matrix: Matrix) -> Matrix:
    """One row and column more: what each peer has in the median to and from the others."""
    count = len(matrix)
    others = np.where(np.eye(count, dtype=bool), np.nan, matrix)
    larger: Matrix = np.zeros((count + 1, count + 1))
    larger[:count, :count] = np.where(np.eye(count, dtype=bool), 0.0, matrix)
    larger[count, :count] = np.nanmedian(others, axis=0)
    larger[:count, count] = np.nanmedian(others, axis=1)
    return larger
