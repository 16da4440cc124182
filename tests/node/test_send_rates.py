"""How fast frames go, while they do, as the sender's kernel tells: slow links are told from idle ones and busy ends."""

import pytest

from dtfm_node.engine.send_rates import ACKNOWLEDGEMENT_SECONDS, BUSY_SECONDS, SPAN_SECONDS, SendRates
from dtfm_protocol.wire.stream import BytesOnTheWay

ROUND_TRIP = 0.2
LOOK = 0.5


class Line:
    """Streams to one peer whose kernel says how far they have come."""

    def __init__(self) -> None:
        self.rates = SendRates()
        self.now = 100.0
        self._progress = [BytesOnTheWay(0, 0.0, ROUND_TRIP), BytesOnTheWay(0, 0.0, ROUND_TRIP)]
        self._look()

    def goes(self, size: int, busy: float, *, writes: int = 0, stream: int = 0, looks: int = 1) -> None:
        """So many bytes come, and so long the way is busy, between two looks."""
        for _ in range(looks):
            for _ in range(writes):
                self.rates.wrote(stream)
            before = self._progress[stream]
            self._progress[stream] = BytesOnTheWay(before.acknowledged + size, before.busy + busy, ROUND_TRIP)
            self._look()

    def told(self) -> float | None:
        return self.rates.rates(self.now).get("b")

    def _look(self) -> None:
        self.now += LOOK
        self.rates.looked(self.now, {number: ("b", one) for number, one in enumerate(self._progress)})


def test_a_frame_that_is_long_on_its_way_tells_its_rate_before_it_is_through() -> None:
    line = Line()
    line.goes(500_000, LOOK, looks=3)
    assert line.told() is None  # not for long enough
    line.goes(500_000, LOOK)
    assert line.told() == pytest.approx(500_000 / LOOK * 8e-9)


def test_waits_for_acknowledgements_are_no_slowness() -> None:
    """Half a world away a small frame is soon out, and a round trip later it is acknowledged."""
    line = Line()
    line.goes(1000, ROUND_TRIP + ACKNOWLEDGEMENT_SECONDS, writes=1, looks=20)
    assert line.told() is None


def test_many_small_frames_on_a_slow_link_tell_its_rate() -> None:
    line = Line()
    line.goes(10_000, LOOK, writes=1, looks=20)
    told = line.told()
    assert told == pytest.approx(10_000 / (LOOK - ROUND_TRIP - ACKNOWLEDGEMENT_SECONDS) * 8e-9)


def test_an_idle_way_tells_nothing_and_an_old_rate_is_forgotten() -> None:
    line = Line()
    line.goes(100, LOOK, looks=6)
    assert line.told() is not None
    line.goes(0, 0.0, looks=round(SPAN_SECONDS / LOOK))
    assert line.told() is None


def test_two_streams_to_one_peer_share_its_link() -> None:
    rates = SendRates()
    for look in range(10):
        one = BytesOnTheWay(1000 * look, LOOK * look, 0.0)
        rates.looked(LOOK * look, {0: ("b", one), 1: ("b", one)})
    assert rates.rates(LOOK * 9)["b"] == pytest.approx(2 * 1000 / LOOK * 8e-9)


def test_a_stream_that_is_new_is_compared_with_nothing() -> None:
    rates = SendRates()
    rates.looked(0.0, {0: ("b", BytesOnTheWay(1000, 2 * BUSY_SECONDS, 0.0))})
    assert rates.rates(0.0) == {}


def test_a_link_that_fails_is_told_by_what_goes_since() -> None:
    line = Line()
    line.goes(1_000_000, LOOK, looks=6)
    line.goes(1000, LOOK, looks=round(BUSY_SECONDS / LOOK))
    assert line.told() == pytest.approx(1000 / LOOK * 8e-9)
