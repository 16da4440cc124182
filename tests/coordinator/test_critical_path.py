"""The critical path of a step: told in full where it is short, held to the step's derivative where it is random."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.bucket_cut import BucketCut
from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds
from dtfm_coordinator.allocator.problem.problem_arrays import SCHEDULES
from dtfm_coordinator.allocator.simulator.simulator import simulate
from dtfm_coordinator.tools.explain.critical_path import Part, by_cause, critical_path
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.plan.reductions import Reduction
from tests.coordinator.lettered_swarm import found, plan, swarm
from tests.harness.drawn_trees import drawn_trees

TIED = (0.0, 2.3)
"""Bytes of gradients that first and last stage share."""


def random_step(
    seed: int, *, shared: bool
) -> tuple[Plan, Links, dict[str, ActionSeconds], dict[str, float], list[float]]:
    """A plan with random routes, replicas, links and speeds, so that no two paths are equally long."""
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(1, 5))
    names = iter("abcdefghijkl")
    groups = [[next(names) for _ in range(int(rng.integers(1, 4)))] for _ in range(depth)]
    count = int(rng.integers(3, 9))
    routes = ["".join(group[int(rng.integers(len(group)))] for group in groups) for _ in range(count)]
    peers = sorted({peer for route in routes for peer in route})
    size = len(peers)
    limits = [rng.uniform(1, 2, size) if shared else np.full(size, np.inf) for _ in range(2)]
    links = Links(
        {peer: row for row, peer in enumerate(peers)},
        rng.uniform(0.01, 0.5, (size, size)),
        rng.uniform(0.5, 5, (size, size)),
        *limits,
    )
    seconds = {peer: ActionSeconds(*rng.uniform([0.1, 0.2, 0.1], [2, 4, 2]).tolist()) for peer in peers}
    update = {peer: float(rng.uniform(0, 0.3)) for peer in peers}
    stages = [(stage, stage + 1) for stage in range(depth)]
    schedule = SCHEDULES[int(rng.integers(3))]
    made = Plan.read({"stages": stages, "routes": [tuple(route) for route in routes], "schedule": schedule}, "plan")
    return made, links, seconds, update, rng.uniform(0.5, 4, depth).tolist()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_parts_of_the_critical_path_follow_each_other_and_add_up_to_the_step(seed: int, shared: bool) -> None:
    of, links, seconds, update, gradients = random_step(seed, shared=shared)
    played = simulate(of, links, seconds, (1.0, 0.7), gradients, update, TIED[seed % 2])
    path = critical_path(of, links, played)
    assert math.fsum(part.seconds for part in path) == pytest.approx(played.cost.total, abs=1e-9, rel=1e-9)
    assert sum(by_cause(path).values()) == pytest.approx(played.cost.total, abs=1e-9, rel=1e-9)
    assert path[0].start == 0.0
    assert all(earlier.end == later.start for earlier, later in pairwise(path))
    for part in path:
        if part.cause == "compute":
            assert part.item is not None
            assert (part.start, part.end) == (part.item.start, part.item.end)


def in_buckets(one: Reduction, size: float) -> BucketCut:
    """Three, two at a time, of which two are final before the last action is over."""
    return BucketCut((size / 2, size / 4, size / 4), 2, ((0.3, 0.7, 1.0),) * len(one.stages))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_they_do_where_gradients_are_reduced_in_buckets_and_along_trees(seed: int, shared: bool) -> None:
    of, links, seconds, update, gradients = random_step(seed, shared=shared)
    counts = [len(of.replicas(stage)) for stage in range(len(of.stages))]
    trees = ReductionTrees(stages=tuple(drawn_trees(count, seed) for count in counts))
    of = of.model_copy(update={"trees": trees})
    larger = [3 * one for one in gradients]
    played = simulate(of, links, seconds, (1.0, 0.7), larger, update, TIED[seed % 2], buckets=in_buckets)
    path = critical_path(of, links, played)
    assert math.fsum(part.seconds for part in path) == pytest.approx(played.cost.total, abs=1e-9, rel=1e-9)
    assert path[0].start == 0.0
    assert all(earlier.end == later.start for earlier, later in pairwise(path))


@pytest.mark.parametrize("seed", range(25))
def test_a_step_gets_longer_by_just_what_lies_on_its_critical_path(seed: int) -> None:
    """The derivative of the step's end is an independent account of who is on the path."""
    of, links, seconds, update, gradients = random_step(seed, shared=False)
    tied = TIED[seed % 2]
    path, slower = critical_path(of, links, simulate(of, links, seconds, (1.0, 0.7), gradients, update, tied)), 1e-7

    def grown(links: Links, seconds: dict[str, ActionSeconds]) -> float:
        total = simulate(of, links, seconds, (1.0, 0.7), gradients, update, tied).cost.total
        return (total - math.fsum(part.seconds for part in path)) / slower

    def on_path(part: Part, *causes: str) -> float:
        return part.seconds if part.cause in causes else 0.0

    for peer, own in seconds.items():
        later = ActionSeconds(*(value * (1 + slower) for value in own))
        expected = sum(on_path(part, "compute") for part in path if part.place == (peer,))
        assert grown(links, seconds | {peer: later}) == pytest.approx(expected, abs=1e-4)
    for sender, receiver in {part.place for part in path if len(part.place) == 2}:
        pair = links.index[sender], links.index[receiver]
        alpha, beta = links.alpha.copy(), links.beta.copy()
        alpha[pair] *= 1 + slower
        here = [part for part in path if part.place == (sender, receiver)]
        expected = sum(on_path(part, "delay", "commit") for part in here)
        assert grown(replace(links, alpha=alpha), seconds) == pytest.approx(expected, abs=1e-4)
        beta[pair] /= 1 + slower
        expected = sum(on_path(part, "transfer", "all-reduce") for part in here)
        assert grown(replace(links, beta=beta), seconds) == pytest.approx(expected, abs=1e-4)


