"""Frames between peers: each posted ahead, each delivered once, and a broken peer's frames fail at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.exchange import QUEUE_FRAMES, TRAINING, Exchange, Hello, PeerLost
from dtfm_protocol.errors import Refused
from dtfm_protocol.frames import HEADER_BYTES, Header, Key, Kind
from dtfm_protocol.planes.data import Bytes, Stream, StreamClosed, read_message, write_message
from dtfm_protocol.planes.memory import MemoryDataPlane, MemoryNetwork

PLAN = 4
PATIENCE = 5.0


def key(index: int = 0, step: int = 1, kind: Kind = Kind.ACTIVATION, group: int = 0) -> Key:
    return Key(kind, step, index, group)


class Network:
    """Peers with an exchange each, on one in-memory network."""

    def __init__(self) -> None:
        self.memory = MemoryNetwork()
        self.planes: dict[str, MemoryDataPlane] = {}
        self.taken: dict[str, list[Stream]] = {}
        """The streams that each peer was sent."""
        self.faults: list[str] = []
        """What the exchanges said of the streams that they did not take to the end."""

    @contextlib.asynccontextmanager
    async def peer(self, name: str) -> AsyncIterator[Exchange]:
        """A peer's exchange; leaving the block is the peer's end."""
        plane = self.planes[name] = MemoryDataPlane(self.memory, name)
        async with asyncio.timeout(PATIENCE), Exchange.running(plane, PLAN) as exchange:

            async def serve(stream: Stream) -> None:
                self.taken.setdefault(name, []).append(stream)
                await read_message(stream, Hello)
                try:
                    await exchange.serve(stream)
                except Refused as error:
                    self.faults.append(str(error))
                    raise

            await plane.serve(TRAINING, serve)
            yield exchange

    async def raw(self, sender: str, receiver: str) -> Stream:
        """A stream on which a test can say anything in `sender`'s name."""
        stream = await MemoryDataPlane(self.memory, sender).open(receiver, TRAINING)
        await write_message(stream, Hello(plan_version=PLAN))
        return stream


@pytest.fixture
def network() -> Network:
    return Network()


def frame(payload: bytes, what: Key, version: int = PLAN, scale: float = 1.0) -> bytes:
    return Header(version, what, len(payload), scale).pack() + payload


async def fails(exchange: Exchange, sender: str, what: Key) -> PeerLost:
    with pytest.raises(PeerLost) as caught:
        await exchange.receive(sender, what)
    assert caught.value.peer == sender
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20])
async def test_a_frame_arrives_with_its_payload_and_scale(network: Network, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(), size)
        await a.send("b", key(), payload, 0.25)
        received = await b.receive("a", key())
        assert (bytes(received.payload), received.scale) == (payload, 0.25)
        assert a.bytes_sent == size + HEADER_BYTES


@given(sent=st.permutations(range(6)), read=st.permutations(range(6)))
@settings(max_examples=30, deadline=None)
def test_frames_are_told_apart_by_their_key_whatever_the_order(sent: list[int], read: list[int]) -> None:
    keys = [key(0), key(1), key(0, step=2), key(0, kind=Kind.GRADIENT), key(0, kind=Kind.PART, group=1), key(7)]

    async def exchange() -> None:
        network = Network()
        async with network.peer("a") as a, network.peer("b") as b:
            for index, what in enumerate(keys):
                b.post("a", what, index + 1)
            for index in sent:
                await a.send("b", keys[index], bytes([index]) * (index + 1))
            for index in read:
                assert bytes((await b.receive("a", keys[index])).payload) == bytes([index]) * (index + 1)

    asyncio.run(exchange())


async def test_the_same_key_of_two_senders_is_two_frames(network: Network) -> None:
    async with network.peer("a") as a, network.peer("b") as b, network.peer("c") as c:
        c.post("a", key(), 1)
        c.post("b", key(), 1)
        await b.send("c", key(), b"b")
        await a.send("c", key(), b"a")
        assert (await c.receive("a", key())).payload == b"a"
        assert (await c.receive("b", key())).payload == b"b"


