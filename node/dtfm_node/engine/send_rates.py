"""Rates at which frames leave for each peer, while they do: a link that fails is noticed before its frame is through.
Pure.

The sender's kernel times them. A machine that is busy with something else reads and writes late, and its kernel still
acknowledges what comes: so that does not look like a slow link.
"""

from collections import defaultdict, deque

from dtfm_protocol.wire.stream import BytesOnTheWay

BUSY_SECONDS = 2.0
"""Seconds for which the way to a peer must have been busy, of the last `SPAN_SECONDS`, before its rate is told."""
SPAN_SECONDS = 5.0
ACKNOWLEDGEMENT_SECONDS = 0.05
"""Seconds by which the other end's kernel may put off its acknowledgement of what came last, and a little more."""


class SendRates:
    """Rates of what is sent to each peer, over the last seconds in which the way there was busy."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[str, BytesOnTheWay]] = {}
        """Peer and progress of each stream by its number, as of the last look."""
        self._writes: dict[int, int] = defaultdict(int)
        """Number of writes to each stream since the last look: after each the way may have been idle."""
        self._spans: dict[str, deque[tuple[float, float, float]]] = defaultdict(deque)
        """Time of looks at each peer's streams, bytes that had come since the one before, and busy seconds."""

    def wrote(self, stream: int) -> None:
        """Take note that something is being written to a stream."""
        self._writes[stream] += 1

    def looked(self, now: float, streams: dict[int, tuple[str, BytesOnTheWay]]) -> None:
        """Take note of how far streams have come at time `now`: peer and progress of each, by its number."""
        found: dict[str, tuple[float, float]] = {}
        for stream, (peer, progress) in streams.items():
            if (last := self._before.get(stream)) is None:
                continue
            before = last[1]
            # The last byte of each write takes a round trip to be acknowledged, which says nothing of the rate.
            waits = self._writes[stream] * (progress.round_trip + ACKNOWLEDGEMENT_SECONDS)
            busy = max(0.0, progress.busy - before.busy - waits)
            size, longest = found.get(peer, (0.0, 0.0))
            found[peer] = size + progress.acknowledged - before.acknowledged, max(longest, busy)
        self._before = dict(streams)
        self._writes.clear()
        for peer, (size, busy) in found.items():
            self._spans[peer].append((now, size, busy))

    def rates(self, now: float) -> dict[str, float]:
        """Return the Gbit/s to each peer to which the way was busy for long enough, by peer id."""
        found = {}
        for peer, spans in self._spans.items():
            while spans and spans[0][0] <= now - SPAN_SECONDS:
                spans.popleft()
            size = busy = 0.0
            for _, come, took in reversed(spans):  # no further back: it may have been faster before
                if busy >= BUSY_SECONDS:
                    break
                size, busy = size + come, busy + took
            if busy >= BUSY_SECONDS:
                found[peer] = size / busy * 8e-9
        return found
