"""Rate of a link, known from the bursts of a flow that does not fill it yet. Pure.

As long as a flow's congestion window is smaller than what its link holds, a window comes as one burst in each round
trip, and then there is a pause. Within a burst, packets come as fast as the narrowest part of the way lets them through
(as in packet trains: Dovrolis, Ramanathan and Moore, "What do packet dispersion techniques measure?", INFOCOM 2001).
A sender that spaces its packets itself would send a larger window faster; so two bursts must agree, of which the later
one is clearly larger. On far links that is known some round trips before the link is full.
"""

import itertools
from dataclasses import dataclass, field

LEAST_ROUND_TRIP = 0.1
"""Seconds of a round trip from which bursts are long enough to be timed, and full links long to wait for."""
PAUSE = 0.15
"""Share of a round trip in which nothing comes after a burst."""
LEAST_SECONDS, LEAST_BYTES = 0.05, 4 * (12 << 10)
"""Seconds that the later burst takes, and bytes that come in that time, at least."""
PARTS, EVEN = 4, 0.2
"""Parts of the later burst, and by what share of its mean the rate of each may differ from it."""
LARGER, ALIKE = 1.5, 0.2
"""Times that the later burst has as many bytes as the one before, at least, and by what share rates may differ."""
LONG = 0.75
"""Share of a round trip that a burst takes of which the next would fill the link."""
FEWEST_LOOKS = 5
"""Looks at a burst at least: what came before the first and after the last but one is not timed."""


@dataclass
class _Burst:
    """One burst: when how many bytes had come, at each look that found more."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes between the first and the last look."""
        return self.seen[-1][1] - self.seen[0][1]

    @property
    def seconds(self) -> float:
        """Seconds between the first and the last look."""
        return self.seen[-1][0] - self.seen[0][0] if self.seen else 0.0

    @property
    def timed(self) -> list[tuple[float, int]]:
        """Looks between which bytes came all the time; after the last one but one the burst may soon have ended."""
        return self.seen[:-1]

    @property
    def rate(self) -> float:
        """Bytes a second; 0: there were too few looks."""
        return _between(self.timed[0], self.timed[-1]) if len(self.seen) >= FEWEST_LOOKS else 0.0

    @property
    def is_even(self) -> bool:
        """Whether it took long enough, and its parts came at about the same rate."""
        (begun, before), (ended, total), rate = self.timed[0], self.timed[-1], self.rate
        if ended - begun < LEAST_SECONDS or total - before < LEAST_BYTES:
            return False
        cuts = [self._nearest(begun + (ended - begun) * part / PARTS) for part in range(PARTS + 1)]
        parts = itertools.pairwise(cuts)
        return all(one[0] < two[0] and abs(_between(one, two) - rate) <= EVEN * rate for one, two in parts)

    def _nearest(self, at: float) -> tuple[float, int]:
        return min(self.timed, key=lambda look: abs(look[0] - at))


class BurstRate:
    """Rate of a link by one flow's bursts: say how many bytes `came` in all, again and again, until there is a
    `rate`."""

    def __init__(self, round_trip: float) -> None:
        """Nothing has come yet.

        Args:
            round_trip: seconds that a round trip takes.
        """
        self.rate: float | None = None
        """Bytes a second that the link carries, once two bursts have told."""
        self._round_trip = round_trip
        self._pause = PAUSE * round_trip if round_trip >= LEAST_ROUND_TRIP else None
        self._before, self._burst = _Burst(), _Burst()
        self._total = 0
        self._has_paused = False

    @property
    def has_paused(self) -> bool:
        """Whether there were bursts so far, with pauses between."""
        return self._pause is not None and self._has_paused

    @property
    def are_long(self) -> bool:
        """Whether a burst has taken most of a round trip, or there are none any more."""
        longest = max(self._burst.seconds, self._before.seconds)
        return self._pause is None or longest > LONG * self._round_trip

    def came(self, at: float, total: int) -> None:
        """Take note that `total` bytes have come by the second `at`. What comes for longer than a round trip is no
        burst: nothing is kept of it, however long it goes on."""
        if self._pause is None or self.rate is not None:
            return
        if self._burst.seen and at - self._burst.seen[0][0] > self._round_trip:
            self._pause, self._burst = None, _Burst()  # the link is full: there are no bursts any more
        elif total > self._total:
            self._burst.seen.append((at, total))
            self._total = total
        elif self._burst.seen and at - self._burst.seen[-1][0] > self._pause:
            self._has_paused = True
            self.ended()

    def ended(self) -> None:
        """Take note that nothing more comes for now: a burst is over."""
        if len(self._burst.seen) < FEWEST_LOOKS:
            self._burst = _Burst()
            return
        later, before = self._burst, self._before
        self._before, self._burst = later, _Burst()
        if before.seen and later.is_even:
            is_larger = later.size >= LARGER * before.size
            if is_larger and abs(before.rate - later.rate) <= ALIKE * later.rate:
                self.rate = later.rate


def _between(one: tuple[float, int], two: tuple[float, int]) -> float:
    """Return the bytes a second between two looks."""
    return (two[1] - one[1]) / (two[0] - one[0])
