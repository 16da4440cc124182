"""Searches on several cores: they share what they find, keep to one budget, and give way to other programs."""

import os
import threading

import numpy as np
import pytest

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.side_by_side import MOST_CORES, NICE, all_cores, side_by_side
from dtfm_coordinator.allocator.paper.evolutionary_search import search
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.job.job_file import Planning
from tests.coordinator.swarms import DEMAND, drawn_view


def test_all_work_is_done_at_the_same_time_and_waited_for() -> None:
    together, done = threading.Barrier(3, timeout=20), list[int]()

    def work(number: int) -> None:
        together.wait()
        done.append(number)

    side_by_side(work, 3)
    assert sorted(done) == [0, 1, 2]


def test_alone_there_is_no_other_thread() -> None:
    threads = list[threading.Thread]()
    side_by_side(lambda number: threads.append(threading.current_thread()), 1)
    assert threads == [threading.current_thread()]


def test_what_goes_wrong_on_another_thread_is_raised() -> None:
    def work(number: int) -> None:
        if number == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        side_by_side(work, 2)


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="has no niceness")
def test_other_threads_give_way_to_other_programs() -> None:
    before, nice = os.getpriority(os.PRIO_PROCESS, 0), dict[int, int]()

    def work(number: int) -> None:
        nice[number] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    side_by_side(work, 2)
    assert nice == {0: before, 1: max(before, NICE)}


def test_there_is_one_core_at_least() -> None:
    assert 1 <= all_cores() <= MOST_CORES


def test_no_spent_evaluation_is_lost() -> None:
    budget = Budget(None, 10**9)

    def work(number: int) -> None:
        for _ in range(20_000):
            budget.spend(1)

    side_by_side(work, 4)
    assert budget.spent_evaluations == 80_000


@pytest.mark.parametrize("micro_batches", [6, 240])
def test_a_plan_that_is_searched_for_on_three_cores_costs_what_the_simulator_says(micro_batches: int) -> None:
    view = drawn_view(7, 3)
    planning = Planning.model_validate({"in_flight": "auto", "parts": "auto"})
    work = Workload(DEMAND, micro_batches, planning)
    plan = allocate(view, work, budget=1.0, cores=3)
    assert plan.cost is not None
    assert predict(view, work, plan).cost.total == pytest.approx(plan.cost.total)
    assert [total for _, total in plan.history] == sorted((total for _, total in plan.history), reverse=True)


def test_searches_that_count_evaluations_give_the_same_plan_however_many_cores_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view, work = drawn_view(7, 3), Workload(DEMAND, 6, Planning())
    first = allocate(view, work, evaluations=500)
    monkeypatch.setattr("dtfm_coordinator.allocator.allocate.all_cores", lambda: 3)
    again = allocate(view, work, evaluations=500)
    assert again.model_copy(update={"seconds": 0.0, "history": ()}) == first.model_copy(
        update={"seconds": 0.0, "history": ()}
    )


def test_a_search_by_the_papers_cost_on_three_cores_reports_what_its_pipelines_cost() -> None:
    rng = np.random.default_rng(1)
    alpha, beta = rng.random((24, 24)), rng.uniform(1e6, 9e6, (24, 24))
    found = search(alpha, beta, stages=4, replicas=5, activation_bytes=3e6, gradient_bytes=5e6, seconds=1.0, cores=3)
    placed = [device for route in found.pipelines for device in route]
    assert sorted([*placed, *found.idle]) == list(range(24))
    assert found.history[-1][1] == found.cost.total
    totals = [total for _, total in found.history]
    assert totals == sorted(totals, reverse=True)
