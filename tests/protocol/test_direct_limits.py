"""How much a direct plane has others hold, on real sockets and both event loops: connections, streams, time."""

import asyncio
import contextlib
import socket

import psutil

from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.tls_connections import NoWay
from dtfm_protocol.wire.stream import Unreachable
from tests.harness.event_loops import event_loop_policy
from tests.protocol.direct_planes import (
    ALICE,
    BOB,
    CAROL,
    PATIENCE,
    World,
    echo,
    echoed,
    logged,
    opened,
    port_of,
    two_peers,
    until,
)

__all__ = ["event_loop_policy", "logged"]  # fixtures


async def test_300_silent_sockets_and_more_idle_streams_than_a_member_may_have_crowd_nobody_out() -> None:
    world, limits = World(), DirectLimits(silence=0)
    async with (
        asyncio.timeout(PATIENCE),
        world.peer(ALICE, limits=limits) as a,
        world.peer(BOB) as b,
        world.peer(CAROL) as c,
    ):
        await a.serve("echo", echo)
        before = psutil.Process().memory_info().rss
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(300):
                silent = stack.enter_context(socket.socket())
                silent.setblocking(False)
                await asyncio.get_running_loop().sock_connect(silent, ("127.0.0.1", await port_of(a)))
            await until(lambda: a.turned_away["too many at once"] >= 300 - limits.pending_of_one)
            assert a._connections.pending == limits.pending_of_one
            held = 0
            for _ in range(limits.peer_streams + 30):
                try:
                    stream = await b._connections.dial(a.peer_id, await a.endpoint(), "echo")
                except (NoWay, Unreachable):
                    continue
                held += 1
                stack.push_async_callback(stream.close)
            assert held == limits.peer_streams == a._connections._taken[BOB.peer_id]
            async with opened(c, a.peer_id, "echo") as stream:
                await echoed(stream, b"x")
            assert psutil.Process().memory_info().rss - before < 64 << 20
        await until(lambda: not a._connections._taken)
        async with opened(b, a.peer_id, "echo") as stream:
            await echoed(stream, b"x")


async def test_a_client_that_says_nothing_is_sent_away_in_time() -> None:
    async with two_peers(DirectLimits(handshake=0.2, silence=0)) as (_, b):
        reader, writer = await asyncio.open_connection("127.0.0.1", await port_of(b))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert b.turned_away == {"too slow": 1}


async def test_of_too_many_unproven_connections_the_oldest_goes() -> None:
    async with two_peers(DirectLimits(pending_of_one=4, silence=0)) as (a, b):
        await b.serve("echo", echo)
        idle = [await asyncio.open_connection("127.0.0.1", await port_of(b)) for _ in range(6)]
        for reader, _ in idle[:2]:
            assert await reader.read() == b""
        assert b._connections.pending == 4
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")
        for _, writer in idle:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
