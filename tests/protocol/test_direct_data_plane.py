"""The direct plane on real sockets on 127.0.0.1, on both event loops; libp2p's part is mostly played in memory."""

import asyncio
import contextlib
import hashlib
import logging
import math
import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from dtfm_protocol.checkpoint.transfers import TransferReply
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.succession import Succession
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.certificates import Trust
from dtfm_protocol.transport.direct_data_plane import DirectDataPlane
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.endpoint_exchange import DIRECT
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import hosts_of
from dtfm_protocol.transport.route import Route
from dtfm_protocol.transport.tls_connections import Endpoint, NoWay
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable, read_message, write_message
from tests.harness.membership import OTHER_SWARM, OWNER, SWARM, WITH_THEIR_OWN_KEY, coordinator_of, member_of, stranger

PATIENCE = 60.0
ALICE, BOB, CAROL = (Identity.generate() for _ in range(3))


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged; a test that expects no warning finds none."""
    propagates, log.propagate = log.propagate, True
    caplog.set_level(logging.DEBUG)
    yield caplog
    log.propagate = propagates


class Meeting(MemoryDataPlane):
    """libp2p's part: peers meet in memory, and say that they listen on 127.0.0.1."""

    def __init__(self, network: MemoryNetwork, identity: Identity) -> None:
        super().__init__(network, identity.peer_id)
        self.hosts = ["127.0.0.1"]
        self.opened: list[str] = []

    async def addresses(self) -> tuple[str, ...]:
        kinds = [("ip6" if ":" in host else "dns4" if host[-1].isalpha() else "ip4") for host in self.hosts]
        return tuple(
            f"/{kind}/{host}/tcp/4001/p2p/{self.peer_id}" for kind, host in zip(kinds, self.hosts, strict=True)
        )

    async def open(self, peer: str, service: str) -> MemoryStream:
        self.opened.append(service)
        return await super().open(peer, service)


@dataclass
class World:
    """One test's network in memory and the peers on it."""

    network: MemoryNetwork = field(default_factory=MemoryNetwork)

    @contextlib.asynccontextmanager
    async def peer(
        self, identity: Identity, admission: Admission | None = None, **options: Any
    ) -> AsyncIterator[DirectDataPlane]:
        meeting: Any = Meeting(self.network, identity)
        admission = admission or member_of(OWNER, identity=identity)[1]
        try:
            running = DirectDataPlane.running(meeting, identity, admission, **{"listen": "127.0.0.1"} | options)
            async with running as plane:
                yield plane
        finally:
            meeting.vanish()


@contextlib.asynccontextmanager
async def two_peers(limits: DirectLimits = DirectLimits()) -> AsyncIterator[tuple[DirectDataPlane, DirectDataPlane]]:  # noqa: B008
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, limits=limits) as a, world.peer(BOB, limits=limits) as b:
        yield a, b


@contextlib.asynccontextmanager
async def opened(plane: DirectDataPlane, peer: str, name: str) -> AsyncIterator[TlsStream]:
    """A direct stream that is closed when the block is left."""
    stream = await plane.open(peer, name)
    try:
        assert isinstance(stream, TlsStream)
        yield stream
    finally:
        await stream.close()


def meeting(plane: DirectDataPlane) -> Meeting:
    assert isinstance(plane.libp2p, Meeting)
    return plane.libp2p


def believed(plane: DirectDataPlane, peer: str) -> Endpoint:
    """Where `plane` takes `peer` to be."""
    found = plane._route(peer).endpoint
    assert found is not None
    return found


async def port_of(plane: DirectDataPlane) -> int:
    return (await plane.endpoint()).port


async def echo(stream: Stream) -> None:
    """Send each message's bytes back."""
    while True:
        size = (await read_message(stream, TransferReply)).size
        assert size is not None
        await stream.write(await stream.read(size))


