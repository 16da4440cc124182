"""Pulses to and from the other peers of a plan, which say that a peer lives, and how long it has been at its action.

They have a stream of their own, and so queue behind nothing. A pulse is answered by its own bytes, which tells how long
the way there and back takes.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Container, Coroutine

from dtfm_node.engine.failure_detector import FailureDetector
from dtfm_node.engine.mailbox import PeerLost
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.frames import HEADER_BYTES, FrameHeader, Key, Kind
from dtfm_protocol.wire.stream import Stream, StreamClosed

UNANSWERED_PULSES = 256
"""Number of the newest pulses whose answers are still matched with them."""


class Heartbeat:
    """Pulses that one peer sends and answers under one plan.

    Args:
        open_stream: opens a stream for pulses to a peer. Raises: ConnectionError.
        start: runs a coroutine until the exchange ends.
        heard: returns when bytes of a peer came last, on `clock`; minus infinity where that is not known.
        lost: peer ids of those that count as gone.
        lose: told of a peer that is silent for too long, or stuck.
        action_seconds: returns the seconds for which this peer has been at its present action.
    """

    def __init__(
        self,
        plan_version: int,
        open_stream: Callable[[str], Awaitable[Stream]],
        start: Callable[[Coroutine[None, None, None]], None],
        clock: MonotonicClock,
        heard: Callable[[str], float],
        lost: Container[str],
        lose: Callable[[PeerLost], None],
        action_seconds: Callable[[], float],
    ) -> None:
        self.patience: dict[str, FailureDetector] = {}
        """Failure detector for each peer whose pulses come, by peer id."""
        self._plan_version = plan_version
        self._open_stream, self._start, self._clock = open_stream, start, clock
        self._heard, self._lost, self._lose, self._action_seconds = heard, lost, lose, action_seconds
        self._told: set[str] = set()
        """Peer ids of those to whom pulses go."""

    def connect(self, peer: str) -> None:
        """Begin to send pulses to `peer`."""
        if peer not in self._told:
            self._told.add(peer)
            self._start(self._pulse(peer))

    async def watch(self) -> None:
        """Watch, for ever, for peers that are silent for too long, or stuck, and report each as lost."""
        while True:
            before = self._clock.now()
            await self._clock.sleep(TIMEOUTS.pulse / 2)
            for lost in self.faults(before, self._clock.now()):
                self._lose(lost)

    def faults(self, before: float, now: float) -> list[PeerLost]:
        """Return the peers that are gone at `now`; the last look was at `before`."""
        found = []
        for peer, patience in self.patience.items():
            if now - before > 2 * TIMEOUTS.pulse:  # who did not get to listen hears nobody
                patience.excuse(now)
            patience.excuse(self._heard(peer))  # pulses may wait behind what else it sends
            if peer not in self._lost and (fault := patience.fault(now)):
                found.append(PeerLost(peer, fault))
        return found

    async def answer(self, stream: Stream) -> None:
        """Take a peer's pulses, and answer them, until their stream ends.

        Raises:
            Refused: what came is no pulse.
        """
        patience = self.patience.setdefault(stream.peer, FailureDetector(self._clock.now()))
        try:
            while True:
                data = await stream.read(HEADER_BYTES)
                header = FrameHeader.parse(data)
                if header.key.kind is not Kind.PULSE or header.size:
                    raise Refused("what is no pulse")
                patience.pulse(self._clock.now(), header.key.index / 1000)
                await stream.write(data)
        except StreamClosed:
            # Its frames' streams end, too, if it is gone; what they still bring must not be lost before.
            self.patience.pop(stream.peer, None)

    async def _pulse(self, peer: str) -> None:
        """Send pulses to a peer, as long as neither counts the other as gone."""
        while peer not in self._lost:
            stream: Stream | None = None
            echoes: asyncio.Task[None] | None = None
            try:
                stream = await self._open_stream(peer)
                sent: deque[float] = deque(maxlen=UNANSWERED_PULSES)
                echoes = asyncio.create_task(self._take_echoes(stream, sent))
                while True:
                    key = Key(Kind.PULSE, 0, min(1 << 31, round(1000 * self._action_seconds())))
                    sent.append(self._clock.now())
                    await stream.write(FrameHeader(self._plan_version, key, 0).pack())
                    await self._clock.sleep(TIMEOUTS.pulse)
            except ConnectionError as error:
                log.debug("no pulses to %s: %s", short(peer), error)
            finally:
                if echoes is not None:
                    echoes.cancel()
                if stream is not None:
                    await stream.close()
            await self._clock.sleep(TIMEOUTS.pulse)

    async def _take_echoes(self, stream: Stream, sent: deque[float]) -> None:
        """Learn from the answers to pulses how many seconds the way to a peer and back takes."""
        with contextlib.suppress(StreamClosed):
            while True:
                await stream.read(HEADER_BYTES)
                if not sent:
                    return  # more answers than pulses: they tell nothing
                patience = self.patience.get(stream.peer)
                took = self._clock.now() - sent.popleft()
                if patience is not None:
                    patience.echo(took)
