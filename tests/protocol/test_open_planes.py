"""The planes of a peer as the daemons open them: on real libp2p daemons on 127.0.0.1, one a relay and one its guest."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import psutil
import pytest

from dtfm_protocol.discovery.records import LinkReport
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.open_planes import Planes, open_planes
from dtfm_protocol.transport.dial_rule import dial_rule
from dtfm_protocol.wire.stream import Stream
from tests.harness.membership import OWNER, SWARM, coordinator_of, member_of

pytestmark = pytest.mark.process

PATIENCE = 30.0
NODE = Identity.generate()
LOCAL = dial_rule([], ["127.0.0.1"])


def registry(identity: Identity) -> Registry:
    return Registry(SWARM, Post(SWARM, identity))


@contextlib.asynccontextmanager
async def two_peers() -> AsyncIterator[tuple[Planes, Planes]]:
    def opening(identity: Identity, **options: object) -> contextlib.AbstractAsyncContextManager[Planes]:
        return open_planes(
            identity,
            coordinator_of(OWNER) if identity is OWNER else member_of(OWNER, identity=identity)[1],
            lambda name: f"/dtfm/3/one/{name}",
            registry(identity),
            dials=LOCAL,
            **options,  # type: ignore[arg-type]
        )

    async with (
        asyncio.timeout(PATIENCE),
        opening(OWNER, listen="127.0.0.1", relay=True) as owner,
        opening(NODE, listen="127.0.0.1", bootstrap=await owner.data.addresses()) as node,
    ):
        yield owner, node


async def test_a_peer_streams_directly_to_its_door_and_shares_its_records_with_it() -> None:
    async with two_peers() as (owner, node):

        async def echo(stream: Stream) -> None:
            await stream.write(await stream.read(1))

        await owner.data.serve("echo", echo)
        stream = await node.data.open(OWNER.peer_id, "echo")
        await stream.write(b"x")
        assert bytes(await stream.read(1)) == b"x"
        assert (stream.peer, stream.way) == (OWNER.peer_id, "direct")
        await stream.close()

        assert await registry(NODE).publish(node.discovery, LinkReport(links={}))
        assert await registry(OWNER).links(owner.discovery, NODE.peer_id) == LinkReport(links={})


async def test_a_relay_asks_nobody_how_it_is_seen_and_a_node_asks_its_doors() -> None:
    async with two_peers() as (owner, node):
        assert owner.data._puncher._mirrors == ()
        assert node.data._puncher._mirrors == (OWNER.peer_id,)


async def test_no_daemon_is_left_where_the_block_fails_or_no_door_answers() -> None:
    before = psutil.Process().children(recursive=True)

    async def fail() -> None:
        async with two_peers():
            assert len(psutil.Process().children(recursive=True)) == len(before) + 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    nobody = (f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.generate().peer_id}",)
    admission = member_of(OWNER, identity=NODE)[1]
    with pytest.raises(UserError, match="failed to connect to bootstrap peers"):
        async with open_planes(NODE, admission, str, registry(NODE), listen="127.0.0.1", dials=LOCAL, bootstrap=nobody):
            pass
    assert psutil.Process().children(recursive=True) == before


async def test_doors_inside_a_network_where_the_broker_is_not_are_refused_before_anything_is_dialled() -> None:
    admission, outside = member_of(OWNER, identity=NODE)[1], dial_rule([], ["8.8.8.8"])
    with socket.create_server(("127.0.0.1", 0)) as inside:
        door = f"/ip4/127.0.0.1/tcp/{inside.getsockname()[1]}/p2p/{OWNER.peer_id}"
        with pytest.raises(UserError, match=r"^the swarm is to be entered at /ip4/127.* say --lan$"):
            async with open_planes(
                NODE, admission, str, registry(NODE), listen="127.0.0.1", dials=outside, bootstrap=(door,)
            ):
                pass
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):
            inside.accept()