async def echoed(stream: Stream, data: bytes) -> None:
    receiving = asyncio.create_task(stream.read(len(data)))
    await write_message(stream, TransferReply(size=len(data)))
    await stream.write(data)
    received = await receiving
    assert len(received) == len(data)
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for are the plane's own counters, which signal nothing
        await asyncio.sleep(0.01)


def sockets() -> int:
    """This process's sockets."""
    return len(psutil.Process().net_connections("tcp"))


async def test_two_peers_talk_directly_and_know_each_other_by_identity() -> None:
    async with two_peers() as (a, b):
        callers: list[str] = []

        async def answer(stream: Stream) -> None:
            callers.append(stream.peer)
            await echo(stream)

        for here, there in ((a, b), (b, a)):
            await there.serve("echo", answer)
            begun = time.monotonic()
            async with opened(here, there.peer_id, "echo") as stream:
                assert stream.peer == there.peer_id
                await echoed(stream, b"x")
                await echoed(stream, b"hello" * 100)
                assert begun < here.heard(there.peer_id) <= time.monotonic()
                assert here.heard("a stranger") == -math.inf
        assert callers == [a.peer_id, b.peer_id]
        assert meeting(a).opened == [DIRECT]  # one introduction, which serves both ways
        assert meeting(b).opened == []


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


async def test_a_service_that_is_not_offered_is_unreachable() -> None:
    async with two_peers() as (a, b):
        with pytest.raises(Unreachable, match="does not offer other"):
            await a.open(b.peer_id, "other")
        await until(lambda: b.turned_away.total() == 1)
        assert b.turned_away == {"a service that is not offered": 1}


@pytest.mark.parametrize("fault", [Refused("no"), ZeroDivisionError("a bug")])
async def test_a_handler_that_fails_costs_its_stream_and_nothing_else(fault: Exception) -> None:
    async with two_peers() as (a, b):

        async def fail(stream: Stream) -> None:
            raise fault

        await b.serve("fail", fail)
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "fail") as stream:
            with pytest.raises(StreamClosed):
                await stream.read(1)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")


async def test_a_peer_at_the_address_of_another_is_refused_though_it_is_trusted() -> None:
    world = World()
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a, world.peer(BOB) as b, world.peer(CAROL) as c:
        for plane in (b, c):
            await plane.serve("echo", echo)
            async with opened(a, plane.peer_id, "echo"):
                pass
        port = await port_of(c)
        elsewhere = believed(a, b.peer_id).model_copy(update={"port": port})
        a._routes[b.peer_id] = Route(endpoint=elsewhere)
        with pytest.raises(NoWay, match=r"is .*'s"):
            await a._connections.dial(b.peer_id, elsewhere, "echo")
        async with opened(a, b.peer_id, "echo") as stream:  # asks Bob again where he is
            assert stream.peer == b.peer_id
            await echoed(stream, b"x")


