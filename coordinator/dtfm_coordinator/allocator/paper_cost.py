"""The paper's communication cost of a placement (arXiv 2206.01288, section 3), extended to asymmetric links.

Delays in seconds, bandwidth in bytes a second, sizes in bytes; row sends to column. `a` is what a pipeline's whole
share of a step sends over one boundary, `g` the gradients of one stage.

- Data parallel, for the n devices C of one stage, by sharded parameter servers:
  `dp(C) = max over d of the sum over d' != d of 2 * (alpha[d,d'] + g / (n * beta[d,d']))`; a step pays the largest.
- Pipeline, for neighbouring stages: `alpha + a / beta` of the slowest pair, forward over the pair's forward link and
  backward over its reverse link. The pairing of two stages minimises the *sum* of both directions' slowest pairs,
  because one pairing must serve both; on symmetric links that is twice the paper's bottleneck matching.
- The order of the stages is the cheapest open Hamiltonian path over these edges.
- `total = dp + pipeline`, where `pipeline` counts both directions (the paper's 2 * pp).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.matching import two_way_matching
from dtfm_coordinator.allocator.path import shortest_path

Matrix = npt.NDArray[np.float64]
Pipelines = tuple[tuple[int, ...], ...]
"""`pipelines[route][stage]` is a device's index: R pipelines of K devices."""


@dataclass(frozen=True, slots=True)
class PaperCost:
    """Seconds of communication a step; infinite where a pair that cannot talk would have to."""

    total: float
    data_parallel: float
    pipeline: float
    """Forward and backward: the paper's 2 * pp."""


def data_parallel_seconds(alpha: Matrix, beta: Matrix, gradient_bytes: float, replicas: int) -> Matrix:
    """What each ordered pair adds to the sharded all-reduce of a group of `replicas`, seconds, shape (N, N)."""
    seconds = 2 * (alpha + _transfer(gradient_bytes / replicas, beta))
    np.fill_diagonal(seconds, 0.0)
    return seconds


def pipeline_seconds(alpha: Matrix, beta: Matrix, activation_bytes: float) -> Matrix:
    """What one boundary message of `activation_bytes` takes on each ordered pair, seconds, shape (N, N)."""
    return alpha + _transfer(activation_bytes, beta)


def _transfer(size: float, beta: Matrix) -> Matrix:
    seconds = np.full_like(beta, np.inf)
    return np.divide(size, beta, out=seconds, where=beta > 0)


def cost_of_pipelines(
    alpha: Matrix, beta: Matrix, pipelines: Sequence[Sequence[int]], activation_bytes: float, gradient_bytes: float
) -> PaperCost:
    """The cost of pipelines exactly as written: this pairing, this order of stages.

    Args:
        alpha: one-way delay, seconds, shape (N, N).
        beta: bandwidth, bytes a second, shape (N, N); 0 is a pair that cannot talk.
        pipelines: R routes of K device indices each; column k is the group of stage k.
        activation_bytes: bytes a pipeline's share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.
    """
    routes = np.array(pipelines, dtype=np.intp)
    dp_pairs = data_parallel_seconds(alpha, beta, gradient_bytes, len(routes))
    return _cost_as_written(dp_pairs, pipeline_seconds(alpha, beta, activation_bytes), routes)


def _cost_as_written(dp_pairs: Matrix, pp_pairs: Matrix, routes: npt.NDArray[np.intp]) -> PaperCost:
    groups = routes.T
    data_parallel = float(dp_pairs[groups[:, :, None], groups[:, None, :]].sum(axis=2).max())
    forward = pp_pairs[routes[:, :-1], routes[:, 1:]].max(axis=0)
    backward = pp_pairs[routes[:, 1:], routes[:, :-1]].max(axis=0)
    pipeline = float((forward + backward).sum())
    return PaperCost(data_parallel + pipeline, data_parallel, pipeline)


