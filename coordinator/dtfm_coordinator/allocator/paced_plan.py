"""Plan with a pace: what its actions and messages take by a view, and how much its peers keep in flight."""

from collections.abc import Mapping

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.model_demand import boundary_bytes, layer_seconds, stage_seconds
from dtfm_coordinator.allocator.simulator.fast_all_reduce import seconds_to_send
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_pace import Pacing
from dtfm_protocol.plan.schedule import Action, most_between, most_in_flight, orders
from dtfm_protocol.plan.schedule_rules import microseconds
from dtfm_protocol.view.view import View


def paced(view: View, work: Workload, plan: Plan, in_flight: Mapping[str, tuple[int, int]]) -> Plan:
    """Return the plan with the pace that its peers and their links have by `view`, which follows durations that drift;
    under gpipe as it is, without one.

    Args:
        in_flight: micro-batches that each peer may have between forward and backward, and may keep in all.
    """
    if plan.schedule == "gpipe":
        return plan.model_copy(update={"pacing": None, "follows_durations": False})
    links, sizes = Links.of(view), boundary_bytes(plan, work.demand)
    stage_of = {peer: stage for stage in range(len(plan.stages)) for peer in plan.replicas(stage)}
    seconds = stage_seconds(plan, work.demand, layer_seconds(view.nodes, work.demand))
    columns: dict[str, tuple[int, ...]] = {
        kind: tuple(microseconds(getattr(seconds[peer], kind), 1) for peer in plan.peers)
        for kind in ("forward", "backward", "weight")
    }
    if plan.schedule != "zero-bubble":
        del columns["weight"]
    for name, way, pairs in (("ahead", 0, plan.pairs), ("back", 1, [(b, a) for a, b in plan.pairs])):
        rows = [(links.index[sender], links.index[receiver]) for sender, receiver in pairs]
        sent = [sizes[min(map(stage_of.__getitem__, pair))][way] for pair in pairs]
        columns[name] = tuple(
            microseconds(float(seconds_to_send(size, links.beta[row])), 0) for size, row in zip(sent, rows, strict=True)
        )
        columns[f"{name}_delay"] = tuple(microseconds(float(links.alpha[row]), 0) for row in rows)
    flying, kept = zip(*(in_flight[peer] for peer in plan.peers), strict=True)
    pacing = Pacing(in_flight=flying, kept=kept, **columns)
    return plan.model_copy(update={"pacing": pacing, "follows_durations": True})


def tightened(plan: Plan) -> Plan:
    """Return a plan with a pace whose in-flight numbers are no larger than its orders need, where that leaves these as
    they are; any other as it is."""
    if plan.pacing is None:
        return plan
    made = orders(plan)
    flying, kept = tuple(most_between(made[p]) for p in plan.peers), tuple(most_in_flight(made[p]) for p in plan.peers)
    tight = plan.model_copy(update={"pacing": plan.pacing.model_copy(update={"in_flight": flying, "kept": kept})})
    return tight if orders(tight) == made else plan


def in_flight_of(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return how many micro-batches each peer of a plan with a pace may have between forward and backward, and may keep
    in all."""
    assert plan.pacing is not None
    return dict(zip(plan.peers, zip(plan.pacing.in_flight, plan.pacing.kept, strict=True), strict=True))


def most_kept(made: Mapping[str, tuple[Action, ...]]) -> int:
    """Return the most micro-batches whose activations any peer keeps."""
    return max(map(most_in_flight, made.values()))
