"""Connections that both sides open, on 127.0.0.1: who is there is proven as ever. For real routers see `tests/lab`."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.direct_data_plane import DirectDataPlane
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.endpoint_exchange import DIRECT
from dtfm_protocol.transport.hole_punching import PUNCH, SEEN
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.transport.simultaneous_open import OUTSIDE_LIMIT, OutsideAddress, SimultaneousOpen
from dtfm_protocol.transport.tls_connections import NoWay, TlsConnections
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable, read_message, write_message
from tests.harness.membership import OWNER, member_of

PATIENCE = 30.0
ALICE, BOB, MIRROR = (Identity.generate() for _ in range(3))
NOWHERE = "192.0.2.1"  # TEST-NET-1: nobody is there


class Meeting(MemoryDataPlane):
    """libp2p's part: peers meet in memory, where there is a relay between them if `ways` says so."""

    def __init__(self, network: MemoryNetwork, identity: Identity, host: str) -> None:
        super().__init__(network, identity.peer_id)
        self.host = host
        self.opened: list[str] = []

    async def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/{self.host}/tcp/4001/p2p/{self.peer_id}",)

    async def open(self, peer: str, service: str) -> MemoryStream:
        self.opened.append(service)
        return await super().open(peer, service)


@dataclass
class World:
    """Alice and Bob at home, and a peer that both can connect to."""

    a: DirectDataPlane
    b: DirectDataPlane
    mirror: DirectDataPlane
    seen: list[tuple[str, str]]
    """Peer and way of the streams that Bob's `echo` was asked for."""

    @classmethod
    @contextlib.asynccontextmanager
    async def built(
        cls,
        mirrors: tuple[str, ...] = (MIRROR.peer_id,),
        limits: DirectLimits = DirectLimits(),  # noqa: B008
    ) -> AsyncIterator["World"]:
        network, planes = MemoryNetwork(), {}
        async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
            for identity, host in ((ALICE, NOWHERE), (BOB, NOWHERE), (MIRROR, "127.0.0.1")):
                meeting = Meeting(network, identity, host)
                for other in {ALICE, BOB} - {identity} if identity is not MIRROR else ():
                    meeting.ways[other.peer_id] = "relayed"
                running = DirectDataPlane.running(
                    meeting,  # type: ignore[arg-type]
                    identity,
                    member_of(OWNER, identity=identity)[1],
                    listen="127.0.0.1",
                    mirrors=mirrors,
                    limits=limits,
                )
                planes[identity] = await stack.enter_async_context(running)
            world = cls(planes[ALICE], planes[BOB], planes[MIRROR], [])
            await world.b.serve("echo", world.echo)
            yield world

    async def echo(self, stream: Stream) -> None:
        self.seen.append((stream.peer, stream.way))
        while True:
            await stream.write(await stream.read(1))

    async def way(self) -> str:
        """Of a stream from Alice to Bob, after a byte has gone both ways."""
        stream = await self.a.open(BOB.peer_id, "echo")
        await stream.write(b"x")
        assert bytes(await stream.read(1)) == b"x"
        await stream.close()
        return stream.way

    @property
    def opened(self) -> list[str]:
        assert isinstance(self.a.libp2p, Meeting)
        return self.a.libp2p.opened


async def test_two_that_connect_at_the_same_time_meet() -> None:
    with SimultaneousOpen() as one, SimultaneousOpen() as other:
        there, here = (OutsideAddress(host="127.0.0.1", port=hole.port) for hole in (other, one))
        async with asyncio.timeout(PATIENCE), one.meeting(there) as at_one, other.meeting(here) as at_other:
            first, second = await at_one.get(), await at_other.get()
            for end, far in ((first, other), (second, one)):
                assert end.getpeername()[1] == far.port
                end.close()


async def test_peers_that_only_a_relay_connects_punch_a_hole_and_know_each_other() -> None:
    async with World.built() as world:
        assert await world.way() == "punched"
        assert world.seen == [(ALICE.peer_id, "punched")]
        assert world.opened == [DIRECT, PUNCH, DIRECT]  # the second time to the mirror
        assert world.a.way(BOB.peer_id) == "punched"
        before = len(world.opened)
        assert await world.way() == "punched"
        assert PUNCH in world.opened[before:]
        with pytest.raises(Unreachable, match="does not offer"):
            await world.a.open(BOB.peer_id, "nothing")


