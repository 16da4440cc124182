"""The in-memory twins of the data plane and of discovery: the same interfaces without processes or sockets."""

import asyncio
import math
import random
import weakref
from collections.abc import Callable
from contextlib import suppress

from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.in_memory_links import MemoryChannel, MemoryLink
from dtfm_protocol.wire.stream import Bytes, BytesOnTheWay, Handler, StreamClosed, Unreachable, Way

DHT = "dht"
"""Name of the other end of the links on which records are published."""


class MemoryStream:
    """An end of an in-memory stream."""

    def __init__(self, peer: str, link: MemoryLink | None = None) -> None:
        """Make an end that is not connected yet; `pair` connects two.

        Args:
            peer: the peer at the other end.
            link: the link on which what is written here travels; None: it arrives at once.
        """
        self.peer = peer
        self.owner = ""
        """The peer whose end it is; "": nobody has said."""
        self.way: Way = "direct"
        self._incoming = asyncio.StreamReader()
        self._other: MemoryStream | None = None
        self._channel = MemoryChannel(link or MemoryLink(random.Random(0)))

    @staticmethod
    def pair(
        a: str, b: str, there: MemoryLink | None = None, back: MemoryLink | None = None
    ) -> tuple["MemoryStream", "MemoryStream"]:
        """Connect two ends of a stream, the one that `a` holds and the one that `b` holds; `there` leads from a."""
        at_a, at_b = MemoryStream(b, there), MemoryStream(a, back)
        at_a._other, at_b._other = at_b, at_a
        return at_a, at_b

    async def read(self, size: int) -> Bytes:
        """Read exactly `size` bytes, as `Stream.read`."""
        try:
            return await self._incoming.readexactly(size)
        except asyncio.IncompleteReadError:
            raise StreamClosed(f"{self.peer} closed the stream") from None

    async def write(self, *buffers: Bytes) -> None:
        """Send all of `buffers` over the link, as `Stream.write`."""
        other = self._other
        if other is None:
            raise StreamClosed(f"{self.peer} closed the stream")
        for buffer in buffers:
            self._channel.send(lambda data=bytes(buffer): other._take(data))  # type: ignore[misc]
        await asyncio.sleep(0)

    def pace(self, bytes_per_second: float) -> None:
        """Do nothing: memory has no line that could be full. As `Stream.pace`."""

    def grow_until_loss(self) -> None:
        """Do nothing: memory loses nothing. As `Stream.grow_until_loss`."""

    def delivered(self) -> float | None:
        """Return None: memory has no line. As `Stream.delivered`."""
        return None

    def queued(self) -> float | None:
        """Return None: memory has no line. As `Stream.queued`."""
        return None

    def progress(self) -> BytesOnTheWay | None:
        """Return None: memory has no line. As `Stream.progress`."""
        return None

    async def close(self) -> None:
        """End the stream, as `Stream.close`. What has been written arrives first."""
        other = self._other
        if other is not None:
            self._end()
            self._channel.send(other._end)

    def drop(self) -> None:
        """End the stream, as `Stream.drop`."""
        self.cut()

    def cut(self) -> None:
        """End both ends at once; what is on its way is lost."""
        for end in (self, self._other):
            if end is not None:
                end._channel.clear()
                end._end()

    def set_way(self, way: Way) -> None:
        """Set the way by which the stream gets to the other end, at both ends."""
        self.way = way
        if self._other is not None:
            self._other.way = way

    def _take(self, data: bytes) -> None:
        if self._other is not None:  # else it is closed, and nobody reads
            self._incoming.feed_data(data)

    def _end(self) -> None:
        if self._other is not None:
            self._other = None
            self._incoming.feed_eof()


