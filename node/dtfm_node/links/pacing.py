"""Order and pace of what uses this machine's line: frames that somebody's compute waits for first, bulk when none is
under way, neither over a link whose measurement they would spoil, and all of them hardly faster than their link can
carry.

TCP by itself sends faster and faster until a queue on the way is full and loses packets. Where both ends do so at once,
as in an all-reduce, each one's acknowledgements wait in the queue that the other has filled, and half a world apart a
fifth of the rate is lost (docs/explanation/world.md).
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator

from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import Way

HEADROOM = 1.05
"""Multiple of a link's known rate that streams may send at. The known rate may be too low: what then arrives says more,
so that a pace grows where the link allows it. No more than this, for what is above what the link carries fills its
queue within seconds (benchmarks/results/lab.md)."""
UNPACED = 2.5e8
"""Bytes a second of a link that is no bottleneck: pacing costs the kernel some work."""


class UplinkPacer:
    """Pacer of all that a node sends. Bulk senders ask before each piece, so that none holds the line for long."""

    def __init__(self, frames_held: float = TIMEOUTS.frames_held) -> None:
        """Nothing is under way yet.

        Args:
            frames_held: see `Timeouts`.
        """
        self._frames_held = frames_held
        self.traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns the bytes that this node has sent to others, and received from them, so far."""
        self._measured: dict[str, float] = {}
        self._delivered: dict[str, float] = {}
        self._round_trips: dict[tuple[str, Way], float] = {}
        self._measuring: dict[str, list[asyncio.Event]] = {}
        """Measurements under way, by peer id; each event is set when tensors need not wait for it any more."""
        self._urgent = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def measured(self, peer: str, gbps: float, round_trip: float, way: Way) -> None:
        """Note what the link to `peer` carries in Gbit/s, and the seconds that a round trip takes by the way `way`."""
        self._measured[peer] = gbps * 1.25e8
        self._round_trips[peer, way] = round_trip
        self._delivered.pop(peer, None)

    def delivered(self, peer: str, bytes_per_second: float) -> None:
        """Note how many bytes a second a long frame has gone to `peer`.

        That is no more than the link carries, but may be less for other reasons: what was measured stays the least.
        """
        self._delivered[peer] = bytes_per_second

    def pace(self, peer: str) -> float:
        """Return the bytes a second that a stream to `peer` should not exceed."""
        rate = max(self._measured.get(peer, math.inf), self._delivered.get(peer, 0.0))
        return HEADROOM * rate if 0 < rate < UNPACED else math.inf

    def round_trip(self, peer: str, way: Way) -> float | None:
        """Return the seconds of a round trip to `peer` by `way`, as measured last; None if it was not measured."""
        return self._round_trips.get((peer, way))

    @contextlib.contextmanager
    def measuring(self, peer: str) -> Iterator[None]:
        """While the block lasts, but no longer than `Timeouts.frames_held`, tensors to `peer` wait."""
        over, waits = asyncio.Event(), self._measuring.setdefault(peer, [])
        waits.append(over)
        timer = asyncio.get_running_loop().call_later(self._frames_held, over.set)
        try:
            yield
        finally:
            timer.cancel()
            over.set()
            waits.remove(over)
            if not waits:
                self._measuring.pop(peer, None)

    def release(self) -> None:
        """Let tensors go, whatever is being measured: a plan begins, and whoever called for the measurement may have
        given it up."""
        for waits in self._measuring.values():
            for over in waits:
                over.set()

    async def free(self, peer: str) -> None:
        """Wait while the link to `peer` is being measured."""
        for over in tuple(self._measuring.get(peer, ())):
            await over.wait()

    @contextlib.contextmanager
    def urgent(self) -> Iterator[None]:
        """Have bulk wait while the block lasts."""
        self._urgent += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._urgent -= 1
            if not self._urgent:
                self._idle.set()

    async def idle(self, peer: str) -> None:
        """Wait until bulk may go to `peer`: nothing urgent is being sent, and that link is not being measured."""
        await self._idle.wait()
        await self.free(peer)
