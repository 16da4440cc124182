"""The trees along which holders of gradients sum them: to whom each sends its sum of a part, until its owner has all.

Where some links are slow, or many messages would cross them, a part need not go straight to the holder that sums it: a
ring, two levels (within a region, then between regions) and any other way are trees. Each holder adds what its children
send to its own and sends the sum to its parent, in fp32; the owner codes the total once, and the same bytes go back
down the same tree.
"""

from typing import Annotated

from pydantic import Field, model_validator

from dtfm_protocol.bounds import MOST_STAGES
from dtfm_protocol.schema import Schema

MOST_TREE_HOLDERS = 64
"""Holders of a reduction that may have trees."""

Tree = Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_TREE_HOLDERS)], ...], Field(max_length=MOST_TREE_HOLDERS)]
"""Place, among the holders, of each holder's parent in the order of the sum; the owner is its own. Empty: all send to
the owner directly."""
Trees = Annotated[tuple[Tree, ...], Field(max_length=MOST_TREE_HOLDERS)]
"""Trees of a reduction, one for the part of each holder, in the order of the sum; empty: all parts go directly."""


class ReductionTrees(Schema):
    """The trees of each reduction of a plan."""

    stages: Annotated[tuple[Trees, ...], Field(max_length=MOST_STAGES)]
    """Trees of each stage's replicas, in the order of `Plan.replicas`."""
    shared: Trees = ()
    """Trees of what first and last stage share, where embeddings are tied: places among the first stage's replicas, and
    after them the last one's."""

    @model_validator(mode="after")
    def _are_trees(self) -> "ReductionTrees":
        named = [(f"stage {at + 1}", trees) for at, trees in enumerate(self.stages)]
        for name, trees in [*named, ("what first and last stage share", self.shared)]:
            for owner, tree in enumerate(trees):
                if tree and (fault := _fault(owner, tree, len(trees))):
                    raise ValueError(f"tree {owner + 1} of {name}: {fault}")
        return self

    def check(self, replicas: list[int]) -> None:
        """Check that these are the trees of a plan with so many replicas of each stage.

        Raises:
            ValueError: they are not.
        """
        if len(self.stages) != len(replicas):
            raise ValueError(f"trees: of {len(self.stages)} stages, for {len(replicas)}")
        for stage, (trees, count) in enumerate(zip(self.stages, replicas, strict=True)):
            if trees and len(trees) != count:
                raise ValueError(f"trees: {len(trees)} trees for the {count} peers of stage {stage + 1}")
        both = replicas[0] + replicas[-1] if len(replicas) > 1 else 0
        if self.shared and len(self.shared) != both:
            raise ValueError(f"trees: {len(self.shared)} shared trees for the {both} peers of first and last stage")


def _fault(owner: int, tree: Tree, holders: int) -> str:
    """Return what keeps `tree` from bringing everybody's sum to its owner; "" if nothing does."""
    if len(tree) != holders:
        return f"it names {len(tree)} of {holders} holders"
    if any(parent >= holders for parent in tree):
        return f"there is no holder {max(tree)} among {holders}"
    if tree[owner] != owner:
        return "its owner sends to another"
    for place in range(holders):
        at, hops = place, 0
        while at != owner and hops < holders:
            at, hops = tree[at], hops + 1
        if at != owner:
            return f"what holder {place + 1} sends never comes to the owner"
    return ""
