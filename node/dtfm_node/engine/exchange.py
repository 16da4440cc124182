"""Frames to and from the other peers of one plan.

Every receive is posted before its frame can come: a step begins only after all peers have voted for the one before,
and a peer posts the next step's receives before it votes. So a frame that nobody posted is a fault, and refused.

To each peer there are three streams: urgent frames do not queue behind the all-reduce, and pulses behind nothing.
"""

import asyncio
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field

from dtfm_node.engine.inflow import Inflow, Run
from dtfm_node.engine.patience import PULSE_SECONDS, Patience
from dtfm_node.trace import NO_TRACE, Tracer
from dtfm_node.uplink import Uplink
from dtfm_protocol.errors import Refused
from dtfm_protocol.faults import armed, point
from dtfm_protocol.frames import HEADER_BYTES, Header, Key, Kind
from dtfm_protocol.identity import short
from dtfm_protocol.logs import log
from dtfm_protocol.planes.data import Bytes, DataPlane, Stream, StreamClosed, write_message
from dtfm_protocol.schema import Schema
from dtfm_protocol.timeline import Lane

TRAINING = "training"
"""The data plane's service that takes training streams."""
QUEUE_FRAMES = 8
"""Frames that wait for a slow link before the sender has to wait too."""
UNANSWERED_PULSES = 256
UNREAD_EVALUATIONS = 4
"""Evaluation frames of one peer that are taken in before they are asked for. How far training frames may run ahead the
schedule bounds: no peer has more micro-batches in flight than it says."""
PIECE_BYTES = 1 << 18
"""Of a bulk frame, between two looks at whether something urgent is to be sent."""


class Hello(Schema):
    """Opens a training stream: which plan its frames belong to."""

    plan_version: Annotated[int, Field(ge=1)]
    pulses: bool = False
    """Whether it carries pulses, and nothing else."""