class MemoryNetwork:
    """The network of the in-memory peers of one test, and what goes wrong on it."""

    def __init__(self, seed: int = 0) -> None:
        """Make a network without faults.

        Args:
            seed: seed of what faults leave to chance.
        """
        self.services: dict[tuple[str, str], Handler] = {}
        self.records: dict[str, dict[str, bytes]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._seed = seed
        self._links: dict[tuple[str, str], MemoryLink] = {}
        self._apart: set[frozenset[str]] = set()
        self._changed = asyncio.Event()
        self._mute: set[str] = set()
        self._streams: weakref.WeakSet[MemoryStream] = weakref.WeakSet()

    def link(self, sender: str, receiver: str) -> MemoryLink:
        """Return the link from one peer to another, of which a test sets the faults."""
        ends = (sender, receiver)
        if ends not in self._links:
            self._links[ends] = MemoryLink(random.Random(f"{self._seed} {sender} {receiver}"))
        return self._links[ends]

    def cut(self, one: str, other: str) -> None:
        """End all streams between two peers, and let none be opened until `mend`."""
        self._apart.add(frozenset((one, other)))
        self._changed.set()
        for stream in list(self._streams):
            if {stream.peer, stream.owner} == {one, other}:
                stream.cut()

    def mend(self, one: str, other: str) -> None:
        """Let streams between two peers be opened again."""
        self._apart.discard(frozenset((one, other)))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, which depends on what `cut` and `mend` do."""
        while not condition():
            self._changed = asyncio.Event() if self._changed.is_set() else self._changed
            await self._changed.wait()

    def are_apart(self, one: str, other: str) -> bool:
        """Whether two peers were cut off from each other."""
        return frozenset((one, other)) in self._apart

    def mute(self, peer: str) -> None:
        """Silence a peer, as if it were stopped: it never answers streams that are opened to it from now on."""
        self._mute.add(peer)

    def unmute(self, peer: str) -> None:
        """Let a silenced peer answer streams that are opened from now on."""
        self._mute.discard(peer)

    def open(self, sender: str, receiver: str, service: str) -> MemoryStream:
        """Open a stream and return the sender's end.

        Raises:
            Unreachable: the two are apart, or the receiver does not offer the service.
        """
        handler = self.services.get((receiver, service))
        if handler is None or self.are_apart(sender, receiver):
            raise Unreachable(f"{receiver} does not offer {service}")
        there, back = self.link(sender, receiver), self.link(receiver, sender)
        here, far = MemoryStream.pair(sender, receiver, there, back)
        for end, owner in ((here, sender), (far, receiver)):
            end.owner = owner
            self._streams.add(end)
        if receiver not in self._mute:
            task = asyncio.create_task(_answer(handler, far))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return here


async def _answer(handler: Handler, stream: MemoryStream) -> None:
    with suppress(StreamClosed, Refused):
        await handler(stream)
    await stream.close()


class MemoryDataPlane:
    """A data plane of one peer on a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self.peer_id = peer_id
        self.ways: dict[str, Way] = {}
        """Ways of streams to peers, as a test sets them; "direct" where it says nothing."""
        self._network = network

    async def addresses(self) -> tuple[str, ...]:
        """Return this peer's one address, as `DataPlane.addresses`."""
        return (f"/memory/{self.peer_id}",)

    @property
    def port(self) -> int | None:
        """None: memory has no ports. As `DataPlane.port`."""
        return None

    async def introduce(self, peer: str, addresses: tuple[str, ...], port: int | None = None) -> None:
        """Do nothing: every peer of the network is known. As `DataPlane.introduce`."""

    def way(self, peer: str) -> Way | None:
        """Return the way of the newest stream that was opened to `peer`, as `DataPlane.way`."""
        return self.ways.get(peer)

    def heard(self, peer: str) -> float:
        """Return minus infinity: nobody takes note of it. As `DataPlane.heard`."""
        return -math.inf

    def carried(self, peer: str) -> tuple[int, int]:
        """Return 0 and 0: memory has no line. As `DataPlane.carried`."""
        return 0, 0

    async def open(self, peer: str, service: str) -> MemoryStream:
        """Open a stream to a service of `peer`, as `DataPlane.open`."""
        here = self._network.open(self.peer_id, peer, service)
        here.set_way(self.ways.setdefault(peer, "direct"))
        return here

    async def serve(self, service: str, handler: Handler) -> None:
        """Answer streams to `service`, as `DataPlane.serve`."""
        self._network.services[self.peer_id, service] = handler

    def vanish(self) -> None:
        """Stop answering, as a killed peer does."""
        for key in [key for key in self._network.services if key[0] == self.peer_id]:
            del self._network.services[key]


class MemoryDiscovery:
    """A discovery whose records lie on a `MemoryNetwork`; nothing expires."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self._network = network
        self._peer_id = peer_id

    async def publish(self, key: str, record: bytes, seconds: float) -> bool:
        """Store this peer's entry under `key`, as `Discovery.publish`."""
        records = self._network.records.setdefault(key, {})
        return self._network.link(self._peer_id, DHT).send(lambda: records.update({self._peer_id: record}))

    async def collect(self, key: str) -> dict[str, bytes]:
        """Return every peer's entry under `key`, as `Discovery.collect`."""
        return dict(self._network.records.get(key, {}))

    async def greet(self) -> None:
        """Do nothing: every peer of the network is known. As `Discovery.greet`."""
