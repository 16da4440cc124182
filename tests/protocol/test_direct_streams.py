"""What goes over direct streams, on real sockets and both event loops: bytes in order and whole, until the end."""

import asyncio
import contextlib
import hashlib
import math
import os
import socket
import sys
import time

import psutil
import pytest

from dtfm_protocol.checkpoint.transfers import TransferReply
from dtfm_protocol.transport.endpoint_exchange import DIRECT
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable, write_message
from tests.harness.event_loops import event_loop_policy
from tests.protocol.direct_planes import (
    ALICE,
    BOB,
    PATIENCE,
    World,
    echo,
    echoed,
    logged,
    meeting,
    opened,
    two_peers,
    until,
)

__all__ = ["event_loop_policy", "logged"]  # fixtures


@pytest.mark.parametrize("size", [0, 1, 36, (16 << 10) + 1, (64 << 10) - 1, 64 << 10, (128 << 10) + 1, 50 << 20])
async def test_a_payload_of_any_size_arrives_whole(size: int) -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, os.urandom(min(size, 1 << 20)) * max(1, size >> 20))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel has to pace")
async def test_a_paced_stream_keeps_its_pace_until_it_may_go_on_as_fast_as_it_can() -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, bytes(1 << 10))
            stream.pace(1e6)
            begun = time.monotonic()
            await echoed(stream, bytes(1 << 19))
            assert time.monotonic() - begun > 0.3  # at full speed it takes some milliseconds
            stream.pace(math.inf)
            await echoed(stream, bytes(1 << 25))  # paced it would take longer than a test may
            await stream.close()
            stream.pace(1e6)  # nothing happens


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel has to have Reno")
async def test_a_window_may_be_told_to_grow_whatever_round_trips_say() -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "echo") as stream:
            assert isinstance(stream, TlsStream)
            stream.grow_until_loss()
            used = stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert used.rstrip(b"\0") == b"reno"
            await echoed(stream, bytes(1 << 20))
            await stream.close()
            stream.grow_until_loss()  # nothing happens


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel has to tell")
async def test_a_stream_tells_how_fast_a_long_write_arrives() -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "echo") as stream:
            stream.pace(2e6)
            begun = time.monotonic()
            await echoed(stream, bytes(3 << 20))
            measured = (3 << 20) / (time.monotonic() - begun)
            delivered = stream.delivered()
            assert delivered is not None
            assert measured / 2 < delivered < 2.2e6
            queued = stream.queued()
            assert queued is not None
            assert 0 <= queued < 1.0
            await stream.close()
            assert stream.delivered() is None
            assert stream.queued() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel has to tell")
async def test_a_stream_tells_how_fast_short_writes_arrive_that_follow_each_other() -> None:
    """None of them takes a quarter of a second: a link that was measured too low would stay so for small messages."""

    async def read(stream: Stream) -> None:
        for _ in range(60):
            await stream.read(1 << 16)

    async with two_peers() as (a, b):
        await b.serve("reader", read)
        async with opened(a, b.peer_id, "reader") as stream:
            stream.pace(2e6)
            told = []
            for _ in range(60):
                await stream.write(bytes(1 << 16))
                told.append(stream.delivered())
            found = [rate for rate in told if rate is not None]
            assert 2 <= len(found) <= 12
            assert all(1e6 < rate < 2.2e6 for rate in found[1:])  # at first the kernel lets some bytes go at once


async def test_what_is_read_can_be_written_to() -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "echo") as stream:
            for size in (8, 1 << 20):
                await write_message(stream, TransferReply(size=size))
                await stream.write(bytes(size))
                assert not memoryview(await stream.read(size)).readonly


