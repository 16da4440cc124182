"""Rate of a flow whose congestion window opens, known as soon as the link is full. Pure.

A flow that is as fast as TCP lets it be sends a window, and waits for its acknowledgements; windows double with each
round trip. As long as they do not fill the link, bytes come in bursts with pauses between, or ever faster. Once they
come evenly for as long as a round trip, and wait in a queue, they come as fast as the link carries them. One long flow
so tells in seconds, over half the world, what transfers that each wait for an answer do not. On a far link its bursts
may tell before that (`burst_rate`).
"""

from collections import deque

from dtfm_node.links.burst_rate import BurstRate
from dtfm_node.links.pacing import UNPACED

LEAST_SPAN, ROUND_TRIPS = 0.2, 1.1
"""Seconds, and round trips, for which bytes must come evenly."""
PARTS, EVEN = 4, 0.15
"""Parts of that time, and by what share of the mean each may differ from it."""
LEAST_BYTES = PARTS * (12 << 10)
"""Bytes that come in that time at least, else it is longer: some packets in each part."""
ENOUGH_BYTES = 1 << 22
"""Bytes of a flow that is then believed if it shows that the link is no bottleneck."""
FILLED, FILLED_SECONDS = 0.1, 0.002
"""A link that is full has a queue before it: so much of a round trip, and so many seconds, at least."""
LONG_SECONDS, LONG_ROUND_TRIPS, OPENED_ROUND_TRIPS = 1.5, 8.0, 2.0
"""After so long, in sum, what comes of late must do; the last where windows are open by now."""


class SteadyRate:
    """Rate of one flow: say how many bytes `came` in all, again and again, until there is a `rate`."""

    def __init__(self, round_trip: float, *, opened: bool = False) -> None:
        """Nothing has come yet.

        Args:
            round_trip: seconds that a round trip takes.
            opened: whether windows are open by now: then there are no bursts that tell, and less is waited for.
        """
        self.rate: float | None = None
        """Bytes a second that the link carries, once that is known."""
        self._round_trip, self._span = round_trip, max(LEAST_SPAN, ROUND_TRIPS * round_trip)
        self._patience = LONG_SECONDS + (OPENED_ROUND_TRIPS if opened else LONG_ROUND_TRIPS) * round_trip
        self._seen: deque[tuple[float, int]] = deque()
        """When how many bytes had come, of the last span and a little more."""
        self._begun: float | None = None
        self._bursts = BurstRate(0.0 if opened else round_trip)  # those of near links tell nothing

    def came(self, at: float, total: int, queued: float | None = None) -> None:
        """Take note that `total` bytes have come by the second `at`, when they waited in a queue for `queued` seconds;
        None: that is not known."""
        if self._begun is None:
            if total <= 0:
                return
            self._begun = at
        self._seen.append((at, total))
        self._bursts.came(at, total)
        elapsed = at - self._begun
        if total >= ENOUGH_BYTES and elapsed > 0 and total / elapsed >= UNPACED:
            self.rate = total / elapsed
            return
        while len(self._seen) > 2 and self._is_enough(self._seen[1]):
            self._seen.popleft()
        if self._is_enough(self._seen[0]):
            first, mean = self._seen[0][0], self.mean
            part = (at - first) / PARTS
            rates = [self._between(first + part * number, first + part * (number + 1)) for number in range(PARTS)]
            fills = queued is None or queued >= max(FILLED_SECONDS, FILLED * self._round_trip)
            if fills and all(abs(rate - mean) <= EVEN * mean for rate in rates):
                self.rate = sum(rates[PARTS // 2 :]) / (PARTS - PARTS // 2)  # the first may still have grown
        if self.rate is None:
            self.rate = self._bursts.rate
        if self.rate is None and elapsed >= self._patience:
            self.rate = self.mean

    def so_far(self) -> float:
        """Return the bytes a second of the link as far as they are known now that nothing more comes; 0: nothing has
        come."""
        self._bursts.ended()
        at, total = self._seen[-1] if self._seen else (1.0, 0)
        return self._bursts.rate or self.mean or total / at

    @property
    def mean(self) -> float:
        """Bytes a second of late; 0: nothing has come."""
        if len(self._seen) < 2:
            return 0.0
        (first, before), (last, total) = self._seen[0], self._seen[-1]
        return (total - before) / (last - first)

    @property
    def is_long(self) -> bool:
        """Whether so much has come, or for so long, that it was no first burst alone."""
        return bool(self._seen) and (self._seen[-1][1] >= ENOUGH_BYTES or self._is_enough(self._seen[0]))

    @property
    def has_bursts(self) -> bool:
        """Whether bytes come in bursts with pauses between so far, and the link is not known yet."""
        return self.rate is None and self._bursts.has_paused

    @property
    def has_long_bursts(self) -> bool:
        """Whether bytes come for most of each round trip by now, and the link is not known yet: it is soon full."""
        return self.rate is None and self._bursts.are_long

    def _is_enough(self, start: tuple[float, int]) -> bool:
        """Whether what came since then is as much, and as long, as is looked at."""
        last, total = self._seen[-1]
        return last - start[0] >= self._span and total - start[1] >= LEAST_BYTES

    def _between(self, first: float, last: float) -> float:
        """Return the bytes a second between two times, by the straight lines between what was seen."""
        return (self._at(last) - self._at(first)) / (last - first)

    def _at(self, time: float) -> float:
        earlier = self._seen[0]
        for later in self._seen:
            if later[0] >= time:
                if later[0] <= earlier[0]:
                    return float(later[1])
                return earlier[1] + (later[1] - earlier[1]) * (time - earlier[0]) / (later[0] - earlier[0])
            earlier = later
        return float(earlier[1])
