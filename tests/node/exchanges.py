"""Exchanges on one in-memory network, for the tests of what comes in, what goes out, and who lives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.mailbox import PeerLost
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.frames import FrameHeader, Key, Kind
from dtfm_protocol.wire.stream import Bytes, BytesOnTheWay, Stream, StreamClosed, read_message, write_message

PLAN = 4
PEERS = ("a", "b", "c")
PATIENCE = 30.0
"""Seconds after which a test counts as hanging."""


def key(index: int = 0, step: int = 1, kind: Kind = Kind.ACTIVATION, group: int = 0) -> Key:
    return Key(kind, step, index, group)


def frame(payload: bytes, what: Key, version: int = PLAN) -> bytes:
    return FrameHeader(version, what, len(payload)).pack() + payload


class Watched:
    """A stream that remembers how much was asked of it at once."""

    def __init__(self, inner: Stream) -> None:
        self.peer, self._inner = inner.peer, inner
        self.reads: list[int] = []
        self.let_go = False
        """Whether nobody reads it any more."""

    async def read(self, size: int) -> Bytes:
        self.reads.append(size)
        return await self._inner.read(size)

    async def write(self, *buffers: Bytes) -> None:
        await self._inner.write(*buffers)

    def progress(self) -> BytesOnTheWay | None:
        return self._inner.progress()

    async def close(self) -> None:
        await self._inner.close()

    def drop(self) -> None:
        self._inner.drop()


class Noted:
    """A stream of pulses that remembers what it has brought."""

    def __init__(self, inner: Stream, heard: list[FrameHeader]) -> None:
        self.peer, self._inner, self._heard = inner.peer, inner, heard

    async def read(self, size: int) -> Bytes:
        data = await self._inner.read(size)
        with contextlib.suppress(Exception):
            self._heard.append(FrameHeader.parse(data))
        return data

    async def write(self, *buffers: Bytes) -> None:
        await self._inner.write(*buffers)


class Network:
    """Peers with an exchange each, on one in-memory network."""

    def __init__(self) -> None:
        self.memory = MemoryNetwork()
        self.taken: dict[str, list[Watched]] = {}
        """The streams that each peer was sent."""
        self.pulses: list[FrameHeader] = []
        """All that anybody was sent."""

    @contextlib.asynccontextmanager
    async def peer(self, name: str, plane: MemoryDataPlane | None = None, **options: Any) -> AsyncIterator[Exchange]:
        """A peer's exchange; leaving the block is the peer's end."""
        plane = plane or MemoryDataPlane(self.memory, name)
        async with asyncio.timeout(PATIENCE), Exchange.running(plane, PLAN, PEERS, **options) as exchange:

            async def serve(stream: Stream) -> None:
                watched = Watched(stream)
                if (await read_message(stream, Hello)).pulses:
                    await exchange.take_pulses(Noted(stream, self.pulses))  # type: ignore[arg-type]
                    return
                self.taken.setdefault(name, []).append(watched)
                await exchange.serve(watched)  # type: ignore[arg-type]
                watched.let_go = True

            await plane.serve(TRAINING, serve)
            yield exchange

    async def raw(self, sender: str, receiver: str, *, pulses: bool = False) -> Stream:
        """A stream on which a test can say anything in `sender`'s name."""
        stream = await MemoryDataPlane(self.memory, sender).open(receiver, TRAINING)
        await write_message(stream, Hello(plan_version=PLAN, pulses=pulses))
        return stream


@pytest.fixture
def network() -> Network:
    return Network()


async def fails(exchange: Exchange, sender: str, what: Key) -> PeerLost:
    with pytest.raises(PeerLost) as caught:
        await exchange.receive(sender, what)
    assert caught.value.peer == sender
    return caught.value


async def closed(stream: Stream) -> None:
    """The other side has closed `stream`."""
    with pytest.raises(StreamClosed):
        await stream.read(1)


def pulse(milliseconds: int = 0) -> bytes:
    return FrameHeader(PLAN, Key(Kind.PULSE, 0, milliseconds), 0).pack()
