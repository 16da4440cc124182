"""Plan whose gradients are summed along trees where that is faster than straight to who sums them.

Only on links that are each alone: where a peer's links share its line, what it hands on for others costs it more than
what it saves them, and parts that are sized to lines (`sized_parts`) do better.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.all_reduces.least_reduction import least_seconds
from dtfm_coordinator.allocator.all_reduces.sized_parts import ALIKE, MOST_TIMES, last_ends, whole_parts
from dtfm_coordinator.allocator.all_reduces.tree_search import annealed
from dtfm_coordinator.allocator.all_reduces.tree_shapes import direct, shapes
from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.foundations.side_by_side import all_cores, side_by_side
from dtfm_coordinator.allocator.problem.bucket_cut import BucketCut, buckets_of
from dtfm_coordinator.allocator.problem.model_demand import has_memory_to_sum, reduced_bytes
from dtfm_coordinator.allocator.simulator.fast_reduction import Cuts, Lines, reduced_at
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reduction_trees import ReductionTrees, Trees
from dtfm_protocol.plan.reductions import Reduction, reductions
from dtfm_protocol.plan.summed_parts import Parts, SummedParts
from dtfm_protocol.view.view import View
from dtfm_protocol.wire.codec_sizes import BYTES_A_VALUE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
T = TypeVar("T")

FEWEST_HOLDERS, MOST_HOLDERS = 3, 16
"""Holders of a reduction for which trees are searched: two have one link, and of many more the search takes long."""
MOVES = 6_000
"""Moves of a search among 8 holders: about a second. Among more each takes longer, by the square of their number."""
WORTH = 0.02
"""Of a step: so much shorter it must be with trees, which are more messages in a row, and one peer more that all wait
for where it is slow."""


def with_trees(
    view: View, work: Workload, plan: Plan, cost: PredictedSeconds, stages: Collection[int] | None = None
) -> tuple[Plan, PredictedSeconds]:
    """Return the plan with trees for its reductions, and parts for them, where its step, simulated exactly, is shorter
    with them; and what it takes. Stages whose reductions are not worth it stay as they are.

    They are tried all at once, for a step waits for the last of its reductions: of several that take equally long, one
    that is faster makes no step shorter.

    Args:
        cost: what its step takes as it is.
        stages: those that may have other trees than they have; None: all.
    """
    links = Links.of(view)
    found = [one for one in reductions(plan, tied=False) if stages is None or one.stages[0] in stages]
    found = [one for one in found if _is_fit(links, one)]
    if not found:
        return plan, cost
    ends = last_ends(predict(view, work, plan))
    posed = [_Posed.of(links, work, plan, one, ends) for one in found]
    now = [one.as_it_is() for one in posed]
    least = max(one.least() for one in posed)
    if max(now) - least < WORTH * cost.total:
        return plan, cost
    posed = [one for one, seconds in zip(posed, now, strict=True) if seconds > least]
    made, threads = dict[int, tuple[Parts, Trees]](), min(len(posed), all_cores())

    def search(number: int) -> None:
        for at in range(number, len(posed), threads):
            made[at] = posed[at].searched()

    side_by_side(search, threads)

    def laid_along(places: Collection[int]) -> tuple[Plan, PredictedSeconds]:
        tried = plan
        for at in places:
            tried = laid(tried, posed[at].one, *made[at])
        return tried, predict(view, work, tried).cost

    kept = list(range(len(posed)))
    tried, took = laid_along(kept)
    for at in range(len(posed)):
        fewer = [one for one in kept if one != at]
        without, seconds = laid_along(fewer)
        if seconds.total <= (1 + ALIKE) * took.total:
            kept, tried, took = fewer, without, seconds
    is_better = took.total < (1 - WORTH) * cost.total and has_memory_to_sum(tried, work.demand, view.nodes)
    return (tried, took) if is_better else (plan, cost)


def _is_fit(links: Links, one: Reduction) -> bool:
    rows = [links.index[peer] for peer in one.holders]
    if not FEWEST_HOLDERS <= len(rows) <= MOST_HOLDERS:
        return False
    apart = ~np.eye(len(rows), dtype=bool)
    alone = np.isinf(links.uplink[rows]).all() and np.isinf(links.downlink[rows]).all()
    return bool(alone and (links.beta[np.ix_(rows, rows)][apart] > 0).all())


@dataclass(frozen=True)
class _Posed:
    """Reduction of one stage, posed to the search for its trees."""

    one: Reduction
    lines: Lines
    cut: BucketCut
    ready: Floats
    """Seconds at which each holder has ended its last action."""
    size: float
    """Bytes of all gradients, as coded for the wire."""
    between: float
    """Bytes of a sum of several, in fp32, over what they are coded."""

    @classmethod
    def of(cls, links: Links, work: Workload, plan: Plan, one: Reduction, ends: Mapping[str, float]) -> Self:
        count, size = len(one.holders), reduced_bytes(plan, work.demand, one)
        alpha, beta = (np.ascontiguousarray(part) for part in links.pairs(one.holders, one.holders))
        np.fill_diagonal(alpha, 0.0)
        np.fill_diagonal(beta, 1.0)
        no_limit = np.full(count, np.inf)
        lines = Lines(alpha, beta, no_limit, no_limit, np.zeros((count, count)))
        cut = buckets_of(plan, work.demand)(replace(one, trees=_as_trees(direct(count))), size)
        ready = np.array([ends[peer] for peer in one.holders])
        return cls(one, lines, cut, ready, size, BYTES_A_VALUE["fp32"] / BYTES_A_VALUE[one.codec])

    def seconds(self, trees: Ints, shares: Floats) -> float:
        """Return when all holders have all totals, in seconds of the step."""
        self.lines.free[:] = 0.0
        return float(reduced_at(self.lines, _cuts(self.cut, self.ready, shares), trees, self.between).max())

    def as_it_is(self) -> float:
        """Return that of the parts that the plan has, straight to who sums them."""
        return self.seconds(direct(len(self.ready)), np.array(self.one.amounts(1.0)))

    def least(self) -> float:
        """Return what no trees fall below."""
        least = least_seconds(self.lines.alpha, self.lines.beta, self.size)
        return max(float(self.ready.max()), float(self.ready.min()) + least)

    def searched(self) -> tuple[Parts, Trees]:
        """Return the best parts and trees that were found; they may not be better than none."""
        count, lines = len(self.ready), self.lines
        equal, sized = np.full(count, 1 / count), np.array(self.one.amounts(1.0))
        starts = [(trees, shares) for trees in shapes(lines.alpha, lines.beta, self.size) for shares in (equal, sized)]
        trees, shares = min(starts, key=lambda start: self.seconds(*start))
        moves = int(MOVES * min(1.0, (8 / count) ** 2))
        most = max(MOST_TIMES / count, float(shares.max()))
        _, trees, shares = annealed(lines, _cuts(self.cut, self.ready, shares), self.between, trees, most, moves, 0)
        parts = whole_parts(shares)
        return parts, _as_trees(trees, parts)


def laid(plan: Plan, one: Reduction, parts: Parts, trees: Trees) -> Plan:
    """Return the plan with these parts and trees of one of its reductions."""
    none = ((),) * len(plan.stages)
    all_parts, all_trees = plan.parts or SummedParts(stages=none), plan.trees or ReductionTrees(stages=none)
    if one.is_shared:
        all_parts = all_parts.model_copy(update={"shared": parts})
        all_trees = all_trees.model_copy(update={"shared": trees})
    else:
        (at,) = one.stages
        all_parts = all_parts.model_copy(update={"stages": _put(all_parts.stages, at, parts)})
        all_trees = all_trees.model_copy(update={"stages": _put(all_trees.stages, at, trees)})
    return plan.model_copy(update={"parts": all_parts, "trees": all_trees})


def _put(among: tuple[T, ...], at: int, one: T) -> tuple[T, ...]:
    """Return a tuple with another element in one place."""
    return (*among[:at], one, *among[at + 1 :])


def _cuts(cut: BucketCut, ready: Floats, shares: Floats) -> Cuts:
    """Return the buckets of one reduction whose gradients are all final when holders are ready."""
    count, buckets = len(ready), len(cut.sizes)
    return Cuts(
        np.ones((1, count), dtype=np.bool_),
        np.array([buckets]),
        np.array([cut.sizes]),
        np.array([cut.under_way]),
        np.array([shares]),
        np.repeat(ready[None, :, None], buckets, axis=2),
    )


def _as_trees(trees: Ints, parts: Parts = ()) -> Trees:
    """Return trees as plans have them: those that go directly, and those of no part, empty."""
    straight = direct(len(trees))
    return tuple(
        () if parts and (parts[owner] == 0 or (tree == straight[owner]).all()) else tuple(tree.tolist())
        for owner, tree in enumerate(trees)
    )