class PeerLost(Exception):
    """A peer that this step needs is gone."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"{short(peer)} is gone: {why}")
        self.peer = peer


class Fault(Enum):
    """What can be wrong with a frame; few, so that nobody can make the counters grow."""

    STRANGER = "from a peer that is not in the plan"
    FORM = "not a frame"
    PLAN = "of another plan"
    NOT_DUE = "not due"
    SIZE = "of another size than is due"
    CONTENT = "with contents that cannot be used"


@dataclass(slots=True)
class _Posted:
    future: asyncio.Future[Bytes]
    size: int
    exact: bool
    begun: bool = False
    """Whether its header has come: from then on another one, on whatever stream, is one too many."""


class _Faulty(Refused):
    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class _Paced:
    """Keeps a stream at the pace that its link has now."""

    def __init__(self, stream: Stream, uplink: Uplink) -> None:
        self._stream, self._uplink, self._pace = stream, uplink, math.inf

    def look(self) -> None:
        """Set it, if it has changed."""
        if self._pace != (pace := self._uplink.pace(self._stream.peer)):
            self._pace = pace
            self._stream.pace(pace)


class Exchange:
    """One peer's frames under one plan. Create it with `running`."""

    def __init__(
        self,
        plane: DataPlane,
        plan_version: int,
        peers: tuple[str, ...],
        tasks: asyncio.TaskGroup,
        uplink: Uplink,
        tracer: Tracer,
        action_seconds: Callable[[], float],
    ) -> None:
        self.bytes_sent = 0
        self.refused: Counter[Fault] = Counter()
        self.inflow = Inflow()
        self._plane = plane
        self._plan_version = plan_version
        self._peers = frozenset(peers)
        self._tasks, self._uplink, self._tracer = tasks, uplink, tracer
        self._posted: dict[tuple[str, Key], _Posted] = {}
        self._lost: dict[str, PeerLost] = {}
        self._queues: dict[tuple[str, bool], asyncio.Queue[tuple[Header, Bytes]]] = {}
        """By peer and whether they carry bulk."""
        self._senders: set[asyncio.Task[None]] = set()
        self._unread: Counter[str] = Counter()
        self._read = asyncio.Condition()
        self._over = False
        self._named: set[tuple[str, Fault]] = set()
        self._action_seconds = action_seconds
        self.patience: dict[str, Patience] = {}
        """With each peer whose pulses come."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        plane: DataPlane,
        plan_version: int,
        peers: tuple[str, ...],
        uplink: Uplink | None = None,
        tracer: Tracer = NO_TRACE,
        action_seconds: Callable[[], float] = lambda: 0.0,
    ) -> AsyncIterator["Exchange"]:
        """An exchange whose senders run until the block is left; what ends the block comes out in a group.

        Args:
            peers: those of the plan; nobody else is listened to.
            action_seconds: for how long this peer has been at its present action.
        """
        async with asyncio.TaskGroup() as tasks:
            exchange = cls(plane, plan_version, peers, tasks, uplink or Uplink(), tracer, action_seconds)
            exchange._senders.add(tasks.create_task(exchange._listen_for_pulses()))
            try:
                yield exchange
            finally:
                for task in exchange._senders:
                    task.cancel()
                async with exchange._read:
                    exchange._over = True
                    exchange._read.notify_all()

    def connect(self, peer: str, *, bulk: bool = False) -> None:
        """Open the stream to `peer` before there is a frame for it, so that it notices if this peer vanishes."""
        if not bulk and (peer, False) not in self._queues:
            self._senders.add(self._tasks.create_task(self._pulse(peer)))
        if (peer, bulk) not in self._queues:
            queue = self._queues[peer, bulk] = asyncio.Queue(QUEUE_FRAMES)
            self._senders.add(self._tasks.create_task(self._sending(peer, queue, bulk)))

    def post(self, sender: str, key: Key, size: int, *, exact: bool = True) -> None:
        """Expect a frame from `sender` with `size` payload bytes (at most so many where not `exact`)."""
        future: asyncio.Future[Bytes] = asyncio.get_running_loop().create_future()
        self._posted[sender, key] = _Posted(future, size, exact)
        if sender in self._lost:
            self._break(future, self._lost[sender])

    async def receive(self, sender: str, key: Key) -> Bytes:
        """The payload of the posted frame, still coded, once it is there.

        Raises:
            PeerLost: the sender vanished before.
        """
        posted = self._posted[sender, key]
        try:
            return await asyncio.shield(posted.future)  # who gives up waiting does not make the frame a fault
        finally:
            if posted.future.done():
                self._posted.pop((sender, key), None)
                if key.kind is Kind.EVALUATION:
                    async with self._read:
                        self._unread[sender] -= 1
                        self._read.notify_all()

    async def send(self, peer: str, key: Key, payload: Bytes) -> None:
        """Queue a frame for `peer`; waits only while the queue is full. The payload must not change until it is sent.

        Raises:
            PeerLost: its stream broke.
        """
        bulk = key.kind.is_bulk
        self.connect(peer, bulk=bulk)
        await self._queues[peer, bulk].put((Header(self._plan_version, key, len(payload)), payload))
        if peer in self._lost:  # looked at last: the stream may have broken while this frame waited for room
            raise self._lost[peer]
        self.bytes_sent += HEADER_BYTES + len(payload)

    async def flush(self) -> None:
        """Wait until the frames that are queued for living peers are on their way."""
        await asyncio.gather(*(queue.join() for (peer, _), queue in self._queues.items() if peer not in self._lost))

    async def serve(self, stream: Stream) -> None:
        """Take a peer's frames until its stream ends, or brings what it must not. The stream's Hello has been read."""
        try:
            if stream.peer not in self._peers:
                raise _Faulty(Fault.STRANGER, "a training stream, and is not in the plan")
            run = self.inflow.run(stream.peer)
            while True:
                await self._take_frame(stream, run)
        except StreamClosed as error:
            self.lose(PeerLost(stream.peer, str(error)))
        except _Faulty as error:
            self.refuse(stream.peer, error.fault, str(error))

    async def take_pulses(self, stream: Stream) -> None:
        """Take a peer's pulses until its stream ends. The stream's Hello has been read."""
        if stream.peer not in self._peers:
            self.refuse(stream.peer, Fault.STRANGER, "pulses, and is not in the plan")
            return
        patience = self.patience.setdefault(stream.peer, Patience(time.monotonic()))
        try:
            while True:
                data = await stream.read(HEADER_BYTES)
                header = Header.parse(data)
                if header.key.kind is not Kind.PULSE or header.size:
                    raise Refused("what is no pulse")
                patience.pulse(time.monotonic(), header.key.index / 1000)
                await stream.write(data)
        except StreamClosed:
            # Its frames' streams end, too, if it is gone; what they still bring must not be lost before.
            self.patience.pop(stream.peer, None)
        except Refused as error:
            self.refuse(stream.peer, Fault.FORM, str(error))

    async def _listen_for_pulses(self) -> None:
        """Find out who is silent for too long, or stuck."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(PULSE_SECONDS / 2)
            now = time.monotonic()
            for peer, patience in list(self.patience.items()):
                if now - before > 2 * PULSE_SECONDS:  # who did not get to listen hears nobody
                    patience.excuse(now)
                patience.excuse(self._plane.heard(peer))  # pulses may wait behind what else it sends
                if peer not in self._lost and (fault := patience.fault(now)):
                    self.lose(PeerLost(peer, fault))

    async def _pulse(self, peer: str) -> None:
        """Tell a peer that this one lives, as long as neither counts the other as gone."""
        while peer not in self._lost:
            stream: Stream | None = None
            echoes: asyncio.Task[None] | None = None
            try:
                stream = await self._plane.open(peer, TRAINING)
                await write_message(stream, Hello(plan_version=self._plan_version, pulses=True))
                sent: deque[float] = deque(maxlen=UNANSWERED_PULSES)
                echoes = asyncio.create_task(self._take_echoes(stream, sent))
                while True:
                    key = Key(Kind.PULSE, 0, min(1 << 31, round(1000 * self._action_seconds())))
                    sent.append(time.monotonic())
                    await stream.write(Header(self._plan_version, key, 0).pack())
                    await asyncio.sleep(PULSE_SECONDS)
            except ConnectionError as error:
                log.debug("no pulses to %s: %s", short(peer), error)
            finally:
                if echoes is not None:
                    echoes.cancel()
                if stream is not None:
                    await stream.close()
            await asyncio.sleep(PULSE_SECONDS)

    async def _take_echoes(self, stream: Stream, sent: deque[float]) -> None:
        """Learn from the answers to pulses how long the way to a peer and back takes."""
        with contextlib.suppress(StreamClosed):
            while True:
                await stream.read(HEADER_BYTES)
                if not sent:
                    return  # more answers than pulses: they tell nothing
                patience = self.patience.get(stream.peer)
                took = time.monotonic() - sent.popleft()
                if patience is not None:
                    patience.echo(took)

    async def _take_frame(self, stream: Stream, run: Run) -> None:
        asked = time.monotonic()
        data = await stream.read(HEADER_BYTES)
        if stream.peer in self._lost:  # frames that were under way by then: nobody wants them, and they are no fault
            raise StreamClosed(str(self._lost[stream.peer]))
        begun = time.monotonic()
        try:
            header = Header.parse(data)
        except Refused as error:
            raise _Faulty(Fault.FORM, f"what is no header: {error}") from None
        posted = self._admit(stream.peer, header)
        key = header.key
        if key.kind is Kind.EVALUATION:
            async with self._read:
                await self._read.wait_for(lambda: self._over or self._unread[stream.peer] < UNREAD_EVALUATIONS)
                self._unread[stream.peer] += 1
            if self._over:
                raise StreamClosed("nobody reads its evaluations any more")
            begun = time.monotonic()
        payload = await stream.read(header.size) if header.size else b""
        run.came(header.size, begun - asked, time.monotonic() - begun)
        self._trace("receive", stream.peer, key, begun)
        if not posted.future.done():
            posted.future.set_result(payload)

    def refuse(self, peer: str, fault: Fault, text: str) -> PeerLost:
        """Count a frame that cannot be used, name it once, and have nothing more to do with who sent it."""
        self.refused[fault] += 1
        name = (peer if peer in self._peers else "", fault)  # strangers count as one: there may be any number
        if name not in self._named:
            self._named.add(name)
            log.warning("refused a frame of %s: it sent %s", short(peer), text)
        lost = PeerLost(peer, f"it sent {text}")
        if peer in self._peers:
            self.lose(lost)
        return lost

    def lose(self, lost: PeerLost) -> None:
        """Fail what is still expected from a peer; what it sent before stays good."""
        self._lost.setdefault(lost.peer, lost)
        for (sender, _), posted in list(self._posted.items()):
            if sender == lost.peer:
                self._break(posted.future, lost)

    @staticmethod
    def _break(future: asyncio.Future[Bytes], lost: PeerLost) -> None:
        if not future.done():
            future.set_exception(lost)
            future.exception()  # marks it as seen: nobody may be waiting for this frame

    def _admit(self, sender: str, header: Header) -> _Posted:
        """What was posted for this header; checked before any memory is taken."""
        if header.plan_version != self._plan_version:
            raise _Faulty(Fault.PLAN, f"a frame of plan {header.plan_version} under plan {self._plan_version}")
        posted = self._posted.get((sender, header.key))
        if posted is None or posted.begun or posted.future.done():
            raise _Faulty(Fault.NOT_DUE, f"a frame that is not due: {header.key}")
        if header.size > posted.size or (posted.exact and header.size != posted.size):
            raise _Faulty(Fault.SIZE, f"{header.size} bytes for {header.key} where {posted.size} belong")
        posted.begun = True
        return posted

    async def _sending(self, peer: str, queue: asyncio.Queue[tuple[Header, Bytes]], bulk: bool) -> None:
        """Send one peer's frames in order over one stream."""
        stream: Stream | None = None
        under_way = False
        try:
            stream = await self._plane.open(peer, TRAINING)
            await write_message(stream, Hello(plan_version=self._plan_version))
            paced = _Paced(stream, self._uplink)
            while True:
                header, payload = await queue.get()
                await self._uplink.free(peer)
                paced.look()
                under_way = True
                begun = time.monotonic()
                point("before-send", header.key.step)
                if bulk:
                    await self._write_bulk(stream, paced, header, payload)
                elif armed("mid-frame", header.key.step):
                    half = len(payload) // 2
                    await stream.write(header.pack(), memoryview(payload)[:half])
                    point("mid-frame", header.key.step)
                    await stream.write(memoryview(payload)[half:])
                else:
                    with self._uplink.urgent():
                        await stream.write(header.pack(), payload)
                if (delivered := stream.delivered()) is not None:
                    self._uplink.delivered(peer, delivered)
                point("after-send", header.key.step)
                self._trace("send", peer, header.key, begun)
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

    async def _write_bulk(self, stream: Stream, paced: _Paced, header: Header, payload: Bytes) -> None:
        await self._uplink.idle(stream.peer)  # the receiver times a frame from its header on
        await stream.write(header.pack())
        view = memoryview(payload)
        for start in range(0, len(view), PIECE_BYTES):
            await self._uplink.idle(stream.peer)
            paced.look()
            await stream.write(view[start : start + PIECE_BYTES])

    def _trace(self, lane: Lane, peer: str, key: Key, begun: float) -> None:
        self._tracer.span(
            lane,
            f"{key.kind.name} {key.index}",
            begun,
            time.monotonic(),
            peer=peer,
            kind=key.kind.name,
            step=key.step,
            index=key.index,
            group=key.group,
            plan=self._plan_version,
        )
