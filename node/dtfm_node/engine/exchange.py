"""Frames to and from the other peers of one plan: `receiver` takes in what `mailbox` lets in, `sender` sends, and
`heartbeat` tells who lives.

To each peer there are three streams: urgent frames do not queue behind the all-reduce, and pulses behind nothing.
"""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Annotated, Self

from pydantic import Field

from dtfm_node.engine.failure_detector import FailureDetector
from dtfm_node.engine.heartbeat import Heartbeat
from dtfm_node.engine.link_rates import LinkRates
from dtfm_node.engine.mailbox import UNREAD_EVALUATIONS, Mailbox, PeerLost
from dtfm_node.engine.receiver import Receiver
from dtfm_node.engine.rejected_frames import FrameFault, FrameRefused, RejectedFrames
from dtfm_node.engine.sender import Sender
from dtfm_node.engine.tracer import NO_TRACE, Tracer
from dtfm_node.links.pacing import UplinkPacer
from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.trace_format import Lane
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.frames import HEADER_BYTES, FrameHeader, Key
from dtfm_protocol.wire.stream import Bytes, DataPlane, Stream, StreamClosed, write_message

TRAINING = "training"
"""Name of the data plane's service that takes training streams."""


class Hello(Message):
    """First message on a training stream, which says to which plan its frames belong."""

    plan_version: Annotated[int, Field(ge=1, le=MOST_UINT32)]
    pulses: bool = False
    """Whether the stream carries pulses, and nothing else."""


