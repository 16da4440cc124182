"""A stream of the libp2p plane: a connection to the daemon of this machine, which hands it on."""

import asyncio
from typing import Any

from dtfm_protocol.identity.keys import short
from dtfm_protocol.transport.multiaddress import CIRCUIT
from dtfm_protocol.transport.rate_cap import TrafficCaps
from dtfm_protocol.wire.stream import Bytes, BytesOnTheWay, Stream, StreamClosed, Way

CLOSE_SECONDS = 1.0
_CHUNK = 1 << 18


class LibP2PStream:
    """A libp2p stream; the daemon has proven the other end's peer id."""

    def __init__(
        self,
        peer: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Way = "direct",
        caps: TrafficCaps | None = None,
    ) -> None:
        self._caps = caps or TrafficCaps()
        self.peer = peer
        self.way = way
        self._reader = reader
        self._writer = writer

    async def read(self, size: int) -> Bytes:
        """Read exactly `size` bytes, as `Stream.read`."""
        try:
            most = min(_CHUNK, self._caps.down.piece)
            if size <= most:
                await self._caps.receive(size)
                return await self._reader.readexactly(size)
            # In pieces as they come: `readexactly` would let the reader's buffer grow to the whole size.
            buffer = bytearray(size)
            view, filled = memoryview(buffer), 0
            while filled < size:
                piece = await self._reader.read(min(size - filled, most))
                if not piece:
                    raise StreamClosed(f"{short(self.peer)} closed the stream")
                await self._caps.receive(len(piece))
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
            return buffer
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            raise StreamClosed(f"{short(self.peer)} closed the stream") from None

    async def write(self, *buffers: Bytes) -> None:
        """Send all of `buffers` to the daemon, as `Stream.write`."""
        try:
            cap = self._caps.up
            for buffer in buffers:
                if not cap.is_capped:
                    self._writer.write(buffer)
                    await self._caps.send(len(buffer))
                    continue
                view = memoryview(buffer).cast("B")
                for start in range(0, len(view), cap.piece):
                    await self._caps.send(min(cap.piece, len(view) - start))
                    self._writer.write(view[start : start + cap.piece])
            await self._writer.drain()
        except (ConnectionError, OSError, RuntimeError):
            raise StreamClosed(f"{short(self.peer)} closed the stream") from None

    async def forward(self, other: Stream) -> None:
        """Send what comes on this stream to `other`, as `Pipe.forward`."""
        while True:
            try:
                piece = await self._reader.read(_CHUNK)
            except OSError:
                return
            if not piece:
                return
            await other.write(piece)

    def pace(self, bytes_per_second: float) -> None:
        """Do nothing: the socket is the daemon's, which cannot pace. As `Stream.pace`."""

    def grow_until_loss(self) -> None:
        """Do nothing: the socket is the daemon's. As `Stream.grow_until_loss`."""

    def delivered(self) -> float | None:
        """Return None: the socket is the daemon's. As `Stream.delivered`."""
        return None

    def queued(self) -> float | None:
        """Return None: the socket is the daemon's. As `Stream.queued`."""
        return None

    def progress(self) -> BytesOnTheWay | None:
        """Return None: the socket is the daemon's. As `Stream.progress`."""
        return None

    def abort(self) -> None:
        """End the stream at once; what is still buffered is lost. Idempotent."""
        self._writer.transport.abort()

    def drop(self) -> None:
        """End the stream, as `Stream.drop`."""
        self.abort()

    async def close(self) -> None:
        """End the stream, as `Stream.close`."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()  # the other side does not read: what is still buffered is lost on it
        except asyncio.CancelledError:
            self._writer.transport.abort()
            raise
        except (ConnectionError, OSError):
            pass


def way_of(info: Any) -> Way:
    """Return the way of the stream of which the daemon says `info`."""
    return "relayed" if CIRCUIT in str(info.addr) else "direct"


def stream_of(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> LibP2PStream:
    """The stream of which the daemon says `info`: the other end, and the address of the connection below."""
    return LibP2PStream(str(info.peer_id), reader, writer, way_of(info))
