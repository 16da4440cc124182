"""A lower bound of the simulated step that holds for any plan of a job, whatever its stages, peers, shares and layers.

It is the least that `shape_bound` finds for any number of stages and of peers that are in use. It knows the ways of
micro-batches, what peers compute while none of it is under way to them, links that carry messages one after another,
all-reduces and the commit. It does not know which peers have which links: each stage has the best there are.
"""

import numpy as np

from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.workload import Workload, pose
from dtfm_lab.bounds.least_ways import least_ways
from dtfm_lab.bounds.shape_bound import ShapeBound, Swarm
from dtfm_lab.bounds.stage_prices import all_reduce_seconds, ends_of
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
    return min(lower_bound(pose(view, work, view.ids, schedule)) for schedule in work.schedules)


def lower_bound(problem: Problem) -> float:
    """Return seconds of a step that no plan in the problem's schedule can undercut; infinite where no number of stages
    fits in memory."""
    layers = problem.layers + problem.head_layers
    each = problem.forward + problem.backward
    horizon = 4 * layers * float(problem.micro_batches / (1 / each).sum() + each.min())
    before, bound = 0.0, _least(Swarm(problem, horizon, ROUGH_COLUMNS))
    while before * GROWTH < bound < np.inf:
        before, bound = bound, max(bound, _least(Swarm(problem, BEYOND * bound, COLUMNS)))
    return bound


def data_parallel_bound(problem: Problem) -> float:
    """Return the bound in seconds of a step with one stage, on the best number of peers, whoever sums how much."""
    work = problem.micro_batches * (float(problem.trained_before[-1]) + problem.head_weight_layers)
    speeds = np.sort(1.0 / (problem.forward + problem.backward))[::-1]
    all_speeds, ways = np.cumsum(speeds), least_ways(problem)
    gradients = float(problem.gradient_before[-1]) + ends_of(problem, first=True, last=True).gradients
    bounds = [work / speeds[0]]
    for count in range(2, min(len(speeds), problem.micro_batches) + 1):
        reduce = all_reduce_seconds(problem, ways, np.array([gradients]), count, count).min()
        # A part goes back to all but its owner and one who has it as its own: least where the slowest peer owns all.
        sent = gradients * (1 + (count - 2) * speeds[-1] / all_speeds[count - 1]) / float(problem.uplink.max())
        bounds.append(work / all_speeds[count - 1] + max(float(reduce), sent + float(ways.delay.min())))
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