class Exchange:
    """Frames that one peer sends and receives under one plan. Create it with `running`."""

    def __init__(
        self,
        plane: DataPlane,
        plan_version: int,
        peers: tuple[str, ...],
        tasks: asyncio.TaskGroup,
        uplink: UplinkPacer,
        tracer: Tracer,
        action_seconds: Callable[[], float],
        clock: MonotonicClock,
        unread_evaluations: int,
    ) -> None:
        self.bytes_sent = 0
        self.inflow = LinkRates()
        self._plane, self._plan_version, self._peers = plane, plan_version, frozenset(peers)
        self._group, self._tasks = tasks, set[asyncio.Task[None]]()
        self._tracer, self._clock = tracer, clock
        self._mailbox = Mailbox(plan_version, unread_evaluations)
        self._rejected_frames = RejectedFrames(self._peers)
        self._receiver = Receiver(self._mailbox, self.inflow, clock, functools.partial(self._trace, "receive"))
        sent = functools.partial(self._trace, "send")
        self._sender = Sender(self._open, self.beside, uplink, clock, self.lose, sent)
        self._heartbeat = Heartbeat(
            plan_version,
            functools.partial(self._open, pulses=True),
            self.beside,
            clock,
            plane.heard,
            self._mailbox.lost,
            self.lose,
            action_seconds,
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        plane: DataPlane,
        plan_version: int,
        peers: tuple[str, ...],
        uplink: UplinkPacer | None = None,
        tracer: Tracer = NO_TRACE,
        action_seconds: Callable[[], float] = lambda: 0.0,
        *,
        clock: MonotonicClock | None = None,
        unread_evaluations: int = UNREAD_EVALUATIONS,
    ) -> AsyncIterator[Self]:
        """Run an exchange until the block is left; what ends the block comes out in an exception group.

        Args:
            peers: peer ids of the plan; nobody else is listened to.
            action_seconds: returns the seconds for which this peer has been at its present action.
            unread_evaluations: number of evaluation frames of one peer that are taken in before they are asked for.
        """
        async with asyncio.TaskGroup() as tasks:
            exchange = cls(
                plane,
                plan_version,
                peers,
                tasks,
                uplink or UplinkPacer(),
                tracer,
                action_seconds,
                clock or MonotonicClock(),
                unread_evaluations,
            )
            exchange.beside(exchange._heartbeat.watch())
            try:
                yield exchange
            finally:
                exchange._end()

    def beside(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` beside all else, until it or the exchange ends."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._receiver.end()

    @property
    def refused(self) -> Counter[FrameFault]:
        """Number of frames that were refused, by their fault."""
        return self._rejected_frames.counts

    @property
    def sent_gbps(self) -> dict[str, float]:
        """Gbit/s at which frames go, by peer id, to those to which the way was busy of late."""
        return self._sender.rates()

    @property
    def patience(self) -> dict[str, FailureDetector]:
        """Failure detector for each peer whose pulses come, by peer id."""
        return self._heartbeat.patience

    @property
    def lost(self) -> dict[str, PeerLost]:
        """Reason why each peer that is gone counts as gone, by peer id."""
        return self._mailbox.lost

    def connect(self, peer: str, *, bulk: bool = False) -> None:
        """Open the stream to `peer` before there is a frame for it, so that the peer notices if this one vanishes."""
        if not bulk:
            self._heartbeat.connect(peer)
        self._sender.connect(peer, bulk=bulk)

    async def _open(self, peer: str, *, pulses: bool = False) -> Stream:
        stream = await self._plane.open(peer, TRAINING)
        try:
            await write_message(stream, Hello(plan_version=self._plan_version, pulses=pulses))
        except BaseException:
            await stream.close()
            raise
        return stream

    def post(self, sender: str, key: Key, size: int, *, exact: bool = True) -> None:
        """Expect a frame from `sender` with `size` payload bytes (with at most as many where not `exact`)."""
        self._mailbox.post(sender, key, size, exact=exact)

    async def receive(self, sender: str, key: Key) -> Bytes:
        """Wait for the posted frame, and return its payload, still coded.

        Raises:
            PeerLost: the sender vanished before.
        """
        return await self._receiver.receive(sender, key)

    async def send(self, peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
        """Queue a frame for `peer`; waits only while the queue is full. The payload must not change until it is sent.

        Args:
            seal: comes after the payload, as a part of the frame.

        Raises:
            PeerLost: the stream to `peer` broke.
        """
        self.connect(peer, bulk=key.kind.is_bulk)
        size = len(payload) + len(seal)
        await self._sender.put(peer, FrameHeader(self._plan_version, key, size), payload, seal)
        if peer in self.lost:  # looked at last: the stream may have broken while this frame waited for room
            raise self.lost[peer]
        self.bytes_sent += HEADER_BYTES + size

    async def flush(self) -> None:
        """Wait until the frames that are queued for living peers are on their way."""
        await self._sender.flush(self.lost)

    async def serve(self, stream: Stream) -> None:
        """Take a peer's frames until its stream ends or brings what it must not. The stream's `Hello` has been read."""
        if stream.peer not in self._peers:
            self.refuse(stream.peer, FrameFault.STRANGER, "a training stream, and is not in the plan")
            return
        try:
            await self._receiver.serve(stream)
        except StreamClosed as error:
            self.lose(PeerLost(stream.peer, str(error)))
        except FrameRefused as error:
            self.refuse(stream.peer, error.fault, str(error))

    async def take_pulses(self, stream: Stream) -> None:
        """Take a peer's pulses until its stream ends. The stream's `Hello` has been read."""
        if stream.peer not in self._peers:
            self.refuse(stream.peer, FrameFault.STRANGER, "pulses, and is not in the plan")
            return
        try:
            await self._heartbeat.answer(stream)
        except Refused as error:
            self.refuse(stream.peer, FrameFault.FORM, str(error))

    def refuse(self, peer: str, fault: FrameFault, text: str) -> PeerLost:
        """Count a frame that cannot be used, log the first of its kind, count its sender as lost; return that loss."""
        if self._rejected_frames.note(peer, fault):
            log.warning("refused a frame of %s: it sent %s", short(peer), text)
        lost = PeerLost(peer, f"it sent {text}", refused=True)
        if peer in self._peers:
            self.lose(lost)
        return lost

    def refuse_all(self, faults: Mapping[str, str]) -> PeerLost | None:
        """Refuse the content of what each peer of `faults`, by peer id, has sent; return the first loss, if any."""
        lost = [self.refuse(peer, FrameFault.CONTENT, text) for peer, text in faults.items()]
        return lost[0] if lost else None

    def lose(self, lost: PeerLost) -> None:
        """Count a peer as lost, and fail what is still expected from it; what it sent before stays good."""
        self._receiver.lose(lost)

    def _trace(self, lane: Lane, peer: str, key: Key, begun: float) -> None:
        name, plan, now = key.kind.name, self._plan_version, self._clock.now()
        which: dict[str, int] = {"step": key.step, "index": key.index, "group": key.group, "plan": plan}
        self._tracer.span(lane, f"{name} {key.index}", begun, now, peer=peer, kind=name, **which)
