"""Caps on traffic: what may go in any window, and that all streams of a peer share one cap."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_protocol.transport.rate_cap import (
    BURST_SECONDS,
    PIECE_SECONDS,
    SET_ASIDE,
    WIRE_SHARE,
    RateCap,
    TrafficCaps,
)
from tests.protocol.direct_planes import ALICE, BOB, PATIENCE, World, echo, echoed, logged, opened

__all__ = ["logged"]  # a fixture


@given(
    rate=st.floats(1.25e4, 1e8),
    asks=st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.01, 1.0)), min_size=1, max_size=60),
    window=st.floats(1.0, 20.0),
)
def test_no_window_holds_more_than_the_cap_and_a_moment(
    rate: float, asks: list[tuple[float, float]], window: float
) -> None:
    """Whoever asks, whenever, for pieces of whatever size: what goes is counted at the time when it may go."""
    cap, now, went = RateCap(rate), 0.0, list[tuple[float, float]]()
    for pause, share in asks:
        now += pause
        size = max(1, int(cap.piece * share))
        went.append((now + cap.reserve(size, now), size * WIRE_SHARE))
    for start, _ in went:
        sent = sum(size for at, size in went if start <= at < start + window)
        allowed = rate * (window + BURST_SECONDS) + WIRE_SHARE * cap.piece
        assert sent <= allowed * (1 + 1e-6)
    assert cap.total == sum(max(1, int(cap.piece * share)) for _, share in asks)


@given(rate=st.floats(1.25e4, 1e8), late=st.floats(0.0, BURST_SECONDS / 2))
def test_a_sender_that_is_late_by_moments_has_all_of_the_cap(rate: float, late: float) -> None:
    cap, now = RateCap(rate), 0.0
    sent = 0
    while now < 30.0:
        now += cap.reserve(cap.piece, now) + late
        sent += cap.piece
    assert sent * WIRE_SHARE >= 0.97 * (rate - SET_ASIDE) * 30.0 - cap.piece or late > PIECE_SECONDS


def test_ten_seconds_hold_five_percent_more_at_most() -> None:
    assert BURST_SECONDS + PIECE_SECONDS <= 0.05 * 10.0


def test_what_is_acknowledged_is_made_up_for() -> None:
    caps = TrafficCaps(RateCap(1e6), RateCap())
    assert caps.up.reserve(1, time.monotonic()) == 0.0
    caps.up.answered(100_000_000)  # acknowledged with two megabytes, which take two seconds
    assert 1.5 < caps.up.reserve(1, time.monotonic()) < 3.0


async def test_without_a_cap_bytes_are_counted_and_nobody_waits() -> None:
    cap = RateCap()
    await cap.take(1 << 40)
    assert (cap.total, cap.is_capped, cap.gbps, cap.receive_buffer()) == (1 << 40, False, None, None)


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_all_direct_streams_of_a_peer_share_its_cap(direction: str) -> None:
    """Two streams at once, one in each direction of opening: 400 kB take 0.4 s at 1 MB/s, without it milliseconds."""
    world, rate, size = World(), 1e6, 200_000
    caps = TrafficCaps(**{direction: RateCap(rate)})
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, caps=caps) as a, world.peer(BOB) as b:
        await a.serve("echo", echo)
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "echo") as one, opened(b, a.peer_id, "echo") as other:
            begun, before = time.monotonic(), getattr(caps, direction).total
            await asyncio.gather(echoed(one, bytes(size)), echoed(other, bytes(size)))
            seconds = time.monotonic() - begun
        assert getattr(caps, direction).total - before >= 2 * size
        assert seconds >= 2 * size * WIRE_SHARE / rate - BURST_SECONDS - PIECE_SECONDS


async def test_a_relayed_stream_is_capped_too() -> None:
    from dtfm_protocol.transport.libp2p_stream import LibP2PStream

    got = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readexactly(100_000))
        writer.write(bytes(100_000))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with asyncio.timeout(PATIENCE), server:
        connection = await asyncio.open_connection(*server.sockets[0].getsockname())
        caps = TrafficCaps(RateCap(5e5), RateCap(5e5))
        stream = LibP2PStream("x", *connection, caps=caps)
        begun = time.monotonic()
        await stream.write(memoryview(bytes(60_000)), bytes(40_000))
        sent = time.monotonic()
        assert len(await stream.read(100_000)) == 100_000
        read = time.monotonic()
        await stream.close()
    least = 100_000 * WIRE_SHARE / 5e5 - BURST_SECONDS
    assert sent - begun >= least
    assert read - sent >= least
    assert (len(got), caps.up.total, caps.down.total) == (100_000, 100_000, 100_000)
