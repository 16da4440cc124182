"""Direct planes of peers on 127.0.0.1; libp2p's part is played in memory."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dtfm_protocol.checkpoint.transfers import TransferReply
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.direct_data_plane import DirectDataPlane
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.transport.tls_connections import Endpoint
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Stream, read_message, write_message
from tests.harness.membership import OWNER, member_of

PATIENCE = 60.0
ALICE, BOB, CAROL = (Identity.generate() for _ in range(3))


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged; a test that expects no warning finds none."""
    propagates, log.propagate = log.propagate, True
    caplog.set_level(logging.DEBUG)
    yield caplog
    log.propagate = propagates


class Meeting(MemoryDataPlane):
    """libp2p's part: peers meet in memory, and say that they listen on 127.0.0.1."""

    def __init__(self, network: MemoryNetwork, identity: Identity) -> None:
        super().__init__(network, identity.peer_id)
        self.hosts = ["127.0.0.1"]
        self.opened: list[str] = []

    async def addresses(self) -> tuple[str, ...]:
        kinds = [("ip6" if ":" in host else "dns4" if host[-1].isalpha() else "ip4") for host in self.hosts]
        return tuple(
            f"/{kind}/{host}/tcp/4001/p2p/{self.peer_id}" for kind, host in zip(kinds, self.hosts, strict=True)
        )

    async def open(self, peer: str, service: str) -> MemoryStream:
        self.opened.append(service)
        return await super().open(peer, service)


@dataclass
class World:
    """One test's network in memory and the peers on it."""

    network: MemoryNetwork = field(default_factory=MemoryNetwork)

    @contextlib.asynccontextmanager
    async def peer(
        self, identity: Identity, admission: Admission | None = None, **options: Any
    ) -> AsyncIterator[DirectDataPlane]:
        meeting: Any = Meeting(self.network, identity)
        admission = admission or member_of(OWNER, identity=identity)[1]
        try:
            running = DirectDataPlane.running(meeting, identity, admission, **{"listen": "127.0.0.1"} | options)
            async with running as plane:
                yield plane
        finally:
            meeting.vanish()


@contextlib.asynccontextmanager
async def two_peers(limits: DirectLimits = DirectLimits()) -> AsyncIterator[tuple[DirectDataPlane, DirectDataPlane]]:  # noqa: B008
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, limits=limits) as a, world.peer(BOB, limits=limits) as b:
        yield a, b


@contextlib.asynccontextmanager
async def opened(plane: DirectDataPlane, peer: str, name: str) -> AsyncIterator[TlsStream]:
    """A direct stream that is closed when the block is left."""
    stream = await plane.open(peer, name)
    try:
        assert isinstance(stream, TlsStream)
        yield stream
    finally:
        await stream.close()


def meeting(plane: DirectDataPlane) -> Meeting:
    assert isinstance(plane.libp2p, Meeting)
    return plane.libp2p


def believed(plane: DirectDataPlane, peer: str) -> Endpoint:
    """Where `plane` takes `peer` to be."""
    found = plane._route(peer).endpoint
    assert found is not None
    return found


async def port_of(plane: DirectDataPlane) -> int:
    return (await plane.endpoint()).port


async def echo(stream: Stream) -> None:
    """Send each message's bytes back."""
    while True:
        size = (await read_message(stream, TransferReply)).size
        assert size is not None
        await stream.write(await stream.read(size))


async def echoed(stream: Stream, data: bytes) -> None:
    receiving = asyncio.create_task(stream.read(len(data)))
    await write_message(stream, TransferReply(size=len(data)))
    await stream.write(data)
    received = await receiving
    assert len(received) == len(data)
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for are the plane's own counters, which signal nothing
        await asyncio.sleep(0.01)


def tell_port(plane: DirectDataPlane, port: int) -> None:
    """Have a peer say that it listens at another port."""
    plane._endpoints._own = lambda: endpoint(plane, port)


async def endpoint(_: DirectDataPlane, port: int) -> Endpoint:
    return Endpoint(hosts=("127.0.0.1",), port=port)
