"""A lower bound of the simulated step that holds for any plan of a job, whatever its stages, peers, shares and layers.

Of a few peers it knows which have which links: it is the shortest path over sets of them that `set_bound` finds. Of
many it is the least that `shape_bound` finds for any number of stages and of peers that are in use; there each stage
has the best links that there are. Both know the ways of micro-batches, what peers compute while none of it is under way
to them, links that carry messages one after another, all-reduces and the commit. Where the job lets slow boundaries
have a coarser wire, all have it.
"""

import numpy as np

from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.workload import Workload, pose
from dtfm_lab.bounds.least_ways import least_ways
from dtfm_lab.bounds.set_bound import is_small, one_stage_bound, set_bound
from dtfm_lab.bounds.shape_bound import ShapeBound, Swarm
from dtfm_lab.bounds.stage_prices import all_reduce_seconds, ends_of, longest_action
from dtfm_protocol.view.view import View

ROUGH_COLUMNS, COLUMNS = 80, 200
"""Times of a stage that the tables have where a bound is first found, and then found again."""
BEYOND, GROWTH = 1.25, 1.1
"""Times of tables go so far beyond the bound that was found before; it is found again where it has grown by so much."""
HALVINGS = 14
"""Halvings of the interval in which the time of a shape lies, whose lower end is taken."""
FEW_PEERS = 16
"""Peers up to which each number of them that is in use is looked at by itself."""
LONGEST = 1e12
"""Seconds of a step beyond which a shape counts as impossible."""


def least_bound(view: View, work: Workload) -> float:
    """Return seconds of a step that no plan of the job on a view can undercut, in any schedule that the job leaves
    open; infinite where no number of stages fits in memory."""
    bound, equal_parts = np.inf, work.planning.parts == "equal"
    ahead, back = work.demand.message_bytes(work.planning.coarse_wire)
    for schedule in work.schedules:
        if schedule == "gpipe" and "1f1b" in work.schedules:
            continue  # of which no more is known
        problem = pose(view, work, view.ids, schedule)
        problem = problem._replace(
            ahead_bytes=min(problem.ahead_bytes, float(ahead)), back_bytes=min(problem.back_bytes, float(back))
        )
        bound = min(bound, lower_bound(problem, equal_parts=equal_parts, ceiling=bound))
    return bound


def lower_bound(problem: Problem, *, equal_parts: bool = False, ceiling: float = np.inf) -> float:
    """Return seconds of a step that no plan in the problem's schedule can undercut; infinite where no number of stages
    fits in memory.

    Args:
        equal_parts: whether all holders of a gradient sum equal parts of it, and send them straight to each other.
        ceiling: seconds above which the bound need not be known: it is returned then.
    """
    if is_small(problem):
        return set_bound(problem, ceiling, equal_parts=equal_parts)
    layers = problem.layers + problem.head_layers
    each = problem.forward + problem.backward
    horizon = 4 * layers * float(problem.micro_batches / (1 / each).sum() + each.min())
    before, bound = 0.0, _least(Swarm(problem, horizon, ROUGH_COLUMNS, equal_parts=equal_parts))
    while before * GROWTH < bound < np.inf:
        before, bound = bound, max(bound, _least(Swarm(problem, BEYOND * bound, COLUMNS, equal_parts=equal_parts)))
    return bound


def data_parallel_bound(problem: Problem) -> float:
    """Return the bound in seconds of a step with one stage, on the best number of peers, whoever sums how much."""
    if is_small(problem):
        return one_stage_bound(problem)
    trained = float(problem.trained_before[-1]) + problem.head_weight_layers
    speeds = np.sort(1.0 / (problem.forward + problem.backward))[::-1]
    all_speeds, ways = np.cumsum(speeds), least_ways(problem)
    gradients = np.array([float(problem.gradient_before[-1]) + ends_of(problem, first=True, last=True).gradients])
    last = (problem.layers + problem.head_layers) * longest_action(problem)
    bounds = [problem.micro_batches * trained / speeds[0]]
    for count in range(2, min(len(speeds), problem.micro_batches) + 1):
        reduce = np.maximum(0.0, all_reduce_seconds(problem, ways, gradients, count) - last).min()
        bounds.append(problem.micro_batches * trained / all_speeds[count - 1] + float(reduce))
    return float(min(bounds))


def _least(swarm: Swarm) -> float:
    """Return the least seconds of any shape on a swarm."""
    peers = len(swarm.problem.forward)
    depths = range(1, min(peers, swarm.problem.layers) + 1)
    if peers <= FEW_PEERS:
        shapes = [ShapeBound(swarm, stages, count) for stages in depths for count in range(stages, peers + 1)]
    else:
        shapes = [ShapeBound(swarm, stages, stages, peers) for stages in depths]
    best = np.inf
    for shape in sorted(shapes, key=lambda one: one.least + one.commit):
        best = min(best, _least_of(shape, best))
    return float(best)


def _least_of(shape: ShapeBound, best: float) -> float:
    """Return the least seconds of a shape; infinite where they are not below `best`."""
    low, high = shape.least, best - shape.commit
    if low >= high or not low < LONGEST or (high < np.inf and not shape.can(high)):
        return np.inf
    if shape.can(low):
        return low + shape.commit
    if high == np.inf:
        high = 2 * low
        while not shape.can(high):
            low, high = high, 2 * high
            if high > LONGEST:
                return np.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if shape.can(middle) else (middle, high)
    return low + shape.commit
