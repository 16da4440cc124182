"""Frames between peers: each posted ahead, each delivered once, and a broken peer's frames fail at once."""

import asyncio
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.exchange import TRAINING
from dtfm_node.engine.mailbox import UNREAD_EVALUATIONS, PeerLost
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.sender import QUEUE_FRAMES
from dtfm_protocol.transport.in_memory import MemoryDataPlane
from dtfm_protocol.wire.frames import HEADER_BYTES, FrameHeader, Kind
from dtfm_protocol.wire.stream import Bytes, Stream, StreamClosed
from tests.harness.manual_clock import settle
from tests.node.exchanges import PLAN, Network, closed, fails, frame, key, network

__all__ = ["network"]  # a fixture


@pytest.mark.parametrize("kind", [Kind.ACTIVATION, Kind.PART])
@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20])
async def test_a_frame_arrives_with_its_payload(network: Network, size: int, kind: Kind) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(kind=kind), size)
        await a.send("b", key(kind=kind), payload)
        assert bytes(await b.receive("a", key(kind=kind))) == payload


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
                assert bytes(await b.receive("a", keys[index])) == bytes([index]) * (index + 1)

    asyncio.run(exchange())


async def test_the_same_key_of_two_senders_is_two_frames(network: Network) -> None:
    async with network.peer("a") as a, network.peer("b") as b, network.peer("c") as c:
        c.post("a", key(), 1)
        c.post("b", key(), 1)
        await b.send("c", key(), b"b")
        await a.send("c", key(), b"a")
        assert await c.receive("a", key()) == b"a"
        assert await c.receive("b", key()) == b"b"


async def test_a_frame_may_be_shorter_than_posted_only_where_that_was_said(network: Network) -> None:
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(kind=Kind.VOTE), 100, exact=False)
        await a.send("b", key(kind=Kind.VOTE), b"short")
        assert await b.receive("a", key(kind=Kind.VOTE)) == b"short"


async def test_bytes_sent_are_those_of_payloads_and_headers_of_frames_that_were_taken(network: Network) -> None:
    sizes = {key(index, kind=kind): 1000 * index + kind for index in range(4) for kind in Kind}
    async with network.peer("a") as a, network.peer("b") as b:
        for what, size in sizes.items():
            b.post("a", what, size)
            await a.send("b", what, bytes(size))
        assert a.bytes_sent == sum(sizes.values()) + HEADER_BYTES * len(sizes)
        assert b.bytes_sent == 0
        a.lose(PeerLost("c", "gone"))
        with pytest.raises(PeerLost):
            await a.send("c", key(), bytes(100))
        assert a.bytes_sent == sum(sizes.values()) + HEADER_BYTES * len(sizes)


async def test_a_peers_end_fails_what_it_still_owes_and_nothing_else(network: Network) -> None:
    async with network.peer("b") as b, network.peer("c") as c:
        for sender in ("a", "c"):
            b.post(sender, key(0), 1)
            b.post(sender, key(1), 1)
        async with network.peer("a") as a:
            await a.send("b", key(0), b"a")
            await a.flush()
        assert "closed the stream" in str(await fails(b, "a", key(1)))
        assert await b.receive("a", key(0)) == b"a"  # what it sent before stays good
        await c.send("b", key(1), b"c")
        assert await b.receive("c", key(1)) == b"c"


@pytest.mark.parametrize("length", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 99])
async def test_a_frame_that_breaks_off_is_lost_and_is_no_fault(network: Network, length: int) -> None:
    """A peer that is killed in the middle of it has done nothing wrong."""
    async with network.peer("b") as b:
        b.post("a", key(), 100)
        stream = await network.raw("a", "b")
        await stream.write(frame(bytes(100), key())[:length])
        await stream.close()
        await fails(b, "a", key())
        assert not b.refused


