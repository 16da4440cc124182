"""Strangers at a member's libp2p daemon: whatever they show, they get no stream, no relay, no look-up and no store.

On real daemons on 127.0.0.1; for direct streams see `test_direct_admission`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import psutil
import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto import dht_pb2

from dtfm_protocol.discovery.dht import HivemindDiscovery
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import PROTOCOL_VERSION
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.circuit_relay import GUEST
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.libp2p_limits import StreamLimits
from dtfm_protocol.transport.multiaddress import tcp_address
from dtfm_protocol.transport.whereabouts import WHERE
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable
from tests.harness.libp2p_stranger import Libp2pStranger
from tests.harness.membership import OWNER, STRANGERS, SWARM, Stranger, coordinator_of, member_of, stranger

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

PATIENCE = 60.0
FIND, STORE, PING = "DHTProtocol.rpc_find", "DHTProtocol.rpc_store", "DHTProtocol.rpc_ping"
KAD = "/ipfs/kad/1.0.0"
"""The protocol of libp2p's own DHT."""


def service(name: str) -> str:
    return f"/dtfm/{PROTOCOL_VERSION}/{SWARM}/{name}"


def plane(
    identity: Identity, admission: Admission, **options: object
) -> contextlib.AbstractAsyncContextManager[LibP2PDataPlane]:
    values = {"listen": "127.0.0.1"} | options
    return LibP2PDataPlane.running(identity, admission, service, **values)  # type: ignore[arg-type]


@dataclass
class Host:
    """The coordinator's planes, and who has got streams from it."""

    plane: LibP2PDataPlane
    discovery: HivemindDiscovery
    admission: Admission
    served: list[str]

    async def echo(self, stream: Stream) -> None:
        self.served.append(stream.peer)
        while True:
            await stream.write(await stream.read(1))


@contextlib.asynccontextmanager
async def host(limits: StreamLimits = StreamLimits()) -> AsyncIterator[Host]:  # noqa: B008
    admission = coordinator_of(OWNER)
    registry = Registry(SWARM, Post(SWARM, OWNER))
    async with (
        asyncio.timeout(PATIENCE),
        plane(OWNER, admission, relay=True, limits=limits) as libp2p,
        HivemindDiscovery.running(libp2p, OWNER, admission, registry) as discovery,
    ):
        found = Host(libp2p, discovery, admission, [])
        await libp2p.serve("echo", found.echo)
        yield found


@contextlib.asynccontextmanager
async def at_the_door(here: Host, who: Stranger | tuple[Identity, Admission]) -> AsyncIterator[LibP2PDataPlane]:
    """Somebody's daemon that is connected to the host."""
    identity, admission = (who.identity, who.admission) if isinstance(who, Stranger) else who
    addresses = await here.plane.addresses()
    async with plane(identity, admission, bootstrap=addresses) as there:
        await there.introduce(OWNER.peer_id, addresses)
        yield there


async def gets_through(there: LibP2PDataPlane, name: str = "echo", peer: str = OWNER.peer_id) -> bool:
    try:
        stream = await there.open(peer, name)
    except Unreachable:
        return False
    try:
        await stream.write(b"x")
        return bytes(await stream.read(1)) in (b"x", b"\x01")
    except StreamClosed:
        return False
    finally:
        await stream.close()


async def test_a_stranger_of_any_kind_gets_nothing() -> None:
    async with host() as here:
        for kind in STRANGERS:
            print(kind)  # shown where it fails
            who = stranger(kind)
            here.admission.ban(who.bans)
            await gets_nothing(here, who)


