"""What `explain` says of single changes of a plan: which is best, what it brings, and that looking is bounded."""

from dataclasses import replace

import pytest

from dtfm_coordinator.allocator import best_changes
from dtfm_coordinator.allocator.all_reduces.carried_trees import carried, summed_likewise
from dtfm_coordinator.allocator.all_reduces.chosen_trees import with_trees
from dtfm_coordinator.allocator.all_reduces.sized_parts import by_links
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.search import hill_climbing
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_coordinator.tools.explain.single_changes import SingleChange, TriedChanges, single_changes
from dtfm_coordinator.tools.explain.step_report import change_lines
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.job.job_file import Planning, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.plan.reductions import reductions
from dtfm_protocol.plan.summed_parts import WHOLE, SummedParts
from dtfm_protocol.view.view import View
from tests.coordinator.lettered_swarm import DEMAND, plan, swarm, work
from tests.harness.drawn_trees import drawn_trees

FAST_PAIRS = swarm("abcd", gbps=0.05, links={"ab": 10.0, "cd": 10.0})
"""a is near b, and c near d."""
TWO_SLOW = swarm("abcdx", gbps=1.0, links={"ab": 0.001, "cd": 0.001})
"""Neither a and b nor c and d are well connected."""
HEAVY = replace(DEMAND, layer_parameters=(1_000_000,) * 4)


def of(placed: Plan, view: View, planning: Planning | None = None) -> tuple[TriedChanges, float]:
    job = work(len(placed.routes), planning)
    total = predict(view, job, placed).cost.total
    return single_changes(placed, view, job, total), total


def test_an_exchange_that_the_plan_has_missed_is_found_with_its_exact_seconds() -> None:
    crossed = plan("ad", "cb", "ad", "cb")
    told, total = of(crossed, FAST_PAIRS)
    best = told.best[0]
    assert best.words in ("b (stage 2) and d (stage 2) exchanged", "a (stage 1) and c (stage 1) exchanged")
    mended = plan("ab", "cd", "ab", "cd")
    assert best.seconds == pytest.approx(predict(FAST_PAIRS, work(4), mended).cost.total)
    assert best.seconds < total
    assert told.is_all
    lines = change_lines(told, total)
    assert "a single change saves" in lines[0]
    assert "the search has missed it" in lines[0]
    assert "exchanged" in lines[1]
    assert "saves" in lines[1]


def test_boundaries_of_a_changed_layout_are_coarse_only_where_its_own_links_are_slow() -> None:
    fine, coarse = Wire(activations="bf16", gradients="bf16"), Wire(activations="int8", gradients="int8")
    planning = Planning(wire=fine, slow_wire="int8")
    crossed = plan("ad", "cb", "ad", "cb").model_copy(update={"wire": fine, "boundaries": (coarse,)})
    told, total = of(crossed, FAST_PAIRS, planning)
    mended = plan("ab", "cd", "ab", "cd").model_copy(update={"wire": fine})
    assert told.best[0].seconds == pytest.approx(predict(FAST_PAIRS, work(4, planning), mended).cost.total)
    assert told.best[0].seconds < total
    slow = swarm("abcd", gbps=0.05, links={"ab": 0.06})
    told, _ = of(plan("ab", "cd").model_copy(update={"wire": fine, "boundaries": (coarse,)}), slow, planning)
    (exchange,) = (one for one in told.best if "exchanged" in one.words)
    other = plan("ad", "cb").model_copy(update={"wire": fine})
    assert exchange.seconds < 0.9 * predict(slow, work(2, planning), other).cost.total


def along_trees(straight: Plan) -> tuple[Plan, Workload, float]:
    """A plan on `TWO_SLOW` whose first stage sums along trees, the job, and the seconds of a step."""
    job = replace(work(len(straight.routes)), demand=HEAVY)
    sized, cost = by_links(TWO_SLOW, job, straight)
    placed, cost = with_trees(TWO_SLOW, job, sized, cost)
    assert placed.trees is not None
    assert any(placed.trees.stages[0])
    return placed, job, cost.total


