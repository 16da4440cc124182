"""What somebody's compute waits for does not queue behind the all-reduce, on a line that all streams share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.sender import PIECE_BYTES
from dtfm_node.links.pacing import HEADROOM, UplinkPacer
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.wire.frames import HEADER_BYTES, Key, Kind
from dtfm_protocol.wire.stream import Bytes, Stream, read_message

PEERS = ("a", "b", "c")
PACKET = 1 << 14
"""What the line carries in one turn of the event loop."""
URGENT = Key(Kind.ACTIVATION, 1, 0)


@dataclass
class Packet:
    """A part of a write, on the line."""

    stream: int
    peer: str
    size: int


class Line:
    """An uplink that gives all streams the same share."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.carried: list[Packet] = []
        self.streams = 0


class OnLine:
    """A stream whose writes take as long as the line needs for their bytes."""

    def __init__(self, inner: Stream, line: Line) -> None:
        self.peer, self._inner, self._line = inner.peer, inner, line
        self._number = line.streams
        line.streams += 1

    async def read(self, size: int) -> Bytes:
        return await self._inner.read(size)

    async def write(self, *buffers: Bytes) -> None:
        data = b"".join(buffers)
        for start in range(0, len(data), PACKET):
            async with self._line.turn:
                packet = data[start : start + PACKET]
                self._line.carried.append(Packet(self._number, self.peer, len(packet)))
                await self._inner.write(packet)
                await asyncio.sleep(0)

    def delivered(self) -> None:
        """It does not say."""

    def progress(self) -> None:
        """It does not say either."""

    async def close(self) -> None:
        await self._inner.close()

    def drop(self) -> None:
        self._inner.drop()


