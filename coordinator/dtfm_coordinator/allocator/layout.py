"""From a placement to a whole plan: shares and routes of micro-batches, then the layers of each stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dtfm_coordinator.allocator.demand import ModelDemand
from dtfm_coordinator.allocator.makespan import Links, Matrix
from dtfm_coordinator.allocator.routes import routes, shares
from dtfm_protocol.job import ScheduleName, Wire
from dtfm_protocol.model.memory import BYTES_PER_PARAMETER
from dtfm_protocol.plan import Plan
from dtfm_protocol.schedule import Action, orders
from dtfm_protocol.view import LayerSeconds

Stages = tuple[tuple[str, ...], ...]
"""The peers of each stage; in a grid, the r-th of every stage are a pipeline."""


class DoesNotFit(Exception):
    """The peers of a placement have too little memory for any split of the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """What a layout needs to know of the job and the peers."""

    demand: ModelDemand
    links: Links
    layer_seconds: Mapping[str, LayerSeconds]
    """Of one layer on each peer."""
    memory: Mapping[str, float]
    """Bytes; infinite where unknown."""
    micro_batches: int
    """Of a step, over the whole swarm."""
    schedule: ScheduleName
    wire: Wire


def lay_out(swarm: Swarm, stages: Stages, idle: Sequence[str] = ()) -> Plan:
    """The plan of a placement.

    Shares follow the peers' speeds within a stage. Layers follow the stages' speeds: each goes where the slowest
    peer's work is then least, so that the busiest stage is as little busy as can be, within every peer's memory.

    Raises:
        DoesNotFit: no split of the layers leaves every peer within its memory.
        ValueError: a stage has more peers than a step has micro-batches, or there are more stages than layers.
    """
    if len(stages) > swarm.demand.layers:
        raise ValueError(f"{swarm.demand.layers} layers cannot make {len(stages)} stages")
    stage_shares = [shares([_speed(swarm, peer) for peer in peers], swarm.micro_batches) for peers in stages]
    boundaries = [_message_seconds(swarm, *pair) for pair in pairwise(stages)]
    names = [
        tuple(stages[stage][index] for stage, index in enumerate(route)) for route in routes(stage_shares, boundaries)
    ]
    skeleton = Plan(
        stages=tuple((stage, stage + 1) for stage in range(len(stages))),
        routes=tuple(names),
        idle=tuple(idle),
        schedule=swarm.schedule,
        wire=swarm.wire,
    )
    counts = _layers(swarm, stages, stage_shares, skeleton)
    ends = np.cumsum(counts).tolist()
    spans = tuple(zip([0, *ends[:-1]], ends, strict=True))
    return skeleton.model_copy(update={"stages": spans})


def in_flight(plan: Plan) -> dict[str, int]:
    """The most micro-batches that each peer keeps between their forward and their backward."""
    return {peer: _peak(actions) for peer, actions in orders(plan).items()}


def _peak(actions: Sequence[Action]) -> int:
    held = peak = 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        peak = max(peak, held)
    return peak


def _speed(swarm: Swarm, peer: str) -> float:
    """Layers that a peer could take forward and backward a second."""
    seconds = swarm.layer_seconds[peer]
    return 1.0 / (seconds.forward + seconds.backward)


def _message_seconds(swarm: Swarm, before: Sequence[str], after: Sequence[str]) -> Matrix:
    """What one micro-batch's message and its gradient take between peers, shape (before, after)."""
    size = swarm.demand.message_bytes(swarm.wire)
    return swarm.links.message_seconds(before, after, size) + swarm.links.message_seconds(after, before, size).T


def _layers(swarm: Swarm, stages: Stages, stage_shares: Sequence[Sequence[int]], skeleton: Plan) -> list[int]:
    """How many layers each stage takes."""
    demand, last = swarm.demand, len(stages) - 1
    # Where even a whole share in flight fits, the schedule need not be known.
    most = _most_layers_of_stages(swarm, stages, skeleton.shares())
    if min(most) < demand.layers:
        most = _most_layers_of_stages(swarm, stages, in_flight(skeleton))
    if min(most) < 1 or sum(most) < demand.layers:
        raise DoesNotFit
    # A stage is as slow as its slowest peer's share, for each of its layers.
    load = [
        max(share / _speed(swarm, peer) for share, peer in zip(counts, peers, strict=True))
        for counts, peers in zip(stage_shares, stages, strict=True)
    ]
    extra = [demand.head_layers if stage == last else 0.0 for stage in range(len(stages))]
    layers = [1] * len(stages)
    for _ in range(demand.layers - len(stages)):
        room = [stage for stage in range(len(stages)) if layers[stage] < most[stage]]
        layers[min(room, key=lambda stage: ((layers[stage] + 1 + extra[stage]) * load[stage], stage))] += 1
    return layers


def _most_layers_of_stages(swarm: Swarm, stages: Stages, kept: Mapping[str, int]) -> list[int]:
    """What fits in the memory of every peer of each stage, with `kept` micro-batches in flight."""
    last = len(stages) - 1
    return [
        min(_most_layers(swarm.demand, stage == 0, stage == last, swarm.memory[peer], kept[peer]) for peer in peers)
        for stage, peers in enumerate(stages)
    ]


def _most_layers(demand: ModelDemand, is_first: bool, is_last: bool, memory: float, kept: int) -> int:
    """Layers that fit in a peer's memory; where they differ in size, as if all were the largest."""
    if is_first and is_last:
        return demand.layers if demand.memory_bytes(0, demand.layers, kept) <= memory else 0
    beside = 0
    if is_first:
        beside = BYTES_PER_PARAMETER * demand.embedding_parameters
    if is_last:
        beside = BYTES_PER_PARAMETER * demand.head_parameters + demand.head_bytes
    each = BYTES_PER_PARAMETER * max(demand.layer_parameters) + kept * demand.layer_activation_bytes
    if memory < beside + each:
        return 0
    return demand.layers if each == 0 else int(min(demand.layers, (memory - beside) // each))
