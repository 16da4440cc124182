"""Buckets: runs of gradient that are reduced together, by whom, and who owns which part of the sum."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dtfm_protocol.bounds import FIRST_SHARED_BUCKET, MOST_BUCKETS
from dtfm_protocol.plan.plan import Plan

BUCKET_BYTES = 25 << 20
"""Bytes of a bucket at most: large enough that a link's delay is small beside it, small enough that the first can be on
its way while the backward still runs (as in PyTorch's DDP; Li et al., arXiv 2006.15704)."""
_VALUE_BYTES = 4
SHARED_GROUPS = range(FIRST_SHARED_BUCKET, MOST_BUCKETS)
"""Numbers of the buckets of parameters that first and last stage share (tied embeddings)."""


@dataclass(frozen=True)
class Bucket:
    """Run of a flat gradient that its holders reduce together. Each holder owns a part of it."""

    group: int
    """Number of the bucket, the same for all its holders."""
    holders: tuple[str, ...]
    """Peer ids of the replicas that hold it, in the fixed order of every sum."""
    start: int
    """Element of the flat gradient at which the bucket begins."""
    elements: int
    after: int
    """Number of the last of the stage's groups of parameters that has gradients in it: it is final when that is."""

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Bounds `[low, high)` of the part that each holder owns, in elements from the bucket's start."""
        count = len(self.holders)
        return [(index * self.elements // count, (index + 1) * self.elements // count) for index in range(count)]


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
    """Return the flat gradients of `stage`, and their buckets.

    Args:
    groups: number of elements of each of the stage's parameters, by name; in the order in which a backward is through.
    shared: the parameters that first and last stage share, if the model ties its embeddings.
    most_bytes: bytes of a bucket at most; the same for all its holders.
    """
    last = len(plan.stages) - 1
    tied = set(shared) if last > 0 and stage in {0, last} else set()
    own = [{name: size for name, size in group.items() if name not in tied} for group in groups]
    flats = [_flat(own, plan.replicas(stage), range(SHARED_GROUPS.start), most_bytes)]
    if tied:
        both = [{name: size for name, size in group.items() if name in tied} for group in groups]
        flats.append(_flat(both, plan.replicas(0) + plan.replicas(last), SHARED_GROUPS, most_bytes))
    return tuple(flats)


def _flat(
    groups: Sequence[Mapping[str, int]], holders: tuple[str, ...], numbers: Sequence[int], most_bytes: int
) -> Flat:
    names = tuple(name for group in groups for name in group)
    ends = list(accumulate(sum(group.values()) for group in groups))
    elements = ends[-1]
    most = most_bytes // _VALUE_BYTES
    buckets = tuple(
        Bucket(
            number,
            holders,
            start,
            min(most, elements - start),
            after=bisect_left(ends, min(start + most, elements)),
        )
        for number, start in zip(numbers, range(0, elements, most), strict=False)
    )
    return Flat(names, elements, buckets)
