"""Rates at which frames come in from each peer: what training traffic tells of links, for nothing. Pure.

After a pause TCP begins with a small window, which doubles each round trip: a message that is through before the window
is open has come as fast as the window, not as the link.
"""

import math

LEAST_BYTES = 4096
"""Bytes of the smallest frame that tells a rate: smaller ones come in one piece."""
LEAST_SECONDS = 1e-4
AT_ONCE_SECONDS = 1e-3
"""A frame that begins within this time was there already when the one before it ended."""
FIRST_WINDOW = 14_600
"""Bytes that TCP sends in the first round trip: ten segments (RFC 6928)."""
OPENING = 2.0
"""A run of frames tells something if it takes so many times as long as the window may take to open for its bytes."""


class LinkRates:
    """Rate of the fastest run of frames from each peer since it was last asked: a lower bound, as a run may have shared
    its way."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}

    def run(self, peer: str, round_trip: float = 0.0) -> "FrameRun":
        """Return a collector for the frames of one stream of `peer`, `round_trip` seconds away; 0: not known."""
        return FrameRun(self, peer, round_trip)

    def came(self, peer: str, size: int, seconds: float) -> None:
        """Take note that `size` bytes of `peer` took `seconds` to come."""
        self._best[peer] = max(self._best.get(peer, 0.0), size / max(seconds, LEAST_SECONDS))

    def take(self) -> dict[str, float]:
        """Return the Gbit/s of the fastest run of each peer that has sent any since the last call, by peer id."""
        best, self._best = self._best, {}
        return {peer: rate * 8e-9 for peer, rate in best.items()}


class FrameRun:
    """Run of frames: those that come one right after the other count as one. Where a lost packet holds them all up, the
    first one takes long, and the others are there at once when it is.
    """

    def __init__(self, inflow: LinkRates, peer: str, round_trip: float) -> None:
        self._inflow, self._peer, self._round_trip = inflow, peer, round_trip
        self._bytes, self._seconds = 0, 0.0

    def came(self, size: int, waited: float, seconds: float) -> None:
        """Take note of a frame of `size` bytes that was waited for `waited` seconds, and took `seconds` to come."""
        if size < LEAST_BYTES:
            return
        if waited > AT_ONCE_SECONDS:
            self._bytes, self._seconds = 0, 0.0
        self._bytes += size
        self._seconds += seconds
        if self._seconds >= OPENING * opening_seconds(self._bytes, self._round_trip):
            self._inflow.came(self._peer, self._bytes, self._seconds)


def opening_seconds(size: int, round_trip: float) -> float:
    """Return the seconds in which a TCP window opens for `size` bytes, where a round trip takes `round_trip` seconds
    (slow start: RFC 5681, section 3.1)."""
    return round_trip * math.log2(1 + size / FIRST_WINDOW)
