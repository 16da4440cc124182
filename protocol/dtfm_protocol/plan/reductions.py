"""The reductions of a step: who sums which gradients with whom, in which codec, which part of them each sums, when that
begins, what waits for it, and what goes first. Pure.

Whoever sends, awaits, checks or predicts a reduction reads it here: the engine's buckets and frames, receipts, and the
allocator's simulators.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from dtfm_protocol.bounds import FIRST_SHARED_BUCKET, MOST_BUCKETS
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.plan.plan import Plan

OWN_BUCKETS = range(FIRST_SHARED_BUCKET)
"""Numbers of the buckets of a stage's own gradients."""
SHARED_BUCKETS = range(FIRST_SHARED_BUCKET, MOST_BUCKETS)
"""Numbers of the buckets of parameters that first and last stage share (tied embeddings)."""
BUCKET_BYTES = 25 << 20
"""Bytes of a bucket at most: large enough that a link's delay is small beside it, small enough that the first can be on
its way while the backward still runs (as in PyTorch's DDP; Li et al., arXiv 2006.15704)."""
BUCKETS_UNDER_WAY = 2
"""Number of buckets of a reduction at a time: one is summed while the other's parts are on their way; more would only
take memory."""
TREE_BUCKETS = 8
"""The same where there are trees, of as many times smaller buckets: along a tree one waits for the other, hop by hop,
so that as many as it has hops keep all of its links busy."""
SMALLEST_TREE_BUCKET = 256 << 10
"""Bytes below which a bucket is not made smaller for that."""
_VALUE_BYTES = 4

Begins = Literal["with gradients", "after actions"]
"""When a holder may begin a bucket: as soon as its own gradient of it is final, while the rest of the last backward
goes on; or once all of its actions of the step are over."""
Due = Literal["vote"]
"""What waits for a reduction: its holders' votes on the step of which it sums the gradients, and so the update."""


class Timing(NamedTuple):
    """When a reduction takes place in a step, and beside what."""

    begins: Begins
    due: Due
    priority: int
    """Of two buckets that a peer could begin at one time, that of the reduction with the lower number goes first, and
    so on links that they share; else the one goes first that could begin first. Each reduction has its own places for
    buckets under way: were they shared, first and last stage, which are through with what they share last and first,
    could wait for each other's places."""


OWN_TIMING = Timing("with gradients", "vote", 0)
"""That of a stage's own gradients."""
SHARED_TIMING = Timing("with gradients", "vote", 1)
"""That of what first and last stage share."""


@dataclass(frozen=True)
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
    trees: tuple[tuple[int, ...], ...] = ()
    """For each part, the place of each holder's parent, as `ReductionTrees` has it; (), in whole or for one part: all
    send to its owner directly."""
    timing: Timing = OWN_TIMING

    @property
    def is_shared(self) -> bool:
        """Whether it is of what first and last stage share."""
        return len(self.stages) > 1

    def layers(self, plan: Plan) -> tuple[int, int]:
        """Return the decoder layers `[first, end)` of `plan` whose gradients it sums, with those of the embedding or
        head beside them, but for what is shared: of that it sums the gradients of one matrix, and of no layers."""
        return (0, 0) if self.is_shared else plan.stages[self.stages[0]]

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

    def parent(self, index: int, place: int) -> int:
        """Return the place of the holder to which the one in `place` sends its sum of part `index`; the owner's own."""
        tree = self.trees[index] if self.trees else ()
        return tree[place] if tree else index

    def children(self, index: int, place: int) -> tuple[int, ...]:
        """Return the places of the holders that send their sums of part `index` to the one in `place`, ascending."""
        if self.trees and self.trees[index]:
            return self._children[index][place]
        return tuple(at for at in range(len(self.holders)) if at != place) if place == index else ()

    @cached_property
    def _children(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The children of each holder, by place, for each part that has a tree; for others nothing."""
        found = []
        for tree in self.trees:
            below: list[list[int]] = [[] for _ in tree]
            for place, parent in enumerate(tree):
                if parent != place:
                    below[parent].append(place)
            found.append(tuple(map(tuple, below)))
        return tuple(found)

    def summed(self, index: int, place: int) -> tuple[int, ...]:
        """Return the places of those whose gradients are in what the holder in `place` sends of part `index`: its own,
        and all that come to it."""
        below = [at for child in self.children(index, place) for at in self.summed(index, child)]
        return tuple(sorted([place, *below]))

    def gathers(self, place: int) -> float:
        """Return how many times what is summed in all the holder in `place` has at once of others' sums, and of its own
        that goes on: less than one where all sum equal parts, more where one sums more, or much comes along trees."""
        gathered = 0.0
        for index, share in enumerate(self.amounts(1.0)):
            below = len(self.children(index, place))
            gathered += share * (below + (below > 0 and index != place))
        return gathered

    def part_codec(self, index: int, place: int) -> CodecName:
        """Return the codec in which the holder in `place` sends its sum of part `index`: sums of several go on in
        fp32, so that each number is rounded once on the way, and once as a total."""
        return "fp32" if self.children(index, place) else self.codec

    @property
    def under_way(self) -> int:
        """Number of its buckets that are reduced at a time."""
        return TREE_BUCKETS if self.trees else BUCKETS_UNDER_WAY

    def bucket_elements(self, elements: int, most_bytes: int = BUCKET_BYTES) -> int:
        """Return the elements of its buckets where there are so many in all; the last one may have fewer.

        Args:
            most_bytes: bytes of gradients, in fp32, of a bucket that goes directly.
        """
        most = most_bytes // _VALUE_BYTES
        if not self.trees:
            return most
        share = max(SMALLEST_TREE_BUCKET // _VALUE_BYTES, -(-elements // TREE_BUCKETS))
        return max(1, min(most * BUCKETS_UNDER_WAY // TREE_BUCKETS, share))

    def bounds(self, elements: int) -> list[tuple[int, int]]:
        """Return the bounds `[low, high)` of each holder's part of so many elements."""
        sizes = self.sizes
        whole = sum(sizes)
        ends = [end * elements // whole for end in accumulate(sizes, initial=0)]
        return list(pairwise(ends))

    def amounts(self, whole: float) -> list[float]:
        """Return each holder's part of an amount."""
        sizes = self.sizes
        all_sizes = sum(sizes)
        return [whole * size / all_sizes for size in sizes]


def reductions(plan: Plan, *, tied: bool) -> tuple[Reduction, ...]:
    """Return the reductions of each training step under `plan`: of every stage's own gradients, by stage, and of what
    first and last stage share.

    Args:
        tied: whether the job trains a matrix that first and last stage hold both, where they are two.
    """
    codec, last, parts, trees = plan.wire.gradients, len(plan.stages) - 1, plan.parts, plan.trees
    own = [
        Reduction(
            (stage,),
            plan.replicas(stage),
            codec,
            parts.stages[stage] if parts else (),
            trees.stages[stage] if trees else (),
        )
        for stage in range(last + 1)
    ]
    if not tied or last == 0:
        return tuple(own)
    both = plan.replicas(0) + plan.replicas(last)
    shared = Reduction(
        (0, last), both, codec, parts.shared if parts else (), trees.shared if trees else (), SHARED_TIMING
    )
    return (*own, shared)


def by_priority(found: Iterable[Reduction]) -> list[Reduction]:
    """Return reductions in the order in which a peer begins those that could begin at one time."""
    return sorted(found, key=lambda one: one.timing.priority)


def held_by(found: Sequence[Reduction], peer: str) -> tuple[Reduction, ...]:
    """Return the reductions in which `peer` takes part."""
    return tuple(one for one in found if peer in one.holders)