@pytest.mark.parametrize("mirrors", [(), (ALICE.peer_id, BOB.peer_id)], ids=["none", "themselves"])
async def test_without_a_third_peer_that_tells_where_they_are_seen_the_relay_serves(mirrors: tuple[str, ...]) -> None:
    async with World.built(mirrors) as world:
        assert await world.way() == "relayed"
        assert world.seen == [(ALICE.peer_id, "relayed")]


@pytest.mark.parametrize("limits", [DirectLimits(meetings=0), DirectLimits(peer_meetings=0)], ids=["all", "one"])
async def test_who_is_asked_to_punch_too_much_at_once_does_not(limits: DirectLimits) -> None:
    async with World.built(limits=limits) as world:
        assert await world.way() == "relayed"


async def test_a_hole_that_leads_to_another_peer_is_not_used() -> None:
    async with World.built(limits=DirectLimits(punch=0.5)) as world:

        async def mislead(stream: Stream) -> None:
            await read_message(stream, OutsideAddress, OUTSIDE_LIMIT)
            port = (await world.mirror.endpoint()).port
            await write_message(stream, OutsideAddress(host="127.0.0.1", port=port))
            with contextlib.suppress(StreamClosed):
                await stream.read(1)

        await world.b.libp2p.serve(PUNCH, mislead)
        assert await world.way() == "relayed"


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.1.1", "0x7f000001", ""])
async def test_only_an_address_is_taken_for_a_place(host: str) -> None:
    async with World.built() as world:

        async def mislead(stream: Stream) -> None:
            await write_message(stream, OutsideAddress.model_construct(host=host, port=80))

        await world.b.libp2p.serve(PUNCH, mislead)
        assert await world.way() == "relayed"


async def test_a_peer_is_told_the_address_that_it_has_connected_from() -> None:
    async with World.built() as world:
        with SimultaneousOpen() as hole:
            stream = await world.a._open_directly(MIRROR.peer_id, SEEN, hole, anyway=True)
            assert await read_message(stream, OutsideAddress) == OutsideAddress(host="127.0.0.1", port=hole.port)
            await stream.close()


@pytest.mark.parametrize("works", [True, False])
async def test_what_one_side_finds_out_about_punching_the_other_one_knows(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    proving = TlsConnections._prove

    async def prove(plane: TlsConnections, stream: TlsStream, peer: str) -> None:
        if peer == BOB.peer_id and not works:
            stream.abort()
            raise NoWay("not today")
        await proving(plane, stream, peer)

    monkeypatch.setattr(TlsConnections, "_prove", prove)
    async with World.built(limits=DirectLimits(punch=PATIENCE if works else 0.2, handshake=1)) as world:
        await world.a.serve("echo", world.echo)
        way = await world.way()
        assert way == ("punched" if works else "relayed")
        while world.b._route(ALICE.peer_id).detour is None:  # noqa: ASYNC110 - nothing signals that Bob has heard how it ended
            await asyncio.sleep(0.01)
        stream = await world.b.open(ALICE.peer_id, "echo")
        assert stream.way == way
        await stream.close()
        assert isinstance(world.b.libp2p, Meeting)
        assert world.b.libp2p.opened == [DIRECT, PUNCH if works else "echo"]


async def test_where_a_better_way_appears_it_is_found_while_the_other_one_serves() -> None:
    async with World.built() as world:
        assert await world.way() == "punched"
        for meeting in (world.a.libp2p, world.b.libp2p):
            assert isinstance(meeting, Meeting)
            meeting.host = "127.0.0.1"
        await world.a._look_again(BOB.peer_id)
        assert await world.way() == "direct"


async def test_no_hole_is_left_open() -> None:
    async with World.built() as world:
        await world.way()
        with SimultaneousOpen() as hole:
            port = hole.port
        with socket.socket() as one, pytest.raises(ConnectionRefusedError):
            one.connect(("127.0.0.1", port))
