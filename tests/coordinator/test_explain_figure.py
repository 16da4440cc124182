"""Figures of plans: where nodes stand, which lanes there are, and what is written."""

from pathlib import Path

import numpy as np
import pytest

from dtfm_coordinator.allocator.workload import predict
from dtfm_coordinator.tools.explain.figure import paper_figure, step_figure, write
from dtfm_coordinator.tools.explain.network_chart import told_apart
from dtfm_coordinator.tools.explain.node_positions import places
from dtfm_coordinator.tools.explain.paper_findings import paper_findings
from dtfm_coordinator.tools.explain.schedule_chart import MOST_LANES, lanes
from dtfm_coordinator.tools.explain.step_findings import step_findings
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import View
from tests.coordinator.lettered_swarm import found, plan, swarm, work


def test_places_keep_the_near_together_and_nodes_apart() -> None:
    seconds: Matrix = np.full((6, 6), 1.0)
    seconds[:3, :3] = seconds[3:, 3:] = 0.01
    points, by_region = places(seconds, ("x",) * 3 + ("y",) * 3)
    assert by_region
    between = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    assert between[:3, :3].max() < between[:3, 3:].min()
    assert between[~np.eye(6, dtype=bool)].min() > 0.05
    assert points.min() >= 0
    assert points.max() <= 1


def test_numbers_of_a_scale_are_told_apart() -> None:
    assert told_apart([0.001, 0.0316, 1.0]) == ["0.001", "0.032", "1"]
    assert told_apart([1.101, 1.102, 1.104]) == ["1.101", "1.102", "1.104"]
    assert told_apart([2.0, 2.0]) == ["2", "2"]


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_places_without_information_are_a_circle(count: int) -> None:
    points, _ = places(np.full((count, count), np.inf), (None,) * count)
    assert np.isfinite(points).all()
    if count == 30:
        assert np.sqrt(((points - points.mean(axis=0)) ** 2).sum(axis=1)).std() < 1e-9


def drawn(of: Plan, view: View, path: Path) -> bytes:
    job = work(len(of.routes))
    played = predict(view, job, of)
    write(step_figure(of, view, job, played, step_findings(of, view, job, played)), path)
    return path.read_bytes()


def test_figures_are_drawn_in_each_format_and_always_alike(tmp_path: Path) -> None:
    of, view = plan("ab", "cb", "ad", "cd"), swarm("abcdef", gbps=0.5, links={"ab": 0.0001})
    png = drawn(of, view, tmp_path / "figure.png")
    assert png.startswith(b"\x89PNG")
    assert len(png) > 30_000
    svg = drawn(of, view, tmp_path / "figure.svg")
    assert b"<svg" in svg
    assert svg == drawn(of, view, tmp_path / "again.svg")
    assert drawn(of, view, tmp_path / "figure.pdf").startswith(b"%PDF")


def test_a_step_with_weights_of_their_own_is_drawn(tmp_path: Path) -> None:
    of = plan("ab", "cb", "ad", "cd", schedule="zero-bubble")
    svg = drawn(of, swarm("abcdef", gbps=0.5), tmp_path / "figure.svg")
    assert b"weights' gradients" in svg
    plain = drawn(plan("ab", "cb", "ad", "cd"), swarm("abcdef", gbps=0.5), tmp_path / "plain.svg")
    assert b"weights' gradients" not in plain


def test_names_that_look_like_formulas_and_a_single_node_are_drawn(tmp_path: Path) -> None:
    one = swarm("a")
    assert len(drawn(plan("a"), one, tmp_path / "one.png")) > 10_000
    odd = swarm("ab").model_copy(update={"nodes": (*swarm("ab").nodes[:1], swarm("$").nodes[0])})
    assert len(drawn(plan("a$"), odd, tmp_path / "odd.png")) > 10_000


def test_of_many_peers_those_of_the_critical_path_and_a_sample_are_drawn(tmp_path: Path) -> None:
    names = [f"node-{number}" for number in range(50)]
    view = swarm("x" * 1)
    view = View(
        nodes=tuple(view.nodes[0].model_copy(update={"id": name}) for name in names),
        latency_ms=np.ones((50, 50)),
        bandwidth_gbps=np.ones((50, 50)),
    )
    of = Plan(stages=((0, 2), (2, 4)), routes=tuple(zip(names[:25], names[25:], strict=True)))
    told = found(of, view)
    shown = lanes(of, told.path)
    assert len(shown) == MOST_LANES
    assert {peer for part in told.path for peer in part.place} <= set(shown)
    assert len(drawn(of, view, tmp_path / "many.png")) > 30_000


def test_the_papers_cost_is_drawn(tmp_path: Path) -> None:
    of, view = plan("ab", "cd"), swarm("abcd")
    write(paper_figure(of, view, 1e6, 1e6, paper_findings(of, view, 1e6, 1e6)), tmp_path / "paper.png")
    assert (tmp_path / "paper.png").stat().st_size > 20_000