async def gets_nothing(here: Host, who: Stranger) -> None:
    async with at_the_door(here, who) as there:
        there.streams._admission.check = lambda *_: None  # type: ignore[method-assign] # it believes anybody
        assert not await gets_through(there)
        assert not await gets_through(there, GUEST)
        for name, request in (
            (PING, dht_pb2.PingRequest()),
            (FIND, dht_pb2.FindRequest(keys=[bytes(20)])),
            (STORE, dht_pb2.StoreRequest(keys=[bytes(20)], values=[b""], expiration_time=[time.time() + 9])),
        ):
            with pytest.raises(Unreachable, match="Refused"):
                await there.calls.call(OWNER.peer_id, name, request.SerializeToString())
            with pytest.raises(P2PDaemonError, match="protocols not supported"):
                await there.p2p.call_protobuf_handler(
                    PeerID.from_base58(OWNER.peer_id), name, request, dht_pb2.PingResponse
                )
        with pytest.raises(Unreachable, match="Refused"):
            await there.calls.call(OWNER.peer_id, WHERE, PeerID.from_base58(OWNER.peer_id).to_bytes())
        with pytest.raises(Unreachable, match="protocols not supported"):
            await there._call(OWNER.peer_id, KAD)
        assert here.served == []
        assert len(here.discovery._node.protocol.storage) == 0
        assert who.identity.peer_id not in str(here.discovery._node.protocol.routing_table.peer_id_to_uid)

        # nor from those who are led to it
        await there.serve("echo", replace(here, served=[]).echo)
        stream = await here.plane.open(who.identity.peer_id, "echo")
        with pytest.raises(StreamClosed):
            await stream.read(1)
        await stream.close()


async def test_an_expired_member_enters_as_long_as_the_plan_in_force_names_it_and_loses_its_streams_then() -> None:
    who = stranger("expired")
    async with host() as here, at_the_door(here, who) as there:
        here.admission.follow([who.identity.peer_id])
        stream = await there.open(OWNER.peer_id, "echo")
        await stream.write(b"x")
        assert bytes(await stream.read(1)) == b"x"
        await there.calls.call(OWNER.peer_id, PING, dht_pb2.PingRequest().SerializeToString())
        reading = asyncio.create_task(stream.read(1))
        here.admission.follow([])
        with pytest.raises(StreamClosed):
            await reading
        assert not await gets_through(there)


async def test_who_is_banned_loses_its_streams_and_its_place_at_the_relay_and_others_keep_theirs() -> None:
    bad, good = member_of(OWNER), member_of(OWNER)
    async with host(StreamLimits(look=0.1)) as here, at_the_door(here, bad) as there, at_the_door(here, good) as other:
        guest = await there.open(OWNER.peer_id, GUEST)
        assert bytes(await guest.read(1)) == b"\x01"
        stays = await other.open(OWNER.peer_id, "echo")
        await stays.write(b"x")
        assert bytes(await stays.read(1)) == b"x"
        here.admission.ban([Ban.of(OWNER, SWARM, f"peer:{bad[0].peer_id}")])
        with pytest.raises(StreamClosed):
            await guest.read(1)
        await stays.write(b"y")
        assert bytes(await stays.read(1)) == b"y"
        await stays.close()
        while bad[0].peer_id in (peers := await connected(here)):  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.05)
        assert good[0].peer_id in peers


async def test_who_shows_no_credential_is_disconnected_and_members_stay() -> None:
    limits = StreamLimits(look=0.1, patience=0.5)
    who = stranger("nothing")
    async with host(limits) as here, at_the_door(here, member_of(OWNER)) as member, at_the_door(here, who):
        while who.identity.peer_id in (peers := await connected(here)):  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.05)
        assert member.peer_id in peers
        assert here.admission.is_member(member.peer_id)  # it was asked: it has opened no stream
        assert await gets_through(member)


async def test_members_find_each_other_without_libp2ps_dht_also_when_the_coordinator_is_gone() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with host() as here:
            members = [await stack.enter_async_context(at_the_door(here, member_of(OWNER))) for _ in range(3)]
            one, two, three = members
            for member in members:
                await member.serve("echo", here.echo)
                assert await gets_through(member)
            assert await gets_through(one, "echo", two.peer_id)
            assert await gets_through(three, "echo", two.peer_id)
        assert await gets_through(one, "echo", three.peer_id)  # which two knows
        assert not await gets_through(one, "echo", Identity.generate().peer_id)


async def connected(here: Host) -> set[str]:
    return {str(one.peer_id) for one in await here.plane.p2p.list_peers()}


