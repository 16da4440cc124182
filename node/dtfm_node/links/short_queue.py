"""Short queue of a flow by which a link is measured: held to what the link carries once a queue has grown before it.
Longer ones tell no more, and whatever comes next on the way waits behind them."""

import time
from collections import deque

from dtfm_node.links.rate_search import paced
from dtfm_protocol.wire.stream import Stream

HELD, FREED = 1.05, 2.0
"""Multiples of the fastest rate so far at which a flow goes on: while there is a queue, which so does not run dry; and
where it was held and there is none, for the link may carry more."""
SPAN_SECONDS = 0.05
"""Seconds, and bytes, of what makes a rate: in fewer, a few packets do."""
SPAN_BYTES = 12 << 10
LEAST_SECONDS, ROUND_TRIPS = 0.005, 0.1
"""Seconds, and round trips, that a queue takes at least: what is on the way and waits, and what round trips of late
have been longer."""
GROWS = 1.25
"""Multiple of what the fastest rate was a round trip ago from which a window still opens. What is on the way says
nothing then, nor do round trips, which behind bursts, and on radio links, are longer without a queue."""


class ShortQueue:
    """Rule of one flow's pace: say how many bytes `came`, and how many are on the way. Pure."""

    def __init__(self, round_trip: float) -> None:
        """Nothing has come yet; a round trip without a queue takes `round_trip` seconds."""
        self._round_trip = round_trip
        self._seen: deque[tuple[float, int]] = deque()
        self._fastest, self._was_held = 0.0, False
        self._rates: deque[tuple[float, float]] = deque()
        """When the fastest rate was which, of the last round trip and a little more."""

    def came(self, at: float, total: int, on_the_way: int, queued: float) -> float | None:
        """Return the bytes a second at which to go on; None: as before.

        Args:
            at: seconds, on any clock.
            total: bytes that have come to the other end so far.
            on_the_way: bytes that were sent and have not come.
            queued: seconds by which round trips of late took longer than without a queue.
        """
        self._seen.append((at, total))
        while len(self._seen) > 2 and self._is_span(self._seen[1]):
            self._seen.popleft()
        begun, passed = self._seen[0]
        if self._is_span((begun, passed)):
            self._fastest = max(self._fastest, (total - passed) / (at - begun))
        if not self._fastest:
            return None
        self._rates.append((at, self._fastest))
        before = max(SPAN_SECONDS, self._round_trip)
        while len(self._rates) > 1 and at - self._rates[1][0] >= before:
            self._rates.popleft()
        first, earlier = self._rates[0]
        is_open = at - first >= before and self._fastest < GROWS * earlier
        waits, least = on_the_way / self._fastest - self._round_trip, max(LEAST_SECONDS, ROUND_TRIPS * self._round_trip)
        has_queue = is_open and min(waits, queued) > least
        self._was_held = self._was_held or has_queue
        return (HELD if has_queue else FREED) * self._fastest if self._was_held else None

    def _is_span(self, start: tuple[float, int]) -> bool:
        at, total = self._seen[-1]
        return at - start[0] >= SPAN_SECONDS and total - start[1] >= SPAN_BYTES


class HeldFlow:
    """Flow over a stream of this node, whose queue is kept short from one look to the next."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._rule = stream, None
        told = stream.progress()
        if told is not None:
            self._rule = ShortQueue(told.round_trip)

    def look(self) -> float | None:
        """Hold the flow where that is due; return the seconds for which bytes wait in its queue, as `Stream.queued`."""
        told, queued = self._stream.progress(), self._stream.queued()
        if self._rule is not None and told is not None and queued is not None:
            pace = self._rule.came(time.perf_counter(), told.delivered, told.on_the_way, queued)
            if pace is not None:
                self._stream.pace(paced(pace))
        return queued