async def test_buffers_arrive_in_order_also_those_of_writers_at_the_same_time() -> None:
    sizes = [3, 5, 40_000, 0, 16 << 10, 300_000, 7]
    async with two_peers() as (a, b):
        frames: list[bytes] = []
        done = asyncio.Event()

        async def take(stream: Stream) -> None:
            for _ in range(8):
                frames.append(bytes(await stream.read(sum(sizes))))
            done.set()

        await b.serve("take", take)
        async with opened(a, b.peer_id, "take") as stream:
            sent = [[bytes([16 * frame + index]) * size for index, size in enumerate(sizes)] for frame in range(8)]
            await asyncio.gather(*(stream.write(*buffers) for buffers in sent))
            await done.wait()
        assert sorted(frames) == sorted(b"".join(buffers) for buffers in sent)


async def test_many_streams_at_once_do_not_mix() -> None:
    async with two_peers() as (a, b), contextlib.AsyncExitStack() as stack:
        await b.serve("echo", echo)
        streams = await asyncio.gather(*(a.open(b.peer_id, "echo") for _ in range(30)))
        for stream in streams:
            stack.push_async_callback(stream.close)
        assert all(isinstance(stream, TlsStream) for stream in streams)
        assert meeting(a).opened == [DIRECT]
        await asyncio.gather(*(echoed(stream, os.urandom(400_000)) for stream in streams))


async def test_a_receiver_that_does_not_read_stalls_the_sender_and_nobody_else() -> None:
    size = 100 << 20
    async with two_peers() as (a, b):
        go, received = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def late(stream: Stream) -> None:
            await go.wait()
            received.set_result(hashlib.sha256(await stream.read(size)).digest())

        await b.serve("late", late)
        await b.serve("echo", echo)
        payload = os.urandom(1 << 20) * (size >> 20)
        before = psutil.Process().memory_info().rss
        async with opened(a, b.peer_id, "late") as stream, opened(a, b.peer_id, "echo") as other:
            sending = asyncio.create_task(stream.write(payload))
            for _ in range(50):
                await echoed(other, os.urandom(100_000))
            done, _ = await asyncio.wait({sending}, timeout=0.5)
            assert not done
            assert psutil.Process().memory_info().rss - before < 16 << 20
            go.set()
            await sending
            assert await received == hashlib.sha256(payload).digest()


async def test_closing_loses_nothing_that_was_written() -> None:
    async with two_peers() as (a, b):
        await b.serve("pour", lambda stream: stream.write(b"x" * 50_000))
        async with opened(a, b.peer_id, "pour") as stream:
            await until(lambda: not b._connections._streams)  # the other side has closed
            assert bytes(await stream.read(50_000)) == b"x" * 50_000
            with pytest.raises(StreamClosed):
                await stream.read(1)


async def test_a_peer_that_vanishes_in_the_middle_of_a_frame_closes_the_stream() -> None:
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a, contextlib.AsyncExitStack() as stack:
        reached, ended = asyncio.Event(), asyncio.Event()

        async def half(stream: Stream) -> None:
            await stream.write(bytes(500_000))
            reached.set()
            await asyncio.Event().wait()

        async def watch(stream: Stream) -> None:
            try:
                await stream.read(1)
            except StreamClosed:
                ended.set()

        await a.serve("watch", watch)
        async with world.peer(BOB) as b:
            await b.serve("half", half)
            stream = await stack.enter_async_context(opened(a, BOB.peer_id, "half"))
            await b.open(ALICE.peer_id, "watch")  # left open
            reading = asyncio.create_task(stream.read(1_000_000))
            await reached.wait()
        with pytest.raises(StreamClosed):
            await reading
        await ended.wait()

        async def write_on() -> None:
            while True:
                await stream.write(bytes(1 << 20))

        with pytest.raises(StreamClosed):
            await write_on()
        with pytest.raises(Unreachable):
            await a.open(BOB.peer_id, "half")
        await stream.close()
        await stream.close()
        with pytest.raises(StreamClosed):
            await stream.read(1)


async def test_closing_a_stream_wakes_who_reads_or_writes_it() -> None:
    async with two_peers() as (a, b):
        await b.serve("idle", lambda stream: asyncio.Event().wait())
        async with opened(a, b.peer_id, "idle") as stream:
            tasks = [asyncio.create_task(stream.read(1)), asyncio.create_task(stream.write(bytes(100 << 20)))]
            await asyncio.wait(tasks, timeout=0.2)
            await stream.close()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, StreamClosed)