def test_a_stage_whose_replicas_stay_keeps_its_trees_in_a_changed_plan() -> None:
    placed, job, total = along_trees(plan("ax", "bx", "cx", "dx"))
    told = single_changes(placed, TWO_SLOW, job, total)
    (moved,) = (one for one in told.best if one.words.startswith("a layer from stage"))
    changed = {
        depth: plan("ax", "bx", "cx", "dx").model_copy(update={"stages": ((0, depth), (depth, 4))}) for depth in (1, 3)
    }
    likely = min(predict(TWO_SLOW, job, carried(placed, one)).cost.total for one in changed.values())
    assert moved.seconds <= likely * (1 + 1e-9)
    assert moved.seconds < 0.5 * min(by_links(TWO_SLOW, job, one)[1].total for one in changed.values())


def test_a_stage_whose_replicas_change_has_trees_laid_anew() -> None:
    """Without one of a slow pair the other pair is as slow as before."""
    placed, job, total = along_trees(plan("ax", "bx", "cx", "dx"))
    told = single_changes(placed, TWO_SLOW, job, total)
    (without,) = (one for one in told.best if one.words.startswith("without") and "whose layers" not in one.words)
    left = [plan("ax", "bx", "cx", "ax"), plan("ax", "bx", "bx", "dx"), plan("ax", "cx", "cx", "dx")]
    assert without.seconds < 0.98 * min(by_links(TWO_SLOW, job, one)[1].total for one in left)


def test_trees_that_are_worse_than_going_straight_are_left_behind() -> None:
    """All of these lead over the one slow link."""
    straight, job = plan("a", "b", "c", "d"), replace(work(4), demand=HEAVY)
    good = swarm("abcd", gbps=1.0, links={"ad": 0.001})
    chain = (((0, 3, 3, 0), (1, 1, 0, 0), (3, 3, 2, 2), (3, 0, 0, 3)),)  # everything goes over the link of a and d
    bad = straight.model_copy(update={"trees": ReductionTrees(stages=chain)})
    found, cost = summed_likewise(good, job, bad, straight)
    sized, direct = by_links(good, job, straight)
    assert predict(good, job, carried(bad, sized)).cost.total > direct.total
    assert cost.total <= direct.total
    assert found.trees is None or found.trees.stages != chain


@pytest.mark.parametrize("seed", range(6))
def test_carried_trees_lead_over_the_same_peers_in_any_order(seed: int) -> None:
    before, after = plan("ax", "bx", "cx", "dx"), plan("dx", "bx", "ax", "cx")
    before = before.model_copy(
        update={
            "parts": SummedParts(stages=((1, 2, 3, WHOLE - 6), ()), shared=(5, 4, 3, 2, WHOLE - 14)),
            "trees": ReductionTrees(stages=(drawn_trees(4, seed), ()), shared=drawn_trees(5, seed)),
        }
    )
    found = carried(before, after)
    for old, new in zip(reductions(before, tied=True), reductions(found, tied=True), strict=True):
        ways = [
            {
                (one.holders[part], one.holders[place]): one.holders[one.parent(part, place)]
                for part in range(len(one.holders))
                for place in range(len(one.holders))
            }
            for one in (old, new)
        ]
        assert ways[0] == ways[1]
        assert dict(zip(old.holders, old.sizes, strict=True)) == dict(zip(new.holders, new.sizes, strict=True))
    lone = plan("ax", "bx", "cx", "cx")
    assert carried(before, lone) == lone


