"""The in-memory twin of the control plane: the same interface without a broker, over links that can fail.

Messages go to the broker, which is the other end of each member's two links (`MemoryNetwork.link(peer, BROKER)` and
back), and from there to whoever reads their topic. Where `MemoryNetwork.cut(peer, BROKER)` cuts a member off, the
broker publishes its last will, until `mend`; then it comes back by itself. Nothing is signed.
"""

import asyncio
from collections import Counter
from collections.abc import Collection

from dtfm_protocol.control.messages import PRESENCE, Presence, Topic
from dtfm_protocol.control.mqtt import Reader
from dtfm_protocol.errors import Cause
from dtfm_protocol.schema import Schema
from dtfm_protocol.transport.in_memory import MemoryNetwork

BROKER = "broker"
"""The broker's name among the ends of a `MemoryNetwork`'s links."""


class MemoryBroker:
    """The broker of one in-memory network: its connected members, and the last message of each retained topic."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.members: list[MemoryControlPlane] = []
        """Members that are connected."""
        self.retained: dict[tuple[str, str], tuple[str, Topic, Schema]] = {}
        """The last message of each retained topic as author, topic and body; by topic and, where every peer has one of
        its own, by author, else ""."""

    def publish(self, author: str, topic: Topic, body: Schema) -> None:
        """Give a message to all members who read its topic, and retain it where the topic says so."""
        if topic.retained:
            self.retained[topic.name, author if topic.author == "peer" else ""] = author, topic, body
        for member in list(self.members):
            self.tell(member, author, topic, body)

    def tell(self, member: "MemoryControlPlane", author: str, topic: Topic, body: Schema) -> None:
        """Give a message to one member, over the link that leads there."""
        self.network.link(BROKER, member.peer_id).send(lambda: member.take(author, topic, body))


class MemoryControlPlane:
    """A member's connection to a `MemoryBroker`, with the interface of `ControlPlane`."""

    def __init__(self, broker: MemoryBroker, peer_id: str, coordinators: Collection[str], session: str) -> None:
        self.peer_id = peer_id
        self.connected = asyncio.Event()
        self.dropped: Counter[Cause] = Counter()
        self.last_error = ""
        self.clock_ahead: float | None = None
        self.clock_told = asyncio.Event()
        self.clock_told.set()  # there is one clock
        self._broker, self._coordinators, self._session = broker, coordinators, session
        self._readers: dict[str, tuple[Reader, str]] = {}
        self._retained: dict[str, tuple[Topic, Schema]] = {}
        self._inbox: asyncio.Queue[tuple[str, Topic, Schema]] = asyncio.Queue()

    def on(self, topic: Topic, reader: Reader, peer: str = "+") -> None:
        """Read `topic` (of one `peer`, or of all), as `ControlPlane.on`."""
        self._readers[topic.name] = reader, peer

    async def publish(self, topic: Topic, body: Schema) -> None:
        """Send a message now if connected; a retained one also after every reconnection, as `ControlPlane.publish`."""
        if topic.retained:
            self._retained[topic.name] = topic, body
        if self.connected.is_set():
            self._send(topic, body)

    async def run(self) -> None:
        """Stay connected until cancelled, as `ControlPlane.run`."""
        network = self._broker.network
        try:
            while True:
                await network.until(lambda: not network.are_apart(self.peer_id, BROKER))
                self._come()
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(self._read())
                    await network.until(lambda: network.are_apart(self.peer_id, BROKER))
                    reading.cancel()
                self._go("cut off")
        except asyncio.CancelledError:
            if self.connected.is_set():
                self._go("left")
            raise

    def take(self, author: str, topic: Topic, body: Schema) -> None:
        """Queue a message from the broker for its reader, if this member is connected and reads it."""
        _, peer = self._readers.get(topic.name, (None, ""))
        if self.connected.is_set() and peer in {"+", author}:
            self._inbox.put_nowait((author, topic, body))

    def _come(self) -> None:
        self._broker.members.append(self)
        self.connected.set()
        for author, topic, body in list(self._broker.retained.values()):
            self._broker.tell(self, author, topic, body)
        for topic, body in self._retained.values():
            self._send(topic, body)

    def _go(self, why: str) -> None:
        """Disconnect; where this member had said that it is there, the broker tells the others that it is gone."""
        self.connected.clear()
        self.last_error = why
        self._broker.members.remove(self)
        if PRESENCE.name in self._retained:
            self._broker.publish(self.peer_id, PRESENCE, Presence(online=False, session=self._session))

    def _send(self, topic: Topic, body: Schema) -> None:
        link = self._broker.network.link(self.peer_id, BROKER)
        link.send(lambda: self._broker.publish(self.peer_id, topic, body))

    async def _read(self) -> None:
        while True:
            author, topic, body = await self._inbox.get()
            if topic.author == "coordinator" and author not in self._coordinators:
                self.dropped[Cause.AUTHOR] += 1
                continue
            done = self._readers[topic.name][0](author, body)
            if done is not None:
                await done
