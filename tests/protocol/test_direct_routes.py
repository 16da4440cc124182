"""Which way leads to a peer, on both event loops: directly to where it listens, else over libp2p."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.direct_data_plane import DirectDataPlane
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.endpoint_exchange import DIRECT
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import hosts_of
from dtfm_protocol.transport.route import Route
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Unreachable
from tests.harness.event_loops import event_loop_policy
from tests.harness.membership import OWNER, SWARM, member_of
from tests.protocol.direct_planes import (
    ALICE,
    BOB,
    CAROL,
    PATIENCE,
    Meeting,
    World,
    believed,
    echo,
    echoed,
    endpoint,
    logged,
    meeting,
    opened,
    port_of,
    tell_port,
    two_peers,
    until,
)

__all__ = ["event_loop_policy", "logged"]  # fixtures


async def test_where_no_address_answers_libp2p_carries_the_stream_and_that_is_remembered() -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        b._connections._listener.close()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]  # free again when the block is left
        tell_port(b, port)
        for opens in ([DIRECT, "echo"], [DIRECT, "echo", "echo"]):
            stream = await a.open(b.peer_id, "echo")
            assert isinstance(stream, MemoryStream)
            await echoed(stream, b"x")
            await stream.close()
            assert meeting(a).opened == opens
        a._routes[b.peer_id] = Route(endpoint=believed(a, b.peer_id))  # no detour any more
        await (await a.open(b.peer_id, "echo")).close()
        assert meeting(a).opened == [DIRECT, "echo", "echo", DIRECT, "echo"]


@contextlib.asynccontextmanager
async def slowly_met(plane: DirectDataPlane) -> AsyncIterator[asyncio.Event]:
    """libp2p meets nobody until the event is set."""
    met, goes_on = meeting(plane).open, asyncio.Event()

    async def slowly(peer: str, service: str) -> MemoryStream:
        await goes_on.wait()
        return await met(peer, service)

    meeting(plane).open = slowly  # type: ignore[method-assign]
    yield goes_on


async def test_who_is_introduced_with_its_port_is_dialled_before_libp2p_has_met_it() -> None:
    async with two_peers() as (a, b), slowly_met(a) as goes_on:
        await b.serve("echo", echo)
        assert b.port == await port_of(b)
        await a.introduce(b.peer_id, await b.addresses(), b.port)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")
            assert a.way(b.peer_id) == "direct"
        assert b._route(a.peer_id).endpoint is None
        goes_on.set()
        await until(lambda: b._route(a.peer_id).endpoint is not None)  # then the other knows this one, too
        assert believed(b, a.peer_id).port == a.port
        assert believed(a, b.peer_id).port == b.port
        assert meeting(a).opened == [DIRECT]
        with pytest.raises(Unreachable):
            await a.open(b.peer_id, "nothing")


@pytest.mark.parametrize("gone", [True, False])
async def test_where_a_port_is_another_one_the_peer_itself_tells_the_right_one(gone: bool) -> None:
    """Nobody listens there, or somebody else."""
    async with two_peers() as (a, b), World().peer(CAROL) as c:
        await b.serve("echo", echo)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        await a.introduce(b.peer_id, await b.addresses(), free if gone else c.port)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")
        assert believed(a, b.peer_id).port == b.port


async def test_a_host_that_does_not_answer_as_told_is_not_waited_for_where_the_peer_tells_another() -> None:
    async with two_peers(DirectLimits(connect=60.0)) as (a, b):
        await b.serve("echo", echo)
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
            for _ in range(4):  # its backlog is full, so a connection request gets no answer
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            await a.introduce(b.peer_id, await b.addresses(), full.getsockname()[1])
            async with asyncio.timeout(30), opened(a, b.peer_id, "echo") as stream:
                await echoed(stream, b"x")


async def test_what_others_say_of_a_peer_is_not_taken_for_more_than_its_own_word() -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        await (await a.open(b.peer_id, "echo")).close()
        await a.introduce(b.peer_id, await b.addresses(), 1)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")
        assert believed(a, b.peer_id).port == b.port
        assert meeting(a).opened == [DIRECT]


async def test_who_stops_waiting_for_a_dialled_stream_leaves_no_connection() -> None:
    async with two_peers() as (a, b), slowly_met(a):
        await b.serve("echo", echo)
        await a.introduce(b.peer_id, await b.addresses(), b.port)
        opening = asyncio.create_task(a.open(b.peer_id, "echo"))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        assert list(a._connections.streams_with(b.peer_id)) == []


async def test_a_host_that_does_not_answer_costs_two_seconds_at_most() -> None:
    assert DirectLimits().connect == 2.0
    async with two_peers(DirectLimits(connect=0.2)) as (a, b):
        await b.serve("echo", echo)
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
            port = full.getsockname()[1]
            for _ in range(4):  # its backlog is full, so a connection request gets no answer
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.1", port))
            a._routes[b.peer_id] = Route(endpoint=await endpoint(b, port))
            async with opened(a, b.peer_id, "echo") as stream:  # asks again, and learns better
                await echoed(stream, b"x")


async def test_a_peer_without_direct_streams_is_reached_over_libp2p_at_once() -> None:
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a:
        await Meeting(world.network, BOB).serve("echo", echo)
        for _ in range(2):
            await (await a.open(BOB.peer_id, "echo")).close()
        assert meeting(a).opened == [DIRECT, "echo", "echo"]


async def test_a_peer_that_was_away_is_reached_directly_once_it_is_there() -> None:
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a:
        with pytest.raises(Unreachable):
            await a.open(BOB.peer_id, "echo")
        async with world.peer(BOB) as b:
            await b.serve("echo", echo)
            async with opened(a, b.peer_id, "echo") as stream:
                await echoed(stream, b"x")


@pytest.mark.parametrize("same_port", [True, False])
async def test_a_peer_that_has_started_again_elsewhere_is_asked_once_where_it_is(same_port: bool) -> None:
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a:
        port = 0
        for _ in range(3):
            async with world.peer(BOB, port=port) as b:
                port = await port_of(b) if same_port else 0
                await b.serve("echo", echo)
                async with opened(a, b.peer_id, "echo") as stream:
                    await echoed(stream, b"x")
        assert meeting(a).opened == [DIRECT] * (1 if same_port else 3)


async def test_an_introduction_ends_a_detour() -> None:
    async with two_peers() as (a, b):
        await a.serve("echo", echo)
        await b.serve("echo", echo)
        a._routes[b.peer_id] = Route(detour=asyncio.get_running_loop().time() + 60)
        assert isinstance(await a.open(b.peer_id, "echo"), MemoryStream)
        async with opened(b, a.peer_id, "echo"), opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")


async def test_of_many_hosts_one_good_one_is_enough() -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        bad = ["::1", "fe80::1", "fe80::1%nowhere", "192.0.2.1", "no..host", "x" * 70 + ".test"]
        meeting(b).hosts = [*bad, "127.0.0.1"]
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")


async def test_a_peer_on_ipv6_is_reached_where_there_is_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return  # this machine has none
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a, world.peer(BOB, listen="::1") as b:
        meeting(b).hosts = ["::1"]
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")


def test_the_hosts_of_addresses_are_those_at_which_the_peer_itself_listens() -> None:
    assert hosts_of(
        (
            "/ip4/192.0.2.1/tcp/4001/p2p/x",
            "/ip4/192.0.2.1/tcp/4002/p2p/x",
            "/ip6/2001:db8::1/tcp/4001/p2p/x",
            "/dns4/swarm.example.org/tcp/4001/p2p/x",
            "/ip4/192.0.2.9/tcp/4001/p2p/relay/p2p-circuit/p2p/x",
            "/memory/x",
            "nonsense",
        )
    ) == ("192.0.2.1", "2001:db8::1", "swarm.example.org")


@contextlib.asynccontextmanager
async def real(identity: Identity, **options: Any) -> AsyncIterator[DirectDataPlane]:
    admission = member_of(OWNER, identity=identity)[1]
    running = LibP2PDataPlane.running(identity, admission, service, listen="127.0.0.1", **options)
    async with running as libp2p, DirectDataPlane.running(libp2p, identity, admission, listen="127.0.0.1") as plane:
        yield plane


def service(name: str) -> str:
    return f"/dtfm/3/{SWARM}/{name}"


@pytest.mark.process
async def test_real_peers_meet_over_libp2p_and_talk_directly() -> None:
    async with asyncio.timeout(PATIENCE), real(ALICE) as a, real(BOB, bootstrap=await a.addresses()) as b:
        await b.introduce(a.peer_id, await a.addresses())
        await a.introduce(b.peer_id, await b.addresses())
        for here, there in ((a, b), (b, a)):
            await there.serve("echo", echo)
            async with opened(here, there.peer_id, "echo") as stream:
                await echoed(stream, os.urandom(1 << 20) * 8)


@pytest.mark.process
async def test_real_peers_that_cannot_connect_talk_over_libp2p() -> None:
    async with asyncio.timeout(PATIENCE), real(ALICE) as a, real(BOB, bootstrap=await a.addresses()) as b:
        await b.introduce(a.peer_id, await a.addresses())
        await a.introduce(b.peer_id, await b.addresses())
        await b.serve("echo", echo)
        a._routes[b.peer_id] = Route(endpoint=await endpoint(b, 9))
        tell_port(b, 9)
        stream = await a.open(b.peer_id, "echo")
        assert not isinstance(stream, TlsStream)
        await echoed(stream, os.urandom(1 << 20))
        await stream.close()
