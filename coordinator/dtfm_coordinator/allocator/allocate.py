"""Allocator of `serve`, `plan`, `explain` and `compare`: from a view to the plan with the shortest simulated step.

The search (`layout_evolution`) judges layouts by the fast form of the simulated step; the exact simulator has the last
word on the best few (`final_choice`). Where the job leaves the schedule open, the other schedules' searches begin with
what the first has found. Where a plan is in force, what it would take to move from it counts too (`moving_cost`), and
it stays in force unless another pays that back within the job's horizon.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from dtfm_coordinator.allocator.all_reduces.chosen_trees import with_trees
from dtfm_coordinator.allocator.all_reduces.tree_search import compile_search
from dtfm_coordinator.allocator.coarse_boundaries import coarse_wires, coarse_words, over_wires
from dtfm_coordinator.allocator.final_choice import FINALISTS, FinalChoice, Finalist
from dtfm_coordinator.allocator.foundations.compiled import compiling
from dtfm_coordinator.allocator.foundations.search_budget import CUT_SHORT, DEFAULT_SEARCH_SECONDS, Budget
from dtfm_coordinator.allocator.foundations.shapes import Shape, feasible_shapes, shape_words
from dtfm_coordinator.allocator.foundations.side_by_side import all_cores
from dtfm_coordinator.allocator.paced_plan import in_flight_of, most_kept, paced, tightened
from dtfm_coordinator.allocator.plan_in_force import InForce
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.problem.moving_cost import moving_seconds, standing
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.layout_evolution import Evolution
from dtfm_coordinator.allocator.search.promising_shapes import ranked
from dtfm_coordinator.allocator.search.starts import at_random, every, in_order, near_by_message, placements, starts
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.why_no_plan import why_no_plan
from dtfm_coordinator.allocator.workload import Workload, as_cost, is_soon_predicted, pose, predict
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import orders
from dtfm_protocol.view.view import LayerSeconds, NodeView, View

ENDS = (0.6, 0.8, 1.0)
"""Shares of the budget at which the searches under each of `SCHEDULES` end, where all are open."""
COARSE = 2 / 3
"""Of the budget: so much more is searched where boundaries may be coarse. The searches by the job's wire over all of
them keep the whole of it, so that the plan that they lead to is found in any case."""
CHANGED = 0.15
"""Of the budget: so much longer, at most, what the searches have found is changed singly."""
ANEW = 0.25
"""Part of a search's time that one takes which begins with what another has found on about the same view."""
LONGEST_SEARCH_SECONDS = 10.0
"""Of a search without limits on many peers and micro-batches; small ones take `DEFAULT_SEARCH_SECONDS`."""
SEARCHED = 0.25
"""Of a step: so long a search without limits takes at least, for it is the first of many."""
GUESSES = 4
"""Number of shapes of which a placement each is looked at to guess a step."""
ORDERS_SAVE = 0.02
"""Of a step: so much shorter it must be with other orders alone, for what is measured anew differs by about as much."""
EXHAUSTIVE = 600_000
"""Number of placements, at most, that an exhaustive search looks at: about a minute of it."""


