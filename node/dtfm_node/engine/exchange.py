"""Frames to and from the other peers of one plan.

Every receive is posted before its frame can come: a step begins only after all peers have voted for the one before,
and a peer posts the next step's receives before it votes. So a frame that nobody posted is a fault, and refused.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dtfm_protocol.errors import Refused
from dtfm_protocol.frames import HEADER_BYTES, Header, Key
from dtfm_protocol.identity import short
from dtfm_protocol.logs import log
from dtfm_protocol.planes.data import Bytes, DataPlane, Stream, StreamClosed, write_message
from dtfm_protocol.schema import Schema

TRAINING = "training"
"""The data plane's service that takes training streams."""
QUEUE_FRAMES = 8
"""Frames that wait for a slow link before the sender has to wait too."""


class Hello(Schema):
    """Opens a training stream: which plan its frames belong to."""

    plan_version: Annotated[int, Field(ge=1)]


class PeerLost(Exception):
    """A peer that this step needs is gone."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"{short(peer)} is gone: {why}")
        self.peer = peer


@dataclass(frozen=True, slots=True)
class Received:
    """A frame's payload, still coded."""

    payload: Bytes
    scale: float


@dataclass(frozen=True, slots=True)
class _Posted:
    future: asyncio.Future[Received]
    size: int
    exact: bool


class Exchange:
    """One peer's frames under one plan. Create it with `running`."""

    def __init__(self, plane: DataPlane, plan_version: int, tasks: asyncio.TaskGroup) -> None:
        self.bytes_sent = 0
        self.refused: Counter[str] = Counter()
        self._plane = plane
        self._plan_version = plan_version
        self._tasks = tasks
        self._posted: dict[tuple[str, Key], _Posted] = {}
        self._lost: dict[str, PeerLost] = {}
        self._queues: dict[str, asyncio.Queue[tuple[Header, Bytes]]] = {}
        self._senders: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, plane: DataPlane, plan_version: int) -> AsyncIterator["Exchange"]:
        """An exchange whose senders run until the block is left; what ends the block comes out in a group."""
        async with asyncio.TaskGroup() as tasks:
            exchange = cls(plane, plan_version, tasks)
            try:
                yield exchange
            finally:
                for task in exchange._senders:
                    task.cancel()

    def connect(self, peer: str) -> None:
        """Open the stream to `peer` before there is a frame for it, so that it notices if this peer vanishes."""
        if peer not in self._queues:
            self._queues[peer] = asyncio.Queue(QUEUE_FRAMES)
            self._senders.add(self._tasks.create_task(self._sending(peer, self._queues[peer])))

    def post(self, sender: str, key: Key, size: int, *, exact: bool = True) -> None:
        """Expect a frame from `sender` with `size` payload bytes (at most so many where not `exact`)."""
        future: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._posted[sender, key] = _Posted(future, size, exact)
        if sender in self._lost:
            self._break(future, self._lost[sender])

    async def receive(self, sender: str, key: Key) -> Received:
        """The posted frame, once it is there.

        Raises:
            PeerLost: the sender vanished before.
        """
        posted = self._posted[sender, key]
        try:
            return await posted.future
        finally:
            if posted.future.done():
                self._posted.pop((sender, key), None)

    async def send(self, peer: str, key: Key, payload: Bytes, scale: float = 1.0) -> None:
        """Queue a frame for `peer`; waits only while the queue is full.

        Raises:
            PeerLost: its stream broke.
        """
        self.connect(peer)
        header = Header(self._plan_version, key, len(payload), scale)
        await self._queues[peer].put((header, payload))
        if peer in self._lost:  # looked at last: the stream may have broken while this frame waited for room
            raise self._lost[peer]
        self.bytes_sent += HEADER_BYTES + len(payload)

    async def flush(self) -> None:
        """Wait until the frames that are queued for living peers are on their way."""
        await asyncio.gather(*(queue.join() for peer, queue in self._queues.items() if peer not in self._lost))

    async def serve(self, stream: Stream) -> None:
        """Take a peer's frames until its stream ends. The stream's Hello has been read.

        Raises:
            Refused: a frame that was not posted; the peer's frames that are still due count as lost.
        """
        try:
            while True:
                header = Header.parse(await stream.read(HEADER_BYTES))
                posted = self._admit(stream.peer, header)
                payload = await stream.read(header.size) if header.size else b""
                if not posted.future.done():
                    posted.future.set_result(Received(payload, header.scale))
        except StreamClosed as error:
            self.lose(PeerLost(stream.peer, str(error)))
        except Refused as error:
            self.refused[str(error)] += 1
            self.lose(PeerLost(stream.peer, f"it sent {error}"))
            raise

    def lose(self, lost: PeerLost) -> None:
        """Fail what is still expected from a peer; what it sent before stays good."""
        self._lost.setdefault(lost.peer, lost)
        for (sender, _), posted in list(self._posted.items()):
            if sender == lost.peer:
                self._break(posted.future, lost)

    @staticmethod
    def _break(future: asyncio.Future[Received], lost: PeerLost) -> None:
        if not future.done():
            future.set_exception(lost)
            future.exception()  # marks it as seen: nobody may be waiting for this frame

    def _admit(self, sender: str, header: Header) -> _Posted:
        """What was posted for this header; checked before any memory is taken."""
        if header.plan_version != self._plan_version:
            raise Refused(f"a frame of plan {header.plan_version} under plan {self._plan_version}")
        posted = self._posted.get((sender, header.key))
        if posted is None or posted.future.done():
            raise Refused(f"a frame that is not due: {header.key.kind.name} of step {header.key.step}")
        if header.size > posted.size or (posted.exact and header.size != posted.size):
            raise Refused(f"{header.size} bytes for {header.key.kind.name} where {posted.size} belong")
        return posted

    async def _sending(self, peer: str, queue: asyncio.Queue[tuple[Header, Bytes]]) -> None:
        """Send one peer's frames in order over one stream."""
        stream: Stream | None = None
        under_way = False
        try:
            stream = await self._plane.open(peer, TRAINING)
            await write_message(stream, Hello(plan_version=self._plan_version))
            while True:
                header, payload = await queue.get()
                under_way = True
                await stream.write(header.pack(), payload)
                queue.task_done()
                under_way = False
        except ConnectionError as error:
            log.debug("cannot send to %s: %s", short(peer), error)
            self.lose(PeerLost(peer, str(error)))
            if under_way:
                queue.task_done()
            while True:  # whoever waits for room, or for the queue to run empty, learns of the loss
                await queue.get()
                queue.task_done()
        finally:
            if stream is not None:
                await stream.close()
