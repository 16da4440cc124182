"""The reductions of a step: who sums which gradients with whom, in which codec, and which part of them each sums. Pure.

Whoever sends, awaits, checks or predicts a reduction reads it here: the engine's buckets and frames, receipts, and the
allocator's simulators.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from dtfm_protocol.bounds import FIRST_SHARED_BUCKET, MOST_BUCKETS
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.plan.plan import Plan

OWN_BUCKETS = range(FIRST_SHARED_BUCKET)
"""Numbers of the buckets of a stage's own gradients."""
SHARED_BUCKETS = range(FIRST_SHARED_BUCKET, MOST_BUCKETS)
"""Numbers of the buckets of parameters that first and last stage share (tied embeddings)."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Sum, over all peers that hold them, of the gradients that they hold in common. It is cut into buckets, and each
    bucket into parts, each of which one holder sums and gives to all."""

    stages: tuple[int, ...]
    """Stages whose peers hold them: one, or first and last."""
    holders: tuple[str, ...]
    """Peer ids, in the fixed order of every sum."""
    codec: CodecName = "fp32"
    """Codec of what holders send each other."""
    parts: tuple[int, ...] = ()
    """Sizes of the holders' parts beside each other; (): all alike. Who has 0 sums nothing."""

    @property
    def is_shared(self) -> bool:
        """Whether it is of what first and last stage share."""
        return len(self.stages) > 1

    @property
    def buckets(self) -> range:
        """Numbers that its buckets may have."""
        return SHARED_BUCKETS if self.is_shared else OWN_BUCKETS

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the holders' parts beside each other, one for each."""
        return self.parts or (1,) * len(self.holders)

    @property
    def owners(self) -> tuple[int, ...]:
        """Places, among the holders, of those that sum a part, ascending."""
        return tuple(place for place, size in enumerate(self.sizes) if size > 0)

    def bounds(self, elements: int) -> list[tuple[int, int]]:
        """Return the bounds `[low, high)` of each holder's part of so many elements."""
        sizes = self.sizes
        ends = [end * elements // sum(sizes) for end in accumulate(sizes, initial=0)]
        return list(pairwise(ends))

    def amounts(self, whole: float) -> list[float]:
        """Return each holder's part of an amount."""
        sizes = self.sizes
        return [whole * size / sum(sizes) for size in sizes]


def reductions(plan: Plan, *, tied: bool) -> tuple[Reduction, ...]:
    """Return the reductions of each training step under `plan`: of every stage's own gradients, by stage, and last of
    what first and last stage share. Each peer starts those that it takes part in in this order.

    Args:
        tied: whether the job trains a matrix that first and last stage hold both, where they are two.
    """
    codec, last, given = plan.wire.gradients, len(plan.stages) - 1, plan.parts
    own = [
        Reduction((stage,), plan.replicas(stage), codec, given.stages[stage] if given else ())
        for stage in range(last + 1)
    ]
    if not tied or last == 0:
        return tuple(own)
    both = plan.replicas(0) + plan.replicas(last)
    return (*own, Reduction((0, last), both, codec, given.shared if given else ()))


def held_by(found: Sequence[Reduction], peer: str) -> tuple[Reduction, ...]:
    """Return the reductions in which `peer` takes part."""
    return tuple(one for one in found if peer in one.holders)