def allocate(
    view: View,
    work: Workload,
    seed: int = 0,
    budget: float | None = None,
    evaluations: int | None = None,
    available: Collection[str] | None = None,
    in_force: Plan | None = None,
    standstill: float = 0.0,
    begun: Plan | None = None,
    algorithm: str = "evolutionary",
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], object] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
    cores: int | None = None,
) -> Plan:
    """Return the plan of a job on a swarm with the shortest predicted step.

    Args:
        seed: seed of the search's own random numbers.
        budget: seconds of search; about one where neither limit is given, and up to ten for large swarms and long
            steps.
        evaluations: layouts that the search may look at. Without `budget`, the same arguments give the same plan,
            `seconds` and `history` apart. Of both, `COARSE` more is taken where boundaries may be coarse.
        available: the peers that may take part, all of the view's unless given; the others stay idle.
        in_force: the plan under which peers hold their state now. It is returned again, with its new cost and the
            reason, where all its peers are available and no other plan pays back the move within the horizon.
        standstill: seconds that a change takes besides moving state, whatever it is.
        begun: the plan that a search has found on about the same view: this one begins with it, and without limits
            takes only `ANEW` of the time.
        algorithm: "evolutionary"; or "greedy" (the search's first placements alone), "random" or "in-order" (one
            placement of each shape), or "exhaustive" (every placement of small swarms, with shares and layers that
            follow speeds), to compare with. Shares and layers are chosen in the same way in all.
        say: told that the search is being compiled, if it is.
        stop: whether to end now with the best plan so far, whose reason says so.
        cores: number of this machine's cores to search on; all unless given, and one where `evaluations` are.

    Raises:
        NotEnoughNodes: what the owner fixes needs more nodes.
        UserError: no split of the model fits in the peers' memory, no placement keeps to pairs that can talk, or
            nothing is known of any peer's speed; or the plan in force is another model's.
    """
    peers = tuple(peer for peer in view.ids if available is None or peer in available)
    unavailable = tuple(peer for peer in view.ids if peer not in set(peers))
    shapes = feasible_shapes(len(peers), work.demand.layers, work.micro_batches, work.planning)
    open_pace = work.planning.in_flight == "auto"
    problems = [pose(view, work, peers, schedule, paced=open_pace) for schedule in work.schedules]
    compile_now(say)  # after all that can be refused has been: it may take a minute
    if budget is None and evaluations is None:
        budget = search_seconds(len(peers), work.micro_batches, _first_guess(problems[0], shapes))
        budget *= 1.0 if begun is None else ANEW
    limits = Budget(budget, evaluations, clock, stop, cores=cores or (all_cores() if evaluations is None else 1))
    old = InForce.of(view, work, problems[0], peers, in_force)
    begun_with = None if begun is None else Layout.of_plan(begun, peers)
    seeds = [layout for layout in (old.layout, begun_with) if layout is not None]
    searches, ends, finalists = list[Evolution](), list[Finalist](), list[Finalist]()
    for its_work, turns in _rounds(work, problems, algorithm):
        before = limits.share_used()
        for problem, end in turns:
            limits.until = before + end
            searches.append(_searched(work, problem, shapes, old, seeds, limits, seed, algorithm, searches))
        by_problem = [searches[number :: len(problems)] for number in range(len(problems))]
        choice = FinalChoice(view, its_work, peers, old)
        finalists = choice.finalists(list(zip(problems, by_problem, strict=True)))
        if not finalists:
            continue
        best = choice.best(finalists)
        if algorithm == "evolutionary":
            limits.until += CHANGED
            best = choice.changed_singly(best, limits)
        ends.append(best)
    if not ends:
        raise UserError(why_no_plan(work, problems[0], shapes, any(search.fitted for search in searches)))
    best = min(ends, key=FinalChoice(view, work, peers, old).whole)
    chosen = replace(best, plan=tightened(best.plan))
    if work.planning.parts == "auto" and is_soon_predicted(work, chosen.plan):
        plan, cost = with_trees(view, work, chosen.plan, chosen.cost)
        chosen = replace(chosen, plan=plan, cost=cost)
    plan, cost, reason = _or_stay(view, work, old, chosen, standstill, _reason(work, chosen, finalists))
    if in_force is not None and old.plan is None:
        reason += f"; the plan in force cannot go on ({old.over}): state moves for {old.moving(chosen.layout):.3g} s"
    reason += CUT_SHORT if stop() else ""
    return plan.model_copy(
        update={
            "idle": (*(peer for peer in peers if plan.stage_of(peer) is None), *unavailable),
            "cost": as_cost(cost),
            "seed": seed,
            "evaluations": limits.spent_evaluations,
            "seconds": limits.elapsed(),
            "reason": reason,
            # The search goes by the fast form; where the exact one is dearer, what seemed better was not.
            "history": (
                *(one for one in _descending(searches[: len(problems)]) if one[1] > cost.total),
                (limits.elapsed(), cost.total),
            ),
        }
    )


def search_seconds(peers: int, micro_batches: int, step: float) -> float:
    """Return the seconds that a search without limits takes on so many peers, for so many micro-batches of a step, by
    one wire over all boundaries.

    Args:
        step: seconds that a step is about to take; 0: not known.
    """
    needed = DEFAULT_SEARCH_SECONDS * max(1.0, peers * micro_batches / 4096)
    return min(LONGEST_SEARCH_SECONDS, max(needed, SEARCHED * step))


