"""Which peers have become slow: by their own measure, over a while, and not all together."""

import math
import random

from dtfm_coordinator.faults.stragglers import LOOK_SECONDS, SECONDS, SLOW, SLOWEST, STEPS, Stragglers, work_of
from dtfm_protocol.plan.plan import Plan

LONG = SECONDS / 2
"""Seconds of steps that are so long that the fewest count."""


def plan_of(version: int, **shares: int) -> Plan:
    """Return a plan in which each peer serves the whole model of four layers to so many micro-batches."""
    routes = tuple((peer,) for peer, count in shares.items() for _ in range(count))
    return Plan(version=version, stages=((0, 4),), routes=routes)


class Told:
    """Stragglers, their clock, and the plan under which steps are reported."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pace = Stragglers(lambda: self.now)
        self.plan, self._step = plan_of(1, a=1, b=1, c=1), 0

    def steps(self, every: float = LONG, **busy: list[float]) -> "Told":
        """Each peer's seconds of compute, step by step, with so many seconds from one to the next."""
        for values in zip(*busy.values(), strict=True):
            self._step += 1
            self.now += every
            for peer, seconds in zip(busy, values, strict=True):
                self.pace.reported(peer, self.plan, self._step, seconds)
        return self

    def goes_on(self, **shares: int) -> "Told":
        """Another plan, with other shares."""
        self.plan = plan_of(self.plan.version + 1, **shares or {"a": 1, "b": 1, "c": 1})
        return self

    @property
    def slow(self) -> frozenset[str]:
        self.now += LOOK_SECONDS
        return self.pace.slow()

    @property
    def factors(self) -> dict[str, float]:
        self.now += LOOK_SECONDS
        return self.pace.factors()


def test_a_peer_that_takes_several_times_what_it_took_is_slow() -> None:
    told = Told().steps(a=[1.0, 1.0, 1.0, 3.0, 3.0, 3.0], b=[5.0] * 6, c=[2.0] * 6)
    assert told.factors == {"a": 3.0}
    assert told.slow == {"a"}


def test_a_slow_machine_that_stays_as_it_is_is_not_slow() -> None:
    assert Told().steps(a=[1.0] * 6, b=[50.0] * 6, c=[1.0] * 6).slow == frozenset()


def test_a_little_slower_is_not_slow() -> None:
    almost = SLOW * 0.99
    assert Told().steps(a=[1.0] * 3 + [almost] * 3, b=[1.0] * 6, c=[1.0] * 6).slow == frozenset()
    assert Told().steps(a=[1.0] * 3 + [SLOW] * 3, b=[1.0] * 6, c=[1.0] * 6).slow == {"a"}


def test_one_slow_step_is_not_slow() -> None:
    assert Told().steps(a=[1.0, 1.0, 1.0, 1.0, 9.0, 1.0], b=[1.0] * 6).slow == frozenset()
    assert Told().steps(a=[9.0, 1.0, 1.0, 1.0, 1.0, 1.0], b=[1.0] * 6).factors == {}


def test_however_many_short_steps_are_slow_what_passes_within_seconds_is_not() -> None:
    told = Told().steps(every=0.5, a=[1.0] * 60, b=[1.0] * 60, c=[1.0] * 60)
    burst = int(0.7 * SECONDS / 0.5)
    for _ in range(4):
        for _ in range(burst):
            assert told.steps(every=0.5, a=[9.0], b=[1.0], c=[1.0]).pace.slow() == frozenset()
        for _ in range(2 * burst):
            assert told.steps(every=0.5, a=[1.0], b=[1.0], c=[1.0]).pace.slow() == frozenset()


def test_with_short_steps_a_slow_peer_is_noticed_once_most_of_the_while_has_been_slow() -> None:
    told = Told().steps(every=0.5, a=[1.0] * 60, b=[1.0] * 60, c=[1.0] * 60)
    since = told.now
    while told.pace.slow() != {"a"}:
        told.steps(every=0.5, a=[9.0], b=[1.0], c=[1.0])
    assert 0.7 * SECONDS <= told.now - since <= 0.75 * SECONDS + 2 * LOOK_SECONDS + 0.5


def test_nobody_is_slow_before_there_is_something_to_compare() -> None:
    told = Told()
    assert (told.factors, told.slow) == ({}, frozenset())
    for step in range(1, STEPS + 1):
        told.steps(a=[float(step)])
        assert told.slow == frozenset()


def test_what_slows_all_down_together_is_no_peers_fault() -> None:
    """Several peers may run on one machine."""
    slower = [1.0] * 3 + [4.0] * 3
    assert Told().steps(a=slower, b=slower, c=slower).slow == frozenset()
    assert Told().steps(a=slower, b=slower).slow == frozenset()
    assert Told().steps(a=[1.0] * 3 + [12.0] * 3, b=slower, c=slower).factors == {"a": 3.0}


def test_a_machine_whose_processors_others_take_has_peers_of_changing_pace_and_hardly_ever_a_slow_one() -> None:
    """Four peers on it: each step takes some of them up to four times as long, whomever the system lets wait."""
    draw, minutes = random.Random(0), 30
    found = 0
    for _ in range(minutes):
        told = Told()
        told.steps(every=1.0, **{peer: [draw.uniform(1.0, 1.2) for _ in range(20)] for peer in "abcd"})
        for _ in range(60):
            told.steps(every=1.0, **{peer: [draw.choice((1.0, 2.0, 3.0, 4.0))] for peer in "abcd"})
            if told.pace.slow():
                found += 1
                break
    assert found <= minutes // 15