async def test_a_frame_may_be_shorter_than_posted_only_where_that_was_said(network: Network) -> None:
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(kind=Kind.VOTE), 100, exact=False)
        await a.send("b", key(kind=Kind.VOTE), b"short")
        assert (await b.receive("a", key(kind=Kind.VOTE))).payload == b"short"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame(b"1234", key(9)), "a frame that is not due: ACTIVATION of step 1"),
        (frame(b"1234", key(0, step=2)), "a frame that is not due: ACTIVATION of step 2"),
        (frame(b"1234", key(0, kind=Kind.REDUCED)), "a frame that is not due: REDUCED of step 1"),
        (frame(b"1234", key(0, group=1)), "a frame that is not due: ACTIVATION of step 1"),
        (frame(b"123", key()), "3 bytes for ACTIVATION where 4 belong"),
        (frame(b"12345", key()), "5 bytes for ACTIVATION where 4 belong"),
        (Header(PLAN, key(), 1 << 60).pack(), f"{1 << 60} bytes for ACTIVATION where 4 belong"),
        (frame(b"12", key(kind=Kind.VOTE)) + b"12", "2 bytes for VOTE where 1 belong"),
        (frame(b"1234", key(), version=PLAN + 1), f"a frame of plan {PLAN + 1} under plan {PLAN}"),
        (frame(b"1234", key(), version=PLAN - 1), f"a frame of plan {PLAN - 1} under plan {PLAN}"),
        (frame(b"1234", key(1)) + frame(b"1234", key(1)), "a frame that is not due: ACTIVATION of step 1"),
        (b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n", "a frame does not begin like one"),
    ],
    ids=[
        "index",
        "step",
        "kind",
        "group",
        "short",
        "long",
        "huge",
        "vote",
        "next plan",
        "old plan",
        "twice",
        "foreign",
    ],
)
async def test_a_frame_that_was_not_posted_is_refused_and_its_sender_counts_as_lost(
    network: Network, data: bytes, said: str
) -> None:
    async with network.peer("b") as b:
        b.post("a", key(), 4)
        b.post("a", key(1), 4)
        b.post("a", key(kind=Kind.VOTE), 1, exact=False)
        stream = await network.raw("a", "b")
        await stream.write(data)
        assert said in str(await fails(b, "a", key()))
        assert network.faults == [said]
        assert b.refused == {said: 1}
        with pytest.raises(StreamClosed):
            await stream.read(1)


async def test_frames_that_nobody_posted_are_no_strangers_way_to_harm(network: Network) -> None:
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(), 1)
        stranger = await network.raw("stranger", "b")
        await stranger.write(frame(b"1", key()))
        with pytest.raises(StreamClosed):
            await stranger.read(1)
        assert len(network.faults) == 1
        await a.send("b", key(), b"1")
        assert (await b.receive("a", key())).payload == b"1"


async def test_a_peers_end_fails_what_it_still_owes_and_nothing_else(network: Network) -> None:
    async with network.peer("b") as b, network.peer("c") as c:
        for sender in ("a", "c"):
            b.post(sender, key(0), 1)
            b.post(sender, key(1), 1)
        async with network.peer("a") as a:
            await a.send("b", key(0), b"a")
            await a.flush()
        assert "closed the stream" in str(await fails(b, "a", key(1)))
        assert (await b.receive("a", key(0))).payload == b"a"  # what it sent before stays good
        await c.send("b", key(1), b"c")
        assert (await b.receive("c", key(1))).payload == b"c"


async def test_a_frame_that_breaks_off_in_the_middle_is_lost(network: Network) -> None:
    async with network.peer("b") as b:
        b.post("a", key(), 100)
        stream = await network.raw("a", "b")
        await stream.write(frame(bytes(100), key())[:-1])
        await stream.close()
        await fails(b, "a", key())


async def test_a_frame_posted_after_its_senders_end_fails_at_once(network: Network) -> None:
    async with network.peer("b") as b:
        b.lose(PeerLost("a", "gone"))
        b.post("a", key(), 1)
        assert str(await fails(b, "a", key())) == "a is gone: gone"


async def test_who_waits_already_is_woken(network: Network) -> None:
    async with network.peer("b") as b:
        b.post("a", key(), 1)
        waiting = asyncio.create_task(fails(b, "a", key()))
        await asyncio.sleep(0)
        assert not waiting.done()
        b.lose(PeerLost("a", "gone"))
        await waiting