def client(kind: str | None) -> ssl.SSLContext:
    """A stranger's: believes anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if kind is not None:
        who = stranger(kind)
        context = Trust(who.identity, who.admission).client
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def old() -> ssl.SSLContext:
    context = client(None)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (None, "no TLS"),
        (lambda: client(None), "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (lambda: client("its own authority"), "CERTIFICATE_VERIFY_FAILED"),
        (lambda: client("another coordinator's"), "CERTIFICATE_VERIFY_FAILED"),
        (lambda: client("another swarm's"), "of another swarm"),
        (lambda: client("expired"), "has expired"),
        (old, "UNSUPPORTED_PROTOCOL"),
    ],
    ids=["rubbish", "no certificate", "its own", "another coordinator's", "another swarm's", "expired", "TLS 1.2"],
)
async def test_a_stranger_is_turned_away_quietly(context: Any, why: str, logged: pytest.LogCaptureFixture) -> None:
    async with two_peers() as (a, b):
        await b.serve("echo", echo)
        for _ in range(3):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", await port_of(b), ssl=context and context())
                try:
                    writer.write(b"\x04echo" if context else b"GET / HTTP/1.1\r\n\r\n" * 1000)
                    await writer.drain()
                    with contextlib.suppress(OSError):
                        assert b"\x01" not in await reader.read() or not context
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        await until(lambda: b.turned_away.total() == 3)
        assert all(why in reason for reason in b.turned_away)
        ours = [record for record in logged.records if record.name == "dtfm"]
        assert [record.levelname for record in ours] == ["DEBUG"] * len(b.turned_away)
        assert all(record.exc_info is None for record in logged.records)
        async with opened(a, b.peer_id, "echo") as stream:
            await echoed(stream, b"x")


@pytest.mark.parametrize("kind", WITH_THEIR_OWN_KEY)
@pytest.mark.parametrize("side", ["opens", "takes"])
async def test_a_stranger_gets_no_direct_stream_whichever_side_opens_it(kind: str, side: str) -> None:
    world, who = World(), stranger(kind)
    member = member_of(OWNER, identity=ALICE)[1]
    member.ban(who.bans)
    asked: list[str] = []

    async def answer(stream: Stream) -> None:
        asked.append(stream.peer)
        await echo(stream)

    async with (
        asyncio.timeout(PATIENCE),
        world.peer(ALICE, member) as a,
        world.peer(who.identity, who.admission) as b,
    ):
        here, there = (b, a) if side == "opens" else (a, b)
        await there.serve("echo", answer)
        with pytest.raises((NoWay, StreamClosed)):
            await here._connections.dial(there.peer_id, await there.endpoint(), "echo")
        assert asked == []


async def test_an_expired_credential_counts_as_long_as_the_plan_in_force_names_its_peer() -> None:
    world = World()
    admission = member_of(OWNER, identity=ALICE)[1]
    bob = member_of(OWNER, identity=BOB, expires=time.time() - 3600)[1]
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, admission) as a, world.peer(BOB, bob) as b:
        await a.serve("echo", echo)
        with pytest.raises((NoWay, StreamClosed)):
            await b._connections.dial(a.peer_id, await a.endpoint(), "echo")
        admission.follow([BOB.peer_id])
        async with opened(b, a.peer_id, "echo") as stream:
            await echoed(stream, b"x")
            reading = asyncio.create_task(stream.read(1))
            admission.follow([])
            with pytest.raises(StreamClosed):
                await reading


@pytest.mark.parametrize("ahead", [-1e6, 0.0, 1e6])
async def test_a_clock_that_is_off_keeps_nobody_out_that_the_others_clocks_let_in(ahead: float) -> None:
    """OpenSSL's own look at the dates takes no part: of what `Admission` is told, the clock is the only one."""
    world = World()
    admission = member_of(OWNER, identity=ALICE, clock=lambda: time.time() + ahead)[1]
    bob = member_of(OWNER, identity=BOB, expires=time.time() + ahead + 3600)[1]
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, admission) as a, world.peer(BOB, bob) as b:
        await a.serve("echo", echo)
        async with opened(b, a.peer_id, "echo") as stream:
            await echoed(stream, b"x")


@pytest.mark.parametrize("subject", ["peer", "token"])
async def test_who_is_banned_loses_its_streams_at_once_and_nobody_else_does(subject: str) -> None:
    world, token = World(), "0123456789abcdef"
    admission = member_of(OWNER, identity=ALICE)[1]
    bob = member_of(OWNER, identity=BOB, token=token)[1]
    async with (
        asyncio.timeout(PATIENCE),
        world.peer(ALICE, admission) as a,
        world.peer(BOB, bob) as b,
        world.peer(CAROL) as c,
    ):
        ended = asyncio.Event()

        async def watch(stream: Stream) -> None:
            try:
                await echo(stream)
            finally:
                if stream.peer == BOB.peer_id:
                    ended.set()

        for plane in (a, b):
            await plane.serve("echo", watch)
        async with (
            opened(b, a.peer_id, "echo"),
            opened(a, b.peer_id, "echo") as out,
            opened(c, a.peer_id, "echo") as on,
        ):
            reading = asyncio.create_task(out.read(1))
            admission.ban([Ban.of(OWNER, SWARM, {"peer": f"peer:{BOB.peer_id}", "token": f"token:{token}"}[subject])])
            with pytest.raises(StreamClosed):
                await reading
            await ended.wait()
            await echoed(on, b"x")
            with pytest.raises((NoWay, StreamClosed)):
                await b._connections.dial(a.peer_id, await a.endpoint(), "echo")