def _first_guess(problem: Problem, shapes: tuple[Shape, ...]) -> float:
    """Return the seconds of a step under the best of a few placements that are made without a search; 0: none fits."""
    near, found = near_by_message(problem), []
    for shape in ranked(shapes, problem)[:GUESSES]:
        layout = Layout.of(problem, next(starts(problem, near, shape, False)))
        found += [layout.cost(problem).total] if layout is not None else []
    best = min(found, default=np.inf)
    return best if np.isfinite(best) else 0.0


def compile_now(say: Callable[[str], object] = lambda line: None) -> None:
    """Have all functions compiled, or their machine code loaded, so that no budget is spent on it."""
    with compiling("who computes what", say):
        _compile()


def _compile() -> None:
    """Use every compiled function once, on a swarm of two."""
    demand = ModelDemand(
        layer_parameters=(1, 1), embedding_parameters=1, head_parameters=1, message_values=1, layer_activation_bytes=1
    )
    speed = LayerSeconds(forward=1.0, backward=2.0)
    nodes = (NodeView(id="a", layer_seconds=speed), NodeView(id="b", layer_seconds=speed))
    view = View(nodes=nodes, latency_ms=np.zeros((2, 2)), bandwidth_gbps=np.ones((2, 2)))
    posed = pose(view, Workload(demand, 1, Planning()), view.ids)
    free = standing(posed, {}, np.inf)
    search = Evolution(posed, free, Budget(None, 8, time.monotonic), 0, any_depth=False, any_counts=False)
    search.run([Shape(2, 1)], [])
    compile_search()
    one = np.ones(1, dtype=np.int64)
    moving_seconds(posed, free, one - 1, one, one)


def _rounds(
    work: Workload, problems: list[Problem], algorithm: str
) -> list[tuple[Workload, list[tuple[Problem, float]]]]:
    """Return what is searched, in order, round by round: for what job plans are chosen at its end, and each schedule's
    problem with the share of the budget, counted from the round's beginning, at which its search ends.

    Where boundaries may be coarse the first round goes without: what it finds is what it would find if they might not.
    The second one, beyond the budget, goes by all of them coarse, under which other layouts are better.
    """
    fine, coarse = work.planning.wire, work.planning.coarse_wire
    ends = ENDS if len(problems) > 1 else (1.0,)
    first = list(zip(problems, ends, strict=True))
    if coarse == fine or algorithm != "evolutionary":
        return [(work, first)]
    without = replace(work, planning=work.planning.model_copy(update={"slow_wire": "none"}))
    every = (coarse,) * work.demand.layers
    second = [(over_wires(work, problem, every), COARSE * end) for problem, end in first]
    return [(without, first), (work, second)]


def _searched(
    work: Workload,
    problem: Problem,
    shapes: tuple[Shape, ...],
    old: InForce,
    seeds: list[Layout],
    limits: Budget,
    seed: int,
    algorithm: str,
    before: list[Evolution],
) -> Evolution:
    """Search one problem, after others (`before`) or from `seeds` on, and return the search.

    Raises:
        UserError: there are too many placements to look at all.
    """
    any_depth, uneven = work.planning.stages == "auto", work.planning.replicas == "auto"
    search = Evolution(problem, old.standing, limits, seed, any_depth=any_depth, any_counts=uneven, in_force=old.layout)
    if algorithm == "evolutionary" and not before:
        search.run(ranked(shapes, problem), seeds)
    elif algorithm == "evolutionary":
        search.run(ranked(shapes, problem), [layout for other in before for layout in other.finalists(FINALISTS)])
    elif algorithm == "greedy":
        near = near_by_message(problem)
        search.look_at(stages for shape in shapes for stages in starts(problem, near, shape, uneven))
    elif algorithm == "random":
        search.look_at(at_random(problem, shapes, seed))
    elif algorithm == "in-order":
        search.look_at(in_order(problem, shapes))
    else:
        count = placements(problem, shapes, uneven) * len(work.schedules)
        if count > EXHAUSTIVE:
            raise UserError(
                f"--algorithm exhaustive: there are {count:.3g} placements, more than {EXHAUSTIVE}: "
                "use fewer nodes, fix stages and replicas, or search"
            )
        search.look_at(every(problem, shapes, uneven))
    return search


