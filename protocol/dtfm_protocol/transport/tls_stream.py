"""A stream of the direct plane: TLS over a TCP connection, with nothing between it and the kernel."""

import asyncio
import contextlib
import math
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.transport.tcp_info import TcpInfo, progress, queued
from dtfm_protocol.wire.stream import Bytes, BytesOnTheWay, StreamClosed, Way

PIECE_BYTES = 256 << 10
"""Bytes that are encrypted, or taken from a socket, at once."""
_TOGETHER_BYTES = 16 << 10
"""Bytes of the TLS records that small buffers of one write share."""
_SO_MAX_PACING_RATE, _NO_PACE = 47, (1 << 64) - 1
"""Number of the socket option, from <asm-generic/socket.h>, which Python does not name, and its value for no limit."""
_DROPPED = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which closing a connection drops what has not been sent."""
_LARGE_BYTES = 64 << 10
_READ_BYTES = 1 << 30
"""Bytes of the largest read that OpenSSL takes: it keeps the size in an int."""
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    # A reader learns in half a minute that the machine at the other end is gone.
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    # The kernel takes little more than the line can carry now, so that an urgent frame on another stream is not queued
    # behind megabytes.
    (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", 128 << 10),
)


class TlsStream:
    """A TLS connection over a non-blocking socket. One task at a time may read.

    TLS works on memory, and the socket is read and written here, not by the event loop's own TLS transport: nothing is
    buffered but what the kernel holds, so a reader that pauses stalls the sender, a write that has returned is not lost
    by closing, and closing waits for nobody. A read or write that is cancelled half way ends the stream.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        staging: memoryview,
        ended: Callable[["TlsStream"], object],
        *,
        server_side: bool,
        way: Way = "direct",
        caps: TrafficCaps | None = None,
    ) -> None:
        self.peer = ""
        """Peer id of the other end, set once that has proven it."""
        self.way = way
        self.heard = -math.inf
        """Time at which bytes came last, on the clock of `time.monotonic`."""
        _prepare(connection)
        self._caps = caps or TrafficCaps()
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: Any = context.wrap_bio(self._incoming, self._outgoing, server_side)  # Any: it reads into a buffer
        self._staging = staging
        self._ended = ended
        self._delivery = TcpInfo()
        self._writing = asyncio.Lock()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def remote(self) -> tuple[str, int]:
        """The host and port of the other end, as seen from here.

        Raises:
            StreamClosed: the stream has ended.
        """
        try:
            host, port, *_ = self._socket.getpeername()
        except OSError:
            raise self._closed() from None
        return str(host), int(port)

    async def handshake(self) -> bytes | None:
        """Agree on keys; return the certificate whose key the other end has proven.

        A client is done before the server has looked at its certificate: the first `read` says whether it was accepted.

        Raises:
            Refused: there is no agreement.
            StreamClosed: the other end is gone.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send()
                await self._receive()
            except ssl.SSLError as error:
                with contextlib.suppress(StreamClosed):
                    await self._send()  # the alert that says why
                raise Refused(f"no TLS: {error.reason}") from None
            else:
                await self._send()
                shown: bytes | None = self._tls.getpeercert(binary_form=True)
                return shown

    async def read(self, size: int) -> Bytes:
        """Read exactly `size` bytes, as `Stream.read`."""
        # numpy's memory, unlike a bytearray's, is not cleared first, and large pages make it cheap to touch.
        buffer = bytearray(size) if size < _LARGE_BYTES else np.empty(size, np.uint8).data
        target, filled = memoryview(buffer), 0
        try:
            while filled < size:
                try:
                    count = self._tls.read(min(size - filled, _READ_BYTES), target[filled:])
                except ssl.SSLWantReadError:
                    await self._receive()
                    continue
                if not count:
                    raise self._closed()
                filled += count
        except ssl.SSLError:
            self.abort()
            raise self._closed() from None
        except asyncio.CancelledError:
            if filled:
                self.abort()
            raise
        return buffer

    async def write(self, *buffers: Bytes) -> None:
        """Send all of `buffers` to the kernel, as `Stream.write`."""
        async with self._writing:
            try:
                for piece in _pieces(buffers):
                    self._tls.write(piece)
                    await self._send()
                    if len(piece) == PIECE_BYTES:
                        await asyncio.sleep(0)  # a fast receiver must not keep this side's other tasks waiting
            except ssl.SSLError:
                self.abort()
                raise self._closed() from None
            except asyncio.CancelledError:
                self.abort()
                raise

    def pace(self, bytes_per_second: float) -> None:
        """Set the kernel's pace (Linux), as `Stream.pace`."""
        _set_pace(self._socket, bytes_per_second)

    def grow_until_loss(self) -> None:
        """Have TCP control its window as Reno does (Linux), as `Stream.grow_until_loss`. Cubic's HyStart stops opening
        it where round trips become longer, be it by what goes the other way."""
        if sys.platform.startswith("linux"):
            with contextlib.suppress(OSError):  # the stream has ended, or the system's owner does not allow it
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")

    def delivered(self) -> float | None:
        """Return the bytes a second that arrived while writes waited for the line, as `Stream.delivered`."""
        return self._delivery.take()

    def queued(self) -> float | None:
        """Return the seconds that bytes wait in a queue on the way, as `Stream.queued`."""
        return queued(self._socket)

    def progress(self) -> BytesOnTheWay | None:
        """Return how far what was written has come (Linux), as `Stream.progress`."""
        return progress(self._socket)

    async def close(self) -> None:
        """End the stream, as `Stream.close`. What has been written is the kernel's by now, which goes on sending it."""
        self.abort()

    def drop(self) -> None:
        """End the stream, as `Stream.drop`: the kernel sends nothing more of what it has taken."""
        with contextlib.suppress(OSError):  # the stream has ended
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROPPED)
        self.abort()

    def abort(self) -> None:
        """End the stream at once; idempotent. There is no TLS goodbye: who reads knows how much is due."""
        if self._socket.fileno() < 0:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for turn in self._waiting:
            _wake(turn)
        self._ended(self)

    async def _send(self) -> None:
        """Put what TLS has made into the socket."""
        data, cap = memoryview(self._outgoing.read()), self._caps.up
        for start in range(0, len(data), cap.piece):
            piece = data[start : start + cap.piece]
            await self._caps.send(len(piece))
            while piece:
                try:
                    piece = piece[self._socket.send(piece) :]
                except BlockingIOError:
                    self._delivery.wait()
                    await self._turn(writing=True)
                    self._delivery.look(self._socket)
                except OSError:
                    raise self._closed() from None

    async def _receive(self) -> None:
        """Give TLS what has come, or what comes next."""
        while True:
            try:
                count = self._socket.recv_into(self._staging[: self._caps.down.piece])
            except BlockingIOError:
                await self._turn()
            except OSError:
                raise self._closed() from None
            else:
                break
        if not count:
            raise self._closed()
        self.heard = time.monotonic()
        self._incoming.write(self._staging[:count])
        await self._caps.receive(count)
        if count == len(self._staging):
            await asyncio.sleep(0)  # a fast sender must not keep this side's other tasks waiting

    async def _turn(self, *, writing: bool = False) -> None:
        """Wait until the socket can be read (or written), or is closed here."""
        if self._socket.fileno() < 0:
            raise self._closed()
        loop = asyncio.get_running_loop()
        add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.add(turn)
        add(self._socket.fileno(), _wake, turn)
        try:
            await turn
        finally:
            self._waiting.discard(turn)
            if self._socket.fileno() >= 0:
                remove(self._socket.fileno())

    def _closed(self) -> StreamClosed:
        return StreamClosed(f"{short(self.peer) or 'the other end'} closed the stream")


def _prepare(connection: socket.socket) -> None:
    """Set the options of a connection that a stream is to have."""
    connection.setblocking(False)
    for level, name, value in _SOCKET_OPTIONS:
        if hasattr(socket, name):
            with contextlib.suppress(OSError):  # some systems know an option that they do not take
                connection.setsockopt(level, getattr(socket, name), value)


def _set_pace(connection: socket.socket, bytes_per_second: float) -> None:
    """Set the kernel's pace of a connection (Linux); infinite: it has none."""
    if sys.platform.startswith("linux"):
        limit = _NO_PACE if math.isinf(bytes_per_second) else max(1, int(bytes_per_second))
        with contextlib.suppress(OSError):  # the stream has ended
            connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", limit))


def _pieces(buffers: tuple[Bytes, ...]) -> Iterator[Bytes]:
    """Yield what to encrypt at once, a part of a large buffer or small ones together: each costs a record."""
    small = bytearray()
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if len(small) + len(view) <= _TOGETHER_BYTES:
            small += view
            continue
        if small:
            yield small
            small = bytearray()
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
    if small:
        yield small


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
