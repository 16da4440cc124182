"""The search: as good as looking at everything, and the same every time."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.allocator.foundations.compiled import compiled
from dtfm_coordinator.allocator.foundations.links import Matrix, pipeline_seconds
from dtfm_coordinator.allocator.foundations.neighbourhoods import nearness, tiled
from dtfm_coordinator.allocator.paper import evolutionary_search
from dtfm_coordinator.allocator.paper.annealing_window import COLD, FROZEN, HOT, MELTED, Window
from dtfm_coordinator.allocator.paper.cooling import anneal
from dtfm_coordinator.allocator.paper.crossover import crossed
from dtfm_coordinator.allocator.paper.evolutionary_search import SearchResult, search, warm_up
from dtfm_coordinator.allocator.paper.exhaustive import partitions, walk_of, walk_on
from dtfm_coordinator.allocator.paper.nearest_partners import Index, NearestPartners, least_seconds, look_in_stage
from dtfm_coordinator.allocator.paper.paper_cost import PaperCostModel, cost_of_pipelines, data_parallel_seconds
from dtfm_coordinator.allocator.paper.placement_state import (
    PairCosts,
    PlacementState,
    cost,
    cost_to_anneal,
    eighth_powers,
    eighth_root,
    look_around,
    network_of,
    refresh,
    reorder,
    routes_of,
    state_of,
)
from dtfm_coordinator.allocator.paper.swaps import exchange, turn
from dtfm_lab.networks.contrived import irregular
from dtfm_lab.networks.paper_networks import AUTHORS_ACTIVATION_BYTES, GRADIENT_BYTES, paper_network

A, G = 3e6, 5e6
SHAPES = [(6, 2, 3), (6, 3, 2), (8, 2, 4), (8, 4, 2), (9, 3, 3), (7, 3, 2), (5, 1, 3), (8, 2, 3), (10, 3, 3), (5, 5, 1)]


def links(devices: int, seed: int, unreachable: float = 0.0) -> tuple[Matrix, Matrix]:
    """Every other one symmetric."""
    rng = np.random.default_rng(seed)
    alpha, beta = rng.random((devices, devices)), rng.uniform(1e6, 9e6, (devices, devices))
    beta[rng.random((devices, devices)) < unreachable] = 0.0
    if seed % 2:
        alpha, beta = (alpha + alpha.T) / 2, np.minimum(beta, beta.T)
    return alpha, beta


def run(alpha: Matrix, beta: Matrix, stages: int, replicas: int, **limits: float | int) -> SearchResult:
    return search(
        alpha,
        beta,
        stages=stages,
        replicas=replicas,
        activation_bytes=A,
        gradient_bytes=G,
        **limits,  # type: ignore[arg-type]
    )


def network(alpha: Matrix, beta: Matrix, stages: int, replicas: int) -> PairCosts:
    pairs = data_parallel_seconds(alpha, beta, G, replicas), pipeline_seconds(alpha, beta, A)
    return network_of(*pairs, stages, replicas)


def every_partition(left: tuple[int, ...], stages: int, replicas: int) -> list[list[list[int]]]:
    """All ways to put some of the devices into unnamed groups, by plain recursion."""
    if stages == 0:
        return [[]]
    if len(left) < stages * replicas:
        return []
    first, rest = left[0], left[1:]
    found = every_partition(rest, stages, replicas)
    for bits in range(1 << len(rest)):
        if bits.bit_count() == replicas - 1:
            mates = [device for number, device in enumerate(rest) if bits >> number & 1]
            others = tuple(device for device in rest if device not in mates)
            found += [[[first, *mates], *more] for more in every_partition(others, stages - 1, replicas)]
    return found


@pytest.mark.parametrize("unreachable", [0.0, 0.1])
@pytest.mark.parametrize(("devices", "stages", "replicas"), SHAPES)
def test_the_search_finds_the_best_of_all_partitions(
    devices: int, stages: int, replicas: int, unreachable: float
) -> None:
    for seed in range(2):
        alpha, beta = links(devices, seed, unreachable)
        model = PaperCostModel(alpha, beta, A, G, replicas)
        everything = every_partition(tuple(range(devices)), stages, replicas)
        assert len(everything) == partitions(devices, stages, replicas)
        optimum = min(model.arrange(groups)[0].total for groups in everything)
        found = run(alpha, beta, stages, replicas, evaluations=5000)
        assert found.cost.total == pytest.approx(optimum)
        assert found.proven
        evolved = run(alpha, beta, stages, replicas, seed=seed, evaluations=60_000, enumerate_up_to=0)
        assert not evolved.proven
        assert evolved.cost.total == pytest.approx(optimum)


def written(net: PairCosts, state: PlacementState, alpha: Matrix, beta: Matrix) -> float:
    return cost_of_pipelines(alpha, beta, routes_of(net, state).tolist(), A, G).total


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_changed_placement_costs_what_its_pipelines_written_out_cost(data: st.DataObject) -> None:
    stages, replicas = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    devices = stages * replicas + data.draw(st.integers(0, 3))
    alpha, beta = links(devices, data.draw(st.integers(0, 99)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    net = network(alpha, beta, stages, replicas)
    state = state_of(net, rng.permutation(devices))
    assert refresh(net, state) == pytest.approx(written(net, state, alpha, beta))
    looks = data.draw(st.booleans())
    look_around(net, state)
    for _ in range(12):
        before, active = state.order.copy(), stages * replicas
        here, there = int(rng.integers(active)), int(rng.integers(devices))
        first, last = sorted(rng.integers(stages, size=2).tolist())
        is_smooth, is_turn = bool(rng.random() < 0.5), rng.random() < 0.3 and first < last
        limit = cost_to_anneal(state, is_smooth) * rng.choice([1.0, rng.uniform(0.8, 1.3)])
        if is_turn:
            after = turn(net, state, first, last, limit, is_smooth)
        elif here // replicas != there // replicas:
            after = exchange(net, state, here, there, limit, is_smooth, looks)
        else:
            continue
        # The same from nothing: what the change kept must not matter.
        anew = state_of(net, state.order)
        assert refresh(net, anew) == pytest.approx(cost(state))
        assert cost_to_anneal(anew, True) == pytest.approx(cost_to_anneal(state, True))
        if looks:
            look_around(net, anew)
            assert np.array_equal(state.nearest.seconds, anew.nearest.seconds)
            assert np.array_equal(state.nearest.others, anew.nearest.others)
        assert cost(state) == pytest.approx(written(net, state, alpha, beta))
        if after < np.inf:
            assert after == pytest.approx(cost_to_anneal(state, is_smooth))
            assert after <= limit * (1 + 1e-12)
        else:
            assert np.array_equal(before, state.order)
            # It was turned down because it costs too much.
            if is_turn:
                stages_after = np.arange(stages)
                stages_after[first : last + 1] = stages_after[first : last + 1][::-1].copy()
                places = (stages_after[:, None] * replicas + np.arange(replicas)).ravel()
                before[:active] = before[places]
            else:
                before[[here, there]] = before[[there, here]]
            turned_down = state_of(net, before)
            refresh(net, turned_down)
            assert cost_to_anneal(turned_down, is_smooth) >= limit * (1 - 1e-12)
    reordered = reorder(net, state)
    assert reordered == pytest.approx(written(net, state, alpha, beta))
    if stages * replicas > 1:
        groups = state.order[: stages * replicas].reshape(stages, replicas).tolist()
        assert reordered == pytest.approx(PaperCostModel(alpha, beta, A, G, replicas).arrange(groups)[0].total)


@compiled
def looked(both: Matrix, order: Index, stage: int, replicas: int, nearest: NearestPartners) -> None:
    look_in_stage(both, order, stage, replicas, nearest)


@compiled
def least(both: Matrix, nearest: NearestPartners, device: int, stage: int, leaver: int, newcomer: int) -> float:
    return least_seconds(both, nearest, device, stage, leaver, newcomer)


@compiled
def norm_of(loads: Matrix) -> float:
    return eighth_root(eighth_powers(loads))


@pytest.mark.parametrize("shape", [(12, 3, 4), (9, 3, 2), (6, 6, 1)])
def test_nearest_partners_are_the_nearest_and_stay_so_when_one_is_exchanged(
    shape: tuple[int, int, int],
) -> None:
    devices, stages, replicas = shape
    both = np.random.default_rng(3).random((devices, devices))
    both += both.T
    order, nearest = np.random.default_rng(4).permutation(devices), NearestPartners.of_size(devices, stages)
    for stage in range(stages):
        looked(both, order, stage, replicas, nearest)
        members = order[stage * replicas : (stage + 1) * replicas].tolist()
        for device in range(devices):
            others = [both[device, member] for member in members if member != device]
            assert least(both, nearest, device, stage, -1, -1) == min(others, default=np.inf)
            for leaver, newcomer in itertools.product(members, {*range(devices)} - {*members} - {device}):
                left = [both[device, member] for member in [*members, newcomer] if member not in (device, leaver)]
                assert least(both, nearest, device, stage, leaver, newcomer) == min(left)


@given(st.lists(st.just(0.0) | st.floats(1e-20, 1e6), min_size=1, max_size=9))
def test_a_smooth_cost_is_the_largest_load_and_a_little_more(loads: list[float]) -> None:
    norm = norm_of(np.array(loads))
    assert max(loads) * (1 - 1e-9) <= norm <= max(loads) * len(loads) ** 0.125 * (1 + 1e-9)


@pytest.mark.parametrize(("is_smooth", "looks"), [(False, True), (True, True), (True, False)])
def test_annealing_reports_the_best_that_it_met(is_smooth: bool, looks: bool) -> None:
    alpha, beta = links(20, 3)
    net = network(alpha, beta, 3, 6)
    state = state_of(net, np.random.default_rng(0).permutation(20))
    start = refresh(net, state)
    best, random = state.order.copy(), np.array([7], dtype=np.uint64)
    look_around(net, state)
    reported, made = anneal(net, state, random, best, start, 0.02 * start, 3000, 0.3, is_smooth, looks)
    assert reported < start
    assert 0 < made < 3000
    again = state_of(net, best)
    assert refresh(net, again) == pytest.approx(reported)


@pytest.mark.parametrize("is_smooth", [False, True])
def test_looking_at_nearest_partners_changes_nothing_that_is_found(is_smooth: bool) -> None:
    """Exchanges that they turn down would have been turned down: ties, too."""
    rng = np.random.default_rng(5)
    alpha, beta = rng.integers(1, 4, (26, 26)) / 4, rng.integers(1, 4, (26, 26)) * 1e6
    net, start = network(alpha, beta, 4, 6), rng.permutation(26)
    found = []
    for looks in (False, True):
        state, random = state_of(net, start), np.array([7], dtype=np.uint64)
        best, best_cost = state.order.copy(), refresh(net, state)
        anneal(net, state, random, best, best_cost, 0.05 * best_cost, 500, 0.3, is_smooth, False)
        look_around(net, state)
        best_cost, made = anneal(net, state, random, best, best_cost, 0.002 * best_cost, 5000, 0.3, is_smooth, looks)
        found.append((best_cost, made, best.tolist(), state.order.tolist()))
    assert found[0] == found[1]
    assert found[0][1] > 20


def tried(
    monkeypatch: pytest.MonkeyPatch, alpha: Matrix, beta: Matrix, evaluations: int
) -> list[tuple[float, int, bool]]:
    """Temperature, number of changes tried, and whether by the smooth cost, of each call of the annealing in a
    search."""
    calls: list[tuple[float, int, bool]] = []

    def spied(*arguments: Any) -> tuple[float, int]:
        best_cost, made = anneal(*arguments)
        calls.append((arguments[5], arguments[6], arguments[8]))
        return best_cost, made

    monkeypatch.setattr(evolutionary_search, "anneal", spied)
    search(
        alpha,
        beta,
        stages=8,
        replicas=8,
        activation_bytes=AUTHORS_ACTIVATION_BYTES,
        gradient_bytes=GRADIENT_BYTES,
        evaluations=evaluations,
    )
    return calls


def test_annealing_is_neither_hotter_nor_colder_than_where_changes_are_worth_trying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = irregular(64, 3)
    calls = tried(monkeypatch, view.alpha(), view.beta(), 300_000)
    temperatures = np.array([temperature for temperature, _, _ in calls])
    first_smooth = [is_smooth for _, _, is_smooth in calls].index(True)
    scouted = next(n for n in range(first_smooth, len(calls)) if temperatures[n + 1] > temperatures[n]) + 1
    assert max(temperatures[scouted:]) < 0.8 * temperatures[0], "nothing is melted again"
    assert 5_000 < sum(steps for _, steps, _ in calls[:scouted]) <= 36_000
    assert min(temperatures[scouted:]) > 3 * temperatures[0] * COLD / (HOT / 8), "nothing goes on where it is frozen"
    assert {is_smooth for _, _, is_smooth in calls[scouted:]} == {False, True}


def test_where_nothing_freezes_annealing_goes_on_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tried(monkeypatch, np.full((64, 64), 0.01), np.full((64, 64), 1e8), 60_000)
    temperatures = [temperature for temperature, _, _ in calls]
    assert not any(is_smooth for _, _, is_smooth in calls)
    assert min(temperatures) < 1.2 * temperatures[0] * COLD / (HOT / 8)


def test_a_window_lies_between_where_changes_are_made_and_where_none_is() -> None:
    whole = Window(100.0, 50.0, 1e-4 * 100.0)  # twelve bands to the ten-thousandth
    made = np.array([0.5, 0.2, MELTED, 0.02, 0.01, FROZEN, 0.0] + [np.nan] * 5)
    seen = whole.seen(made)
    assert seen is not None
    assert seen.hot == pytest.approx(100 * 1e-4 ** (2.5 / 12))
    assert seen.cold == pytest.approx(100 * 1e-4 ** (5.5 / 12))
    assert seen.cold < seen.warm < seen.hot
    assert seen.followed(is_frozen=True).cold > seen.cold > seen.followed(is_frozen=False).cold
    assert whole.seen(np.full(12, 0.3)) is None
    assert whole.seen(np.full(12, np.nan)) is None


def test_what_is_reported_is_what_the_written_pipelines_cost() -> None:
    for seed in range(6):
        alpha, beta = links(22, seed)
        found = run(alpha, beta, 4, 5, seed=seed, evaluations=20_000)
        assert found.cost == cost_of_pipelines(alpha, beta, found.pipelines, A, G)
        assert found.history[-1][1] == found.cost.total
        placed = [device for route in found.pipelines for device in route]
        assert sorted([*placed, *found.idle]) == list(range(22))


def test_the_same_seed_and_evaluations_give_the_same_placement() -> None:
    alpha, beta = links(24, 1)
    one, other = (run(alpha, beta, 4, 6, seed=5, evaluations=100_000) for _ in range(2))
    assert (one.pipelines, one.cost, one.evaluations) == (other.pipelines, other.cost, other.evaluations)
    assert one.evaluations == 100_000


def test_a_budget_in_seconds_is_kept_by_the_given_clock() -> None:
    alpha, beta = links(24, 1)
    ticks = iter(range(10**9))
    found = run(alpha, beta, 4, 6, seconds=200, clock=lambda: float(next(ticks)))  # type: ignore[arg-type]
    assert 200 <= found.seconds < 220
    assert np.all(np.diff([total for _, total in found.history]) < 0)


def test_a_budget_in_seconds_is_kept_on_large_networks() -> None:
    warm_up()
    alpha, beta = links(300, 1)
    for stages, replicas in ((30, 10), (3, 100)):
        assert run(alpha, beta, stages, replicas, seconds=0.5).seconds < 2


@pytest.mark.parametrize(
    ("case", "total"), [(1, 3.440), (2, 31.634), (3, 16.087), (4, 34.802), (5, 49.218)], ids="case {}".format
)
def test_few_evaluations_settle_the_papers_networks_whatever_the_seed_and_the_order_of_devices(
    case: int, total: float
) -> None:
    view = paper_network(case)
    for seed in range(2):
        mixed = np.random.default_rng(seed).permutation(64)
        alpha, beta = view.alpha()[np.ix_(mixed, mixed)], view.beta()[np.ix_(mixed, mixed)]
        found = search(
            alpha,
            beta,
            stages=8,
            replicas=8,
            activation_bytes=AUTHORS_ACTIVATION_BYTES,
            gradient_bytes=GRADIENT_BYTES,
            seed=seed,
            evaluations=100,
        )
        assert found.cost.total <= total + 5e-4


@pytest.mark.parametrize(("stages", "replicas"), [(32, 8), (8, 32)])
def test_two_clusters_of_many_devices_are_told_apart(stages: int, replicas: int) -> None:
    devices = stages * replicas
    cluster = np.random.default_rng(1).permutation(devices) % 2
    same = cluster[:, None] == cluster
    alpha, beta = np.where(same, 0.001, 0.1), np.where(same, 1e8, 1e6)
    apart = [np.flatnonzero(cluster == each).reshape(-1, stages) for each in (0, 1)]
    known = cost_of_pipelines(alpha, beta, np.concatenate(apart).tolist(), A, G).total
    assert run(alpha, beta, stages, replicas, evaluations=2000).cost.total <= known * (1 + 1e-12)


def test_the_slow_device_is_left_idle() -> None:
    alpha, beta = np.full((5, 5), 0.01), np.full((5, 5), 1e7)
    beta[3] = beta[:, 3] = 1e4
    assert run(alpha, beta, 2, 2, evaluations=500).idle == (3,)


def test_unreachable_pairs_are_avoided_wherever_that_is_possible() -> None:
    alpha, beta = np.full((8, 8), 0.01), np.zeros((8, 8))
    ring = [0, 5, 2, 7, 4, 1, 6, 3]
    for position, here in enumerate(ring):
        there = ring[(position + 1) % 8]
        beta[here, there] = beta[there, here] = 1e7
    found = run(alpha, beta, 8, 1, seed=0, evaluations=3000)
    assert np.isfinite(found.cost.total)
    assert np.isinf(run(alpha, beta, 2, 4, seed=0, evaluations=500).cost.total)


def test_one_device_needs_no_search() -> None:
    found = run(np.zeros((1, 1)), np.full((1, 1), 1e6), 1, 1, seconds=5.0)
    assert (found.pipelines, found.idle, found.cost.total) == (((0,),), (), 0.0)


def test_one_device_of_many_costs_nothing_whichever_it_is() -> None:
    network = irregular(64, 0)
    found = search(
        network.alpha(),
        network.beta(),
        stages=1,
        replicas=1,
        activation_bytes=AUTHORS_ACTIVATION_BYTES,
        gradient_bytes=GRADIENT_BYTES,
        evaluations=1000,
    )
    assert found.proven
    assert found.cost.total == 0
    assert [len(route) for route in found.pipelines] == [1]
    assert len(found.idle) == 63


def test_a_walk_meets_each_placement_once() -> None:
    # Where all placements cost alike and the bound is above them, none is left out.
    for devices, stages, replicas in ((9, 3, 3), (8, 2, 3), (6, 6, 1), (7, 2, 2)):
        alpha, beta = np.full((devices, devices), 1.0), np.full((devices, devices), 1e6)
        net = network(alpha, beta, stages, replicas)
        walk, looked_at = walk_of(net), 0
        while walk.depth[0] >= 0:
            looked_at += walk_on(net, walk, np.inf, 5)[1]
        assert looked_at == partitions(devices, stages, replicas)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_tilings_and_children_place_every_device_once(data: st.DataObject) -> None:
    stages, replicas = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    devices = stages * replicas + data.draw(st.integers(0, 4))
    alpha, beta = links(devices, data.draw(st.integers(0, 99)), data.draw(st.floats(0, 0.5)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    one = tiled(nearness(pipeline_seconds(alpha, beta, A)), stages, replicas, data.draw(st.integers(1, stages)))
    other = rng.permutation(devices)
    for order in (one, crossed(one, other, stages, replicas, rng)):
        assert sorted(order.tolist()) == list(range(devices))
