"""Which peers have become slow: by their own measure, over several steps, and not all together."""

from dtfm_coordinator.faults.stragglers import SLOW, SLOWEST, WINDOW, Stragglers


def told(pace: Stragglers, plan: int = 1, first: int = 1, **busy: list[float]) -> Stragglers:
    """Each peer's seconds of compute, step by step."""
    for peer, seconds in busy.items():
        for step, value in enumerate(seconds, first):
            pace.reported(peer, plan, step, value)
    return pace


def test_a_peer_that_takes_several_times_what_it_took_is_slow() -> None:
    pace = told(Stragglers(), a=[1.0, 1.0, 1.0, 3.0, 3.0, 3.0], b=[5.0] * 6, c=[2.0] * 6)
    assert pace.factors() == {"a": 3.0}
    assert pace.slow() == {"a"}


def test_a_slow_machine_that_stays_as_it_is_is_not_slow() -> None:
    assert told(Stragglers(), a=[1.0] * 6, b=[50.0] * 6, c=[1.0] * 6).slow() == frozenset()


def test_a_little_slower_is_not_slow() -> None:
    almost = SLOW * 0.99
    assert told(Stragglers(), a=[1.0] * 3 + [almost] * 3, b=[1.0] * 6, c=[1.0] * 6).slow() == frozenset()
    assert told(Stragglers(), a=[1.0] * 3 + [SLOW] * 3, b=[1.0] * 6, c=[1.0] * 6).slow() == {"a"}


def test_one_slow_step_is_not_slow() -> None:
    assert told(Stragglers(), a=[1.0, 1.0, 1.0, 1.0, 9.0, 1.0], b=[1.0] * 6).slow() == frozenset()
    assert told(Stragglers(), a=[9.0, 1.0, 1.0, 1.0, 1.0, 1.0], b=[1.0] * 6).factors() == {}


def test_nobody_is_slow_before_there_is_something_to_compare() -> None:
    pace = Stragglers()
    assert (pace.factors(), pace.slow()) == ({}, frozenset())
    for step in range(1, WINDOW + 1):
        pace.reported("a", 1, step, float(step))
        assert pace.slow() == frozenset()


def test_what_slows_all_down_together_is_no_peers_fault() -> None:
    """Several peers may run on one machine."""
    slower = [1.0] * 3 + [4.0] * 3
    assert told(Stragglers(), a=slower, b=slower, c=slower).slow() == frozenset()
    worse = told(Stragglers(), a=[1.0] * 3 + [12.0] * 3, b=slower, c=slower)
    assert worse.factors() == {"a": 3.0}


def test_what_makes_most_faster_makes_nobody_slow() -> None:
    faster = [4.0] * 3 + [1.0] * 3
    assert told(Stragglers(), a=[1.0] * 6, b=faster, c=faster).slow() == frozenset()


def test_of_two_peers_each_is_measured_by_itself() -> None:
    assert told(Stragglers(), a=[1.0] * 3 + [4.0] * 3, b=[1.0] * 6).factors() == {"a": 4.0}


def test_a_step_that_is_reported_again_counts_once() -> None:
    """Reports come every second, steps more slowly."""
    pace = told(Stragglers(), a=[1.0] * 3, b=[1.0] * 3)
    for _ in range(5):
        pace.reported("a", 1, 4, 9.0)
    assert pace.slow() == frozenset()


def test_reports_without_a_measure_or_of_an_earlier_plan_count_for_nothing() -> None:
    pace = told(Stragglers(), plan=2, a=[1.0] * 3, b=[1.0] * 3)
    told(pace, plan=1, first=4, a=[9.0] * 3)
    told(pace, plan=2, first=4, a=[0.0] * 3)
    assert pace.slow() == frozenset()


def test_a_plan_that_was_made_for_a_slow_peer_takes_it_as_it_is() -> None:
    pace = told(Stragglers(), a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    told(pace, plan=2, first=7, a=[1.5], b=[2.0], c=[2.0])  # it was given half the work
    assert pace.factors() == {"a": 3.0}
    assert pace.slow() == frozenset()
    told(pace, plan=2, first=8, a=[1.5] * 3, b=[2.0] * 3, c=[2.0] * 3)
    assert pace.factors() == {"a": 3.0}
    assert pace.slow() == frozenset()


def test_a_peer_that_becomes_slower_still_is_slow_again_and_counts_as_what_it_is() -> None:
    pace = told(Stragglers(), a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    told(pace, plan=2, first=7, a=[1.0] * 3 + [2.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    assert pace.factors() == {"a": 6.0}
    assert pace.slow() == {"a"}


def test_a_peer_that_has_recovered_counts_as_its_profile_says() -> None:
    pace = told(Stragglers(), a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    told(pace, plan=2, first=7, a=[3.0] * 3 + [1.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    assert pace.factors() == {}
    assert pace.slow() == frozenset()


def test_a_peer_that_says_it_is_slow_beyond_all_measure_is_given_a_number_that_plans_can_take() -> None:
    pace = told(Stragglers(), a=[1e-300] * 3 + [1e9] * 3)
    assert pace.factors() == {"a": SLOWEST}
    pace = told(pace, plan=2, a=[1e-300] * 3 + [1e9] * 3)
    assert pace.factors() == {"a": SLOWEST}
