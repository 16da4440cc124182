"""Reductions of a changed plan: parts and trees of the plan before it, where the same peers sum the same gradients."""

from dtfm_coordinator.allocator.all_reduces.chosen_trees import laid, with_trees
from dtfm_coordinator.allocator.all_reduces.sized_parts import by_links
from dtfm_coordinator.allocator.problem.model_demand import has_memory_to_sum
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import Reduction, reductions
from dtfm_protocol.view.view import View


def summed_likewise(view: View, work: Workload, before: Plan, plan: Plan) -> tuple[Plan, PredictedSeconds]:
    """Return a plan, of which nothing says yet how its gradients are summed, with that said as `before` has it; and
    what its step takes, exactly simulated.

    Where that plan has sized parts, they are sized anew. Where it has trees, stages whose replicas are the same peers
    have its own, and others have them laid anew; either only where a step is shorter than straight to who sums.
    """
    if before.parts is None and before.trees is None:
        return plan, predict(view, work, plan).cost
    plan, cost = by_links(view, work, plan)
    if before.trees is None:
        return plan, cost
    kept = carried(before, plan)
    took = predict(view, work, kept).cost
    if took.total < cost.total and has_memory_to_sum(kept, work.demand, view.nodes):
        plan, cost = kept, took
    bare = [stage for stage in range(len(plan.stages)) if plan.trees is None or not plan.trees.stages[stage]]
    return with_trees(view, work, plan, cost, bare)


def carried(before: Plan, plan: Plan) -> Plan:
    """Return the plan with the parts and trees that `before` has of those reductions that have the same holders, in
    whatever order, and go along trees there."""
    had = {(one.is_shared, frozenset(one.holders)): one for one in reductions(before, tied=True) if any(one.trees)}
    for one in reductions(plan, tied=True):
        old = had.get((one.is_shared, frozenset(one.holders)))
        if old is not None:
            plan = _in_order_of(one, old, plan)
    return plan


def _in_order_of(one: Reduction, old: Reduction, plan: Plan) -> Plan:
    """Return the plan with the parts and trees of `old` of its reduction `one`, by the places of holders in it."""
    was = [old.holders.index(peer) for peer in one.holders]  # the place of each in the old order
    now = [one.holders.index(peer) for peer in old.holders]
    parts = tuple(old.parts[place] for place in was) if old.parts else ()
    trees = tuple(
        tuple(now[tree[place]] for place in was) if tree else () for tree in (old.trees[place] for place in was)
    )
    return laid(plan, one, parts, trees)
