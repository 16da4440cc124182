"""Idle peers, and what each would bring: the step with it as one more replica of each stage, exactly simulated."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dtfm_coordinator.allocator.all_reduces.sized_parts import by_links
from dtfm_coordinator.allocator.paced_plan import in_flight_of, paced
from dtfm_coordinator.allocator.problem.model_demand import (
    ActionSeconds,
    apart_of,
    layer_seconds,
    memory_needed,
    stage_seconds,
)
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import orders
from dtfm_protocol.view.view import View

MOST_ACTIONS = 20_000
"""Number of actions that are simulated for all idle peers together: a second or two."""


@dataclass(frozen=True, slots=True)
class IdlePeer:
    """Idle peer, and the best that it could do."""

    peer: str
    stage: int | None
    """Stage, from 0, where one more replica makes the shortest step; None where the peer can serve none."""
    seconds: float
    """Seconds of a step with the peer there; infinite where it can serve none."""
    obstacle: str
    """Reason why it can serve no stage; "" where it can."""


def tried(plan: Plan, view: View, work: Workload, peers: tuple[str, ...]) -> tuple[IdlePeer, ...]:
    """Return what the first of `peers` would bring, as many as can quickly be tried."""
    cost = sum(map(len, orders(plan).values())) * len(plan.stages)
    return tuple(_try(plan, view, work, peer) for peer in peers[: MOST_ACTIONS // cost])


def _try(plan: Plan, view: View, work: Workload, peer: str) -> IdlePeer:
    speeds = layer_seconds(view.nodes, work.demand)
    memory = next(node.memory_bytes for node in view.nodes if node.id == peer)
    apart = apart_of(view.nodes)
    best, fits, shares = IdlePeer(peer, None, math.inf, ""), False, False
    for stage in range(len(plan.stages)):
        own = work.demand.stage_seconds(*plan.stages[stage], speeds[peer], recompute=stage in plan.recompute)
        joined = with_replica(plan, peer, stage, stage_seconds(plan, work.demand, speeds), own)
        if joined is None:
            continue
        shares = True
        if plan.pacing is not None:
            flying = in_flight_of(plan)
            most = tuple(
                max(numbers) for numbers in zip(*(flying[other] for other in plan.replicas(stage)), strict=True)
            )
            joined = paced(view, work, joined, {**flying, peer: (most[0], most[1])})
        if memory is not None and memory_needed(joined, work.demand, apart)[peer] > memory:
            continue
        fits = True
        cost = predict(view, work, joined).cost if plan.parts is None else by_links(view, work, joined)[1]
        seconds = cost.total
        if seconds < best.seconds:
            best = IdlePeer(peer, stage, seconds, "")
    if best.stage is not None:
        return best
    if not shares:
        return IdlePeer(peer, None, math.inf, "it is too slow to take a micro-batch off any peer's hands")
    obstacle = "it cannot reach the peers that it would have to talk to" if fits else "no stage fits in its memory"
    return IdlePeer(peer, None, math.inf, obstacle)


def with_replica(
    plan: Plan, peer: str, stage: int, seconds: Mapping[str, ActionSeconds], own: ActionSeconds
) -> Plan | None:
    """Return the plan with `peer` as one more replica of `stage`, without a pace; None where no peer has a
    micro-batch to spare for it.

    Micro-batches go over one by one from the peer that is busiest, as long as that leaves the two less busy; then
    each peer gives them from all over its share, so that the newcomer is as evenly fed as the others.

    Args:
        seconds: seconds of each peer of the stage, for one micro-batch through it.
        own: seconds of `peer` for the same.
    """
    shares = {other: len(plan.micro_batches(other)) for other in plan.replicas(stage)}
    each = {other: sum(seconds[other]) for other in shares}
    given, taken = dict.fromkeys(shares, 0), 0
    while True:
        giver = max(shares, key=lambda other: (shares[other] - given[other]) * each[other])
        left = shares[giver] - given[giver]
        if left <= 1 or (taken + 1) * sum(own) >= left * each[giver]:
            break
        given[giver] += 1
        taken += 1
    if taken == 0:
        return None
    routes = [list(route) for route in plan.routes]
    for giver, count in given.items():
        owned = plan.micro_batches(giver)
        for number in range(count):
            routes[owned[((2 * number + 1) * len(owned)) // (2 * count)]][stage] = peer
    return plan.model_copy(
        update={
            "routes": tuple(tuple(route) for route in routes),
            "cost": None,
            "pacing": None,
            "follows_durations": False,
            "parts": None,
            "trees": None,
        }
    )
