"""Best single changes of a plan, of each kind: what `explain` tells, and what a search makes at its end.

The fast form of the simulated step finds the best of each kind, the exact simulator has the last word on them.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dtfm_coordinator.allocator.all_reduces.carried_trees import summed_likewise
from dtfm_coordinator.allocator.coarse_boundaries import Wires, over_wires, weighed, wires_to_try, with_wires
from dtfm_coordinator.allocator.foundations.shapes import has_shape
from dtfm_coordinator.allocator.paced_plan import paced
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.neighbours import ALIKE, Kind, LayoutChange, Neighbours, priced
from dtfm_coordinator.allocator.simulator.compiled_schedule import kinds_of
from dtfm_coordinator.allocator.workload import Workload, pose
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

MOST_PLAYED = 10_000_000
"""Number of actions that the fast form plays for all changes together: some seconds."""
MOST_SIMULATED = 20_000
"""Number of actions that are simulated exactly for the best changes together: a second or two."""
TRIED_EXACTLY = 8
"""Number of changes of a kind that are simulated exactly, where that is soon done."""


class ChangedPlan(NamedTuple):
    """A plan with a single change."""

    change: LayoutChange
    layout: Layout
    wires: Wires
    """Wires of its boundaries; (): the plan's wire over all."""
    seconds: float
    """Seconds of its step, exactly simulated."""


class BestChanges(NamedTuple):
    """Result of trying single changes of a plan."""

    best: tuple[ChangedPlan, ...]
    """Best change of each kind, of those that make a difference."""
    looked_at: int
    """Number of changes whose step was played."""
    is_all: bool
    """Whether those are all that there are; of plans whose boundaries have wires of their own, with as many stages."""


class _Found(NamedTuple):
    change: LayoutChange
    layout: Layout
    seconds: float


def best_changes(
    plan: Plan,
    view: View,
    work: Workload,
    peers: tuple[str, ...],
    spent: Callable[[], bool] = lambda: False,
    *,
    any_depth: bool = True,
) -> BestChanges:
    """Return the best single change of each kind, of all of them or of as many as are soon looked at.

    Memory and the owner's fixed numbers of stages and replicas are kept to. After peers have changed, their stages'
    shares of micro-batches stay with the places or follow the speeds, whatever is better; layers are shared out anew
    where they no longer fit. What moving there would take is not counted. Where the plan has sized parts, or trees, so
    has a changed one: parts are sized anew; a stage whose replicas are the same peers keeps its trees, others have them
    laid anew, and none where straight is faster (`carried_trees`).

    Args:
        peers: those that may take part, in the view's order.
        spent: asked before each change is looked at: whether to do with those looked at so far.
        any_depth: whether to look at more and fewer stages, too, where the owner leaves that open and boundaries have
            no wires of their own: these go by number.
    """
    fine = pose(view, work, peers, plan.schedule, paced=plan.pacing is not None)
    posed = over_wires(work, fine, plan.boundaries)
    now = Layout.of_plan(plan, peers)
    assert now is not None
    fast = now.cost(posed).total
    step = kinds_of(posed.schedule) * posed.micro_batches * len(now.counts)
    free = any_depth and work.planning.stages == "auto" and work.planning.replicas == "auto" and not plan.boundaries
    neighbours = Neighbours(now, len(peers), paced=posed.paced, any_depth=free)
    keeps_shape = has_shape(plan, work.planning) and work.planning.replicas != "auto"
    best: dict[Kind, list[_Found]] = {}
    looked_at, most, is_all = 0, max(1, MOST_PLAYED // (2 * step)), True
    for change in _drawn(neighbours, most):
        if keeps_shape and change.counts != now.counts:
            continue
        if max(change.counts) > posed.micro_batches:
            continue
        if spent():
            is_all = False
            break
        looked_at += 1
        neighbour = priced(posed, now, change)
        if neighbour is not None and abs(neighbour.seconds - fast) > ALIKE * fast:
            kept = best.setdefault(change.kind, [])
            kept.append(_Found(change, neighbour.layout, neighbour.seconds))
            kept.sort(key=lambda one: one.seconds)
            del kept[TRIED_EXACTLY:]
    exact = _simulated(plan, view, work, peers, fine, best, max(1, MOST_SIMULATED // (step * len(now.counts))))
    return BestChanges(tuple(exact), looked_at, is_all and neighbours.count <= most)


def _drawn(neighbours: Neighbours, most: int) -> Iterator[LayoutChange]:
    """Yield all changes, or about `most` of them: each of layers and numbers in flight, and others as drawn, always the
    same."""
    few, count = len(neighbours.few), neighbours.count
    share = min(1.0, most / count)
    drawn = np.random.default_rng(0).integers(few, count, size=int(share * (count - few)))
    some = range(few, count) if share == 1 else sorted(set(drawn.tolist()))
    for number in (*range(few), *some):
        if (change := neighbours.change(number)) is not None:
            yield change


def _simulated(
    plan: Plan,
    view: View,
    work: Workload,
    peers: tuple[str, ...],
    posed: Problem,
    best: dict[Kind, list[_Found]],
    most: int,
) -> list[ChangedPlan]:
    """Return the best of each kind by the exact simulator, which plays `most` of them: first the best of each kind.

    Args:
        posed: with the plan's wire over all boundaries; which of a changed layout's are coarse is chosen anew.
    """
    turns = [
        sorted((found[turn] for found in best.values() if turn < len(found)), key=lambda one: one.seconds)
        for turn in range(TRIED_EXACTLY)
    ]
    exact: dict[Kind, ChangedPlan] = {}
    for change, layout, _ in [found for turn in turns for found in turn][:most]:
        tries = _wires(plan, work, posed, layout)
        played = [(*_played(plan, view, work, peers, posed, layout, wires), wires) for wires in tries]
        _, seconds, wires = min(played, key=lambda one: one[:2])
        if math.isfinite(seconds) and (change.kind not in exact or seconds < exact[change.kind].seconds):
            exact[change.kind] = ChangedPlan(change, layout, wires, seconds)
    return list(exact.values())


def _wires(plan: Plan, work: Workload, posed: Problem, layout: Layout) -> list[Wires]:
    """Return the wires that boundaries of a changed layout may have: where a plan has none of its own, one over all."""
    if not plan.boundaries:
        return [()]
    own = [plan.boundaries] if len(plan.boundaries) == len(layout.counts) - 1 else []
    return list(dict.fromkeys([(), *own, *wires_to_try(work, posed, layout)]))


def _played(
    plan: Plan, view: View, work: Workload, peers: tuple[str, ...], posed: Problem, layout: Layout, wires: Wires
) -> tuple[float, float]:
    """Return the seconds of a changed layout's step over boundaries with these wires, exactly simulated: as plans are
    compared, and as they are. Infinite where it then does not fit in memory."""
    over = over_wires(work, posed, wires)
    if not layout.fits(over):
        return math.inf, math.inf
    changed = with_wires(layout.plan(peers, plan.schedule, plan.wire, layout.recomputed(over)), wires)
    if posed.paced:
        changed = paced(view, work, changed, layout.in_flight(over, peers))
    changed, cost = summed_likewise(view, work, plan, changed)
    return weighed(changed, cost.total), cost.total
