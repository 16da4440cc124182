"""A slow or broken link holds back what goes over it, and nothing else."""

import asyncio

import pytest

from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.sender import QUEUE_FRAMES
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.frames import Kind
from dtfm_protocol.wire.stream import Bytes, Stream
from tests.harness.manual_clock import settle
from tests.node.exchanges import PEERS, PLAN, Network, key, network

__all__ = ["network"]  # a fixture


class Slow:
    """A stream that takes a frame only when it is told to; its Hello, and pulses, pass."""

    def __init__(self, inner: Stream, gate: asyncio.Semaphore) -> None:
        self.peer, self._inner, self._gate = inner.peer, inner, gate
        self._begun = self._pulses = False

    async def read(self, size: int) -> Bytes:
        return await self._inner.read(size)

    async def write(self, *buffers: Bytes) -> None:
        if not self._begun:
            self._begun, self._pulses = True, b'"pulses":true' in bytes(buffers[0])
        elif not self._pulses:
            await self._gate.acquire()
        await self._inner.write(*buffers)

    def delivered(self) -> None:
        """It does not say."""

    def progress(self) -> None:
        """It does not say."""

    async def close(self) -> None:
        await self._inner.close()

    def drop(self) -> None:
        self._inner.drop()


class SlowPlane(MemoryDataPlane):
    """A plane on a link that takes as many writes of frames as its gate lets through."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        super().__init__(network, peer_id)
        self.gate = asyncio.Semaphore(0)

    async def open(self, peer: str, service: str) -> Stream:  # type: ignore[override]
        return Slow(await super().open(peer, service), self.gate)


@pytest.mark.parametrize("kind", [Kind.ACTIVATION, Kind.PART])
async def test_a_slow_link_holds_its_sender_back_and_no_other_link(network: Network, kind: Kind) -> None:
    plane = SlowPlane(network.memory, "a")
    async with network.peer("b") as b, network.peer("c") as c, Exchange.running(plane, PLAN, PEERS) as a:
        for index in range(QUEUE_FRAMES + 3):
            b.post("a", key(index, kind=kind), 1)
        sent: list[int] = []

        async def send_all() -> None:
            for index in range(QUEUE_FRAMES + 3):
                await a.send("b", key(index, kind=kind), b"1")
                sent.append(index)

        sending = asyncio.create_task(send_all())
        await settle()
        assert len(sent) == QUEUE_FRAMES + 1  # the queue is full, and one is in the link's hands
        flushing = asyncio.create_task(a.flush())
        await settle()
        assert not flushing.done()
        for _ in range(2 * (QUEUE_FRAMES + 4)):
            plane.gate.release()
        await sending
        await flushing
        assert await b.receive("a", key(QUEUE_FRAMES + 2, kind=kind)) == b"1"
        c.post("a", key(), 1)
        plane.gate.release()
        plane.gate.release()
        await a.send("c", key(), b"1")
        await c.receive("a", key())


async def test_a_full_queue_of_bulk_takes_no_room_from_urgent_frames(network: Network) -> None:
    plane = SlowPlane(network.memory, "a")
    async with network.peer("b"), Exchange.running(plane, PLAN, PEERS) as a:
        for index in range(QUEUE_FRAMES):
            await a.send("b", key(index, kind=Kind.PART), b"1")
        async with asyncio.timeout(30):
            for index in range(QUEUE_FRAMES):
                await a.send("b", key(index), b"1")


async def test_flushing_ends_when_the_peer_that_it_waits_for_vanishes(network: Network) -> None:
    plane = SlowPlane(network.memory, "a")
    async with network.peer("b"), Exchange.running(plane, PLAN, PEERS) as a:
        for index in range(3):
            await a.send("b", key(index), b"1")
        flushing = asyncio.create_task(a.flush())
        await settle()
        assert not flushing.done()
        for stream in network.taken["b"]:
            await stream.close()
        plane.gate.release()
        await asyncio.wait_for(flushing, 30)


async def test_flushing_does_not_wait_for_a_peer_whose_frames_were_refused(network: Network) -> None:
    plane = SlowPlane(network.memory, "a")
    async with network.peer("b"), Exchange.running(plane, PLAN, PEERS) as a:
        await a.send("b", key(), b"1")
        a.refuse("b", FrameFault.CONTENT, "nonsense")
        await asyncio.wait_for(a.flush(), 30)
