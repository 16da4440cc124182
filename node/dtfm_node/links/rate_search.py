"""Search for a link's rate: says which transfer to make next, from how those before it came in. Pure.

The first transfers open TCP's congestion window: their round trips are no rate. Each is held to a pace, for a queue
that runs over loses packets, and who waits for those that are sent again measures that wait. What counts is one that is
hardly faster than the link, still fills a queue (else it was its pace, or TCP's window, that it has found), and is as
fast as those before it; where none is in time, the fastest one.
"""

import math

from dtfm_node.links.pacing import UNPACED

PIECE_BYTES = 1 << 14
"""Bytes of a piece; a transfer is timed from its first piece on."""
FIRST_BYTES, LAST_BYTES = 1 << 16, 1 << 25
ENOUGH_SECONDS = 0.8
ENOUGH_ROUND_TRIPS = 3.2
"""Round trips after which a transfer says how fast the link is, if another one was before it."""
LENGTH = 1.5
"""Multiple of that time for which a transfer is to last, if it is no faster than the one before."""
FIRST_SECONDS, FIRST_AGAIN_SECONDS, FIRST_ROUND_TRIPS = 4.0, 1.5, 8.0
"""The first one says it if it takes this long and fills a queue: a round trip then carries less than TCP's first window
(10 packets), and another one would take too long. That is so sooner where the link was measured before, and training
waits for it."""
MOST_TRANSFERS = 12
MOST_AGAIN = 2
"""Transfers that are made again because they have shared a line: where training goes on, all of them may."""
LONG_SECONDS = 15.0
"""After so long, two transfers that are long enough must do."""
LAST_SECONDS = 22.0
"""After so long, whatever was found must do."""
QUICK_ENOUGH, QUICK_LONG, QUICK_LAST = 0.3, 1.0, 1.5
"""What `ENOUGH_SECONDS`, `LONG_SECONDS` and `LAST_SECONDS` are where somebody waits for a first, rough figure; to the
last two so many round trips are added."""
QUICK_ENOUGH_ROUND_TRIPS, QUICK_ROUND_TRIPS = 1.5, 4.0
QUICK_BYTES = 1 << 22
"""Bytes of a transfer that is then believed if it shows that the link is no bottleneck."""
SEARCHING, FURTHER, CLOSE = 3.0, 1.3, 1.2
"""Multiples of the rate found so far at which a transfer may be paced: until a queue has grown on the way; where one
that came later has filled none (squared where the next one has not, and so on); and where the last one did, so little
that the queue does not run over while it lasts."""
HELD_BACK = 0.9
"""Share of its pace above which a transfer may have been slower than its link."""
FILLED, FILLED_SECONDS = 0.25, 0.002
"""Where a transfer is faster than its link, a queue grows: so much of a round trip, and so many seconds, at least."""
STEADY = 0.95
"""Ratio of two transfers' rates from which they agree. Where they differ by more, one has shared the link for a while,
was short, or has lost packets to a pace that was too high."""
AGREE = 2.0
"""Ratio of two transfers' rates above which one was disturbed: a process that was kept from reading takes in all at
once."""


