"""Neighbours of a layout: each is one change away and is priced as it is, and a search leaves none that is better."""

import math
from dataclasses import replace

import pytest

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.neighbours import ALIKE, LayoutChange, Neighbours, priced
from dtfm_coordinator.allocator.workload import pose
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.job.job_file import Planning
from tests.coordinator.lettered_swarm import DEMAND, swarm, work

SIX = swarm("abcdef", gbps=0.05, links={"ab": 10.0, "cd": 10.0, "ef": 1.0}, slow={"e": 2.0, "f": 3.0})
NOW = Layout(peers=(0, 1, 2, 3), counts=(2, 2), shares=(2, 2, 2, 2), layers=(1, 3))


def changes(layout: Layout, peers: int, *, paced: bool = False, any_depth: bool = True) -> list[LayoutChange]:
    neighbours = Neighbours(layout, peers, paced=paced, any_depth=any_depth)
    return [one for number in range(neighbours.count) if (one := neighbours.change(number)) is not None]


def test_each_change_is_a_single_one_and_there_once() -> None:
    found = changes(NOW, 6)
    assert len({(one.stages, one.layers) for one in found}) == len(found)
    kinds = {kind: [one for one in found if one.kind == kind] for kind in ("exchange", "idle", "without", "moved")}
    assert len(kinds["exchange"]) == 4 * 3 // 2
    assert len(kinds["without"]) == 4
    assert len(kinds["moved"]) == 4 * 3, "each to any place of the other stage"
    assert len(kinds["idle"]) == 4 * 2 + 2 * 6, "in the place of each, or in any place beside them"
    assert {one.layers for one in found if one.kind == "layer"} == {(2, 2)}, "a stage keeps one layer"
    assert {one.kind for one in changes(NOW, 6, any_depth=False)} == kinds.keys() | {"layer"}
    for one in found:
        assert sorted(peer for stage in one.stages for peer in stage) == sorted({p for s in one.stages for p in s})
        assert all(one.stages)


def test_a_stage_is_left_out_or_an_idle_peer_becomes_one_and_all_layers_are_still_there() -> None:
    layout = Layout(peers=(0, 1, 2), counts=(2, 1), shares=(4, 4, 8), layers=(5, 1), ahead=(3, 0))
    found = [one for one in changes(layout, 4, paced=True) if "stages" in one.kind]
    assert {(one.kind, one.stages, one.layers, one.ahead) for one in found} == {
        ("fewer stages", ((2,),), (6,), ()),
        ("fewer stages", ((0, 1),), (6,), ()),
        ("more stages", ((3,), (0, 1), (2,)), (1, 4, 1), (3, 3, 0)),
        ("more stages", ((3,), (0, 1), (2,)), (2, 3, 1), (3, 3, 0)),
        ("more stages", ((0, 1), (3,), (2,)), (4, 1, 1), (3, 3, 0)),
        ("more stages", ((0, 1), (3,), (2,)), (3, 2, 1), (3, 3, 0)),
    }, "a stage keeps a layer"
    assert {one.words for one in found if one.kind == "fewer stages"} == {
        "without stage 1, whose layers stage 2 has", "without stage 2, whose layers stage 1 has"
    }  # fmt: skip
    assert "idle {3} as a stage of its own, with 2 layers of stage 1" in {one.words for one in found}


def test_shares_of_stages_that_stay_do_so() -> None:
    layout = Layout(peers=(0, 1, 2), counts=(2, 1), shares=(3, 5, 8), layers=(2, 2))
    problem = pose(SIX, work(8), SIX.ids)
    for change in changes(layout, 6):
        if change.kind == "more stages":
            found = priced(problem, layout, change)
            assert found is not None
            kept = dict(zip(found.layout.peers, found.layout.shares, strict=True))
            assert [kept[peer] for peer in layout.peers] == [3, 5, 8]


def test_a_stage_of_one_peer_keeps_it() -> None:
    found = changes(Layout(peers=(0, 1), counts=(1, 1), shares=(4, 4), layers=(2, 2)), 2, any_depth=False)
    assert {one.kind for one in found} == {"exchange", "layer"}


def test_words_name_peers_by_their_numbers() -> None:
    names = [f"peer-{number}" for number in range(6)]
    words = {one.words.format(*names) for one in changes(NOW, 6)}
    assert "peer-0 (stage 1) and peer-3 (stage 2) exchanged" in words
    assert "idle peer-5 in place of peer-2 (stage 2)" in words


@pytest.mark.parametrize("paced", [False, True])
def test_the_search_leaves_no_single_change_that_is_better(paced: bool) -> None:
    """Under the fast form, by which it searches; what it finds by chance here it looks for in the end."""
    job = work(8, Planning(in_flight="auto" if paced else "least", schedule="1f1b"))
    for view, deep in ((SIX, job), (network("worldwide", 8), replace(job, demand=replace(DEMAND, layer_flops=1e12)))):
        found = allocate(view, deep, evaluations=6000)
        layout = Layout.of_plan(found, view.ids)
        assert layout is not None
        problem = pose(view, deep, view.ids, found.schedule, paced=found.pacing is not None)
        assert_settled(problem, layout, len(view.ids))


def assert_settled(problem: Problem, layout: Layout, peers: int) -> None:
    total = layout.cost(problem).total
    for change in changes(layout, peers, paced=problem.paced):
        if max(change.counts) > problem.micro_batches:
            continue
        found = priced(problem, layout, change)
        assert found is None or found.seconds >= (1 - ALIKE) * total, change.words
        if found is not None:
            assert math.isclose(found.seconds, found.layout.cost(problem).total, rel_tol=1e-12)
