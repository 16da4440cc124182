"""Trees of the all-reduces: any shape brings everybody's sum to its owner, and what is chosen is never slower."""

import numpy as np
import numpy.typing as npt
import pytest

from dtfm_coordinator.allocator.all_reduces.chosen_trees import WORTH, with_trees
from dtfm_coordinator.allocator.all_reduces.least_reduction import least_seconds
from dtfm_coordinator.allocator.all_reduces.tree_search import annealed
from dtfm_coordinator.allocator.all_reduces.tree_shapes import direct, ring, shapes, two_levels
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.bucket_cut import buckets_of
from dtfm_coordinator.allocator.simulator.fast_reduction import Cuts, Lines, reduced_at
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.plan.reductions import reductions
from dtfm_protocol.view.view import LayerSeconds, NodeView, View
from tests.coordinator.swarms import DEMAND, drawn_view
from tests.harness.drawn_trees import drawn_trees

SPEED = LayerSeconds(forward=0.01, backward=0.02)


def alone(view: View) -> Plan:
    """Data parallel alone, one micro-batch each."""
    return Plan(stages=((0, DEMAND.layers),), routes=tuple((peer,) for peer in view.ids))


def work_of(view: View, parts: str = "auto") -> Workload:
    return Workload(DEMAND, len(view.ids), Planning.model_validate({"parts": parts, "stages": 1, "schedule": "1f1b"}))


def far_apart(count: int, slow: float) -> View:
    """Peers with links of 1 Gbit/s, of which one pair's is `slow`."""
    nodes = tuple(NodeView(id=f"p{number}", layer_seconds=SPEED) for number in range(count))
    rates = np.full((count, count), 1.0)
    rates[0, 1] = rates[1, 0] = slow
    return View(nodes=nodes, latency_ms=np.full((count, count), 1.0), bandwidth_gbps=rates)


