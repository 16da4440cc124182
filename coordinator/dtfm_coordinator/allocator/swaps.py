"""Every swap of two devices, estimated at once: the inner loop of the search.

A placement is K groups of R devices in path order and the devices left idle. Its *estimate* follows the paper's cost
with two changes, so that numpy can price all swaps of a placement in one go and a search can see past plateaus:

- the bottleneck matching of two neighbouring groups is replaced by its lower bound: each device's cheapest partner;
- every `max` becomes `(1 - softness) * max + softness * mean`, because a maximum alone hides all progress made on
  devices that are not yet the slowest.

The order of the groups stays as it is; pairs that cannot talk count as finite but very dear.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.path import shortest_path

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


class SwapEstimator:
    """Estimates for one network and one group size."""

    def __init__(self, dp_pairs: Matrix, pp_pairs: Matrix) -> None:
        """Take the seconds of each ordered pair, shape (N, N), as `paper_cost` gives them."""
        self._dp = _finite(dp_pairs)
        pipeline = _finite(pp_pairs)
        np.fill_diagonal(pipeline, 0.0)
        # Row is the earlier stage. Forward and backward are one matrix, counted twice, on symmetric links.
        symmetric = np.array_equal(pipeline, pipeline.T)
        self._directions = [2 * pipeline] if symmetric else [pipeline, np.ascontiguousarray(pipeline.T)]

    def estimate(self, groups: Index, softness: float) -> float:
        """Seconds of a placement's groups, shape (K, R)."""
        loads = self._loads(groups)
        data_parallel = _soften(loads.max(), loads.mean(), softness)
        return float(data_parallel + self._edges(groups[:-1], groups[1:], softness).sum())

    def reordered(self, groups: Index, softness: float) -> Index:
        """The same groups along the cheapest path over the estimated edges."""
        count = len(groups)
        here, there = np.triu_indices(count, k=1)
        edges = np.zeros((count, count))
        edges[here, there] = edges[there, here] = self._edges(groups[here], groups[there], softness)
        return groups[list(shortest_path(edges)[1])]

    def after_swaps(self, groups: Index, idle: Index, sample: Index, softness: float) -> Matrix:
        """Estimates of the placements one swap away.

        Args:
            groups: device indices, shape (K, R), in path order.
            idle: devices that no group holds.
            sample: ascending positions in `groups.ravel()` followed by `idle`: only swaps among them are priced.
            softness: see the module's docstring.

        Returns:
            Seconds, shape (U, V): entry [x, y] exchanges the devices at positions `sample[x]` and `sample[y]`;
            U are the sampled positions in groups, V all of the sample. Pairs within one group are infinite.
        """
        stages, replicas = groups.shape
        position = sample[sample < groups.size]
        stage, slot = np.divmod(position, replicas)
        stage_of_all = np.minimum(sample // replicas, stages)  # idle devices count as one more group
        device = np.concatenate([groups.ravel(), idle])[sample]
        count = len(position)

        totals = self._data_parallel_after(groups, stage, slot, device, stage_of_all, softness)
        if stages > 1:
            totals = totals + self._pipeline_after(groups, stage, slot, device, softness)
        totals[stage[:, None] == stage_of_all[None, :]] = np.inf
        assert totals.shape == (count, len(sample))
        return totals

    def _loads(self, groups: Index) -> Matrix:
        """What each device's all-reduce takes in its group, shape (K, R)."""
        loads: Matrix = self._dp[groups[:, :, None], groups[:, None, :]].sum(axis=2)
        return loads

    def _edges(self, earlier: Index, later: Index, softness: float) -> Matrix:
        """Estimated seconds, both directions, between B pairs of groups, each side of shape (B, R)."""
        total: Matrix = np.zeros(len(earlier))
        for seconds in self._directions:
            between = seconds[earlier[:, :, None], later[:, None, :]]
            total = total + _bottleneck(between.min(axis=2), between.min(axis=1), 1, softness)
        return total

    def _data_parallel_after(
        self, groups: Index, stage: Index, slot: Index, device: Index, stage_of_all: Index, softness: float
    ) -> Matrix:
        """The data-parallel part of `after_swaps`."""
        count = len(stage)
        pairs = self._dp[groups[:, :, None], groups[:, None, :]]
        loads = pairs.sum(axis=2)
        # [member, x, y]: the loads of x's group with x replaced by y.
        without = (loads[:, :, None] - pairs).transpose(1, 0, 2)[:, stage, slot]
        replaced = without[:, :, None] + self._dp[groups.T[:, :, None], device[None, None, :]][:, stage]
        newcomer = self._dp[device[:, None, None], groups[None, :, :]].sum(axis=2).T[stage]
        newcomer = newcomer - self._dp[device[None, :], groups[stage, slot][:, None]]
        replaced[slot, np.arange(count)] = newcomer
        slowest = replaced.max(axis=0)
        change = replaced.sum(axis=0) - loads.sum(axis=1)[stage][:, None]
        slowest[:, :count] = np.maximum(slowest[:, :count], slowest[:, :count].T)
        change[:, :count] = change[:, :count] + change[:, :count].T
        slowest = np.maximum(slowest, _largest_of_others(loads.max(axis=1))[stage[:, None], stage_of_all[None, :]])
        return _soften(slowest, (loads.sum() + change) / groups.size, softness)

    def _pipeline_after(self, groups: Index, stage: Index, slot: Index, device: Index, softness: float) -> Matrix:
        """The pipeline part of `after_swaps`."""
        count = len(stage)
        edges = self._edges(groups[:-1], groups[1:], softness)
        # [x, y]: what the edge before and the edge after x's group gain by putting y in x's place.
        before, after = np.zeros((2, count, len(device)))
        starts, ends = stage > 0, stage < len(groups) - 1
        if starts.any():
            edge = stage[starts] - 1
            before[starts] = self._edge_after(groups[1:], groups[:-1], edge, slot[starts], device, softness, True)
            before[starts] -= edges[edge][:, None]
        if ends.any():
            edge = stage[ends]
            after[ends] = self._edge_after(groups[:-1], groups[1:], edge, slot[ends], device, softness, False)
            after[ends] -= edges[edge][:, None]
        gain = before + after
        gain[:, :count] = gain[:, :count] + gain[:, :count].T
        # Between neighbours, the edge that joins them sees both ends change.
        x, y = np.nonzero(stage[:, None] + 1 == stage[None, :])
        earlier, later = groups[stage[x]], groups[stage[y]]
        rows = np.arange(len(x))
        leaving, entering = earlier[rows, slot[x]], later[rows, slot[y]]
        earlier[rows, slot[x]], later[rows, slot[y]] = entering, leaving
        joint = self._edges(earlier, later, softness) - edges[stage[x]]
        gain[x, y] = gain[y, x] = before[x, y] + joint + after[y, x]
        after_swap: Matrix = edges.sum() + gain
        return after_swap

    def _edge_after(
        self, own: Index, other: Index, edge: Index, slot: Index, device: Index, softness: float, backwards: bool
    ) -> Matrix:
        """Edges (U, V) with the device in `slot` of `own[edge]` replaced by each of `device`; `other` stays."""
        total: Matrix = np.zeros((len(edge), len(device)))
        replicas = own.shape[1]
        for seconds in self._directions:
            cost = seconds.T if backwards else seconds
            between = cost[own[:, :, None], other[:, None, :]]
            offered = cost[device[None, None, :], other.T[:, :, None]]  # [member of other, edge, y]
            # Each of own's cheapest partner: those who stay, and the newcomer.
            cheapest = between.min(axis=2)
            newcomer = offered.min(axis=0)[edge]
            stay_slowest = _without_each(cheapest, axis=1, largest=True)[edge, slot][:, None]
            stay_sum = (cheapest.sum(axis=1, keepdims=True) - cheapest)[edge, slot][:, None]
            # Each of other's cheapest partner among those who stay, or the newcomer if cheaper: [member, x, y].
            among_stay = _without_each(between, axis=1, largest=False)[edge, slot].T[:, :, None]
            partner = np.minimum(among_stay, offered[:, edge])
            slowest = np.maximum(np.maximum(stay_slowest, newcomer), partner.max(axis=0))
            mean = np.maximum(stay_sum + newcomer, partner.sum(axis=0)) / replicas
            total = total + _soften(slowest, mean, softness)
        return total


def _soften(slowest: Matrix, mean: Matrix, softness: float) -> Matrix:
    softened: Matrix = (1 - softness) * slowest + softness * mean
    return softened


def _bottleneck(rows: Matrix, columns: Matrix, axis: int, softness: float) -> Matrix:
    """A lower bound of the softened matching: both sides' devices with their cheapest partners."""
    slowest = np.maximum(rows.max(axis=axis), columns.max(axis=axis))
    return _soften(slowest, np.maximum(rows.mean(axis=axis), columns.mean(axis=axis)), softness)


def _without_each(values: Matrix, axis: int, largest: bool) -> Matrix:
    """Along `axis`, the largest (or smallest) of the other entries, in each entry's place."""
    sign = 1.0 if largest else -1.0
    signed = sign * values
    winner = np.expand_dims(signed.argmax(axis=axis), axis)
    best = np.take_along_axis(signed, winner, axis)
    rest = signed.copy()
    np.put_along_axis(rest, winner, -np.inf, axis)
    result = np.broadcast_to(best, values.shape).copy()
    np.put_along_axis(result, winner, rest.max(axis=axis, keepdims=True), axis)
    restored: Matrix = sign * result
    return restored


def _largest_of_others(values: Matrix) -> Matrix:
    """Entry [k, l]: the largest value outside groups k and l, shape (K, K + 1); column K leaves out k alone."""
    count = len(values)
    others = np.tile(values, (count, count + 1, 1))
    group = np.arange(count)
    others[group, :, group] = 0.0
    others[:, group, group] = 0.0
    largest: Matrix = others.max(axis=2)
    return largest


def _finite(seconds: Matrix) -> Matrix:
    """Seconds with pairs that cannot talk made dearer than any placement that avoids them."""
    usable = seconds[np.isfinite(seconds)]
    dear = 1e3 * float(usable.max() if usable.size and usable.max() > 0 else 1.0)
    return np.where(np.isfinite(seconds), seconds, dear)