class PaperCostModel:
    """The cost of partitions of one network into groups of `replicas` devices.

    Edges between groups are remembered, since a search meets the same pair of groups again and again.
    """

    def __init__(
        self, alpha: Matrix, beta: Matrix, activation_bytes: float, gradient_bytes: float, replicas: int
    ) -> None:
        self.dp_pairs = data_parallel_seconds(alpha, beta, gradient_bytes, replicas)
        self.pp_pairs = pipeline_seconds(alpha, beta, activation_bytes)
        self._edges: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, tuple[int, ...]]] = {}

    def data_parallel(self, group: Sequence[int]) -> float:
        """Seconds of the all-reduce of one group."""
        members = np.array(group, dtype=np.intp)
        return float(self.dp_pairs[np.ix_(members, members)].sum(axis=1).max())

    def edge(self, earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """Seconds of both directions between two neighbouring stages, and which of `later` each of `earlier` feeds."""
        key = (earlier, later)
        known = self._edges.get(key)
        if known is None:
            forward = self.pp_pairs[np.ix_(earlier, later)]
            backward = self.pp_pairs[np.ix_(later, earlier)].T
            known = self._edges[key] = two_way_matching(forward, backward)
        return known

    def arrange(self, groups: Sequence[Sequence[int]]) -> tuple[PaperCost, Pipelines]:
        """The best order of the groups and pairing of their devices, and what the pipelines so written cost.

        Matchings are found only for the edges that a cheapest path would take: while the path over what is known
        (matchings, and lower bounds elsewhere) holds a bound, that edge's matching replaces it. When the path holds
        none it is the cheapest, as no bound was more than its edge.
        """
        sets = [tuple(sorted(group)) for group in groups]
        members = np.array(sets, dtype=np.intp)
        known, exact = self._bounds(members), np.eye(len(sets), dtype=bool)
        order: tuple[int, ...] | None = None
        while True:
            _, order = shortest_path(known, order)
            steps = [(min(pair), max(pair)) for pair in pairwise(order)]
            bounds = [pair for pair in steps if not exact[pair]]
            if not bounds:
                break
            for here, there in bounds:
                value, _ = self.edge(sets[here], sets[there])
                known[here, there] = known[there, here] = value
                exact[here, there] = exact[there, here] = True
        routes = self._write_out(sets, order)
        return _cost_as_written(self.dp_pairs, self.pp_pairs, routes), tuple(map(tuple, routes.tolist()))

    def lower_bound(self, groups: npt.NDArray[np.intp]) -> float:
        """Seconds that no order and pairing of the groups, shape (K, R), can undercut; cheaper than `arrange`."""
        loads = self.dp_pairs[groups[:, :, None], groups[:, None, :]].sum(axis=2)
        return float(loads.max()) + shortest_path(self._bounds(groups))[0]

    def _bounds(self, members: npt.NDArray[np.intp]) -> Matrix:
        """Lower bounds of every edge (see `matching.floor`), both directions summed, shape (K, K)."""
        between = self.pp_pairs[members[:, None, :, None], members[None, :, None, :]]
        forward = np.maximum(between.min(axis=3).max(axis=2), between.min(axis=2).max(axis=2))
        bounds: Matrix = forward + forward.T
        return bounds

    def _write_out(self, sets: Sequence[tuple[int, ...]], order: Sequence[int]) -> npt.NDArray[np.intp]:
        """Pipelines, shape (R, K), that follow the matchings along `order`."""
        stages = [list(sets[order[0]])]
        for here, there in pairwise(order):
            first, second = min(here, there), max(here, there)
            _, columns = self.edge(sets[first], sets[second])
            partner = {sets[first][row]: sets[second][column] for row, column in enumerate(columns)}
            if first != here:
                partner = {later: earlier for earlier, later in partner.items()}
            stages.append([partner[device] for device in stages[-1]])
        return np.array(stages, dtype=np.intp).T
