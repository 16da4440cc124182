"""What is left of a search's budget, by either of its limits."""

import pytest

from dtfm_coordinator.allocator.foundations.search_budget import Budget


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_foreseen_of_evaluations_is_what_is_left_of_them() -> None:
    budget = Budget(None, 1000)
    assert budget.foreseen() == 1000
    budget.spend(250)
    assert budget.foreseen() == 750
    budget.until = 0.5
    assert budget.foreseen() == 250
    budget.spend(400)
    assert budget.foreseen() == 0


def test_what_is_foreseen_of_time_is_as_many_as_it_has_let_through() -> None:
    clock = Clock()
    budget = Budget(10.0, None, clock)
    assert budget.foreseen() > 10**9
    budget.spend(500)
    clock.now = 2.0
    assert budget.foreseen() == pytest.approx(2000, abs=1)
    clock.now = 10.0
    assert budget.foreseen() == 0


def test_the_nearer_of_both_limits_is_foreseen() -> None:
    clock = Clock()
    budget = Budget(10.0, 1000, clock)
    budget.spend(500)
    clock.now = 1.0
    assert budget.foreseen() == 500
    clock.now = 9.0
    assert budget.foreseen() == pytest.approx(55, abs=1)


def test_nothing_is_foreseen_of_a_search_that_is_stopped() -> None:
    budget = Budget(None, 1000, stop=lambda: True)
    budget.spend(1)
    assert budget.foreseen() == 0
