"""What may be used at once, and how fast it comes back."""

import pytest

from dtfm_protocol.process.allowance import Allowance


def test_a_burst_may_be_used_at_once_and_comes_back_at_its_rate() -> None:
    allowance = Allowance(rate=2.0, burst=4.0, at=10.0)
    assert [allowance.use(1.0, 10.0) for _ in range(5)] == [True] * 4 + [False]
    assert allowance.pause(1.0, 10.0) == pytest.approx(0.5)
    assert allowance.pause(4.0, 11.0) == pytest.approx(1.0)
    assert not allowance.use(1.0, 10.49)
    assert allowance.use(1.0, 10.51)
    assert not allowance.is_full(11.0)
    assert allowance.is_full(99.0)
    assert allowance.pause(4.0, 99.0) == 0.0
    assert [allowance.use(1.0, 99.0) for _ in range(5)] == [True] * 4 + [False]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    allowance = Allowance(rate=1.0, burst=1.0, at=10.0)
    assert allowance.use(1.0, 10.0)
    assert not allowance.use(1.0, 0.0)
    assert not allowance.use(1.0, 10.5)
    assert allowance.pause(1.0, 9.0) == pytest.approx(0.5)
