"""The rate of a far link by the bursts of a flow whose window grows, on links that are arithmetic."""

import random

import pytest

from dtfm_node.links.burst_rate import BurstRate
from tests.node.test_steady_rate import FIRST_BYTES, LOOK, Window

SECONDS = 4.0


def watched(flow: Window, looks: list[float]) -> tuple[float | None, float]:
    """What the bursts say, and when."""
    bursts = BurstRate(flow.round_trip)
    for at in looks:
        bursts.came(at, flow.come(at - flow.round_trip / 2)[0])
        if bursts.rate is not None:
            return bursts.rate, at
    return None, SECONDS


def regular() -> list[float]:
    return [number * LOOK for number in range(1, int(SECONDS / LOOK))]


@pytest.mark.parametrize("round_trip", [0.17, 0.29, 0.4])
@pytest.mark.parametrize("rate", [1e6, 2.5e6, 6e6, 2e7])
def test_a_far_link_is_known_before_it_is_full(rate: float, round_trip: float) -> None:
    found, at = watched(Window(rate, round_trip), regular())
    full = next(number for number in range(40) if FIRST_BYTES * 2**number > rate * round_trip) * round_trip
    assert found == pytest.approx(rate, rel=0.05)
    assert at < full + round_trip


@pytest.mark.parametrize("seed", range(20))
def test_looks_of_a_busy_machine_tell_the_same_or_nothing(seed: int) -> None:
    drawn, looks = random.Random(seed), [0.0]
    while looks[-1] < SECONDS:
        looks.append(looks[-1] + LOOK * (1 + drawn.expovariate(1.0) * (10 if drawn.random() < 0.05 else 0.3)))
    found, _ = watched(Window(2.5e6, 0.29), looks[1:])
    assert found is None or found == pytest.approx(2.5e6, rel=0.15)


def test_bursts_that_a_sender_spaces_itself_tell_nothing() -> None:
    """Each window takes half a round trip: the larger it is, the faster it goes."""
    bursts = BurstRate(0.3)
    for look in range(1, 360):
        rounds, rest = divmod(look * LOOK, 0.3)
        window = FIRST_BYTES * 2 ** int(rounds)
        bursts.came(look * LOOK, int(FIRST_BYTES * (2 ** int(rounds) - 1) + window * min(1.0, rest / 0.15)))
        assert bursts.rate is None


def test_bursts_of_the_same_size_tell_nothing() -> None:
    """What lets so much go at a time may be a cap, and the line behind it faster."""
    bursts = BurstRate(0.3)
    for look in range(1, 360):
        rounds, rest = divmod(look * LOOK, 0.3)
        bursts.came(look * LOOK, int(3e5 * (rounds + min(1.0, rest / 0.15))))
        assert bursts.rate is None


def test_a_burst_that_comes_unevenly_tells_nothing() -> None:
    """The first half of each comes three times as fast as the second."""
    bursts = BurstRate(0.3)
    for look in range(1, 360):
        rounds, rest = divmod(look * LOOK, 0.3)
        window, taken = 2 ** int(rounds) * 60_000, rest / (0.012 * 2 ** int(rounds))
        share = min(0.75, 1.5 * taken) if taken < 0.5 else min(1.0, 0.5 + 0.5 * taken)
        bursts.came(look * LOOK, int(60_000 * (2 ** int(rounds) - 1) + window * share))
        assert bursts.rate is None


def test_near_links_are_not_judged_by_bursts() -> None:
    assert watched(Window(6e6, 0.06), regular())[0] is None


def test_a_burst_at_which_the_flow_ends_counts_once_that_is_said() -> None:
    flow, bursts = Window(2.5e6, 0.29), BurstRate(0.29)
    found, known = watched(flow, regular())
    for at in regular():
        if at < known - 0.03:
            bursts.came(at, flow.come(at - 0.145)[0])
    assert bursts.rate is None
    bursts.ended()
    assert bursts.rate == pytest.approx(found)


def test_of_what_comes_without_a_pause_little_is_kept_however_long_it_lasts() -> None:
    """The other end decides for how long it sends."""
    bursts = BurstRate(0.3)
    for look in range(1, 5000):
        bursts.came(look * LOOK, look)
        assert len(bursts._burst.seen) <= 0.3 / LOOK + 2
    assert bursts.rate is None