def _in_force(view: View, work: Workload, old: InForce) -> float:
    """Return the seconds of a step of the plan in force by the orders that its peers have made since, as they follow
    durations of compute, which the view tells, too."""
    if old.plan is None or old.plan.pacing is None or not old.plan.follows_durations:
        return old.seconds
    now = paced(view, work, old.plan, in_flight_of(old.plan)).pacing
    pacing = old.plan.pacing.model_copy(update={kind: getattr(now, kind) for kind in ("forward", "backward", "weight")})
    return predict(view, work, old.plan.model_copy(update={"pacing": pacing})).cost.total


def _or_stay(
    view: View, work: Workload, old: InForce, chosen: Finalist, standstill: float, why: str
) -> tuple[Plan, PredictedSeconds, str]:
    """The chosen plan, or the one in force where moving does not pay back within the horizon; its cost, and why."""
    if old.plan is None:
        return chosen.plan, chosen.cost, why
    move, saved = old.moving(chosen.layout) + standstill, old.seconds - chosen.cost.total
    is_alike = chosen.plan.is_placed_as(old.plan)
    by_orders = _in_force(view, work, old) - chosen.cost.total if is_alike else np.inf
    if saved * old.horizon <= move or by_orders < ORDERS_SAVE * old.seconds:
        assert old.cost is not None
        return old.plan, old.cost, _kept_because(work, old, chosen, move)
    why += (
        f"; the plan in force takes {old.seconds:.3g} s: moving takes {move:.3g} s and pays back in "
        f"{_steps(move, saved)}"
    )
    return chosen.plan, chosen.cost, why


def _descending(searches: list[Evolution]) -> list[tuple[float, float]]:
    """Return the searches' histories as one, (seconds, step's seconds) of each layout that was the best so far."""
    history: list[tuple[float, float]] = []
    for one in (one for search in searches for one in search.history):
        if not history or one[1] < history[-1][1]:
            history.append(one)
    return history


def _reason(work: Workload, best: Finalist, finalists: list[Finalist]) -> str:
    """Return in one line why this plan was chosen."""
    stages, each = shape_words(best.layout.counts)
    line = f"{stages} {'stage' if stages == 1 else 'stages'} x {each} {'peer' if each == '1' else 'peers'}"
    line += f", {best.plan.schedule}" if len(work.schedules) > 1 else ""
    if best.plan.pacing is not None:
        line += f", up to {most_kept(orders(best.plan))} micro-batches in flight to hide links"
    line += f", {coarse_words(best.plan)}" if coarse_wires(best.plan) else ""
    line += ", gradients summed by links" if best.plan.parts is not None else ""
    line += ", along trees" if best.plan.trees is not None else ""
    line += f": {best.cost.total:.3g} s a step predicted"
    others: dict[str, float] = {}
    for one in sorted(finalists, key=lambda one: one.cost.total):
        others.setdefault(_words(work, one), one.cost.total)
    others.pop(_words(work, best), None)  # a single change may have made it of another shape
    if others:
        line += f"; {', '.join(f'{words} {total:.3g} s' for words, total in list(others.items())[:3])}"
    return line


def _kept_because(work: Workload, old: InForce, best: Finalist, move: float) -> str:
    """Return in one line why the plan in force stays."""
    line = f"the plan in force stays: {old.seconds:.3g} s a step"
    saved = old.seconds - best.cost.total
    if saved <= 0:
        return f"{line}; nothing was found whose move pays back within {old.horizon:.3g} steps"
    if saved * old.horizon > move:
        return f"{line}; other orders would take {best.cost.total:.3g} s, which is too little less to stand still for"
    return (
        f"{line}; {_words(work, best)} would take {best.cost.total:.3g} s, but moving takes {move:.3g} s and pays back "
        f"in {_steps(move, saved)}, later than the horizon of {old.horizon:.3g} steps"
    )


def _words(work: Workload, one: Finalist) -> str:
    """Return a layout's shape, and its schedule and pace where the job leaves those open and they make a difference."""
    shape = " x ".join(map(str, shape_words(one.layout.counts)))
    if len(one.layout.counts) == 1:
        return shape
    shape += f" by {one.plan.schedule}" if len(work.schedules) > 1 else ""
    return f"{shape} with more in flight" if one.plan.pacing is not None else shape


def _steps(move: float, saved: float) -> str:
    count = int(np.ceil(move / saved))
    return f"{count} step{'s' if count != 1 else ''}"
