"""Control planes on embedded brokers, for the tests of what goes over them: members, and wires that can be cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.control.messages import TOPICS, Presence, Topic
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.freshness_files import FreshnessFile
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Schema
from tests.harness.entrances import HOST, free_port, open_entrance
from tests.harness.membership import SWARM, coordinator_of, member_of

OWNER, ALICE, BOB = Identity.generate(), Identity.generate(), Identity.generate()
BOTH = (OWNER.peer_id, BOB.peer_id)
"""Coordinators, where there are two."""
PATIENCE = 30.0


def plan(version: int) -> Plan:
    return Plan(version=version, stages=((0, 1),), routes=(("a",),))


def here(session: str = "s") -> Presence:
    return Presence(online=True, session=session)


@pytest.fixture
def free() -> Callable[[], int]:
    """Finds free ports."""
    return free_port


@pytest.fixture
def port() -> int:
    """A free port."""
    return free_port()


def admission_of(identity: Identity, coordinators: tuple[str, ...]) -> Admission:
    """A member's, or a coordinator's own."""
    if identity.peer_id in coordinators:
        return coordinator_of(identity, coordinators=coordinators)
    return member_of(OWNER, identity=identity)[1]


class Member:
    """A control plane, and what it was told."""

    def __init__(
        self,
        port: int,
        identity: Identity,
        *topics: Topic,
        session: str = "s",
        coordinators: tuple[str, ...] = (OWNER.peer_id,),
        others: tuple[BrokerAddress, ...] = (),
        answer: float = TIMEOUTS.broker_answer,
        broker: Identity = OWNER,
        admission: Admission | None = None,
        heard: FreshnessFile | None = None,
    ):
        self.address = BrokerAddress(HOST, port, broker.peer_id)
        self.identity = identity
        timeouts = replace(TIMEOUTS, broker_retry_shortest=0.01, broker_retry_longest=0.05, broker_answer=answer)
        self.control = ControlPlane(
            self.address,
            SWARM,
            coordinators,
            Post(SWARM, identity),
            session,
            others,
            heard=heard,
            identity=identity,
            admission=admission or admission_of(identity, coordinators),
            timeouts=timeouts,
        )
        self._inbox: asyncio.Queue[tuple[str, str, Schema]] = asyncio.Queue()
        self._last: dict[tuple[str, str], Schema] = {}
        for topic in topics:
            self.control.on(topic, self._reader(topic))

    def _reader(self, topic: Topic) -> Callable[[str, Any], None]:
        return lambda sender, body: self._inbox.put_nowait((topic.name, sender, body))

    async def next(self) -> tuple[str, str, Schema]:
        """The next message that was let through; MQTT may deliver one more than once."""
        while True:
            name, sender, body = await asyncio.wait_for(self._inbox.get(), PATIENCE)
            if self._last.get((name, sender)) != body:
                self._last[name, sender] = body
                return name, sender, body

    def nothing(self) -> bool:
        """Whether no message waits to be read."""
        return self._inbox.empty()

    @contextlib.asynccontextmanager
    async def running(self, *, connected: bool = True) -> AsyncIterator["Member"]:
        task = asyncio.create_task(self.control.run())
        try:
            if connected:
                await asyncio.wait_for(self.control.connected.wait(), PATIENCE)
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=PATIENCE)
            assert task.done()
            if not task.cancelled():
                task.result()  # a bug in the control plane must not be lost


def member(port: int, identity: Identity, *topics: Topic, **options: Any) -> Any:
    return Member(port, identity, *topics, **options).running()


class NoRules(TopicRules):
    """Those of a broker that lets everybody write everything."""

    def check_message(self, peer: str, topic: str, size: int, *, retain: bool) -> Topic:
        return TOPICS[topic.split("/")[2]]


@contextlib.asynccontextmanager
async def on_broker(
    port: int, owner: Identity = OWNER, *, rules: TopicRules | None = None, coordinators: tuple[str, ...] = ()
) -> AsyncIterator[None]:
    """An embedded broker; it ends in time, or the test fails."""
    of = coordinators or (OWNER.peer_id,)
    admission = coordinator_of(owner, coordinators=of)
    for other in (OWNER, BOB):
        if other.peer_id in of:
            admission.trust(authority_certificate(other))
    opening = open_entrance(owner, port=port, admission=admission, rules=rules or TopicRules(SWARM, of))
    async with asyncio.timeout(3 * PATIENCE), opening:
        yield


async def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event of its own."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Wire:
    """A wire between a client and the broker that can be cut, or go dead without a word."""

    def __init__(self, port: int) -> None:
        self._broker = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[tuple["Wire", int]]:
        wire = cls(port)
        server = await asyncio.start_server(wire._connect, HOST, 0)
        try:
            yield wire, server.sockets[0].getsockname()[1]
        finally:
            wire._flows.set()
            await until(lambda: not wire._writers)
            server.close()

    def cut(self) -> None:
        """Both ends see the connection break; neither has said goodbye."""
        for writer in self._writers:
            writer.transport.abort()

    def go_dead(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._flows.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(HOST, self._broker)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, there[1]}
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        self._writers -= {writer, there[1]}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def without_rules(port: int, *coordinators: str) -> contextlib.AbstractAsyncContextManager[None]:
    """A broker that lets everybody write everything, as an external one may."""
    of = coordinators or (OWNER.peer_id,)
    return on_broker(port, rules=NoRules(SWARM, of), coordinators=of)
