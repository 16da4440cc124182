"""A flow that is held to its link once a queue has grown, on links that are arithmetic."""

import math
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_node.links.short_queue import HELD, LEAST_SECONDS, ROUND_TRIPS, HeldFlow, ShortQueue
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
    ran_dry: bool = False

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
        self.ran_dry = through < 0.99 * self.rate * LOOK
        self.passed += through
        waits = (self.sent - self.passed) / self.rate
        self.coming.append((self.now + self.round_trip, self.passed, waits))
        self.longest = max(self.longest, waits)


def run(flow: Flow, rule: ShortQueue, seconds: float) -> None:
    while flow.now < seconds:
        flow.look()
        pace = rule.came(flow.now, int(flow.acknowledged), int(flow.sent - flow.acknowledged), flow.queued)
        flow.pace = flow.pace if pace is None else pace


LINKS = [(rate, round_trip) for rate in (1e5, 3e5, 1e6, 6e6) for round_trip in (0.03, 0.1, 0.29)]


@pytest.mark.parametrize(("rate", "round_trip"), LINKS)
def test_the_queue_stays_short_and_does_not_run_dry(rate: float, round_trip: float) -> None:
    """The window doubles once more until acknowledgements tell of the queue; left alone it goes on."""
    flow, rule = Flow(rate, round_trip), ShortQueue(round_trip)
    run(flow, rule, 20 * round_trip)
    free = Flow(rate, round_trip)
    while free.now < 20 * round_trip:
        free.look()
    assert flow.longest < 2.5 * round_trip + 2 * FIRST_BYTES / rate < 0.6 * free.longest
    assert not flow.ran_dry
    assert rate < flow.pace < HELD**4 * rate


def test_a_flow_is_not_held_as_long_as_no_queue_grows() -> None:
    flow, rule = Flow(1e9, 0.1), ShortQueue(0.1)
    run(flow, rule, 0.6)
    assert math.isinf(flow.pace)


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
    told = [BytesOnTheWay(0, 0.0, 0.1, delivered=sent, on_the_way=60_000) for sent in (0, 0, 20_000, 40_000)]
    one, paces = stream([*told])
    held = HeldFlow(one)
    for clock.now in (0.1, 0.2, 0.3):
        assert held.look() == 0.3
    assert paces == pytest.approx([HELD * 2e5] * 2)
    assert max(LEAST_SECONDS, 0.1 * ROUND_TRIPS) < 60_000 / 2e5 - 0.1


def test_where_the_kernel_does_not_tell_a_flow_goes_as_it_does() -> None:
    one, paces = stream([None, None])
    assert HeldFlow(one).look() == 0.3
    assert paces == []