async def test_a_read_or_write_that_is_cancelled_half_way_ends_the_stream() -> None:
    async with two_peers() as (a, b):

        async def half(stream: Stream) -> None:
            await stream.write(bytes(10))
            await asyncio.Event().wait()

        await b.serve("half", half)
        for work in (lambda stream: stream.read(20), lambda stream: stream.write(bytes(100 << 20))):
            async with opened(a, b.peer_id, "half") as stream:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await work(stream)
                with pytest.raises(StreamClosed):
                    await stream.write(b"x")
        async with opened(a, b.peer_id, "half") as stream:
            await stream.read(10)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await stream.read(10)
            await stream.write(b"nothing was lost by that")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
async def test_the_kernel_tells_how_far_bytes_have_come_and_a_slow_reader_is_no_slow_line() -> None:
    size = 24 << 20
    reads = asyncio.Event()

    async def late(stream: Stream) -> None:
        await stream.read(1)
        await reads.wait()
        await stream.read(size)
        await stream.write(b"!")

    async with two_peers() as (a, b):
        await b.serve("late", late)
        async with opened(a, b.peer_id, "late") as stream:
            await stream.write(b"?")
            before = stream.progress()
            assert before is not None
            begun = time.monotonic()
            writing = asyncio.create_task(stream.write(bytes(size)))
            await asyncio.sleep(1.0)
            assert not writing.done()
            reads.set()
            await writing
            await stream.read(1)
            after = stream.progress()
            assert after is not None
            assert after.acknowledged - before.acknowledged >= size
            assert after.delivered - before.delivered >= size
            assert after.busy - before.busy < time.monotonic() - begun - 0.5
            assert 0 < after.round_trip < PATIENCE


async def test_bytes_that_come_in_many_small_segments_are_counted_once() -> None:
    """Whoever sends them seems to be no faster than it is."""

    async def drip(stream: Stream) -> None:
        for _ in range(100):
            await stream.write(b"x")
            await stream.read(1)

    async with two_peers() as (a, b):
        await b.serve("drip", drip)
        async with opened(a, b.peer_id, "drip") as stream:
            before = stream.progress()
            for _ in range(100):
                await stream.read(1)
                await stream.write(b"y")
            after = stream.progress()
            assert before is not None
            assert after is not None
            assert 100 <= after.received - before.received < 100 * 100


async def stalled(stream: TlsStream) -> int:
    """How many bytes the other end's kernel has, once neither that one nor this one's takes more."""
    before, now = -1, 0
    while not now or now != before:
        await asyncio.sleep(0.2)
        told = stream.progress()
        assert told is not None
        before, now = now, told.acknowledged
    return now


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel has to tell")
async def test_of_a_stream_that_is_dropped_nothing_more_is_sent() -> None:
    """What the kernel had taken goes on after a stream that is closed."""
    came, read, counted = dict[str, int](), asyncio.Event(), asyncio.Semaphore(0)

    async def count(stream: Stream) -> None:
        end = bytes(await stream.read(5)).decode().strip()
        await read.wait()
        with contextlib.suppress(StreamClosed):
            while True:
                came[end] = came.get(end, 0) + len(await stream.read(1 << 10))
        counted.release()

    async with two_peers() as (a, b):
        await b.serve("count", count)
        taken = dict[str, int]()
        for end in ("drop", "abort"):
            stream = await a.open(b.peer_id, "count")
            assert isinstance(stream, TlsStream)
            await stream.write(f"{end:<5}".encode())
            writing = asyncio.create_task(stream.write(bytes(64 << 20)))
            taken[end] = await stalled(stream)
            getattr(stream, end)()
            await asyncio.gather(writing, return_exceptions=True)
        read.set()
        for _ in taken:
            await counted.acquire()
    assert came["drop"] <= taken["drop"]
    assert taken["abort"] < came["abort"]
