"""Needs of a stage by the depth of the pipeline: memory as plans are judged by it, and bytes on the wire (pure)."""

from dataclasses import dataclass
from itertools import pairwise

from dtfm_coordinator.allocator.problem.model_demand import ModelDemand, memory_needed
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan

FULL_PIPELINE = 4
"""Micro-batches for each stage with which a pipeline is as full as it gets under 1F1B and zero-bubble: no peer keeps
more of them however many follow."""


@dataclass(frozen=True)
class StageNeeds:
    """Needs of the most demanding stage of a pipeline whose stages have as many layers, give or take one."""

    stages: int
    layers: int
    """Number of layers of the stage that has most."""
    parameters: int
    """Number of parameters of the stage that has most."""
    trained: int
    """Number of parameters that are trained of the stage that has most of them."""
    memory_bytes: int
    """Bytes of memory of a peer that keeps all activations between forward and backward."""
    recomputed_bytes: int
    """The same where activations are computed anew."""
    host_bytes: int
    """Those of either that a GPU leaves in the machine's memory, of the stage that has most."""
    state_bytes: int
    """Bytes of the state of the stage that has most: what a peer fetches that takes the place of a lost one."""
    gradient_bytes: float
    """Bytes of gradients that a stage's replicas reduce a step among themselves, coded for the wire."""


def depths(layers: int, planning: Planning) -> tuple[int, ...]:
    """Return the numbers of stages to look at: 1, 2, 4 and so on, one for each layer, and what the owner fixes."""
    chosen = {1 << power for power in range(layers.bit_length()) if 1 << power <= layers} | {layers}
    if planning.stages != "auto" and planning.stages <= layers:
        chosen.add(planning.stages)
    return tuple(sorted(chosen))


def stage_needs(demand: ModelDemand, micro_batches: int, planning: Planning, stages: int) -> StageNeeds:
    """Return what the most demanding of so many stages needs, with as many replicas as the owner fixes, else one.

    Args:
        micro_batches: number of micro-batches of a step, over the whole swarm.
        stages: number of stages, one to the model's number of layers.
    """
    borders = [number * demand.layers // stages for number in range(stages + 1)]
    spans = tuple(pairwise(borders))
    return StageNeeds(
        stages,
        max(end - first for first, end in spans),
        max(demand.parameters(*span) for span in spans),
        max(demand.trained(*span) for span in spans),
        _memory(demand, micro_batches, planning, spans, recompute=False),
        _memory(demand, micro_batches, planning, spans, recompute=True),
        max(demand.host_bytes(*span) for span in spans),
        max(int(demand.table.state_bytes * demand.trained(*span)) for span in spans),
        max(demand.gradient_bytes(*span, planning.wire) for span in spans),
    )


def smallest_stage_bytes_of(demand: ModelDemand) -> int:
    """Return the bytes of memory of the least demanding stage: one layer, and one micro-batch in flight."""
    return min(demand.memory_bytes(layer, layer + 1, 1) for layer in range(demand.layers))


def _memory(
    demand: ModelDemand, micro_batches: int, planning: Planning, spans: tuple[tuple[int, int], ...], *, recompute: bool
) -> int:
    """Return the bytes of memory of the peer that needs most."""
    replicas = 1 if planning.replicas == "auto" else min(planning.replicas, micro_batches)
    schedule = "1f1b" if planning.schedule == "auto" else planning.schedule
    # Under GPipe all forwards come first, so that every micro-batch of a step counts.
    played = micro_batches if schedule == "gpipe" else min(micro_batches, FULL_PIPELINE * len(spans) * replicas)
    plan = Plan(
        stages=spans,
        routes=tuple(tuple(f"{stage}.{number % replicas}" for stage in range(len(spans))) for number in range(played)),
        schedule=schedule,
        wire=planning.wire,
        recompute=tuple(range(len(spans))) if recompute else (),
    )
    return max(memory_needed(plan, demand).values())