class RateSearch:
    """Search in one direction of a link: make transfers of `size` bytes at `pace`, say how they `came`, until there is
    a `rate`.

    Args:
        round_trip: seconds that a round trip takes.
        again: whether the link was measured before, and training waits for it.
        quick: whether a figure within a tenth or two is wanted soon.
    """

    def __init__(self, round_trip: float, *, again: bool, quick: bool = False) -> None:
        self.size = FIRST_BYTES
        self.pace = math.inf
        """Bytes a second of the next transfer at most; infinity: no limit."""
        self.rate: float | None = None
        """Bytes a second that the link carries, once that is known."""
        self.is_least = False
        """Whether it may carry more, as all transfers that would tell have shared a line."""
        self._round_trip = round_trip
        self._is_quick = quick
        trips = QUICK_ENOUGH_ROUND_TRIPS if quick else ENOUGH_ROUND_TRIPS
        self._enough = max(QUICK_ENOUGH if quick else ENOUGH_SECONDS, trips * round_trip)
        patience = QUICK_ROUND_TRIPS * round_trip
        self._long, self._last = (
            (QUICK_LONG + patience, QUICK_LAST + patience) if quick else (LONG_SECONDS, LAST_SECONDS)
        )
        first = FIRST_AGAIN_SECONDS if again else FIRST_SECONDS
        self._first = max(QUICK_ENOUGH if quick else first, FIRST_ROUND_TRIPS * round_trip)
        self._number = self._again = 0
        self._before = 0.0
        """Bytes a second of the link, about, as found so far."""
        self._found = 0.0
        """Bytes a second of the fastest transfer that was long enough; 0: none was."""
        self._step = self._search = SEARCHING
        """Multiples of the rate found so far that the last transfer was allowed, and that one is allowed while
        searching."""

    def asks_for_queue(self, seconds: float) -> bool:
        """Whether the queue that a transfer of `seconds` has left tells anything.

        A queue of a few round trips cannot be told from a link's own unevenness.
        """
        return self._number > 0 or seconds >= FIRST_ROUND_TRIPS * self._round_trip

    def came(self, seconds: float, queued: float | None, elapsed: float, *, shared: bool = False) -> None:
        """Take note of a transfer that has come in. One that would tell the rate, but has shared a line, is made again,
        twice at most, while there is time.

        Args:
            seconds: time that it took from its first piece on.
            queued: seconds of queue that it has left on the way; None where that is not known.
            elapsed: seconds since the first one began.
            shared: whether an end has sent, or received, much else meanwhile.
        """
        self._take(seconds, queued, elapsed)
        if not shared or self.rate is None or self.rate >= UNPACED:
            return
        if self._again < MOST_AGAIN and self._number < MOST_TRANSFERS and elapsed <= self._last:
            self._again += 1
            self._found, self.rate = max(self._found, self.rate), None
        else:
            self.is_least = True

    def _take(self, seconds: float, queued: float | None, elapsed: float) -> None:
        self._number += 1
        seconds = max(1e-6, seconds)
        rate = (self.size - PIECE_BYTES) / seconds
        fills = self._fills(rate, queued)
        if self._number == 1 and seconds >= self._first and (fills or queued is None):
            self.rate = rate
            return
        if self._is_quick and rate >= UNPACED and self.size >= QUICK_BYTES:
            self.rate = rate
            return
        if self._is_quick and self._number > 1 and fills and seconds >= self._enough:
            self.rate = max(rate, self._found)
            return
        self._judge(rate, seconds, queued, fills, elapsed)
        if self.rate is None and (self._number == MOST_TRANSFERS or elapsed > self._last):
            self.rate = max(self._found, self._before)

    def _fills(self, rate: float, queued: float | None) -> bool:
        """Whether a transfer was faster than the link, so that its rate is the link's."""
        if queued is None:
            return rate <= HELD_BACK * self.pace < math.inf
        return queued >= max(FILLED_SECONDS, FILLED * self._round_trip)

    def _judge(self, rate: float, seconds: float, queued: float | None, fills: bool, elapsed: float) -> None:
        """Take `rate` for the link's, or decide on the next transfer's pace and size."""
        if queued is not None and rate > AGREE * self.pace:
            return  # the kernel has held it to its pace: who read it was kept from reading, and then had all at once
        was_held_back = rate > HELD_BACK * self.pace
        if self._before >= AGREE * rate:
            self._before, self._found, self._step, self._search = rate, 0.0, SEARCHING, SEARCHING
        else:
            is_steady = STEADY * self._before < rate < self._before / STEADY
            if seconds >= self._enough or self.size >= LAST_BYTES:
                # One that is long because it was interrupted tells nothing: it takes another one.
                is_second = self._found > 0.0 and (fills or rate < self._before)
                self._found = max(self._found, rate)
                is_late = elapsed > self._long
                if (is_steady and self._step == CLOSE and fills) or (is_late and (is_steady or is_second)):
                    self.rate = self._found
                    return
            if self.size >= LAST_BYTES and not was_held_back and (is_steady or math.isinf(self.pace)):
                self.rate = max(self._found, self._before)
                return
            self._search = 1.0 if fills else min(SEARCHING, FURTHER * self._search)
            self._step = CLOSE if fills else self._search
            self._before = rate if rate > self._before else (self._before + rate) / 2
        self.pace = paced(self._step * self._before)
        self.size = int(min(LAST_BYTES, 4 * self.size, max(FIRST_BYTES, LENGTH * self._before * self._enough)))


def paced(rate: float) -> float:
    """Return `rate`, in bytes a second, as a pace; infinity where a link of that rate is no bottleneck."""
    return rate if rate < UNPACED else math.inf
