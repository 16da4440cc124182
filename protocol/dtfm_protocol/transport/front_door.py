"""A front door: a TCP port where a stranger costs little until a TLS handshake with it begins.

Whoever connects is looked at without being read: only who says the first message of a TLS client, and nothing more,
waits for a handshake, and only so many begin. Of those who have not proven to be members there are never too many.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from dtfm_protocol.errors import Refused
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.transport.client_hello import HELLO_LIMIT, hello_bytes
from dtfm_protocol.transport.handshake_turns import HandshakeRates, HandshakeTurns
from dtfm_protocol.transport.waiting_room import WaitingRoom, network_of
from dtfm_protocol.wire.stream import Way

BACKLOG = 1024
"""Connections that the kernel may hold for a listener, those included that have said nothing yet."""
_AT_ONCE = 32
"""Connections that are taken before other work of this process has its turn."""
_LEFT = "the other end left"


@dataclass(frozen=True)
class DoorLimits:
    """The bounds of a front door; times are seconds."""

    patience: float
    """Seconds from the connection to the beginning of the handshake."""
    pending: int
    """Connections that have not proven anything yet; with one more, an old one has to go."""
    pending_of_one: int
    """Those of them from one address, or one IPv6 network."""
    silence: int = 10
    """Seconds, about, for which the kernel keeps a connection that says nothing to itself (Linux). 0: it does not."""
    rates: HandshakeRates = field(default_factory=HandshakeRates)
    breath: float = 0.05
    """Seconds without new connections after one that came to nothing, if no others wait: in a flood many are looked at
    together."""
    accept_pause: float = 0.5
    """Seconds without new connections where this machine has no room for one."""


@dataclass(eq=False, slots=True)
class Visitor:
    """A connection that has come about, and what is known of its other end."""

    connection: socket.socket
    host: str
    """IP address of the other end."""
    way: Way
    origin: str
    awaited: int = 0
    """Bytes that it has to say before it is looked at again."""
    task: asyncio.Task[None] | None = None
    """What is done for it once its handshake may begin."""


class FrontDoor:
    """The visitors at one port, from their coming to their end."""

    def __init__(
        self, listener: socket.socket, limits: DoorLimits, welcome: Callable[[Visitor], Coroutine[None, None, None]]
    ) -> None:
        """Take nobody before `run`.

        Args:
            listener: a socket that listens and does not block; whoever has it closes it.
            limits: how long the door waits, and how much it takes on.
            welcome: does the handshake with a visitor, and all that follows, and catches its faults. It is cancelled
                for a visitor that has to go. The connection is closed when it has returned.
        """
        self.turned_away = Tally()
        """Number of connections that came to nothing, by reason."""
        self._listener, self._limits, self._welcome = listener, limits, welcome
        self._room = WaitingRoom[Visitor](limits.pending, limits.pending_of_one)
        self._silent: dict[Visitor, float] = {}
        """Visitors of whom no handshake has begun, and until when: who came first comes first."""
        self._visitors: set[Visitor] = set()
        """Those with a task."""
        self._turns: HandshakeTurns[Visitor] | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._met_stranger = self._is_closed = False
        if limits.silence and hasattr(socket, "TCP_DEFER_ACCEPT"):
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, limits.silence)

    @property
    def pending(self) -> int:
        """Number of visitors who have not proven anything yet."""
        return len(self._room)

    async def run(self) -> None:
        """Take connections until cancelled. `end` has to follow."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
                self._enter(connection, address[0], "direct")
                are_more = self._take_more()
            except OSError as error:  # no file descriptor left, or the other end gave up before it was taken
                self.turn_away(f"not accepted: {error.strerror}")
                await asyncio.sleep(self._limits.accept_pause)
            else:
                await asyncio.sleep(self._limits.breath if self._met_stranger and not are_more else 0)
                self._met_stranger = False

    def _take_more(self) -> bool:
        """Take connections that are there already; return whether there may be more of them."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                connection, address = self._listener.accept()
                self._enter(connection, address[0], "direct")
            return True
        return False

    def admit(self, connection: socket.socket, way: Way) -> None:
        """Take a connection that has come about elsewhere."""
        try:
            host = connection.getpeername()[0]
        except OSError:
            connection.close()
            self.turn_away(_LEFT)
        else:
            self._enter(connection, host, way)

    def proven(self, visitor: Visitor) -> None:
        """Note that a visitor is a member, or has become one: it waits no more, and others from its host need not."""
        self._room.leave(visitor)
        self._queue.proven(visitor.origin, asyncio.get_running_loop().time())

    def turn_away(self, why: str) -> None:
        """Count a connection that comes to nothing; each reason is named once, for anybody can cause many."""
        self._met_stranger = True
        if self.turned_away.note(why):
            log.debug("turned a connection to port %s away: %s", self._port, why)

    @property
    def _port(self) -> int:
        return int(self._listener.getsockname()[1]) if self._listener.fileno() >= 0 else 0

    @property
    def _queue(self) -> HandshakeTurns[Visitor]:
        if self._turns is None:
            self._turns = HandshakeTurns(self._limits.rates, asyncio.get_running_loop().time())
        return self._turns

    def _enter(self, connection: socket.socket, host: str, way: Way) -> None:
        visitor = Visitor(connection, host, way, network_of(host))
        if self._is_closed:
            connection.close()
            return
        if not self._is_seen(visitor):
            return
        loop = asyncio.get_running_loop()
        self._silent[visitor] = loop.time() + self._limits.patience
        self._after(self._limits.patience, self._sweep)
        crowded_out = self._room.enter(visitor, visitor.origin)
        if crowded_out is not None:
            self._dismiss(crowded_out, "too many at once")
        if visitor in self._silent:
            self._go_on(visitor)

    def _look(self, visitor: Visitor) -> None:
        """Look at a visitor that has said something."""
        if self._is_seen(visitor):
            self._go_on(visitor)

    def _is_seen(self, visitor: Visitor) -> bool:
        """Look what a visitor has said; False: it is none any more. `awaited` is 0 where it has said all."""
        try:
            seen = visitor.connection.recv(HELLO_LIMIT + 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            size = hello_bytes(seen) if seen else 0
        except BlockingIOError:
            visitor.awaited = 1
            return True
        except (OSError, Refused) as error:
            self._dismiss(visitor, str(error) if isinstance(error, Refused) else _LEFT)
            return False
        if not seen or visitor.awaited == size > len(seen):  # it will say no more
            self._dismiss(visitor, _LEFT)
            return False
        visitor.awaited = size if size > len(seen) else 0
        return True

    def _go_on(self, visitor: Visitor) -> None:
        """Wait for what a visitor has still to say, or else for its turn."""
        loop = asyncio.get_running_loop()
        try:
            # Without this a loop would wake up all the time, for what has come is not read.
            visitor.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, visitor.awaited or 1)
        except OSError:  # some systems say so when the other end has gone
            self._dismiss(visitor, _LEFT)
            return
        if visitor.awaited:
            loop.add_reader(visitor.connection.fileno(), self._look, visitor)
        else:
            loop.remove_reader(visitor.connection.fileno())
            self._queue.enter(visitor, visitor.origin)
            self._begin()

    def _begin(self) -> None:
        """Begin the handshakes whose turn has come."""
        now = asyncio.get_running_loop().time()
        for visitor in self._queue.take(now):
            del self._silent[visitor]
            self._visitors.add(visitor)
            visitor.task = asyncio.create_task(self._welcome(visitor))
            visitor.task.add_done_callback(lambda _, visitor=visitor: self._forget(visitor))  # type: ignore[misc]
        pause = self._queue.pause(now)
        if pause is not None:
            self._after(pause, self._begin)

    def _sweep(self) -> None:
        """Turn those away who have waited too long."""
        now = asyncio.get_running_loop().time()
        for visitor, until in list(self._silent.items()):
            if until > now:
                self._after(until - now, self._sweep)
                break
            self._dismiss(visitor, "too slow")

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something later, unless it is to be done anyway."""
        if do in self._timers:
            return

        def due() -> None:
            del self._timers[do]
            do()

        self._timers[do] = asyncio.get_running_loop().call_later(seconds, due)

    def _dismiss(self, visitor: Visitor, why: str) -> None:
        """End a visitor's connection."""
        self.turn_away(why)
        if visitor.task is not None:
            visitor.task.cancel()
        else:
            self._forget(visitor)

    def _forget(self, visitor: Visitor) -> None:
        """Close a visitor's connection, of which nothing stays."""
        if visitor.task is None and visitor in self._silent:
            asyncio.get_running_loop().remove_reader(visitor.connection.fileno())
        visitor.connection.close()
        self._silent.pop(visitor, None)
        self._visitors.discard(visitor)
        self._queue.leave(visitor)
        self._room.leave(visitor)

    async def end(self) -> None:
        """Close every connection, and wait for the end of every task. Nobody is admitted any more."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for visitor in list(self._silent):
            self._forget(visitor)
        tasks = [visitor.task for visitor in self._visitors if visitor.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
