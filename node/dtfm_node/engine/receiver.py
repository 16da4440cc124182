"""Receiver of frames from streams: the waiting, on both sides, around what a `Mailbox` decides."""

import asyncio
from collections.abc import Callable

from dtfm_node.engine.link_rates import FrameRun, LinkRates
from dtfm_node.engine.mailbox import Mailbox, PeerLost
from dtfm_node.engine.rejected_frames import FrameFault, FrameRefused
from dtfm_protocol.errors import Refused
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.wire.frames import HEADER_BYTES, FrameHeader, Key, Kind
from dtfm_protocol.wire.stream import Bytes, Stream, StreamClosed


class Receiver:
    """Meeting point of streams that bring frames and the tasks that wait for them.

    Args:
        came: told of each frame that has come: its sender, its key, and the clock's time when its payload began to
            come.
    """

    def __init__(
        self, mailbox: Mailbox, inflow: LinkRates, clock: MonotonicClock, came: Callable[[str, Key, float], None]
    ) -> None:
        self._mailbox, self._inflow, self._clock, self._came = mailbox, inflow, clock, came
        self._decided: dict[tuple[str, Key], asyncio.Event] = {}
        """Events of the frames that a task waits for, by sender and key; each is set when its frame is decided on."""
        self._room: dict[str, asyncio.Event] = {}
        """Events of the peers whose streams wait for their evaluation frames to be read."""
        self._over = False

    async def receive(self, sender: str, key: Key) -> Bytes:
        """Wait for a posted frame, and return its payload.

        Raises:
            PeerLost: the sender vanished before.
        """
        if not self._mailbox.is_decided(sender, key):
            # Who gives up waiting does not make the frame a fault: it stays posted.
            await self._decided.setdefault((sender, key), asyncio.Event()).wait()
        try:
            return self._mailbox.take(sender, key)
        finally:
            if key.kind is Kind.EVALUATION and (room := self._room.pop(sender, None)) is not None:
                room.set()

    async def serve(self, stream: Stream) -> None:
        """Take a peer's frames for ever.

        Raises:
            FrameRefused: it sent what it must not.
            StreamClosed: the stream has ended, or nobody wants what it brings.
        """
        progress = stream.progress()
        run = self._inflow.run(stream.peer, progress.round_trip if progress is not None else 0.0)
        while True:
            await self._take_frame(stream, run)

    def lose(self, lost: PeerLost) -> None:
        """Count a peer as lost, and fail what is still expected from it; what it sent before stays good."""
        for key in self._mailbox.lose(lost):
            self._wake(lost.peer, key)

    def end(self) -> None:
        """Let go of the streams that wait for their evaluations to be read."""
        self._over = True
        for room in self._room.values():
            room.set()

    async def _take_frame(self, stream: Stream, run: FrameRun) -> None:
        asked = self._clock.now()
        data = await stream.read(HEADER_BYTES)
        if (lost := self._mailbox.lost.get(stream.peer)) is not None:
            raise StreamClosed(
                str(lost)
            )  # frames that were under way by then: nobody wants them, and they are no fault
        begun = self._clock.now()
        try:
            header = FrameHeader.parse(data)
        except Refused as error:
            raise FrameRefused(FrameFault.FORM, f"what is no header: {error}") from None
        key = header.key
        self._mailbox.admit(stream.peer, header)
        if key.kind is Kind.EVALUATION:
            await self._wait_for_room(stream.peer)
            begun = self._clock.now()
        payload = await stream.read(header.size) if header.size else b""
        run.came(header.size, begun - asked, self._clock.now() - begun)
        self._came(stream.peer, key, begun)
        self._mailbox.put(stream.peer, key, payload)
        self._wake(stream.peer, key)

    def _wake(self, sender: str, key: Key) -> None:
        if (decided := self._decided.pop((sender, key), None)) is not None:
            decided.set()

    async def _wait_for_room(self, sender: str) -> None:
        """Wait until one more evaluation frame of `sender` may be read, and count it."""
        while not self._over and not self._mailbox.has_room(sender):
            await self._room.setdefault(sender, asyncio.Event()).wait()
        if self._over:
            raise StreamClosed("nobody reads its evaluations any more")
        self._mailbox.take_room(sender)