async def test_who_is_kicked_loses_its_streams_at_once_and_may_open_others() -> None:
    world, admission = World(), member_of(OWNER, identity=ALICE)[1]
    async with (
        asyncio.timeout(PATIENCE),
        world.peer(ALICE, admission) as a,
        world.peer(BOB) as b,
        world.peer(CAROL) as c,
    ):
        for plane in (a, b):
            await plane.serve("echo", echo)
        async with (
            opened(b, a.peer_id, "echo") as into,
            opened(a, b.peer_id, "echo") as out,
            opened(c, a.peer_id, "echo") as on,
        ):
            await echoed(into, b"x")
            admission.kick(BOB.peer_id, 1.0)
            for stream in (into, out):
                with pytest.raises(StreamClosed):
                    await stream.read(1)
            await echoed(on, b"x")
        async with opened(b, a.peer_id, "echo") as stream:
            admission.kick(BOB.peer_id, 1.0)  # which is said again and again
            await echoed(stream, b"x")


async def test_without_a_coordinator_for_a_year_a_plans_peers_open_streams_to_each_other_and_others_do_not() -> None:
    world, year = World(), 365 * 86_400.0
    admissions = [member_of(OWNER, identity=one, clock=lambda: time.time() + year)[1] for one in (ALICE, BOB, CAROL)]
    for admission in admissions:
        admission.follow([ALICE.peer_id, BOB.peer_id])
    async with (
        asyncio.timeout(PATIENCE),
        world.peer(ALICE, admissions[0]) as a,
        world.peer(BOB, admissions[1]) as b,
        world.peer(CAROL, admissions[2]) as c,
    ):
        await a.serve("echo", echo)
        async with opened(b, a.peer_id, "echo") as stream:
            await echoed(stream, b"x")
        with pytest.raises((NoWay, StreamClosed)):
            await c._connections.dial(a.peer_id, await a.endpoint(), "echo")


async def test_two_swarms_on_one_machine_have_nothing_to_do_with_each_other() -> None:
    """Not even where one owner has them both, with one key."""
    world = World()
    here = member_of(OWNER, identity=ALICE)[1]
    there = member_of(OWNER, OTHER_SWARM, identity=BOB)[1]
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, here) as a, world.peer(BOB, there) as b:
        for plane in (a, b):
            await plane.serve("echo", echo)
        for one, other in ((a, b), (b, a)):
            with pytest.raises((NoWay, StreamClosed)):
                await one._connections.dial(other.peer_id, await other.endpoint(), "echo")
    ban = Ban.of(OWNER, OTHER_SWARM, f"peer:{BOB.peer_id}")
    with pytest.raises(Refused):
        here.ban([ban])


async def test_a_member_gets_through_with_a_new_credential_and_under_a_key_that_took_the_coordinators_place() -> None:
    """The contexts follow the admission: bob enters under a new key that alice comes to know later."""
    second, world = Identity.generate(), World()
    authority = authority_certificate(second, (Succession.made(OWNER, SWARM, second.peer_id, int(time.time()), 1),))
    admission = member_of(OWNER, identity=ALICE)[1]
    bob = Admission(SWARM, [OWNER.peer_id], b"", [coordinator_of(OWNER).certificate, authority])
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, admission) as a, world.peer(BOB, bob) as b:
        await a.serve("echo", echo)
        bob.certificate = member_of(second, identity=BOB)[1].certificate
        with pytest.raises((NoWay, StreamClosed)):
            await b._connections.dial(a.peer_id, await a.endpoint(), "echo")
        admission.trust(authority)
        async with opened(b, a.peer_id, "echo") as stream:
            await echoed(stream, b"x")


