"""Boundaries between stages that micro-batches cross in a coarser wire, because the links there are slow.

A coarser wire is lossy, and what that does to the training no simulated step shows: so each boundary that has one must
be worth it. Plans are compared by their seconds as if each coarse boundary took `WORTH` of the step. Which ones are
coarse is searched by single changes, from none on and from all on: where several slow boundaries hold up each other, no
single one of them helps.
"""

from collections.abc import Callable, Sequence
from functools import cache

from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.job.job_file import Wire
from dtfm_protocol.plan.plan import Plan

WORTH = 0.02
"""Of a step: so much shorter each coarse boundary must make it. Predictions are a few per cent off, and what a codec
leaves out may cost as much in steps that are needed more."""

Wires = tuple[Wire, ...]
"""Wires of a plan's boundaries, in order."""


def weighed(plan: Plan, seconds: float) -> float:
    """Return the seconds of a plan's step as plans are compared: with `WORTH` for each coarse boundary."""
    return seconds / (1 - WORTH) ** len(coarse_wires(plan))


def coarse_wires(plan: Plan) -> Wires:
    """Return the wires of those boundaries of a plan that have another one than the plan."""
    return tuple(wire for wire in plan.boundaries if wire != plan.wire)


def coarse_words(plan: Plan) -> str:
    """Return how many boundaries of a plan are coarse, and in which wires, e.g. "2 of 5 boundaries in int8"; "": none
    are."""
    found = coarse_wires(plan)
    wires = " or ".join(dict.fromkeys(map(str, found)))
    return f"{len(found)} of {len(plan.boundaries)} boundaries in {wires}" if found else ""


def with_wires(plan: Plan, wires: Wires) -> Plan:
    """Return a plan without a pace with these wires of its boundaries."""
    is_plain = all(one == plan.wire for one in wires)
    return plan.model_copy(update={"boundaries": () if is_plain else wires})


def over_wires(work: Workload, problem: Problem, wires: Sequence[Wire]) -> Problem:
    """Return the problem with the bytes of messages over boundaries that have these wires, in order; of further ones
    with those that it has."""
    sizes = problem.boundary_bytes.copy()
    for boundary, wire in enumerate(wires):
        sizes[:, boundary] = work.demand.message_bytes(wire)
    return problem._replace(boundary_bytes=sizes)


def wires_to_try(work: Workload, problem: Problem, layout: Layout) -> tuple[Wires, ...]:
    """Return the wires of a layout's boundaries that may be better than the job's wire over all, by the fast form of
    the simulated step; (): none, or the job allows no other.

    Args:
        problem: with the bytes of the job's wire over all boundaries.
    """
    fine, coarse, count = work.planning.wire, work.planning.coarse_wire, len(layout.counts) - 1
    if coarse == fine or count == 0:
        return ()

    @cache
    def total(wires: Wires) -> float:
        return layout.cost(over_wires(work, problem, wires)).total

    def seconds(wires: Wires) -> float:
        return total(wires) / (1 - WORTH) ** wires.count(coarse)

    none, every = (fine,) * count, (coarse,) * count
    if total(every) > (1 - WORTH) * total(none):
        return ()  # all together do not bring what one must
    found = dict.fromkeys(settled(begun, (fine, coarse), seconds) for begun in (none, every))
    return tuple(wires for wires in found if wires != none)


def settled(begun: Wires, either: tuple[Wire, Wire], seconds: Callable[[Wires], float]) -> Wires:
    """Return the wires of boundaries to which single changes for the better lead.

    Args:
        begun: those to begin with.
        either: the two that a boundary may have.
        seconds: returns the seconds of a step over such wires, as plans are compared.
    """
    now, least = begun, seconds(begun)
    is_better = True
    while is_better:
        is_better = False
        for boundary in range(len(now)):
            changed = either[1] if now[boundary] == either[0] else either[0]
            other = (*now[:boundary], changed, *now[boundary + 1 :])
            if (found := seconds(other)) < least:
                now, least, is_better = other, found, True
    return now