async def test_a_peer_that_cannot_be_reached_is_lost_to_its_sender(network: Network) -> None:
    async with network.peer("a") as a:
        a.post("b", key(), 1)
        await a.send("b", key(), b"1")  # the queue takes it; nobody knows yet
        await fails(a, "b", key())
        with pytest.raises(PeerLost) as caught:
            await a.send("b", key(1), b"1")
        assert caught.value.peer == "b"


async def test_a_peer_that_vanishes_while_frames_wait_for_it_does_not_block_their_sender(network: Network) -> None:
    async with network.peer("a") as a:
        blocked = asyncio.Event()

        async def refuse_to_read(stream: Stream) -> None:
            blocked.set()

        await MemoryDataPlane(network.memory, "b").serve(TRAINING, refuse_to_read)

        async def send_on() -> None:
            for index in range(10 * QUEUE_FRAMES):
                await a.send("b", key(index), bytes(1000))

        with pytest.raises(PeerLost):
            await send_on()
        assert blocked.is_set()


class Slow:
    """A stream that takes a write only when it is told to."""

    def __init__(self, inner: Stream, gate: asyncio.Semaphore) -> None:
        self.peer, self._inner, self._gate = inner.peer, inner, gate

    async def read(self, size: int) -> Bytes:
        return await self._inner.read(size)

    async def write(self, *buffers: Bytes) -> None:
        await self._gate.acquire()
        await self._inner.write(*buffers)

    async def close(self) -> None:
        await self._inner.close()


class SlowPlane(MemoryDataPlane):
    """A plane on a link that takes as many writes as its gate lets through."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        super().__init__(network, peer_id)
        self.gate = asyncio.Semaphore(1)  # the Hello

    async def open(self, peer: str, service: str) -> Stream:  # type: ignore[override]
        return Slow(await super().open(peer, service), self.gate)


async def settle() -> None:
    """Let every task run until all of them wait."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_slow_link_holds_its_sender_back_and_no_other_link(network: Network) -> None:
    plane = SlowPlane(network.memory, "a")
    async with network.peer("b") as b, network.peer("c") as c, Exchange.running(plane, PLAN) as a:
        for index in range(QUEUE_FRAMES + 3):
            b.post("a", key(index), 1)
        sent: list[int] = []

        async def send_all() -> None:
            for index in range(QUEUE_FRAMES + 3):
                await a.send("b", key(index), b"1")
                sent.append(index)

        sending = asyncio.create_task(send_all())
        await settle()
        assert len(sent) == QUEUE_FRAMES + 1  # the queue is full, and one is in the link's hands
        flushing = asyncio.create_task(a.flush())
        await settle()
        assert not flushing.done()
        for _ in range(QUEUE_FRAMES + 4):
            plane.gate.release()
        await sending
        await flushing
        assert (await b.receive("a", key(QUEUE_FRAMES + 2))).payload == b"1"
        c.post("a", key(), 1)
        plane.gate.release()
        plane.gate.release()
        await a.send("c", key(), b"1")
        await c.receive("a", key())


async def test_flushing_ends_when_the_peer_that_it_waits_for_vanishes(network: Network) -> None:
    plane = SlowPlane(network.memory, "a")
    async with network.peer("b"), Exchange.running(plane, PLAN) as a:
        for index in range(3):
            await a.send("b", key(index), b"1")
        flushing = asyncio.create_task(a.flush())
        await settle()
        assert not flushing.done()
        for stream in network.taken["b"]:
            await stream.close()
        plane.gate.release()
        await asyncio.wait_for(flushing, 1.0)


async def test_leaving_an_exchange_ends_its_tasks_and_closes_its_streams(network: Network) -> None:
    before = asyncio.all_tasks()
    async with network.peer("b") as b:
        b.post("a", key(), 1)
        async with network.peer("a") as a:
            await a.send("b", key(), b"1")
            await b.receive("a", key())
        assert len(network.taken["b"]) == 1
        with pytest.raises(StreamClosed):
            await network.taken["b"][0].read(1)
    await settle()
    assert asyncio.all_tasks() == before


async def test_what_ends_the_block_comes_out_in_a_group(network: Network) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with network.peer("a"):
            raise PeerLost("b", "gone")
    assert isinstance(caught.value.exceptions[0], PeerLost)
