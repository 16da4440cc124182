"""Caps on the bytes a second of all streams of a peer together, one in each direction."""

import asyncio
import math
import time
from dataclasses import dataclass, field

BURST_SECONDS = 0.1
"""Seconds of a cap that may go at once after a rest: what a busy event loop comes late for is caught up."""
PIECE_SECONDS = 0.05
"""Seconds of a cap that go in one piece, so that streams take turns, and no second holds much more than another."""
LEAST_PIECE = 1 << 10
WIRE_SHARE = 1.04
"""Bytes on the wire for each byte of a stream: the headers of IP and TCP, 52 for each 1,448."""
ANSWER_SHARE = 0.02
"""Bytes the other way for each byte of a stream: an acknowledgement of 52 for each two packets."""
SET_ASIDE = 2500.0
"""Bytes a second of a cap that are left to what does not go through it: reports to the coordinator, its words to all,
and libp2p's own messages; at most a quarter of the cap."""
SMALL_BUFFER_SECONDS = 0.25
"""Seconds of a download cap that the kernel takes from a sender, for each stream, before this program reads them."""
SMALLEST_BUFFER = 16 << 10
USUAL_BUFFER = 128 << 10
"""Bytes with which Linux begins."""


class RateCap:
    """Cap on one direction: whoever sends, or has received, takes bytes here first, and waits its turn.

    In any window of W seconds no more than `bytes_per_second` * (W + 0.15) go, headers included. What the other
    direction makes this one send beside that, is made up for by who sends next.
    """

    def __init__(self, bytes_per_second: float = math.inf) -> None:
        self.total = 0
        """Bytes that were taken so far."""
        self._rate = max(bytes_per_second - SET_ASIDE, bytes_per_second * 0.75) / WIRE_SHARE
        self._free_at = -math.inf
        """Time (`time.monotonic`) at which all bytes that were taken so far may have gone."""

    @property
    def is_capped(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self._rate)

    @property
    def gbps(self) -> float | None:
        """Gbit/s of payload that the cap lets through; None: there is no limit."""
        return self._rate * 8e-9 if self.is_capped else None

    @property
    def piece(self) -> int:
        """Bytes of which no more are to be taken at once."""
        return max(LEAST_PIECE, int(self._rate * PIECE_SECONDS)) if self.is_capped else 1 << 30

    def receive_buffer(self) -> int | None:
        """Return the bytes that the kernel should hold for a stream that this caps; None: it chooses them itself."""
        size = max(SMALLEST_BUFFER, self._rate * SMALL_BUFFER_SECONDS)
        return int(size) if size < USUAL_BUFFER else None

    def reserve(self, size: int, now: float) -> float:
        """Take `size` bytes in turn; return the seconds from `now` after which they may go."""
        self.total += size
        if not self.is_capped:
            return 0.0
        self._free_at = max(self._free_at, now - BURST_SECONDS) + size / self._rate
        return max(0.0, self._free_at - now)

    def answered(self, size: int) -> None:
        """Note that `size` bytes went the other way, which are acknowledged this way; nobody waits for that."""
        if self.is_capped:
            self._free_at = max(self._free_at, time.monotonic() - BURST_SECONDS) + ANSWER_SHARE * size / self._rate

    async def take(self, size: int) -> None:
        """Take `size` bytes, at most a `piece`, and wait until they may go."""
        wait = self.reserve(size, time.monotonic())
        if wait:
            await asyncio.sleep(wait)


@dataclass(frozen=True)
class TrafficCaps:
    """The caps of one peer on what it sends and what it receives."""

    up: RateCap = field(default_factory=RateCap)
    down: RateCap = field(default_factory=RateCap)

    async def send(self, size: int) -> None:
        """Wait until `size` bytes may be sent, at most a `piece` of the cap."""
        self.down.answered(size)
        await self.up.take(size)

    async def receive(self, size: int) -> None:
        """Wait until `size` bytes may have been received, at most a `piece` of the cap."""
        self.up.answered(size)
        await self.down.take(size)