async def test_300_idle_streams_of_a_stranger_and_of_a_member_crowd_nobody_out() -> None:
    limits = StreamLimits(look=0.1, patience=1.0)
    rude, who = member_of(OWNER), stranger("nothing")
    async with (
        host(limits) as here,
        at_the_door(here, member_of(OWNER)) as member,
        at_the_door(here, rude) as there,
        at_the_door(here, who) as outside,
        contextlib.AsyncExitStack() as stack,
    ):
        daemon = psutil.Process(here.plane._daemon.pid)
        before = psutil.Process().memory_info().rss + daemon.memory_info().rss
        for _ in range(300):
            with contextlib.suppress(Unreachable):
                _, _, writer = await outside._call(OWNER.peer_id, service("echo"))  # and says nothing
                stack.callback(writer.close)
        assert len(here.plane.streams._waiting) <= limits.pending_of_one
        for _ in range(300):
            stream = await there.open(OWNER.peer_id, "echo")
            stack.push_async_callback(stream.close)
        await until(lambda: here.plane.streams.turned_away["too many streams of one peer"] == 300 - limits.peer_streams)
        assert here.served == [rude[0].peer_id] * limits.peer_streams
        assert await gets_through(member)
        after = psutil.Process().memory_info().rss + daemon.memory_info().rss
        assert after - before < 128 << 20
        while who.identity.peer_id in await connected(here):  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.05)
        await until(lambda: len(here.plane.streams._waiting) == 0)


async def test_300_strangers_connections_crowd_nobody_out_and_end() -> None:
    limits = StreamLimits(look=0.1, patience=1.0)
    async with (
        host(limits) as here,
        at_the_door(here, member_of(OWNER)) as member,
        contextlib.AsyncExitStack() as stack,
    ):
        daemon = psutil.Process(here.plane._daemon.pid)
        before = daemon.memory_info().rss
        at = tcp_address((await here.plane.addresses())[0])
        assert at is not None
        crowd = []
        for _ in range(300):
            one = await stack.enter_async_context(Libp2pStranger.connected(at.host, at.port))
            await one.say(service("echo"), bytes(1 << 10))
            await one.say(KAD, b"")
            crowd.append(one)
        assert await gets_through(member)
        for one in crowd:
            await one.ended()
        assert await gets_through(member)
        assert daemon.memory_info().rss - before < 128 << 20
        assert here.served == [member.peer_id] * 2


async def test_strangers_who_take_the_daemons_memory_are_disconnected_at_once() -> None:
    """However short they have been there; the limit is one that the daemon has passed already."""
    async with host(StreamLimits(daemon_memory=1)) as here, at_the_door(here, member_of(OWNER)) as member:
        at = tcp_address((await here.plane.addresses())[0])
        assert at is not None
        while not await gets_through(member):  # noqa: ASYNC110 - a stranger, too, until it has shown its credential
            await asyncio.sleep(0.05)
        begun = time.monotonic()
        async with Libp2pStranger.connected(at.host, at.port) as one:
            await one.ended()
        assert time.monotonic() - begun < StreamLimits().patience / 2
        assert await gets_through(member)


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator] # noqa: ASYNC110 - what is waited for are counters
        await asyncio.sleep(0.01)


async def test_a_member_looks_up_so_many_keys_at_once_and_has_one_place_in_the_dht() -> None:
    async with host() as here, at_the_door(here, member_of(OWNER)) as member:

        async def ask(name: str, request: object) -> bytes:
            return await member.calls.call(OWNER.peer_id, name, request.SerializeToString())  # type: ignore[attr-defined]

        await ask(FIND, dht_pb2.FindRequest(keys=[bytes(20)] * 64))
        elsewhere = dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes())
        for name, request in (
            (FIND, dht_pb2.FindRequest(keys=[bytes(20)] * 65)),
            (FIND, dht_pb2.FindRequest(keys=[bytes(4 << 10)])),
            (STORE, dht_pb2.StoreRequest(keys=[bytes(20)] * 2049)),
            (PING, dht_pb2.PingRequest(peer=elsewhere)),
            (FIND, dht_pb2.FindRequest(keys=[bytes(20)], peer=elsewhere)),
        ):
            with pytest.raises(Unreachable, match="Refused"):
                await ask(name, request)
        with pytest.raises(Unreachable, match="Refused"):
            await member.calls.call(OWNER.peer_id, PING, b"\xff" * 9)
