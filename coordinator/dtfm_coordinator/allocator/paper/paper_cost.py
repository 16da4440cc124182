"""Communication cost of a placement by the paper (arXiv 2206.01288, section 3), extended to asymmetric links.

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

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.links import Matrix, pipeline_seconds, transfer_seconds
from dtfm_coordinator.allocator.paper.placement_state import network_of, refresh, reorder, routes_of, state_of

Pipelines = tuple[tuple[int, ...], ...]
"""Device indices `pipelines[route][stage]`: R pipelines of K devices."""


@dataclass(frozen=True, slots=True)
class PaperCost:
    """Seconds of communication a step; infinite where a pair that cannot talk would have to."""

    total: float
    data_parallel: float
    pipeline: float
    """Seconds of pipeline communication, forward and backward: the paper's 2 * pp."""


def data_parallel_seconds(alpha: Matrix, beta: Matrix, gradient_bytes: float, replicas: int) -> Matrix:
    """Return what each ordered pair adds to the sharded all-reduce of a group of `replicas`, seconds, shape (N, N)."""
    seconds = 2 * (alpha + transfer_seconds(gradient_bytes / replicas, beta))
    np.fill_diagonal(seconds, 0.0)
    return seconds


def cost_of_pipelines(
    alpha: Matrix, beta: Matrix, pipelines: Sequence[Sequence[int]], activation_bytes: float, gradient_bytes: float
) -> PaperCost:
    """Return the cost of pipelines exactly as written: this pairing, this order of stages.

    Args:
        alpha: one-way delay, seconds, shape (N, N).
        beta: bandwidth, bytes a second, shape (N, N); 0 is a pair that cannot talk.
        pipelines: R routes of K device indices each; column k is the group of stage k.
        activation_bytes: bytes that a pipeline's share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.
    """
    routes = np.array(pipelines, dtype=np.intp)
    dp_pairs = data_parallel_seconds(alpha, beta, gradient_bytes, len(routes))
    return _cost_as_written(dp_pairs, pipeline_seconds(alpha, beta, activation_bytes), routes)


def _cost_as_written(dp_pairs: Matrix, pp_pairs: Matrix, routes: npt.NDArray[np.intp]) -> PaperCost:
    data_parallel = max(float(dp_pairs[np.ix_(group, group)].sum(axis=1).max()) for group in routes.T)
    forward = pp_pairs[routes[:, :-1], routes[:, 1:]].max(axis=0)
    backward = pp_pairs[routes[:, 1:], routes[:, :-1]].max(axis=0)
    pipeline = float((forward + backward).sum())
    return PaperCost(data_parallel + pipeline, data_parallel, pipeline)


class PaperCostModel:
    """Cost of partitions of one network into groups of `replicas` devices, ordered and paired at their best."""

    def __init__(
        self, alpha: Matrix, beta: Matrix, activation_bytes: float, gradient_bytes: float, replicas: int
    ) -> None:
        """Take delays in seconds and bandwidth in bytes a second, both of shape (N, N), and sizes in bytes."""
        self._dp_pairs = data_parallel_seconds(alpha, beta, gradient_bytes, replicas)
        self._pp_pairs = pipeline_seconds(alpha, beta, activation_bytes)
        self._replicas = replicas

    def data_parallel(self, group: Sequence[int]) -> float:
        """Return the seconds of the all-reduce of one group."""
        members = np.array(group, dtype=np.intp)
        return float(self._dp_pairs[np.ix_(members, members)].sum(axis=1).max())

    def arrange(self, groups: Sequence[Sequence[int]]) -> tuple[PaperCost, Pipelines]:
        """Return the best order of the groups and pairing of their devices, and the cost of these pipelines."""
        network = network_of(self._dp_pairs, self._pp_pairs, len(groups), self._replicas)
        state = state_of(network, np.concatenate([np.array(sorted(group), dtype=np.int64) for group in groups]))
        refresh(network, state)
        reorder(network, state)
        routes = routes_of(network, state)
        return _cost_as_written(self._dp_pairs, self._pp_pairs, routes), tuple(map(tuple, routes.tolist()))
