"""In-memory twins of the data plane and of discovery: the same interfaces without processes or sockets."""

import asyncio
import math
from contextlib import suppress

from dtfm_protocol.errors import Refused
from dtfm_protocol.planes.data import Bytes, Handler, StreamClosed, Unreachable, Way


class MemoryStream:
    """One end of an in-memory stream."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.way: Way = "direct"
        self._incoming = asyncio.StreamReader()
        self._other: MemoryStream | None = None

    @staticmethod
    def pair(a: str, b: str) -> tuple["MemoryStream", "MemoryStream"]:
        """Two ends of one stream: the one that `a` holds, and the one that `b` holds."""
        at_a, at_b = MemoryStream(b), MemoryStream(a)
        at_a._other, at_b._other = at_b, at_a
        return at_a, at_b

    async def read(self, size: int) -> Bytes:
        """See `Stream.read`."""
        try:
            return await self._incoming.readexactly(size)
        except asyncio.IncompleteReadError:
            raise StreamClosed(f"{self.peer} closed the stream") from None

    async def write(self, *buffers: Bytes) -> None:
        """See `Stream.write`."""
        if self._other is None or self._other._incoming.at_eof():
            raise StreamClosed(f"{self.peer} closed the stream")
        for buffer in buffers:
            self._other._incoming.feed_data(bytes(buffer))
        await asyncio.sleep(0)

    def pace(self, bytes_per_second: float) -> None:
        """See `Stream.pace`. Memory has no line that could be full."""

    def delivered(self) -> float | None:
        """See `Stream.delivered`."""
        return None

    def queued(self) -> float | None:
        """See `Stream.queued`."""
        return None

    async def close(self) -> None:
        """See `Stream.close`."""
        other, self._other = self._other, None
        if other is not None:
            other._other = None
            other._incoming.feed_eof()
            self._incoming.feed_eof()


class MemoryNetwork:
    """What connects the in-memory peers of one test."""

    def __init__(self) -> None:
        self.services: dict[tuple[str, str], Handler] = {}
        self.records: dict[str, dict[str, bytes]] = {}
        self.tasks: set[asyncio.Task[None]] = set()


class MemoryDataPlane:
    """A peer on a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self.peer_id = peer_id
        self.ways: dict[str, Way] = {}
        """Of streams to peers; "direct" where nothing is said."""
        self._network = network

    async def addresses(self) -> tuple[str, ...]:
        """See `DataPlane.addresses`."""
        return (f"/memory/{self.peer_id}",)

    async def introduce(self, peer: str, addresses: tuple[str, ...]) -> None:
        """See `DataPlane.introduce`."""

    def way(self, peer: str) -> Way | None:
        """See `DataPlane.way`."""
        return self.ways.get(peer)

    def heard(self, peer: str) -> float:
        """See `DataPlane.heard`."""
        return -math.inf

    async def open(self, peer: str, service: str) -> MemoryStream:
        """See `DataPlane.open`."""
        handler = self._network.services.get((peer, service))
        if handler is None:
            raise Unreachable(f"{peer} does not offer {service}")
        here, there = MemoryStream.pair(self.peer_id, peer)
        here.way = there.way = self.ways.setdefault(peer, "direct")
        task = asyncio.create_task(self._answer(handler, there))
        self._network.tasks.add(task)
        task.add_done_callback(self._network.tasks.discard)
        return here

    async def serve(self, service: str, handler: Handler) -> None:
        """See `DataPlane.serve`."""
        self._network.services[self.peer_id, service] = handler

    def vanish(self) -> None:
        """Stop answering, as a killed peer does."""
        for key in [key for key in self._network.services if key[0] == self.peer_id]:
            del self._network.services[key]

    @staticmethod
    async def _answer(handler: Handler, stream: MemoryStream) -> None:
        with suppress(StreamClosed, Refused):
            await handler(stream)
        await stream.close()


class MemoryDiscovery:
    """Records on a `MemoryNetwork`; nothing expires."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self._network = network
        self._peer_id = peer_id

    async def publish(self, key: str, record: bytes, seconds: float) -> bool:
        """See `Discovery.publish`."""
        self._network.records.setdefault(key, {})[self._peer_id] = record
        return True

    async def collect(self, key: str) -> dict[str, bytes]:
        """See `Discovery.collect`."""
        return dict(self._network.records.get(key, {}))

    async def greet(self) -> None:
        """See `Discovery.greet`."""