async def test_a_frame_posted_after_its_senders_end_fails_at_once(network: Network) -> None:
    async with network.peer("b") as b:
        b.lose(PeerLost("a", "gone"))
        b.post("a", key(), 1)
        assert str(await fails(b, "a", key())) == "a is gone: gone"


async def test_a_lost_peers_frames_take_no_memory(network: Network) -> None:
    """On a stream of its own that is still open."""
    async with network.peer("b") as b:
        b.post("a", key(), 1000)
        stream = await network.raw("a", "b")
        await settle()
        b.lose(PeerLost("a", "gone"))
        await stream.write(frame(bytes(1000), key()))
        await closed(stream)
        assert set(network.taken["b"][0].reads) == {HEADER_BYTES}
        assert not b.refused  # it was under way by then


async def test_who_gives_up_waiting_for_a_frame_does_not_make_it_a_fault(network: Network) -> None:
    """The frame of a step that ends early is on its way all the same."""
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(), 4)
        waiting = asyncio.create_task(b.receive("a", key()))
        await settle()
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        await a.send("b", key(), b"1234")
        assert await b.receive("a", key()) == b"1234"
        assert not b.refused


async def test_why_a_peer_was_lost_stays_the_first_reason(network: Network) -> None:
    async with network.peer("b") as b:
        b.lose(PeerLost("a", "first"))
        assert str(b.refuse("a", FrameFault.CONTENT, "nonsense")) == "a is gone: it sent nonsense"
        b.post("a", key(), 1)
        assert str(await fails(b, "a", key())) == "a is gone: first"


async def test_who_waits_already_is_woken(network: Network) -> None:
    async with network.peer("b") as b:
        b.post("a", key(), 1)
        waiting = asyncio.create_task(fails(b, "a", key()))
        await asyncio.sleep(0)
        assert not waiting.done()
        b.lose(PeerLost("a", "gone"))
        await waiting


@pytest.mark.parametrize("kind", [Kind.ACTIVATION, Kind.PART])
async def test_a_peer_that_cannot_be_reached_is_lost_to_its_sender(network: Network, kind: Kind) -> None:
    async with network.peer("a") as a:
        a.post("b", key(), 1)
        await a.send("b", key(kind=kind), b"1")  # the queue takes it; nobody knows yet
        await fails(a, "b", key())
        with pytest.raises(PeerLost) as caught:
            await a.send("b", key(1, kind=kind), b"1")
        assert caught.value.peer == "b"


@pytest.mark.parametrize("kind", [Kind.ACTIVATION, Kind.PART])
async def test_a_peer_that_vanishes_while_frames_wait_for_it_does_not_block_their_sender(
    network: Network, kind: Kind
) -> None:
    async with network.peer("a") as a:
        blocked = asyncio.Event()

        async def refuse_to_read(stream: Stream) -> None:
            blocked.set()

        await MemoryDataPlane(network.memory, "b").serve(TRAINING, refuse_to_read)

        async def send_on() -> None:
            for index in range(10 * QUEUE_FRAMES):
                await a.send("b", key(index, kind=kind), bytes(1000))

        with pytest.raises(PeerLost):
            await send_on()
        assert blocked.is_set()


async def test_a_stream_opened_ahead_tells_of_this_peers_end(network: Network) -> None:
    """Also where it has sent nothing yet."""
    async with network.peer("b") as b:
        b.post("a", key(), 1)
        async with network.peer("a") as a:
            a.connect("b")
            await settle()
            assert len(network.taken["b"]) == 1
        await fails(b, "a", key())


