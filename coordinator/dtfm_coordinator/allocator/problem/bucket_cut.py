"""Buckets of a reduction as both simulators play them: how large, how many at a time, and when each is final.

The engine cuts gradients into buckets (`Reduction.bucket_elements`) and begins one when the reduction's `Timing` says,
as when the last micro-batch's backward is through with its layers. Here at most `MOST_BUCKETS` are played: of more,
neighbours are taken together, and so many fewer are under way at a time. What is lost of their delays is little where a
bucket's bytes take longer than those.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_protocol.model.stage_compute import untrained_prefix
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import Reduction

MOST_BUCKETS = 8


class BucketCut(NamedTuple):
    """Buckets of one reduction."""

    sizes: tuple[float, ...]
    """Bytes of each, as coded for the wire, in the order in which they become final."""
    under_way: int
    """Number of them that a holder reduces at a time."""
    final: tuple[tuple[float, ...], ...]
    """For each stage whose peers hold them, the share of the last action after which each may begin."""


BucketsOf = Callable[[Reduction, float], BucketCut]
"""Tells the buckets of a reduction of so many bytes."""


def in_one_bucket(one: Reduction, size: float) -> BucketCut:
    """Return one bucket that is final at the end of the last action."""
    return BucketCut((size,), 1, ((1.0,),) * len(one.stages))


def buckets_of(plan: Plan, demand: ModelDemand) -> BucketsOf:
    """Return the function that tells the buckets of the reductions of `plan`, as the engine cuts them."""

    def cut(one: Reduction, size: float) -> BucketCut:
        groups = [_groups(plan, demand, one, stage) for stage in one.stages]
        elements = int(sum(count for count, _ in groups[0]))
        if elements == 0:
            return in_one_bucket(one, size)
        each = one.bucket_elements(elements)
        ends = [min(end, elements) for end in range(each, elements + each, each)]
        played = min(len(ends), MOST_BUCKETS)
        kept = [ends[(number + 1) * len(ends) // played - 1] for number in range(played)]
        sizes = tuple(size * (end - before) / elements for before, end in zip([0, *kept], kept, strict=False))
        under_way = max(1, round(one.under_way * played / len(ends)))
        if one.timing.begins == "after actions":
            return BucketCut(sizes, under_way, ((1.0,) * played,) * len(one.stages))
        if one.is_shared and len(plan.stages) == 2:
            # Gradients of activations take the same links, and go first: no part is sent before the last of them.
            return BucketCut(sizes, under_way, ((1.0,) * played,) * 2)
        return BucketCut(sizes, under_way, tuple(_final(each_group, kept) for each_group in groups))

    return cut


def _groups(plan: Plan, demand: ModelDemand, one: Reduction, stage: int) -> list[tuple[int, float]]:
    """Return what a stage has of the reduction, in the order in which a backward is through with it: elements, and
    compute in layers, of the head, each layer from the last one on, and the embedding."""
    first, end = plan.stages[stage]
    is_first, is_last = stage == 0, stage == len(plan.stages) - 1
    tied = demand.trained_tied_parameters if len(plan.stages) > 1 else 0
    layers = demand.trained_layer_parameters[first:end]
    prefix = untrained_prefix(demand.is_trained, embedding=demand.is_embedding_trained)  # the backward ends before it
    passed = [1.0 if layer >= prefix else 0.0 for layer in range(first, end)]
    head = demand.head_parameters - demand.frozen_head_parameters if is_last else 0
    embedding = demand.embedding_parameters - demand.frozen_embedding_parameters if is_first else 0
    if is_first and is_last:
        head -= demand.trained_tied_parameters  # held once: final with the embedding
    own = 0 if one.is_shared else 1
    shared_head = tied if is_last else 0
    shared_embedding = tied if is_first else 0
    return [
        (head - shared_head if own else shared_head, demand.head_layers if is_last else 0.0),
        *((own * count, layer) for count, layer in zip(reversed(layers), reversed(passed), strict=True)),
        (embedding - shared_embedding if own else shared_embedding, 0.0),
    ]


def _final(groups: Sequence[tuple[int, float]], ends: Sequence[int]) -> tuple[float, ...]:
    """Return the share of the action after which buckets with these ends, in elements, are final."""
    whole = sum(seconds for _, seconds in groups)
    elements = list(accumulate(count for count, _ in groups))
    passed = list(accumulate(seconds for _, seconds in groups))
    at = [next(number for number, there in enumerate(elements) if there >= end) for end in ends]
    return tuple(passed[number] / whole if whole else 1.0 for number in at)
