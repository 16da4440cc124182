"""How long a peer may be silent, or at one thing, before it counts as gone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.failure_detector import (
    ROUND_TRIPS,
    STUCK_TIMES,
    FailureDetector,
)
from dtfm_protocol.process.timeouts import TIMEOUTS


def after(gaps: list[float], action: float = 0.0) -> tuple[FailureDetector, float]:
    """With a peer whose pulses came so many seconds after each other; and when the last one came."""
    now = 100.0
    patience = FailureDetector(now)
    for gap in gaps:
        now += gap
        patience.pulse(now, action)
    return patience, now


def test_a_peer_that_pulses_evenly_may_be_silent_for_the_shortest_time() -> None:
    patience, now = after([TIMEOUTS.pulse] * 20)
    assert patience.silence_limit == TIMEOUTS.silence_shortest
    assert patience.fault(now + TIMEOUTS.silence_shortest) == ""
    assert patience.fault(now + TIMEOUTS.silence_shortest + 0.1) == "silent for 3.1 s (its limit: 3.0 s)"


def test_a_peer_on_an_unsteady_link_is_given_longer_than_one_on_a_steady_one() -> None:
    steady, _ = after([TIMEOUTS.pulse] * 40)
    unsteady, now = after([0.05, 0.05, 0.05, 2.0] * 10)
    assert unsteady.silence_limit > 2 * steady.silence_limit
    assert unsteady.fault(now + 6.0) == ""


@settings(deadline=None)
@given(gaps=st.lists(st.floats(0, 1e4), max_size=40))
def test_no_peer_is_given_longer_than_a_connection_would_take_to_break(gaps: list[float]) -> None:
    patience, now = after(gaps)
    assert TIMEOUTS.silence_shortest <= patience.silence_limit <= TIMEOUTS.silence_longest
    assert patience.fault(now) == ""
    assert patience.fault(now + TIMEOUTS.silence_longest + 1)


def test_who_did_not_listen_does_not_blame_the_other() -> None:
    patience, now = after([TIMEOUTS.pulse] * 20)
    patience.excuse(now + 60.0)
    assert patience.fault(now + 60.5) == ""
    assert patience.fault(now + 64.0)
    patience.excuse(now + 1.0)  # which lies before
    assert patience.fault(now + 64.0)


@pytest.mark.parametrize("longest", [0.0, 0.5, 3.0, 60.0])
def test_an_action_may_take_many_times_the_longest_one_before_it(longest: float) -> None:
    patience, now = after([TIMEOUTS.pulse] * 20, longest)
    patience.pulse(now := now + TIMEOUTS.pulse, 0.0)
    limit = max(TIMEOUTS.action_shortest, STUCK_TIMES * longest)
    patience.pulse(now := now + TIMEOUTS.pulse, limit)
    assert patience.fault(now) == ""
    patience.pulse(now := now + TIMEOUTS.pulse, limit + 1)
    assert patience.fault(now) == f"at one action for {limit + 1:.0f} s (its limit: {limit:.0f} s)"


def test_the_action_that_takes_long_now_is_no_measure_of_itself() -> None:
    now = 0.0
    patience = FailureDetector(now)
    for step in range(100):
        patience.pulse(now := now + TIMEOUTS.pulse, TIMEOUTS.pulse * step)
    assert patience.action_limit == TIMEOUTS.action_shortest
    assert patience.fault(now)


def test_a_silence_may_last_as_long_as_a_lost_pulse_takes_to_come_again() -> None:
    patience, _ = after([TIMEOUTS.pulse] * 20)
    assert patience.silence_limit == TIMEOUTS.silence_shortest
    patience.echo(1.5)
    assert patience.silence_limit == TIMEOUTS.pulse + ROUND_TRIPS * 1.5
    for _ in range(100):
        patience.echo(0.01)
    assert patience.silence_limit == TIMEOUTS.silence_shortest
    patience.echo(100.0)
    assert patience.silence_limit == TIMEOUTS.silence_longest
