"""What `explain` says of single changes of a plan: which is best, what it brings, and that looking is bounded."""

from dataclasses import replace

import pytest

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.workload import predict
from dtfm_coordinator.tools.explain import single_changes as module
from dtfm_coordinator.tools.explain.single_changes import SingleChange, TriedChanges, single_changes
from dtfm_coordinator.tools.explain.step_report import change_lines
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.job.job_file import Planning, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View
from tests.coordinator.test_explain import DEMAND, plan, swarm, work

FAST_PAIRS = swarm("abcd", gbps=0.05, links={"ab": 10.0, "cd": 10.0})
"""a is near b, and c near d."""


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


def test_of_a_good_plan_each_kind_is_told_with_what_it_costs() -> None:
    view = swarm("abcde", gbps=0.05, links={"ab": 10.0, "cd": 10.0}, slow={"e": 50.0})
    told, total = of(plan("ab", "cd", "ab", "cd"), view)
    assert 2 <= len(told.best) <= 5
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
    monkeypatch.setattr(module, "MOST_PLAYED", 40_000)
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
