"""A flow that is held to its link once a queue has grown, on links that are arithmetic."""

import math
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_node.links.short_queue import HELD, HeldFlow, ShortQueue
from dtfm_node.links.steady_rate import SteadyRate
from dtfm_protocol.wire.stream import BytesOnTheWay

LOOK = 0.005
FIRST_BYTES = 14_480


@dataclass
class Flow:
    """A flow over a link of `rate` bytes a second, whose window grows by what is acknowledged."""

    rate: float
    round_trip: float
    now: float = 0.0
    pace: float = math.inf
    window: float = FIRST_BYTES
    sent: float = 0.0
    passed: float = 0.0
    """Bytes that have got through the link; what was sent beside them waits before it."""
    acknowledged: float = 0.0
    queued: float = 0.0
    """Seconds by which round trips were longer of late, as a kernel smoothes them."""
    coming: deque[tuple[float, float, float]] = field(default_factory=deque)
    longest: float = 0.0
    """Seconds of the longest queue that has been."""
    dry: int = 0
    """Looks since the flow was held first in which the link had too little to carry."""

    def look(self) -> None:
        """Let one look's time pass."""
        self.now += LOOK
        while self.coming and self.coming[0][0] <= self.now:
            _, acknowledged, waited = self.coming.popleft()
            self.window += acknowledged - self.acknowledged
            self.queued += (1 - 0.875 ** ((acknowledged - self.acknowledged) / 2_896)) * (waited - self.queued)
            self.acknowledged = acknowledged
        self.sent += max(0.0, min(self.window - (self.sent - self.acknowledged), self.pace * LOOK))
        through = min(self.sent - self.passed, self.rate * LOOK)
        self.dry += math.isfinite(self.pace) and through < 0.99 * self.rate * LOOK
        self.passed += through
        waits = (self.sent - self.passed) / self.rate
        self.coming.append((self.now + self.round_trip, self.passed, waits))
        self.longest = max(self.longest, waits)


def step(flow: Flow, rule: ShortQueue | None, jitter: float = 0.0) -> None:
    """Let one look's time pass; round trips take `jitter` seconds longer by themselves."""
    flow.look()
    if rule is not None:
        on_the_way = int(flow.sent - flow.acknowledged)
        pace = rule.came(flow.now, int(flow.acknowledged), on_the_way, flow.queued + jitter)
        flow.pace = flow.pace if pace is None else pace


def run(flow: Flow, rule: ShortQueue | None, seconds: float) -> None:
    while flow.now < seconds:
        step(flow, rule)


def measured(flow: Flow, rule: ShortQueue | None, jitter: float) -> float:
    """What is found of the link, as a share of what it carries."""
    rate = SteadyRate(flow.round_trip)
    while rate.rate is None:
        step(flow, rule, jitter)
        rate.came(flow.now, int(flow.acknowledged), flow.queued + jitter)
    return rate.rate / flow.rate


LINKS = [(rate, round_trip) for rate in (1e5, 3e5, 1e6, 6e6) for round_trip in (0.03, 0.1, 0.29)]


@pytest.mark.parametrize(("rate", "round_trip"), LINKS)
def test_the_queue_stays_short_and_does_not_run_dry(rate: float, round_trip: float) -> None:
    """The window doubles once more until acknowledgements tell of the queue; left alone it goes on."""
    flow, rule = Flow(rate, round_trip), ShortQueue(round_trip)
    run(flow, rule, 20 * round_trip)
    free = Flow(rate, round_trip)
    run(free, None, 20 * round_trip)
    assert flow.longest < max(0.6 * free.longest, 2.5 * round_trip + 2 * FIRST_BYTES / rate)
    assert flow.longest < free.longest
    assert flow.dry * LOOK < 0.02 * flow.now
    assert rate < flow.pace < HELD**4 * rate


@pytest.mark.parametrize("jitter", [0.0, 0.007, 0.015, 0.05])
@pytest.mark.parametrize("round_trip", [0.02, 0.04, 0.06, 0.1, 0.29])
@pytest.mark.parametrize("rate", [3e5, 6e6, 3e7, 6e7])
def test_a_link_whose_round_trips_are_uneven_is_taken_for_no_slower(
    rate: float, round_trip: float, jitter: float
) -> None:
    """As long as a window opens, longer round trips and much on the way are no queue."""
    free = measured(Flow(rate, round_trip), None, jitter)
    assert measured(Flow(rate, round_trip), ShortQueue(round_trip), jitter) > min(0.93, 0.97 * free)


def test_a_link_that_becomes_faster_is_followed() -> None:
    flow, rule = Flow(2e5, 0.1), ShortQueue(0.1)
    run(flow, rule, 2.0)
    flow.rate = 1e6
    run(flow, rule, 6.0)
    assert flow.pace > 5e5


def test_nothing_is_held_before_packets_make_a_rate() -> None:
    rule = ShortQueue(0.1)
    assert rule.came(0.1, 3_000, 40_000, 0.3) is None
    assert rule.came(0.3, 6_000, 40_000, 0.3) is None


def stream(told: list[BytesOnTheWay | None]) -> tuple[Any, list[float]]:
    paces: list[float] = []
    return SimpleNamespace(progress=lambda: told.pop(0), queued=lambda: 0.3, pace=paces.append), paces


def test_a_flow_is_held_by_what_the_kernel_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("dtfm_node.links.short_queue.time", clock)
    told = [BytesOnTheWay(0, 0.0, 0.1, delivered=20_000 * max(0, look - 1), on_the_way=60_000) for look in range(6)]
    one, paces = stream([*told])
    held = HeldFlow(one)
    for clock.now in (0.1, 0.2, 0.3, 0.4, 0.5):
        assert held.look() == 0.3
    assert paces
    assert paces == pytest.approx([HELD * 2e5] * len(paces))


def test_where_the_kernel_does_not_tell_a_flow_goes_as_it_does() -> None:
    one, paces = stream([None, None])
    assert HeldFlow(one).look() == 0.3
    assert paces == []