async def test_a_coordinator_shows_its_own_certificate_and_talks_both_ways() -> None:
    world, owner = World(), coordinator_of(OWNER)
    async with asyncio.timeout(PATIENCE), world.peer(OWNER, owner) as a, world.peer(BOB) as b:
        for here, there in ((a, b), (b, a)):
            await there.serve("echo", echo)
            async with opened(here, there.peer_id, "echo") as stream:
                await echoed(stream, b"x")


async def test_a_member_signs_nobody_in(tmp_path: Path) -> None:
    """Bob signs a certificate for a stranger, with his own credential as the authority."""
    world, who = World(), Identity.generate()
    bob = member_of(OWNER, identity=BOB)[1]
    passed_on = member_of(BOB, identity=who)[1].certificate
    chain = tmp_path / "chain.pem"
    pem = b"".join(ssl.DER_cert_to_PEM_cert(one).encode() for one in (passed_on, bob.certificate))
    chain.write_bytes(who.to_pem(b"password") + pem)
    context = client(None)
    context.load_cert_chain(chain, password="password")
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a:
        reader, writer = await asyncio.open_connection("127.0.0.1", await port_of(a), ssl=context)
        writer.write(b"\x04echo")
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await until(lambda: a.turned_away.total() == 1)
        (why,) = a.turned_away
        assert "CERTIFICATE_VERIFY_FAILED" in why


async def test_300_silent_sockets_and_300_idle_streams_of_one_member_crowd_nobody_out() -> None:
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
            for _ in range(300):
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


def tell_port(plane: DirectDataPlane, port: int) -> None:
    """Have a peer say that it listens at another port."""
    plane._endpoints._own = lambda: endpoint(plane, port)


async def endpoint(_: DirectDataPlane, port: int) -> Endpoint:
    return Endpoint(hosts=("127.0.0.1",), port=port)


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


async def test_a_port_that_is_taken_is_named_once_and_another_one_serves(logged: pytest.LogCaptureFixture) -> None:
    world = World()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with world.peer(ALICE, port=port) as a, world.peer(BOB, port=65536) as b:
            assert await port_of(a) not in (0, port)
            assert await port_of(b) != 0
        assert [record.levelname for record in logged.records if str(port) in record.getMessage()] == ["INFO"]


async def test_an_address_that_is_not_this_machines_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.77 for direct streams"):
        async with World().peer(ALICE, listen="192.0.2.77"):
            pass


@pytest.mark.parametrize("fault", [None, RuntimeError("a bug"), asyncio.CancelledError()])
async def test_no_task_or_socket_is_left(fault: BaseException | None, tmp_path: Path) -> None:
    """Also where the block fails, while a handler, a reader, a writer and a stranger still wait."""
    before = (sockets(), asyncio.all_tasks())

    async def run(stranger: socket.socket) -> None:
        async with two_peers(DirectLimits(silence=0)) as (a, b):
            handled = asyncio.Event()

            async def wait(stream: Stream) -> None:
                handled.set()
                await stream.read(1)

            await b.serve("wait", wait)
            stream = await a.open(b.peer_id, "wait")  # nobody closes it
            reading = asyncio.create_task(stream.read(1))
            reading.add_done_callback(lambda task: task.exception())
            await handled.wait()
            stranger.connect(("127.0.0.1", await port_of(b)))
            await until(lambda: b._connections.pending > 0)
            if fault is not None:
                raise fault

    with socket.socket() as stranger:
        if fault is None:
            await run(stranger)
        else:
            with pytest.raises(type(fault)):
                await run(stranger)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (sockets(), asyncio.all_tasks()) == before


def test_a_private_key_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Trust(*member_of(OWNER))
    assert list(tmp_path.iterdir()) == []


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
