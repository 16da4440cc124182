"""A lower bound of the paper's cost that holds for any placement: what a large result is judged by.

Near pairs are wanted twice: by the all-reduces, for mates of one stage, and by the pipelines, for neighbours of one
route. The bound counts how far both can have them.

- A boundary that costs less than t pairs its devices along links of which both directions together take less than t.
  Consecutive such boundaries make R vertex-disjoint paths of near links: so all of them together are no more than a
  linear forest in the graph of near links allows, by its degrees (at most two a device) and by the sizes of its
  components (no path is longer than K devices). What is more than that costs at least t; summed over all t, that
  bounds the pipeline.
- If L consecutive stages are joined by such boundaries, each component of the graph holds equally many devices of each
  of them. So a device whose component has c devices finds at most floor(c / L) - 1 mates of its stage within it, and
  its all-reduce pays for the others at the prices outside.

A total is bounded for each price D of the all-reduce: D, plus the pipeline with only as many near boundaries in a row
as D allows. The least over all D is a bound of both together, and more than the sum of the two alone.
"""

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import minimum_spanning_tree

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.foundations.links import Matrix, pipeline_seconds
from dtfm_coordinator.allocator.paper.paper_cost import PaperCost, data_parallel_seconds

Index = npt.NDArray[np.int64]
"""An array of numbers of devices or components."""

LEVELS = 48
"""The most prices t of a link at which near boundaries are counted; more make the bound a little tighter."""


def lower_bound(
    alpha: Matrix, beta: Matrix, stages: int, replicas: int, activation_bytes: float, gradient_bytes: float
) -> PaperCost:
    """Return seconds that no placement on any `stages * replicas` of the devices undercuts.

    Args:
        alpha: one-way delay, seconds, shape (N, N).
        beta: bandwidth, bytes a second, shape (N, N); 0 is a pair that cannot talk.
        activation_bytes: bytes a pipeline's share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.

    Returns:
        `data_parallel` and `pipeline` bound those parts of the cost, each whatever the other is; `total` bounds their
        sum, and is at least the sum of the two bounds.
    """
    reduce = data_parallel_seconds(alpha, beta, gradient_bytes, replicas)
    both = pipeline_seconds(alpha, beta, activation_bytes)
    both = both + both.T
    np.fill_diagonal(both, np.inf)
    nearest = _nearest_mates(reduce)
    everywhere = np.zeros(len(reduce), dtype=np.int64)
    mates = _loads(reduce, nearest, everywhere, np.array([len(reduce)]), replicas)
    data_parallel = float(np.sort(mates)[stages * replicas - 1])
    if stages == 1 or len(reduce) < 2:
        return PaperCost(data_parallel, data_parallel, 0.0)

    levels = _levels(both)
    ceilings = np.array([_near_boundaries(both, level, stages, replicas) for level in levels])
    steps = np.diff(levels, prepend=0.0)
    prices = np.stack([_run_prices(both, level, reduce, nearest, stages, replicas) for level in levels])
    pipeline = _pipeline(prices, ceilings, steps, stages, np.inf)
    candidates = np.unique(prices[np.isfinite(prices)])
    candidates = np.append(candidates[candidates > data_parallel], data_parallel)
    total = min(float(price) + _pipeline(prices, ceilings, steps, stages, float(price)) for price in candidates)
    return PaperCost(max(total, data_parallel + pipeline), data_parallel, pipeline)


def _levels(both: Matrix) -> Matrix:
    """Return prices of links at which the counts may change, ascending: all distinct ones, or an even choice."""
    # Components merge at the prices of a spanning tree; degrees grow at each device's two nearest.
    ends = np.partition(both, min(1, len(both) - 2), axis=1)[:, :2]
    usable = np.where(np.isfinite(both), both, 0.0)
    merges = minimum_spanning_tree(usable).data
    prices = np.unique(np.concatenate([ends.ravel(), merges]))
    prices = prices[np.isfinite(prices)]
    if len(prices) > LEVELS:
        prices = prices[np.unique(np.linspace(0, len(prices) - 1, LEVELS).round().astype(int))]
    levels: Matrix = prices
    return levels


