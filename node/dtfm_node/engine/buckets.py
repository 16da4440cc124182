"""Buckets: runs of gradient that are reduced together, by whom, and who owns which part of the sum."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import BUCKET_BYTES, Reduction, by_priority, reductions


@dataclass(frozen=True)
class Bucket:
    """Run of a flat gradient that its holders reduce together, some or all of which own a part of it."""

    group: int
    """Number of the bucket, the same for all its holders."""
    reduction: Reduction
    """Who holds it, in which codec it is reduced, and how large whose part is."""
    start: int
    """Element of the flat gradient at which the bucket begins."""
    elements: int
    after: int
    """Number of the stage's group of parameters that must be final before it begins: the last one that has gradients in
    it, or the last one of all."""

    @property
    def holders(self) -> tuple[str, ...]:
        """Peer ids of the replicas that hold it, in the fixed order of every sum."""
        return self.reduction.holders

    @cached_property
    def parts(self) -> list[tuple[int, int]]:
        """Bounds `[low, high)` of the part that each holder owns, in elements from the bucket's start."""
        return self.reduction.bounds(self.elements)


@dataclass(frozen=True)
class Flat:
    """Parameters with the same holders, whose gradients lie in one flat buffer, cut into buckets."""

    names: tuple[str, ...]
    """Names of the parameters, in the order of the buffer."""
    elements: int
    buckets: tuple[Bucket, ...]


def flats_of(
    plan: Plan,
    stage: int,
    groups: Sequence[Mapping[str, int]],
    shared: Collection[str],
    most_bytes: int = BUCKET_BYTES,
) -> tuple[Flat, ...]:
    """Return the flat gradients of `stage`, and their buckets, in the order of their reductions' priorities.

    Args:
        groups: number of elements of each of the stage's parameters, by name; in the order in which a backward is
            through.
        shared: the parameters that first and last stage share, if the model ties its embeddings.
        most_bytes: bytes of a bucket at most, as in `Reduction.bucket_elements`; the same for all its holders.
    """
    found = by_priority(one for one in reductions(plan, tied=bool(shared)) if stage in one.stages)
    tied = set(shared) if len(found) > 1 else set()
    return tuple(
        _flat(
            [{name: size for name, size in group.items() if (name in tied) == one.is_shared} for group in groups],
            one,
            most_bytes,
        )
        for one in found
    )


def _flat(groups: Sequence[Mapping[str, int]], reduction: Reduction, most_bytes: int) -> Flat:
    names = tuple(name for group in groups for name in group)
    ends = list(accumulate(sum(group.values()) for group in groups))
    elements = ends[-1]
    most = reduction.bucket_elements(elements, most_bytes)
    is_early = reduction.timing.begins == "with gradients"
    buckets = tuple(
        Bucket(
            number,
            reduction,
            start,
            min(most, elements - start),
            after=bisect_left(ends, min(start + most, elements)) if is_early else len(groups) - 1,
        )
        for number, start in zip(reduction.buckets, range(0, elements, most), strict=False)
    )
    return Flat(names, elements, buckets)
