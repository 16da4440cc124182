"""Gain by the next node: the same search on the view, and on the view with one more node like the median.

Both go on from the same plan, so that what the one finds and the other does not is the node's doing.
"""

from dataclasses import dataclass, replace

import numpy as np

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.problem.model_demand import layer_seconds
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import GBIT, LayerSeconds, NodeView, View

NOTICEABLE = 0.005
"""Share of a step below which a gain is within what two short searches differ by anyhow."""
MOVES_FREELY = 1e12
"""Seconds of horizon beside which the cost of no move counts."""
WARM_UP = 500
"""Number of layouts searched before the clock starts."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Result of two searches alike: without the next node and with it."""

    now: float
    """Seconds of a step on the view as it is."""
    then: float
    """Seconds of a step with one more node."""
    is_used: bool
    """Whether the plan with the next node gives it work."""
    begun: float
    """Seconds of a step of the plan from which both searches went on, on the view as it is."""

    @property
    def gain(self) -> float:
        """Share of a step that the next node saves; negative where the search with it found worse."""
        return 1 - self.then / self.now

    @property
    def noise(self) -> float:
        """Share of a step within which the two say nothing: what the same search went on to find without the node."""
        return max(NOTICEABLE, 1 - self.now / self.begun)

    @property
    def is_noticeable(self) -> bool:
        """Whether the next node brings anything."""
        return self.is_used and self.gain >= self.noise

    @property
    def is_nothing(self) -> bool:
        """Whether it can be told that the next node brings nothing."""
        return self.noise == NOTICEABLE and abs(self.gain) < NOTICEABLE


def growth(
    view: View,
    work: Workload,
    plan: Plan | None = None,
    seed: int = 0,
    budget: float | None = None,
    evaluations: int | None = None,
) -> Growth | None:
    """Search on the view, and on the view with one more median node; return None for a view of one node, without links.

    Args:
        plan: plan from which the searches begin, if they are to begin with one.
        budget: seconds of each search.
        evaluations: number of layouts that each may look at; without `budget` the same arguments give the same answer.

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
    assert begun.cost is not None
    assert now.cost is not None
    assert then.cost is not None
    return Growth(now.cost.total, then.cost.total, then.stage_of(larger.ids[-1]) is not None, begun.cost.total)


def with_median_node(view: View, work: Workload) -> View:
    """Return the view with one more node: the median of its peers' speeds, memories and lines, and of links to each.

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
    """Return the median, where None (unknown, or unlimited) counts as more than anything; None where it is that."""
    middle = float(np.median([np.inf if value is None else value for value in values]))
    return middle if np.isfinite(middle) else None


def _bordered(matrix: Matrix) -> Matrix:
    """Return the matrix with one row and column more: what each peer has in the median to and from the others."""
    count = len(matrix)
    others = np.where(np.eye(count, dtype=bool), np.nan, matrix)
    larger: Matrix = np.zeros((count + 1, count + 1))
    larger[:count, :count] = np.where(np.eye(count, dtype=bool), 0.0, matrix)
    larger[count, :count] = np.nanmedian(others, axis=0)
    larger[:count, count] = np.nanmedian(others, axis=1)
    return larger