def test_what_makes_most_faster_makes_nobody_slow() -> None:
    faster = [4.0] * 3 + [1.0] * 3
    assert Told().steps(a=[1.0] * 6, b=faster, c=faster).slow == frozenset()


def test_of_two_peers_each_is_measured_by_itself() -> None:
    assert Told().steps(a=[1.0] * 3 + [4.0] * 3, b=[1.0] * 6).factors == {"a": 4.0}


def test_a_peer_that_trains_alone_may_be_slow() -> None:
    assert Told().steps(a=[1.0] * 3 + [4.0] * 3).factors == {"a": 4.0}


def test_a_step_that_is_reported_again_counts_once() -> None:
    """Reports come every second, steps more slowly."""
    told = Told().steps(a=[1.0] * 3, b=[1.0] * 3)
    for _ in range(50):
        told.now += 1.0
        told.pace.reported("a", told.plan, 4, 9.0)
    assert told.slow == frozenset()


def test_reports_without_a_measure_or_of_an_earlier_plan_count_for_nothing() -> None:
    told = Told()
    old = told.plan
    told.goes_on().steps(a=[1.0] * 3, b=[1.0] * 3)
    for step in range(10, 14):
        told.now += LONG
        told.pace.reported("a", old, step, 9.0)
        told.pace.reported("a", told.plan, step, 0.0)
    assert told.slow == frozenset()


def test_a_peer_that_reports_all_the_time_is_judged_as_any_other() -> None:
    told = Told().steps(every=0.01, a=[1.0] * 4000, b=[1.0] * 4000)
    assert told.steps(every=0.01, a=[5.0] * 1400, b=[1.0] * 1400).slow == {"a"}


def test_a_plan_that_was_made_for_a_slow_peer_takes_it_as_it_is() -> None:
    told = Told().steps(a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    told.goes_on(a=1, b=2, c=2).steps(a=[3.0], b=[2.0], c=[2.0])
    assert told.factors == {"a": 3.0}
    assert told.slow == told.pace.well() == frozenset()
    told.steps(a=[3.0] * 3, b=[2.0] * 3, c=[2.0] * 3)
    assert told.factors == {"a": 3.0}
    assert told.slow == told.pace.well() == frozenset()


def test_a_peer_that_becomes_slower_still_is_slow_again_and_counts_as_what_it_is() -> None:
    told = Told().steps(a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    told.goes_on().steps(a=[3.0] * 3 + [6.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    assert told.factors == {"a": 6.0}
    assert told.slow == {"a"}


def test_a_peer_that_has_recovered_counts_as_its_profile_says() -> None:
    told = Told().steps(a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    told.goes_on().steps(a=[3.0] * 3 + [1.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    assert told.factors == {}
    assert told.slow == frozenset()
    assert told.pace.well() == {"a"}


def test_a_peer_that_recovers_while_the_plan_changes_is_known_by_the_work_that_it_has() -> None:
    told = Told().steps(a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    assert told.factors == {"a": 3.0}
    told.goes_on(a=2, b=3, c=3).steps(a=[2.0] * 3, b=[3.0] * 3, c=[3.0] * 3)
    assert told.factors == {}
    told.goes_on(a=3, b=3, c=3).steps(a=[3.0] * 3 + [9.0] * 3, b=[3.0] * 6, c=[3.0] * 6)
    assert told.factors == {"a": 3.0}


def test_a_peer_that_was_started_anew_is_measured_anew() -> None:
    told = Told().steps(a=[1.0] * 3 + [3.0] * 3, b=[1.0] * 6, c=[1.0] * 6)
    assert told.slow == {"a"}
    told.pace.forget("a")
    assert told.pace.slow() == frozenset()
    assert told.factors == {}
    told.steps(a=[3.0] * 6, b=[1.0] * 6, c=[1.0] * 6)
    assert told.factors == {}


def test_slow_peers_are_steady_for_as_long_as_they_are_the_same() -> None:
    usual = {"b": [1.0], "d": [1.0], "e": [1.0]}
    told = Told()
    for a in (1.0, 1.0, 1.0, 3.0, 3.0, 3.0):
        told.steps(a=[a], c=[1.0], **usual)
    assert told.slow == {"a"}
    first = told.pace.steady_seconds()
    assert SECONDS / 2 <= first <= 2 * SECONDS
    for _ in range(4):
        told.steps(a=[3.0], c=[1.0], **usual)
    assert told.slow == {"a"}
    assert told.pace.steady_seconds() >= first + 4 * LONG
    for _ in range(3):
        told.steps(a=[3.0], c=[4.0], **usual)
    assert told.slow == {"a", "c"}
    assert told.pace.steady_seconds() <= 2 * SECONDS


def test_a_peer_that_says_it_is_slow_beyond_all_measure_is_given_a_number_that_plans_can_take() -> None:
    told = Told().steps(a=[1e-300] * 3 + [1e9] * 3)
    assert told.factors == {"a": SLOWEST}
    told.goes_on().steps(a=[1e-300] * 3 + [1e9] * 3)
    assert all(math.isfinite(factor) and factor <= SLOWEST for factor in told.factors.values())


def test_work_is_layers_times_micro_batches() -> None:
    plan = Plan(version=1, stages=((0, 3), (3, 4)), routes=(("a", "b"), ("a", "c"), ("d", "c")))
    assert work_of(plan) == {"a": 6, "b": 1, "c": 2, "d": 3}
