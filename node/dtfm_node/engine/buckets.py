"""Buckets: which parameters are reduced together, by whom, and who owns which part of the sum."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtfm_protocol.plan import Plan


@dataclass(frozen=True)
class Bucket:
    """Parameters with the same holders. Their gradients lie in one flat buffer, each holder owning a part of it."""

    group: int
    """The stage; or one past the last stage, for a matrix that first and last stage share."""
    holders: tuple[str, ...]
    """In the fixed order of every sum."""
    names: tuple[str, ...]
    """In the order of the flat buffer."""
    elements: int

    def part(self, index: int) -> tuple[int, int]:
        """Bounds of the part that holder `index` owns, in elements."""
        count = len(self.holders)
        return index * self.elements // count, (index + 1) * self.elements // count


def buckets_of(plan: Plan, stage: int, sizes: dict[str, int], tied: tuple[str, ...]) -> tuple[Bucket, ...]:
    """The buckets of `stage`.

    Args:
        sizes: elements of each of the stage's parameters, by name.
        tied: the parameters that first and last stage share, if the model ties its embeddings.
    """
    last = len(plan.stages) - 1
    shared = sorted(tied) if last > 0 and stage in {0, last} else []
    own = sorted(set(sizes) - set(shared))
    buckets = [Bucket(stage, plan.replicas(stage), tuple(own), _total(sizes, own))]
    if shared:
        ends = plan.replicas(0) + plan.replicas(last)
        buckets.append(Bucket(last + 1, ends, tuple(shared), _total(sizes, shared)))
    return tuple(buckets)


def _total(sizes: dict[str, int], names: Sequence[str]) -> int:
    return sum(sizes[name] for name in names)