def _components(both: Matrix, level: float) -> tuple[Index, Index]:
    """Return each device's component in the graph of links that take less than `level`, and the components' sizes."""
    labels = _component_labels(both, level)
    return labels, np.bincount(labels)


def _near_boundaries(both: Matrix, level: float, stages: int, replicas: int) -> int:
    """Return the most boundaries that can cost less than `level`."""
    labels, sizes = _components(both, level)
    degrees = np.minimum(2, (both < level).sum(axis=1))
    by_degrees = np.bincount(labels, weights=degrees) // 2
    by_length = sizes - -(-sizes // stages)
    return min(stages - 1, int(np.minimum(by_degrees, by_length).sum()) // replicas)


def _run_prices(
    both: Matrix, level: float, reduce: Matrix, nearest: npt.NDArray[np.int32], stages: int, replicas: int
) -> Matrix:
    """Return the least all-reduce, for each L from 1, with L stages in a row joined below `level`; shape (K,)."""
    labels, sizes = _components(both, level)
    prices = np.empty(stages)
    for run in range(1, stages + 1):
        most = sizes // run
        if int((most * run).sum()) < run * replicas:
            prices[run - 1 :] = np.inf
            break
        loads = np.sort(_loads(reduce, nearest, labels, most, replicas))
        prices[run - 1] = loads[run * replicas - 1]
    return np.maximum.accumulate(prices)


def _pipeline(prices: Matrix, ceilings: Index, steps: Matrix, stages: int, price: float) -> float:
    """Return the pipeline's bound where the all-reduce takes no more than `price`."""
    longest = np.maximum(1, ((prices <= price) & np.isfinite(prices)).sum(axis=1))
    near = np.minimum(ceilings, stages - -(-stages // longest))
    return float(((stages - 1 - near) * steps).sum())


def _nearest_mates(reduce: Matrix) -> npt.NDArray[np.int32]:
    """Order each device's others, the cheapest all-reduce first; shape (N, N - 1)."""
    order = np.empty((len(reduce), len(reduce) - 1), dtype=np.int32)
    for device, row in enumerate(reduce):
        sorted_row = np.argsort(row, kind="stable")
        order[device] = sorted_row[sorted_row != device]
    return order


@compiled
def _loads(reduce: Matrix, nearest: npt.NDArray[np.int32], labels: Index, most: Index, replicas: int) -> Matrix:
    """Return each device's cheapest all-reduce with at most `most[c]` devices, itself included, of its component c."""
    loads = np.zeros(len(reduce))
    for device in range(len(reduce)):
        within, load = most[labels[device]] - 1, 0.0
        if within < 0:
            loads[device] = np.inf
            continue
        found, place = 0, 0
        while found < replicas - 1 and place < len(reduce) - 1:
            mate = nearest[device, place]
            place += 1
            if labels[mate] == labels[device]:
                if within == 0:
                    continue
                within -= 1
            load += reduce[device, mate]
            found += 1
        loads[device] = load if found == replicas - 1 else np.inf
    return loads


@compiled
def _component_labels(both: Matrix, level: float) -> Index:
    """Number the components, from 0, and return each device's; shape (N,)."""
    count = len(both)
    labels, stack = np.full(count, -1), np.empty(count, np.int64)
    components = 0
    for start in range(count):
        if labels[start] >= 0:
            continue
        labels[start] = components
        stack[0], depth = start, 1
        while depth > 0:
            depth -= 1
            device = stack[depth]
            for other in range(count):
                if labels[other] < 0 and both[device, other] < level:
                    labels[other] = components
                    stack[depth] = other
                    depth += 1
        components += 1
    return labels