def test_a_chain_of_two_peers_is_told_in_full() -> None:
    of = plan("ab")
    view = swarm("ab", gbps=1.0, ms=2.0)
    path = found(of, view).path
    # Two layers a peer: 20 and 40 ms; 1 MB takes 8 ms each way; the commit goes from a to b.
    told = [(part.cause, part.place, round(1000 * part.seconds, 6)) for part in path]
    assert told[:9] == [
        ("compute", ("a",), 20),
        ("transfer", ("a", "b"), 8),
        ("delay", ("a", "b"), 2),
        ("compute", ("b",), 20),
        ("compute", ("b",), 40),
        ("transfer", ("b", "a"), 8),
        ("delay", ("b", "a"), 2),
        ("compute", ("a",), 40),
        ("commit", ("a", "b"), 2),
    ]
    assert told[9][0] == "optimizer"
    assert len(told) == 10


def test_weights_follow_the_action_before_them() -> None:
    of = plan("ab", schedule="zero-bubble")
    path = found(of, swarm("ab", gbps=1.0, ms=2.0)).path
    told = [(part.item.kind, part.place, round(1000 * part.seconds, 6)) for part in path if part.cause == "compute"]
    # b's weights are off the path: a waits for the gradient alone.
    assert told == [
        ("forward", ("a",), 20),
        ("forward", ("b",), 20),
        ("backward", ("b",), 20),
        ("backward", ("a",), 20),
        ("weight", ("a",), 20),
    ]


def test_what_a_shared_uplink_adds_is_told_apart() -> None:
    of = plan("ab", "ac")
    rows = {peer: row for row, peer in enumerate("abc")}
    ones = np.ones((3, 3))
    # A forward of next to nothing, then two messages at once over an uplink that carries one.
    links = Links(rows, 0 * ones, ones, np.array([1.0, np.inf, np.inf]), np.full(3, np.inf))
    seconds = dict.fromkeys("abc", ActionSeconds(1e-6, 1e-6))
    causes = by_cause(critical_path(of, links, simulate(of, links, seconds, (3.0, 3.0), [0.0, 0.0])))
    assert causes["sharing"] == pytest.approx(3.0, abs=1e-3)
    assert causes["transfer"] == pytest.approx(6.0, abs=1e-3)
