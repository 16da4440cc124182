"""Sender of frames to other peers: a queue for each peer and priority, each sent in order over a stream of its own.

Urgent frames do not queue behind the all-reduce: bulk has a stream to itself, and waits, piece by piece, while anything
urgent is being sent.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Coroutine

from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.send_rates import SendRates
from dtfm_node.links.pacing import UplinkPacer
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.fault_injection import armed, point
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.frames import FrameHeader, Key
from dtfm_protocol.wire.stream import Bytes, Stream

QUEUE_FRAMES = 8
"""Number of frames that wait for a slow link before whoever sends has to wait too."""
PIECE_BYTES = 1 << 18
"""Bytes of a bulk frame between two looks at whether something urgent is to be sent."""

LOOK_SECONDS = 0.5
"""Seconds between two looks at how far what was sent has come."""

_Queue = asyncio.Queue[tuple[FrameHeader, Bytes, Bytes]]


class _Paced:
    """Stream that is kept at the pace that its link has now."""

    def __init__(self, stream: Stream, uplink: UplinkPacer) -> None:
        self._stream, self._uplink, self._pace = stream, uplink, math.inf

    def look(self) -> None:
        """Set the stream's pace, if it has changed."""
        if self._pace != (pace := self._uplink.pace(self._stream.peer)):
            self._pace = pace
            self._stream.pace(pace)


class Sender:
    """Queues of frames from one peer to all others of a plan.

    Args:
        open_stream: opens a stream for frames to a peer. Raises: ConnectionError.
        start: runs a coroutine until the exchange ends.
        lose: told of a peer to which nothing can be sent any more.
        sent: told of each frame that is on its way: its receiver, its key, and the clock's time when its sending began.
    """

    def __init__(
        self,
        open_stream: Callable[[str], Awaitable[Stream]],
        start: Callable[[Coroutine[None, None, None]], None],
        uplink: UplinkPacer,
        clock: MonotonicClock,
        lose: Callable[[PeerLost], None],
        sent: Callable[[str, Key, float], None],
    ) -> None:
        self._open_stream, self._start, self._uplink, self._clock = open_stream, start, uplink, clock
        self._lose, self._sent = lose, sent
        self._queues: dict[tuple[str, bool], _Queue] = {}
        """Queues by peer id and whether they carry bulk."""
        self._streams: list[Stream] = []
        """Streams that are open, or were."""
        self._rates = SendRates()

    def connect(self, peer: str, *, bulk: bool) -> None:
        """Open the stream to `peer` before there is a frame for it, so that the peer notices if this one vanishes."""
        if not self._queues:
            self._start(self._look())
        if (peer, bulk) not in self._queues:
            queue = self._queues[peer, bulk] = asyncio.Queue(QUEUE_FRAMES)
            self._start(self._sending(peer, queue, bulk))

    async def put(self, peer: str, header: FrameHeader, payload: Bytes, seal: Bytes = b"") -> None:
        """Queue a frame, whose seal follows its payload, for a connected peer; waits only while the queue is full."""
        await self._queues[peer, header.key.kind.is_bulk].put((header, payload, seal))

    async def flush(self, lost: Container[str]) -> None:
        """Wait until the frames that are queued for peers that are not `lost` are on their way."""
        await asyncio.gather(*(queue.join() for (peer, _), queue in self._queues.items() if peer not in lost))

    def rates(self) -> dict[str, float]:
        """Return the Gbit/s at which frames go, by peer id, to those to which the way was busy of late."""
        return self._rates.rates(self._clock.now())

    async def _look(self) -> None:
        """Look for ever how far what was sent has come."""
        while True:
            told = ((number, stream.peer, stream.progress()) for number, stream in enumerate(self._streams))
            found = {number: (peer, progress) for number, peer, progress in told if progress is not None}
            self._rates.looked(self._clock.now(), found)
            await self._clock.sleep(LOOK_SECONDS)

    async def _sending(self, peer: str, queue: _Queue, bulk: bool) -> None:
        """Send one peer's frames in order over one stream."""
        stream: Stream | None = None
        under_way = False
        try:
            stream = await self._open_stream(peer)
            number = len(self._streams)
            self._streams.append(stream)
            paced = _Paced(stream, self._uplink)
            while True:
                header, payload, seal = await queue.get()
                if header.key.kind.carries_tensor:  # all wait for a vote, and it spoils no measurement
                    await self._uplink.free(peer)
                paced.look()
                under_way = True
                begun = self._clock.now()
                self._rates.wrote(number)
                point("before-send", header.key.step)
                if bulk:
                    await self._write_bulk(stream, number, paced, header, payload, seal)
                else:
                    await self._write_urgent(stream, header, payload, seal)
                if (delivered := stream.delivered()) is not None:
                    self._uplink.delivered(peer, delivered)
                point("after-send", header.key.step)
                self._sent(peer, header.key, begun)
                queue.task_done()
                under_way = False
        except ConnectionError as error:
            log.debug("cannot send to %s: %s", short(peer), error)
            self._lose(PeerLost(peer, str(error)))
            if under_way:
                queue.task_done()
            while True:  # whoever waits for room, or for the queue to run empty, learns of the loss
                await queue.get()
                queue.task_done()
        finally:
            if stream is not None:
                await stream.close()

    async def _write_urgent(self, stream: Stream, header: FrameHeader, payload: Bytes, seal: Bytes) -> None:
        if armed("mid-frame", header.key.step):
            half = len(payload) // 2
            await stream.write(header.pack(), memoryview(payload)[:half])
            point("mid-frame", header.key.step)
            await stream.write(memoryview(payload)[half:], seal)
            return
        with self._uplink.urgent():
            await stream.write(header.pack(), payload, seal)

    async def _write_bulk(
        self, stream: Stream, number: int, paced: _Paced, header: FrameHeader, payload: Bytes, seal: Bytes
    ) -> None:
        await self._uplink.idle(stream.peer)  # the receiver times a frame from its header on
        await stream.write(header.pack())
        view = memoryview(payload)
        for start in range(0, len(view), PIECE_BYTES):
            await self._uplink.idle(stream.peer)
            self._rates.wrote(number)
            paced.look()
            await stream.write(view[start : start + PIECE_BYTES])
        if seal:
            await stream.write(seal)
