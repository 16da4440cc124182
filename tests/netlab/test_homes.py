"""Peers in homes behind NAT reach each other, and say how; on real routers and real libp2p daemons."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from dtfm_protocol.identity import Identity
from dtfm_protocol.planes import libp2p as planes_libp2p
from dtfm_protocol.planes.data import DataPlane, Stream, StreamClosed
from dtfm_protocol.planes.libp2p import LibP2PDataPlane
from tests.netlab.homes import Homes, Host, why_not

PATIENCE = 60.0
SIZE = 3 << 20

reason = why_not()
pytestmark = [
    pytest.mark.skipif(reason is not None, reason=f"no homes on this machine: {reason}"),
    # hivemind leaves the connection of a failed call to the garbage collector, which warns of it
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def homes() -> Iterator[Homes]:
    """An open host, two homes whose routers hole punching can pass, and one whose router it cannot."""
    with Homes("cone", "cone", "symmetric") as built:
        yield built


def service(name: str) -> str:
    return f"/dtfm/1/one/{name}"


@contextlib.asynccontextmanager
async def libp2p(host: Host, *doors: str, **options: object) -> AsyncIterator[LibP2PDataPlane]:
    """A peer on `host` that enters the network by `doors`."""
    running = LibP2PDataPlane.running(Identity.generate(), service, bootstrap=doors, **options)  # type: ignore[arg-type]
    async with host.holding(running) as plane:
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
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planes_libp2p, "RELAY_SECONDS", 1.0)
    first, second, _ = homes.inside
    identity = Identity.generate()

    @contextlib.asynccontextmanager
    async def relay() -> AsyncIterator[LibP2PDataPlane]:
        running = LibP2PDataPlane.running(identity, service, port=7701, relay=True)
        async with homes.open.holding(running) as plane:
            yield plane

    async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
        async with relay() as door:
            doors = await homes.open.do(door.addresses())
            a = await stack.enter_async_context(libp2p(first, *doors))
            b = await stack.enter_async_context(libp2p(second, *doors))
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
                await host.do(plane.guest.wait())
            assert await second.do(exchanged(b, a.peer_id)) == "relayed"
