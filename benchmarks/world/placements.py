"""Plans to compare on one world: good ones, random ones, in the order of the devices, and as bad as can be found."""

import itertools
import random
from collections.abc import Sequence

from benchmarks.world.paced import World, prediction
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.paper.paper_plan import allocate_paper
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

DRAWN = 300
"""Random placements of which the worst is taken."""
BUDGET = 3.0
"""Seconds of search."""


def grid(peers: Sequence[str], stages: int, layers: int, micro_batches: int) -> Plan:
    """Stages of equal depth; the first peers are the replicas of the first stage, the next ones of the second.

    Pipeline k is the k-th replica of every stage: Megatron's ranks are placed so, for `peers` in order.
    """
    replicas = len(peers) // stages
    bounds = [layers * stage // stages for stage in range(stages + 1)]
    routes = [[peers[stage * replicas + k % replicas] for stage in range(stages)] for k in range(micro_batches)]
    ranges = list(itertools.pairwise(bounds))
    return Plan.model_validate({"stages": ranges, "routes": routes, "schedule": "1f1b"})


def in_order(world: World, stages: int) -> Plan:
    """Megatron's ranks on devices in region order."""
    return grid(world.view.ids, stages, world.layers, world.micro_batches)


def at_random(world: World, stages: int, seed: int) -> Plan:
    """The same on devices in any order."""
    peers = random.Random(seed).sample(world.view.ids, len(world.view.ids))
    return grid(peers, stages, world.layers, world.micro_batches)


def adversarial(world: World, stages: int) -> Plan:
    """The worst of many random ones, as the cost model has it."""
    drawn = [at_random(world, stages, seed) for seed in range(DRAWN)]
    return max(drawn, key=lambda plan: prediction(world, world.small, plan))


def searched(world: World, view: View, stages: int | None = None) -> Plan:
    """The allocator's, on `view`: of a depth of its own choice unless it is given."""
    work = world.work
    if stages is not None:
        planning = work.planning.model_copy(update={"stages": stages})
        work = Workload(work.demand, work.micro_batches, planning)
    return allocate(view, work, seed=0, budget=BUDGET)


def papers(world: World, stages: int) -> Plan:
    """The best grid by the paper's cost, with its own sizes."""
    work = world.work
    demand, replicas = work.demand, len(world.view.ids) // stages
    ahead, _ = demand.message_bytes(work.planning.wire)
    found = allocate_paper(
        world.small,
        stages,
        ahead * world.micro_batches / replicas,
        demand.gradient_bytes(0, world.layers // stages, work.planning.wire),
        budget=BUDGET,
    )
    order = [route[stage] for stage in range(stages) for route in found.routes]
    return grid(order, stages, world.layers, world.micro_batches)