@pytest.mark.parametrize("seed", range(4))
def test_every_shape_is_one_that_a_plan_may_have(seed: int) -> None:
    count = 3 + 2 * seed
    links = Links.of(drawn_view(count, seed))
    found = list(shapes(links.alpha, links.beta, 1e8))
    assert len(found) == 3 + max(0, count // 2 - 1)
    for trees in found:
        ReductionTrees(stages=(tuple(tuple(tree) for tree in trees.tolist()),))


def test_a_ring_goes_from_neighbour_to_neighbour() -> None:
    """Four in a line: each tree is a chain along it, over its ends once."""
    place = np.array([0.0, 1.0, 2.0, 3.0])
    trees = ring(np.abs(place[:, None] - place[None, :]))
    assert trees[0].tolist() == [0, 2, 3, 0]
    assert trees[2].tolist() == [1, 2, 2, 0]


def test_two_levels_sum_within_a_group_and_send_one_sum_between_groups() -> None:
    trees = two_levels(np.array([7, 7, 9, 9]))
    assert trees.tolist() == [[0, 0, 0, 2], [1, 1, 3, 1], [2, 0, 2, 2], [1, 3, 3, 3]]


@pytest.mark.parametrize("seed", range(12))
def test_the_fast_form_plays_trees_as_the_exact_one_does(seed: int) -> None:
    count = 3 + seed % 4
    view = drawn_view(count, seed)
    trees = drawn_trees(count, seed)
    plan = alone(view).model_copy(update={"trees": ReductionTrees(stages=(trees,))})
    work, links = work_of(view), Links.of(view)
    played = predict(view, work, plan)
    size = DEMAND.gradient_bytes(0, DEMAND.layers, plan.wire)
    cut = buckets_of(plan, DEMAND)(reductions(plan, tied=False)[0], size)
    assert len(cut.sizes) > 1
    spans = {span.peer: span for span in played.compute if span.kind == "backward"}
    begun = np.array([spans[peer].start for peer in view.ids])
    took = np.array([spans[peer].end for peer in view.ids]) - begun
    final = begun[:, None] + np.array(cut.final[0])[None, :] * took[:, None]
    ones = np.full((1, count), 1 / count)
    cuts = Cuts(
        np.ones((1, count), dtype=bool),
        np.array([len(cut.sizes)]),
        np.array([cut.sizes]),
        np.array([cut.under_way]),
        ones,
        final[None],
    )
    lines = Lines(links.alpha, links.beta, links.uplink, links.downlink, np.zeros((count, count)))
    full = np.array([tree or (owner,) * count for owner, tree in enumerate(trees)])
    held = reduced_at(lines, cuts, full, 1.0)
    arbiter = links.index[plan.peers[0]]
    heard = max(held[row] + (links.alpha[row, arbiter] if row != arbiter else 0.0) for row in range(count))
    back = max(links.alpha[arbiter, row] if row != arbiter else 0.0 for row in range(count))
    assert heard + back == pytest.approx(played.committed, rel=1e-12)


def test_a_search_keeps_its_start_where_nothing_is_better_and_repeats() -> None:
    links = Links.of(drawn_view(5, 1))
    count, cut = 5, np.array([[1e6, 1e6]])

    def found(seed: int) -> tuple[float, list[list[int]]]:
        cuts = Cuts(
            np.ones((1, count), dtype=bool),
            np.array([2]),
            cut,
            np.array([2]),
            np.full((1, count), 0.2),
            np.zeros((1, count, 2)),
        )
        lines = Lines(links.alpha, links.beta, links.uplink, links.downlink, np.zeros((count, count)))
        first = float(reduced_at(lines, cuts, direct(count), 1.0).max())
        seconds, trees, shares = annealed(lines, cuts, 1.0, direct(count), 0.8, 300, seed)
        assert seconds <= first
        assert shares.sum() == pytest.approx(1.0)
        assert (shares <= 0.8 + 1e-12).all()
        ReductionTrees(stages=(tuple(tuple(tree) for tree in trees.tolist()),))
        return seconds, trees.tolist()

    assert found(3) == found(3)


@pytest.mark.parametrize("seed", range(40))
def test_no_trees_are_faster_than_the_links_allow(seed: int) -> None:
    count = 2 + seed % 7
    links = Links.of(drawn_view(count, seed))
    rng = np.random.default_rng(seed)
    for trees in (direct(count), *shapes(links.alpha, links.beta, 1e7), *([] if count == 2 else [_drawn(count, seed)])):
        shares = rng.dirichlet(np.full(count, 0.5))
        alone = np.ones((1, count), dtype=bool)
        begun = np.zeros((1, count, 1))
        cuts = Cuts(alone, np.array([1]), np.array([[1e7]]), np.array([1]), shares[None], begun)
        no_limit = np.full(count, np.inf)
        lines = Lines(links.alpha, links.beta, no_limit, no_limit, np.zeros((count, count)))
        took = float(reduced_at(lines, cuts, trees, 1.0).max())
        assert took >= (1 - 1e-9) * least_seconds(links.alpha, links.beta, 1e7)


def _drawn(count: int, seed: int) -> npt.NDArray[np.int64]:
    return np.array([tree or (owner,) * count for owner, tree in enumerate(drawn_trees(count, seed))])


@pytest.mark.parametrize("count", [2, 5, 8])
def test_over_equal_links_nothing_is_faster_than_equal_parts_straight_to_who_sums(count: int) -> None:
    alpha, beta = np.zeros((count, count)), np.full((count, count), 1e6)
    assert least_seconds(alpha, beta, 1e7) == pytest.approx(2 * 1e7 / count / 1e6)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_with_trees_is_never_slower(seed: int) -> None:
    view = drawn_view(4 + seed, seed, gbps=0.05)
    work, plan = work_of(view), alone(view)
    before = predict(view, work, plan).cost
    found, cost = with_trees(view, work, plan, before)
    assert cost == predict(view, work, found).cost
    if found.trees is None:
        assert (found, cost) == (plan, before)
    else:
        assert cost.total < (1 - WORTH) * before.total


def test_what_a_slow_link_would_carry_goes_around_it() -> None:
    view = far_apart(4, slow=0.1)
    work, plan = work_of(view), alone(view)
    before = predict(view, work, plan).cost
    found, cost = with_trees(view, work, plan, before)
    (one,) = reductions(found, tied=False)
    assert cost.data_parallel < 0.5 * before.data_parallel
    assert all(one.parent(owner, 0) != 1 and one.parent(owner, 1) != 0 for owner in one.owners if owner > 1)


def two_stages(slow: float, second: float) -> tuple[View, Workload, Plan]:
    """Two stages of four, each with one slow pair of links: Gbit/s of the first one's and the second one's."""
    view = far_apart(8, slow)
    rates = view.bandwidth_gbps.copy()
    rates[4, 5] = rates[5, 4] = second
    view = View(nodes=view.nodes, latency_ms=view.latency_ms, bandwidth_gbps=rates)
    half = DEMAND.layers // 2
    routes = tuple((f"p{number}", f"p{4 + number}") for number in range(4))
    plan = Plan(stages=((0, half), (half, DEMAND.layers)), routes=routes)
    return view, Workload(DEMAND, 4, Planning(schedule="1f1b")), plan


def test_stages_whose_reductions_take_equally_long_have_trees_together() -> None:
    """One that is faster makes no step shorter."""
    view, work, plan = two_stages(slow=0.1, second=0.06)
    before = predict(view, work, plan).cost
    found, cost = with_trees(view, work, plan, before)
    assert found.trees is not None
    assert all(found.trees.stages)
    assert cost.data_parallel < 0.7 * before.data_parallel
    for stage in range(2):
        one_only = found.trees.model_copy(
            update={
                "stages": tuple(trees if number == stage else () for number, trees in enumerate(found.trees.stages))
            }
        )
        took = predict(view, work, found.model_copy(update={"trees": one_only})).cost
        assert took.total > cost.total


def test_a_stage_that_no_step_waits_for_has_no_trees() -> None:
    """The other one's slow link is slower by far."""
    view, work, plan = two_stages(slow=0.02, second=0.5)
    found, _ = with_trees(view, work, plan, predict(view, work, plan).cost)
    assert found.trees is not None
    assert [bool(trees) for trees in found.trees.stages] == [True, False]


def test_where_lines_are_shared_parts_go_directly() -> None:
    """What a peer hands on for others would take its own line."""
    view = far_apart(4, slow=0.1)
    nodes = tuple(node.model_copy(update={"up_gbps": 1.0}) for node in view.nodes)
    view = View(nodes=nodes, latency_ms=view.latency_ms, bandwidth_gbps=view.bandwidth_gbps)
    cost = predict(view, work_of(view), alone(view)).cost
    assert with_trees(view, work_of(view), alone(view), cost) == (alone(view), cost)


def test_the_job_chooses_whether_there_are_trees_and_the_plan_says_so() -> None:
    view = far_apart(4, slow=0.01)
    found = allocate(view, work_of(view), budget=None, evaluations=200)
    assert found.trees is not None
    assert "along trees" in found.reason
    assert allocate(view, work_of(view, "equal"), budget=None, evaluations=200).trees is None


def test_a_plan_with_trees_cannot_go_on_where_the_job_has_all_sum_directly() -> None:
    view = far_apart(4, slow=0.01)
    old = allocate(view, work_of(view), budget=None, evaluations=200)
    new = allocate(view, work_of(view, "equal"), budget=None, evaluations=200, in_force=old)
    assert new.trees is None
    assert "cannot go on (the job now has all replicas sum equally much)" in new.reason
