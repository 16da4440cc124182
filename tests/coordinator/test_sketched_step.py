"""The sketch of a step: what it is where it is exact, and that it tells bad changes of a layout from good ones."""

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.large_jobs import job

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.neighbours import Neighbours, priced
from dtfm_coordinator.allocator.search.sketched_step import sketched, sketchpad
from dtfm_coordinator.allocator.workload import pose
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.job.job_file import ScheduleName

Ints = npt.NDArray[np.int64]


@compiled
def sketch(problem: Problem, peers: Ints, counts: Ints, shares: Ints, layers: Ints, ahead: Ints) -> tuple[float, bool]:
    return sketched(problem, peers, counts, shares, layers, ahead, False, False, sketchpad(problem))


def posed(name: str, nodes: int, micro_batches: int, *, paced: bool, schedule: ScheduleName = "1f1b") -> Problem:
    view = network(name, nodes, 0)
    return pose(view, job(micro_batches, now=paced), view.ids, schedule, paced=paced)


def seconds(problem: Problem, layout: Layout) -> float:
    return sketch(problem, *layout.arrays(), layout.more)[0]


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "gpipe"])
def test_of_a_peer_alone_it_is_what_that_computes(schedule: ScheduleName) -> None:
    problem = posed("home", 12, 32, paced=False, schedule=schedule)._replace(memory=np.full(12, np.inf))
    layout = Layout.of(problem, [[3]])
    assert layout is not None
    assert seconds(problem, layout) == pytest.approx(layout.cost(problem).compute, rel=1e-12)


def test_it_is_infinite_where_a_pair_cannot_talk_or_no_layers_fit() -> None:
    problem = posed("worldwide", 12, 32, paced=False)
    layout = Layout.of(problem, [[0, 1], [2, 3]])
    assert layout is not None
    assert np.isfinite(seconds(problem, layout))
    apart = problem.beta.copy()
    apart[0, 2] = 0.0
    assert seconds(problem._replace(beta=apart), layout) == np.inf
    assert seconds(problem._replace(memory=problem.memory / 100), layout) == np.inf


def test_layers_that_memory_does_not_hold_are_shared_out_by_load() -> None:
    problem = posed("worldwide", 12, 32, paced=False)
    layout = Layout.of(problem, [[0], [1], [2], [3]])
    assert layout is not None
    stacked = Layout(layout.peers, layout.counts, layout.shares, (problem.layers - 3, 1, 1, 1))
    small = problem._replace(memory=problem.memory * 0.6)
    assert Layout.of(small, [[0], [1], [2], [3]]) is not None
    assert not stacked.fits(small)
    found, is_by_load = sketch(small, *stacked.arrays(), stacked.more)
    assert is_by_load
    assert found == pytest.approx(seconds(small, Layout.of(small, [[0], [1], [2], [3]]) or layout))


@pytest.mark.parametrize(
    ("name", "paced"), [("home", False), ("home", True), ("regional", True), ("irregular", False), ("spot", True)]
)
def test_of_two_changes_it_tells_the_better_one(name: str, paced: bool) -> None:
    """Six times in seven, where their steps differ by a tenth."""
    problem, rng = posed(name, 32, 64, paced=paced), np.random.default_rng(0)
    played, about = list[float](), list[float]()
    for width in (1, 3):
        layout = Layout.of(problem, rng.permutation(32)[: 6 * width].reshape(6, width).tolist())
        assert layout is not None
        neighbours = Neighbours(layout, 32, paced=paced, any_depth=True)
        changes = map(neighbours.change, rng.permutation(neighbours.count)[:150].tolist())
        found = [priced(problem, layout, change) for change in changes if change is not None]
        played += [one.seconds / layout.cost(problem).total for one in found if one is not None]
        about += [seconds(problem, one.layout) / seconds(problem, layout) for one in found if one is not None]
    apart = np.subtract.outer(np.log(played), np.log(played))
    agrees = (np.subtract.outer(np.log(about), np.log(about)) * apart)[apart > np.log(1.1)] > 0
    assert len(agrees) > 1000
    assert agrees.mean() > 6 / 7