class LinePlane(MemoryDataPlane):
    """A peer all of whose streams share one line."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        super().__init__(network, peer_id)
        self.line = Line()

    async def open(self, peer: str, service: str) -> Stream:  # type: ignore[override]
        return OnLine(await super().open(peer, service), self.line)


@dataclass
class Swarm:
    """`a` sends over its line; the others take what comes."""

    plane: LinePlane
    uplink: UplinkPacer
    a: Exchange
    others: dict[str, Exchange]

    async def put_bulk_under_way(self, peer: str, size: int) -> Key:
        """Have some of a large part on the line."""
        key = Key(Kind.PART, 1, 0)
        self.others[peer].post("a", key, size)
        await self.a.send(peer, key, bytes(size))
        before = len(self.plane.line.carried)
        while len(self.plane.line.carried) < before + 5:  # noqa: ASYNC110 - the line has nothing to wait for
            await asyncio.sleep(0)
        return key


@contextlib.asynccontextmanager
async def swarm() -> AsyncIterator[Swarm]:
    network = MemoryNetwork()
    plane, uplink = LinePlane(network, "a"), UplinkPacer()
    async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
        others = {}
        for name in ("b", "c"):
            other = MemoryDataPlane(network, name)
            exchange = others[name] = await stack.enter_async_context(Exchange.running(other, 1, PEERS))

            async def serve(stream: Stream, exchange: Exchange = exchange) -> None:
                hello = await read_message(stream, Hello)
                await (exchange.take_pulses(stream) if hello.pulses else exchange.serve(stream))

            await other.serve(TRAINING, serve)
        a = await stack.enter_async_context(Exchange.running(plane, 1, PEERS, uplink))
        yield Swarm(plane, uplink, a, others)


@pytest.mark.parametrize("towards", ["b", "c"])
async def test_a_large_part_that_was_queued_first_delays_an_activation_by_one_piece_at_most(towards: str) -> None:
    """Whether it goes to the same peer or to another one."""
    async with swarm() as one:
        size = 16 * PIECE_BYTES
        bulk = await one.put_bulk_under_way("b", size)
        begun = len(one.plane.line.carried)
        one.others[towards].post("a", URGENT, 4 * PIECE_BYTES)
        await one.a.send(towards, URGENT, bytes(4 * PIECE_BYTES))
        await one.others[towards].receive("a", URGENT)
        between = one.plane.line.carried[begun:]
        bulk_stream = one.plane.line.carried[begun - 1].stream
        assert sum(packet.size for packet in between if packet.stream == bulk_stream) <= PIECE_BYTES
        assert len(await one.others["b"].receive("a", bulk)) == size


async def test_urgent_frames_one_after_the_other_do_not_starve_the_all_reduce() -> None:
    async with swarm() as one:
        size = 8 * PIECE_BYTES
        bulk = await one.put_bulk_under_way("b", size)
        keys = [Key(Kind.ACTIVATION, 1, index) for index in range(40)]
        for key in keys:
            one.others["c"].post("a", key, 4 * PACKET)

        async def send_all() -> None:
            for key in keys:
                await one.a.send("c", key, bytes(4 * PACKET))

        sending = asyncio.create_task(send_all())
        await one.others["b"].receive("a", bulk)
        assert not sending.done()
        for key in keys:
            await one.others["c"].receive("a", key)
        await sending


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
async def test_a_part_arrives_whole_whatever_pieces_it_is_sent_in(size: int) -> None:
    async with swarm() as one:
        key, payload = Key(Kind.REDUCED, 1, 0), bytes(range(256)) * (size // 256) + bytes(size % 256)
        one.others["b"].post("a", key, size)
        await one.a.send("b", key, payload)
        assert bytes(await one.others["b"].receive("a", key)) == payload
        assert one.a.bytes_sent == HEADER_BYTES + size
        sent = sum(packet.size for packet in one.plane.line.carried)
        hello = 4 + len(Hello(plan_version=1).model_dump_json())
        assert sent == hello + HEADER_BYTES + size


@pytest.mark.parametrize("kind", [Kind.ACTIVATION, Kind.PART])
async def test_a_frame_waits_until_its_link_was_measured(kind: Kind) -> None:
    async with swarm() as one:
        key = Key(kind, 1, 0)
        with one.uplink.measuring("b"):
            for peer in ("b", "c"):
                one.others[peer].post("a", key, PACKET)
                await one.a.send(peer, key, bytes(PACKET))
            await one.others["c"].receive("a", key)
            assert not any(packet.peer == "b" and packet.size == PACKET for packet in one.plane.line.carried)
        await one.others["b"].receive("a", key)


@pytest.mark.parametrize("kind", [Kind.VOTE, Kind.COMMIT])
async def test_no_measurement_keeps_a_vote_waiting_or_a_commit(kind: Kind) -> None:
    async with swarm() as one:
        key = Key(kind, 1, 0)
        with one.uplink.measuring("b"):
            one.others["b"].post("a", key, PACKET)
            await one.a.send("b", key, bytes(PACKET))
            assert len(await one.others["b"].receive("a", key)) == PACKET


async def test_a_part_that_is_under_way_stops_while_its_link_is_measured() -> None:
    async with swarm() as one:
        size = 16 * PIECE_BYTES
        bulk = await one.put_bulk_under_way("b", size)
        with one.uplink.measuring("b"):
            for _ in range(2 * PIECE_BYTES // PACKET):  # the piece under way
                await asyncio.sleep(0)
            before = len(one.plane.line.carried)
            one.others["c"].post("a", URGENT, 4 * PACKET)
            await one.a.send("c", URGENT, bytes(4 * PACKET))
            await one.others["c"].receive("a", URGENT)
            assert not any(packet.peer == "b" and packet.size == PACKET for packet in one.plane.line.carried[before:])
        assert len(await one.others["b"].receive("a", bulk)) == size


async def test_streams_are_paced_as_soon_as_a_link_was_measured() -> None:
    """And at its new pace once it was measured again, or has delivered more than that."""
    network, uplink = MemoryNetwork(), UplinkPacer()
    paces: list[float] = []
    delivered = iter([None, None, None, 3e6, None])

    class Paced(MemoryDataPlane):
        async def open(self, peer: str, service: str) -> MemoryStream:
            stream = await super().open(peer, service)
            stream.pace = paces.append  # type: ignore[method-assign]
            stream.delivered = lambda: next(delivered)  # type: ignore[method-assign]
            return stream

    plane = MemoryDataPlane(network, "b")
    async with asyncio.timeout(30), Exchange.running(plane, 1, PEERS) as other:

        async def serve(stream: Stream) -> None:
            hello = await read_message(stream, Hello)
            await (other.take_pulses(stream) if hello.pulses else other.serve(stream))

        await plane.serve(TRAINING, serve)
        async with Exchange.running(Paced(network, "a"), 1, PEERS, uplink) as a:
            for step, gbps in enumerate((None, 0.01, 0.01, 0.02, None), 1):
                if gbps is not None:
                    uplink.measured("b", gbps, 0.02, "direct")
                key = Key(Kind.ACTIVATION, step, 0, 0)
                other.post("a", key, 1)
                await a.send("b", key, b"x")
                await other.receive("a", key)
    assert paces == [HEADROOM * 1.25e6, HEADROOM * 2.5e6, HEADROOM * 3e6]