def test_of_a_good_plan_each_kind_is_told_with_what_it_costs() -> None:
    view = swarm("abcde", gbps=0.05, links={"ab": 10.0, "cd": 10.0}, slow={"e": 50.0})
    told, total = of(plan("ab", "cd", "ab", "cd"), view)
    assert 2 <= len(told.best) <= 7
    assert [one.seconds for one in told.best] == sorted(one.seconds for one in told.best)
    assert all(one.seconds > total for one in told.best)
    assert any(one.words.startswith("a layer from stage") for one in told.best)
    assert any(one.words.startswith("idle e in ") for one in told.best)
    lines = change_lines(told, total)
    assert lines[0].startswith("why these peers: no single change shortens the step")
    assert all("costs" in line for line in lines[1:])


def test_a_peer_that_holds_the_others_up_is_better_left_out() -> None:
    told, total = of(plan("a", "a", "b", "b"), swarm("ab", gbps=0.0001))
    assert told.best[0].words.startswith("without ")
    alone = plan("a", "a", "a", "a")
    assert told.best[0].seconds == pytest.approx(predict(swarm("ab"), work(4), alone).cost.total)
    assert told.best[0].seconds < total


def test_what_the_owner_has_fixed_is_kept_to() -> None:
    told, _ = of(plan("ab", "cd", "ab", "cd"), FAST_PAIRS, Planning(stages=2, replicas=2))
    assert told.best
    assert not [one for one in told.best if one.words.startswith("without") or "instead" in one.words]


def test_peers_that_are_alike_are_no_change() -> None:
    told, total = of(plan("a", "b"), swarm("ab"))
    assert [one.words.split()[0] for one in told.best] == ["without"]
    assert "makes any difference" in change_lines(TriedChanges((), 1, True), total)[0]


def test_memory_is_kept_to() -> None:
    small = swarm("abc", gbps=0.0001, memory_bytes=1.0)
    assert of(plan("ab", "cb"), small)[0].best == ()


def test_looking_at_changes_of_many_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_changes, "MOST_PLAYED", 40_000)
    view = network("worldwide", 64)
    job = replace(work(16, Planning(stages=4, schedule="1f1b")), demand=replace(DEMAND, layer_flops=1e12))
    placed = allocate(view, job, evaluations=200)
    assert placed.cost is not None
    told = single_changes(placed, view, job, placed.cost.total)
    assert not told.is_all
    assert 0 < told.looked_at <= 40_000 // (2 * 2 * 16 * 4) + 6
    assert told == single_changes(placed, view, job, placed.cost.total)


def test_seconds_and_shares_are_told_with_their_sign() -> None:
    lines = change_lines(TriedChanges((SingleChange("a thing", 9.0), SingleChange("another", 12.5)), 7, False), 10.0)
    assert lines == [
        "why these peers: a single change saves 1 s a step (10 %): the search has missed it, `plan --budget SECONDS` "
        "searches longer (the best of each kind among 7 single changes, drawn from more)",
        "  a thing  saves 1 s (-10 %)",
        "  another  costs 2.5 s (+25 %)",
    ]
    what_if = change_lines(TriedChanges((SingleChange("a thing", 9.0),), 7, True), 10.0, is_what_if=True)
    assert "the plan was searched for another wire or schedule (" in what_if[0]


def test_a_search_leaves_no_single_change_that_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hill_climbing, "MOST_SETTLING", -1.0)  # the search itself anneals to its end
    view = network("irregular", 8, 1)
    job = replace(work(8, Planning(schedule="1f1b")), demand=replace(DEMAND, layer_flops=1e12))
    placed = allocate(view, job, evaluations=2000)
    assert placed.cost is not None
    best = single_changes(placed, view, job, placed.cost.total).best
    assert min(one.seconds for one in best) > placed.cost.total


def test_changes_are_looked_at_only_until_one_is_told_to_stop() -> None:
    left = iter([False] * 5)
    job = work(4)
    found = best_changes.best_changes(
        plan("ad", "cb", "ad", "cb"), FAST_PAIRS, job, tuple("abcd"), lambda: next(left, True)
    )
    assert (found.looked_at, found.is_all) == (5, False)
