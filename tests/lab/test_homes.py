"""Peers in homes behind NAT reach each other, and say how; on real routers and real libp2p daemons."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from dtfm_protocol.transport.direct_data_plane import DirectDataPlane
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import by_peer
from dtfm_protocol.wire.stream import DataPlane, Stream, StreamClosed
from tests.harness.membership import OWNER, member_of
from tests.lab.homes import Homes, Host, why_not

PATIENCE = 120.0
SIZE = 3 << 20

pytestmark = [
    pytest.mark.root,
    pytest.mark.process,
    # hivemind leaves the connection of a failed call to the garbage collector, which warns of it
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def homes() -> Iterator[Homes]:
    """An open host, two homes whose routers hole punching can pass, and one whose router it cannot."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no homes on this machine: {reason}")
    with Homes("cone", "cone", "symmetric") as built:
        yield built


def service(name: str) -> str:
    return f"/dtfm/1/one/{name}"


@contextlib.asynccontextmanager
async def libp2p(host: Host, *doors: str, **options: object) -> AsyncIterator[LibP2PDataPlane]:
    """A peer on `host` that enters the network by `doors`."""
    running = LibP2PDataPlane.running(*member_of(OWNER), service, bootstrap=doors, **options)  # type: ignore[arg-type]
    async with host.holding(running) as plane:
        await host.do(plane.relays.is_guest.wait())
        yield plane


async def echo(stream: Stream) -> None:
    """Send back the hash of what comes, and then the same bytes."""
    data = await stream.read(SIZE)
    await stream.write(hashlib.sha256(data).digest(), data)
    with contextlib.suppress(StreamClosed):
        await stream.read(1)


async def exchanged(plane: DataPlane, peer: str) -> str:
    """The way of a stream to `peer`, over which a few megabytes go there and back."""
    data = os.urandom(SIZE)
    stream = await plane.open(peer, "echo")
    try:
        sending = asyncio.create_task(stream.write(data))
        assert bytes(await stream.read(32)) == hashlib.sha256(data).digest()
        assert bytes(await stream.read(SIZE)) == data
        await sending
    finally:
        await stream.close()
    return stream.way


async def test_peers_at_home_are_reached_through_the_relay_and_again_after_it_was_away(
    homes: Homes,
) -> None:
    first, second, _ = homes.inside
    member = member_of(OWNER)

    @contextlib.asynccontextmanager
    async def relay() -> AsyncIterator[LibP2PDataPlane]:
        running = LibP2PDataPlane.running(*member, service, port=7701, relay=True)
        async with homes.open.holding(running) as plane:
            yield plane

    async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
        async with relay() as door:
            doors = await homes.open.do(door.addresses())
            a = await stack.enter_async_context(libp2p(first, *doors, relay_retry=1.0))
            b = await stack.enter_async_context(libp2p(second, *doors, relay_retry=1.0))
            await first.do(a.serve("echo", echo))
            await second.do(b.serve("echo", echo))
            addresses = await second.do(b.addresses())
            assert addresses[-1] == f"{doors[0]}/p2p-circuit/p2p/{b.peer_id}"
            await first.do(a.introduce(b.peer_id, addresses))
            assert await first.do(exchanged(a, b.peer_id)) == "relayed"
            assert await second.do(exchanged(b, a.peer_id)) == "relayed"
            assert await first.do(exchanged(a, b.peer_id)) == "relayed"
            held = await first.do(a.open(b.peer_id, "echo"))
        with pytest.raises(StreamClosed):
            await first.do(held.read(1))
        async with relay() as door:
            for host, plane in ((first, a), (second, b)):
                await host.do(plane.relays.is_guest.wait())
            assert await second.do(exchanged(b, a.peer_id)) == "relayed"


@dataclass
class Peer:
    """A member of the swarm on its machine."""

    host: Host
    libp2p: LibP2PDataPlane
    plane: DirectDataPlane

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, host: Host, doors: tuple[str, ...] = (), **options: object) -> AsyncIterator["Peer"]:
        """A peer that offers `echo`."""
        member = member_of(OWNER)
        libp2p = LibP2PDataPlane.running(*member, service, bootstrap=doors, **options)  # type: ignore[arg-type]
        async with (
            host.holding(libp2p) as below,
            host.holding(DirectDataPlane.running(below, *member, mirrors=tuple(by_peer(doors)))) as plane,
        ):
            await host.do(plane.serve("echo", echo))
            if doors:
                await host.do(below.relays.is_guest.wait())
            yield cls(host, below, plane)

    async def addresses(self) -> tuple[str, ...]:
        return await self.host.do(self.plane.addresses())

    async def reach(self, other: "Peer") -> str:
        """Meet `other`, as a node that is to measure a link does; the way of the stream."""
        await self.host.do(self.plane.introduce(other.plane.peer_id, await other.addresses()))
        return await self.host.do(exchanged(self.plane, other.plane.peer_id))


async def test_each_pair_takes_the_best_way_that_its_routers_leave_it(homes: Homes) -> None:
    one, two, odd = homes.inside
    async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
        door = await stack.enter_async_context(Peer.on(homes.open, relay=True))
        doors = await door.addresses()
        a, b, c = [await stack.enter_async_context(Peer.on(host, doors)) for host in (one, two, odd)]
        ways = {}
        for first, second, names in ((a, b, "ab"), (a, c, "ac"), (c, b, "cb"), (c, door, "cd"), (door, a, "da")):
            ways[names] = await first.reach(second)
            ways[names[::-1]] = await second.host.do(exchanged(second.plane, first.plane.peer_id))
        assert {pair for pair, way in ways.items() if way == "punched"} == {"ab", "ba"}
        assert {pair for pair, way in ways.items() if way == "relayed"} == {"ac", "ca", "bc", "cb"}
        assert {pair for pair, way in ways.items() if way == "direct"} == {"cd", "dc", "da", "ad"}


async def test_a_forwarded_port_that_is_announced_makes_a_home_reachable(homes: Homes) -> None:
    one, two, odd = homes.inside
    homes.forward(one, outside=4001, inside=4002)
    announce = f"{homes.router_address(one)}:4001"
    async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
        door = await stack.enter_async_context(Peer.on(homes.open, relay=True))
        doors = await door.addresses()
        a = await stack.enter_async_context(Peer.on(one, doors, port=4002, announce=announce))
        assert (await a.addresses())[0] == f"/ip4/{homes.router_address(one)}/tcp/4001/p2p/{a.plane.peer_id}"
        for host in (two, odd):
            other = await stack.enter_async_context(Peer.on(host, doors))
            assert await other.reach(a) == "direct"
            assert await one.do(exchanged(a.plane, other.plane.peer_id)) == "direct"