async def test_a_fast_sender_is_held_back_while_its_evaluations_are_unread(network: Network) -> None:
    """Nothing else bounds how many of them would lie in memory."""
    many = 3 * UNREAD_EVALUATIONS
    async with network.peer("a") as a, network.peer("b") as b, network.peer("c") as c:
        for index in range(many):
            b.post("a", key(index, kind=Kind.EVALUATION), 10)
            b.post("c", key(index, kind=Kind.EVALUATION), 10)
        b.post("a", key(kind=Kind.VOTE), 10)

        async def send_all() -> None:
            for index in range(many):
                await a.send("b", key(index, kind=Kind.EVALUATION), bytes(10))
            await a.send("b", key(kind=Kind.VOTE), bytes(10))

        sending = asyncio.create_task(send_all())
        await settle()
        (taken,) = network.taken["b"]
        for read in range(many - UNREAD_EVALUATIONS):
            assert taken.reads.count(10) == UNREAD_EVALUATIONS + read
            await b.receive("a", key(read, kind=Kind.EVALUATION))
            await settle()
        await c.send("b", key(kind=Kind.EVALUATION), bytes(10))  # another sender's are another matter
        await b.receive("c", key(kind=Kind.EVALUATION))
        for read in range(many - UNREAD_EVALUATIONS, many):
            await b.receive("a", key(read, kind=Kind.EVALUATION))
        await b.receive("a", key(kind=Kind.VOTE))
        await sending


async def test_evaluations_that_nobody_reads_do_not_hold_back_training(network: Network) -> None:
    """They wait on the stream for urgent frames; the all-reduce has its own."""
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(kind=Kind.PART), 1)
        for index in range(UNREAD_EVALUATIONS + 1):
            b.post("a", key(index, kind=Kind.EVALUATION), 1)
            await a.send("b", key(index, kind=Kind.EVALUATION), b"1")
        await a.send("b", key(kind=Kind.PART), b"1")
        assert await b.receive("a", key(kind=Kind.PART)) == b"1"


async def test_leaving_an_exchange_lets_go_of_a_stream_that_waits_for_its_evaluations_to_be_read(
    network: Network,
) -> None:
    async with network.peer("a") as a:
        async with network.peer("b") as b:
            for index in range(UNREAD_EVALUATIONS + 2):
                b.post("a", key(index, kind=Kind.EVALUATION), 1)
                await a.send("b", key(index, kind=Kind.EVALUATION), b"1")
            await settle()
            (taken,) = network.taken["b"]
            assert not taken.let_go
        await settle()
        assert taken.let_go


class Traced(bytearray):
    """A payload of which can be told whether anybody still holds it."""


class Given:
    """A stream that brings what it is given, and then no more."""

    def __init__(self, peer: str, *pieces: bytearray) -> None:
        self.peer, self._pieces = peer, list(pieces)

    def progress(self) -> None:
        """It cannot say."""

    async def read(self, size: int) -> Bytes:
        if not self._pieces:
            raise StreamClosed("no more")
        piece = self._pieces.pop(0)
        assert len(piece) == size
        return piece

    async def write(self, *buffers: Bytes) -> None: ...

    async def close(self) -> None: ...

    def drop(self) -> None: ...


async def test_a_frame_that_was_received_is_kept_no_longer(network: Network) -> None:
    async with network.peer("b") as b:
        b.post("a", key(), 1000)
        payload = Traced(1000)
        held = weakref.ref(payload)
        await b.serve(Given("a", bytearray(FrameHeader(PLAN, key(), 1000).pack()), payload))
        del payload
        received = await b.receive("a", key())
        assert received is held()
        del received
        assert held() is None


async def test_leaving_an_exchange_ends_its_tasks_and_closes_its_streams(network: Network) -> None:
    before = asyncio.all_tasks()
    async with network.peer("b") as b:
        async with network.peer("a") as a:
            for kind in (Kind.ACTIVATION, Kind.PART):
                b.post("a", key(kind=kind), 1)
                await a.send("b", key(kind=kind), b"1")
                await b.receive("a", key(kind=kind))
        assert len(network.taken["b"]) == 2
        for stream in network.taken["b"]:
            await closed(stream)
    await settle()
    assert asyncio.all_tasks() == before


async def test_what_ends_the_block_comes_out_in_a_group(network: Network) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with network.peer("a"):
            raise PeerLost("b", "gone")
    assert isinstance(caught.value.exceptions[0], PeerLost)
