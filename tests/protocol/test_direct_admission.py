"""Who gets a direct stream, on real sockets and both event loops: members, no stranger, nobody who is banned."""

import asyncio
import contextlib
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.certificates import Trust
from dtfm_protocol.transport.route import Route
from dtfm_protocol.transport.tls_connections import NoWay
from dtfm_protocol.wire.stream import Stream, StreamClosed
from tests.harness.event_loops import event_loop_policy
from tests.harness.membership import OTHER_SWARM, OWNER, SWARM, WITH_THEIR_OWN_KEY, coordinator_of, member_of, stranger
from tests.protocol.direct_planes import (
    ALICE,
    BOB,
    CAROL,
    PATIENCE,
    World,
    believed,
    echo,
    echoed,
    logged,
    opened,
    port_of,
    two_peers,
    until,
)

__all__ = ["event_loop_policy", "logged"]  # fixtures


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
