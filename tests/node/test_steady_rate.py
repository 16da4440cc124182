"""The rate of a flow whose window opens, on links that are arithmetic."""

import pytest

from dtfm_node.links.steady_rate import LONG_ROUND_TRIPS, LONG_SECONDS, SteadyRate

LOOK = 0.005
FIRST_BYTES = 14_480


class Window:
    """A flow over a link of `rate` bytes a second: each round trip it sends a window, which doubles."""

    def __init__(self, rate: float, round_trip: float) -> None:
        self.rate, self.round_trip = rate, round_trip

    def come(self, seconds: float) -> tuple[int, float]:
        """What has come until then, and for how many seconds the newest of it waited in a queue."""
        window, begun, total, busy = float(FIRST_BYTES), 0.0, 0.0, 0.0
        while begun <= seconds:
            busy = max(busy, begun)
            total += min(window, max(0.0, seconds - busy) * self.rate)
            busy += window / self.rate
            if busy - begun > self.round_trip:  # the link is full: acknowledgements come as fast as it carries
                return int(total + max(0.0, seconds - busy) * self.rate), seconds - begun - self.round_trip
            begun += self.round_trip
            window *= 2
        return int(total), 0.0


def found(flow: Window) -> tuple[float, float]:
    rate, at = SteadyRate(flow.round_trip), 0.0
    while rate.rate is None:
        at += LOOK
        total, queued = flow.come(at - flow.round_trip / 2)
        rate.came(at, total, queued)
    return rate.rate, at


@pytest.mark.parametrize("round_trip", [0.02, 0.06, 0.1, 0.17, 0.29])
@pytest.mark.parametrize("rate", [1e5, 3e5, 1e6, 2.5e6, 6e6, 2e7])
def test_it_finds_what_a_link_carries_some_round_trips_after_it_is_full(rate: float, round_trip: float) -> None:
    carries, seconds = found(Window(rate, round_trip))
    assert carries == pytest.approx(rate, rel=0.1)
    full = next(number for number in range(40) if FIRST_BYTES * 2**number > rate * round_trip) * round_trip
    assert seconds < full + max(0.6, 3 * round_trip)


@pytest.mark.parametrize(("rate", "round_trip"), [(1e6, 0.1), (6e6, 0.29), (2e7, 0.17)])
def test_as_long_as_a_far_flows_window_opens_it_comes_in_bursts(rate: float, round_trip: float) -> None:
    flow, found, told = Window(rate, round_trip), SteadyRate(round_trip), list[bool]()
    for look in range(1, round(4 * round_trip / LOOK)):
        found.came(look * LOOK, *flow.come(look * LOOK - round_trip / 2))
        told.append(found.has_bursts)
        assert not found.has_long_bursts, "they tell before that"
    assert told[round(0.4 * round_trip / LOOK)] is False, "nothing has come yet"
    assert told[round(1.4 * round_trip / LOOK)] is True


def test_a_burst_of_most_of_a_round_trip_is_a_long_one() -> None:
    flow, found, look = Window(3.5e5, 0.2), SteadyRate(0.2), 0
    while not found.has_long_bursts:
        look += 1
        found.came(look * LOOK, *flow.come(look * LOOK - 0.1))
    assert look * LOOK == pytest.approx(0.5 + 0.15, abs=0.02), "the third would take 165 ms"


def test_what_fills_a_link_or_is_near_comes_in_no_bursts() -> None:
    for rate, round_trip in (2e4, 0.29), (2e7, 0.03):
        flow, found = Window(rate, round_trip), SteadyRate(round_trip)
        for look in range(1, round(4 * round_trip / LOOK)):
            found.came(look * LOOK, *flow.come(look * LOOK - round_trip / 2))
            assert not found.has_bursts


@pytest.mark.parametrize("round_trip", [0.03, 0.29])
def test_a_window_that_stays_shut_is_waited_for_as_long_as_no_queue_grows(round_trip: float) -> None:
    """It comes evenly where it is paced, and tells nothing of the link."""
    rate, at = SteadyRate(round_trip), 0.0
    while rate.rate is None:
        at += LOOK
        rate.came(at, int(1e6 * at), 0.0)
    assert rate.rate == pytest.approx(1e6, rel=0.01)
    assert at == pytest.approx(LONG_SECONDS + LONG_ROUND_TRIPS * round_trip, abs=2 * LOOK)


def test_bursts_with_pauses_between_are_not_taken_for_a_full_link() -> None:
    rate = SteadyRate(0.3)
    for look in range(1, 360):
        rounds, rest = divmod(look * LOOK, 0.3)
        rate.came(look * LOOK, int(1e5 * (rounds + min(1.0, rest / 0.15))))
        assert rate.rate is None


def test_a_flow_that_shows_that_the_link_is_no_bottleneck_ends_at_once() -> None:
    rate = SteadyRate(0.03)
    rate.came(0.02, 1)
    rate.came(0.04, 1 << 23)
    assert rate.rate is not None
    assert rate.rate > 2.5e8


def test_where_nothing_comes_there_is_no_rate() -> None:
    rate = SteadyRate(0.03)
    for look in range(100):
        rate.came(look * LOOK, 0)
    assert rate.rate is None
    assert rate.mean == 0.0


@pytest.mark.parametrize(("rate", "seconds", "is_long"), [(1e6, 0.1, False), (1e6, 0.3, True), (1e8, 0.1, True)])
def test_a_first_burst_alone_is_not_long(rate: float, seconds: float, is_long: bool) -> None:
    """Whoever decides for how long a flow lasts could have a cap's burst taken for what the line carries."""
    steady = SteadyRate(0.01)
    assert not steady.is_long
    for look in range(int(seconds / LOOK) + 1):
        steady.came(look * LOOK, int(rate * look * LOOK))
    assert steady.is_long == is_long
