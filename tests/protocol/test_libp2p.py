"""The data plane on real libp2p daemons on 127.0.0.1; nothing of them is left afterwards."""

import asyncio
import contextlib
import gc
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from hivemind.p2p import PeerID

from dtfm_protocol.checkpoint.transfers import TransferReply
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable, read_message, write_message
from tests.harness.membership import OWNER, SWARM, member_of

PATIENCE = 30.0


def service(name: str) -> str:
    return f"/dtfm/1/one/{name}"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for temporary files: a short path, for a Unix socket's has at most 108 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def plane(
    who: tuple[Identity, Admission] | None = None, **options: object
) -> contextlib.AbstractAsyncContextManager[LibP2PDataPlane]:
    values = {"name_service": service, "listen": "127.0.0.1"} | options
    return LibP2PDataPlane.running(*(who or member_of(OWNER)), **values)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def two_planes() -> AsyncIterator[tuple[LibP2PDataPlane, LibP2PDataPlane]]:
    """Two peers that can reach each other."""
    async with asyncio.timeout(PATIENCE), plane() as a, plane(bootstrap=await a.addresses()) as b:
        await b.introduce(a.peer_id, await a.addresses())
        await a.introduce(b.peer_id, await b.addresses())
        yield a, b


@pytest.mark.process
async def test_answers_that_come_just_as_nobody_waits_any_more_do_no_harm() -> None:
    async with two_planes() as (a, b):
        here, there = a.p2p._client.control, b.p2p._client.control

        async def echo(data: bytes, _: PeerID) -> bytes:
            return data

        await there.add_unary_handler("echo", echo)

        async def call() -> None:
            assert await here.call_unary_handler(PeerID.from_base58(b.peer_id), "echo", b"x") == b"x"

        await call()
        begun = time.perf_counter()
        await call()
        usual = time.perf_counter() - begun
        for number in range(500):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(usual * (0.3 + number % 100 / 100)):
                    await call()
        await call()


@contextlib.asynccontextmanager
async def opened(plane: LibP2PDataPlane, peer: str, name: str) -> AsyncIterator[Stream]:
    """A stream that is closed when the block is left."""
    stream = await plane.open(peer, name)
    try:
        yield stream
    finally:
        await stream.close()


async def unreachable(plane: LibP2PDataPlane, peer: str, name: str) -> None:
    with pytest.raises(Unreachable):
        await plane.open(peer, name)
    gc.collect()  # hivemind leaves the connection of a failed call to the garbage collector, which warns of it


@pytest.mark.process
async def test_a_ban_and_a_coordinators_new_key_reach_a_member_by_members_and_a_kick_ends_streams() -> None:
    """No coordinator is there."""
    here, there, new = member_of(OWNER), member_of(OWNER), Identity.generate()
    successor = authority_certificate(new, (Succession.made(OWNER, SWARM, new.peer_id, int(time.time()), 1),))
    heard = asyncio.Event()
    there[1].when_changed(lambda: "peer:bad" in there[1].bans and heard.set())
    async with asyncio.timeout(PATIENCE), plane(here) as a, plane(there, bootstrap=await a.addresses()) as b:
        await b.introduce(a.peer_id, await a.addresses())
        await a.serve("echo", echo)
        async with opened(b, a.peer_id, "echo") as stream:
            here[1].trust(successor)
            here[1].ban([Ban.of(new, SWARM, "peer:bad")])
            await heard.wait()
            assert tuple(there[1].coordinators) == (new.peer_id,)
            here[1].kick(b.peer_id, 1.0)
            with pytest.raises(StreamClosed):
                await stream.read(1)
        async with opened(b, a.peer_id, "echo"):
            pass


HIVEMINDS_FAILED_CALLS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def echo(stream: Stream) -> None:
    """Send each message's size back, and then its bytes."""
    while True:
        size = (await read_message(stream, TransferReply)).size
        assert size is not None
        await stream.write(await stream.read(size))


def sockets() -> int:
    """This process's sockets."""
    links = (os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name))
    return sum(link.startswith("socket:") for link in links)


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def children() -> list[str]:
    return [child.name() for child in psutil.Process().children(recursive=True)]


@pytest.mark.process
async def test_two_peers_talk_both_ways_and_know_each_other_by_identity(temporary: Path) -> None:
    async with two_planes() as (a, b):
        callers: list[str] = []

        async def answer(stream: Stream) -> None:
            callers.append(stream.peer)
            await echo(stream)

        for here, there in ((a, b), (b, a)):
            await there.serve("echo", answer)
            async with opened(here, there.peer_id, "echo") as stream:
                assert stream.peer == there.peer_id
                for message in (b"x", b"hello" * 100):
                    await write_message(stream, TransferReply(size=len(message)))
                    await stream.write(message)
                    assert bytes(await stream.read(len(message))) == message
        assert callers == [a.peer_id, b.peer_id]


@pytest.mark.process
async def test_a_large_payload_arrives_whole_while_small_ones_pass_it(temporary: Path) -> None:
    size = 24 << 20
    async with two_planes() as (a, b):
        await b.serve("echo", echo)
        payload = os.urandom(1 << 20) * (size >> 20)
        async with opened(a, b.peer_id, "echo") as large, opened(a, b.peer_id, "echo") as small:
            received = asyncio.create_task(large.read(size))
            await write_message(large, TransferReply(size=size))
            sending = asyncio.create_task(large.write(memoryview(payload)))
            for _ in range(5):
                await write_message(small, TransferReply(size=3))
                await small.write(b"abc")
                assert bytes(await small.read(3)) == b"abc"
            await sending
            assert hashlib.sha256(await received).digest() == hashlib.sha256(payload).digest()


@pytest.mark.process
@HIVEMINDS_FAILED_CALLS
async def test_a_service_that_is_not_offered_or_of_another_swarm_is_unreachable(temporary: Path) -> None:
    async with two_planes() as (a, b), plane(name_service=lambda name: f"/dtfm/1/two/{name}") as stranger:
        await b.serve("echo", echo)
        await stranger.introduce(b.peer_id, await b.addresses())
        await unreachable(stranger, b.peer_id, "echo")
        await unreachable(a, b.peer_id, "other")
        await (await a.open(b.peer_id, "echo")).close()


@pytest.mark.process
@HIVEMINDS_FAILED_CALLS
async def test_a_peer_that_is_not_there_is_unreachable(temporary: Path) -> None:
    async with asyncio.timeout(PATIENCE), plane() as a:
        nobody = Identity.generate().peer_id
        with pytest.raises(Unreachable):
            await a.introduce(nobody, (f"/ip4/127.0.0.1/tcp/9/p2p/{nobody}",))
        with pytest.raises(Unreachable):
            await a.introduce(nobody, ("no address",))
        await unreachable(a, nobody, "echo")
        await unreachable(a, "no peer id", "echo")


@pytest.mark.process
@HIVEMINDS_FAILED_CALLS
async def test_the_others_shutdown_closes_every_stream(temporary: Path) -> None:
    async with asyncio.timeout(PATIENCE), plane() as a, contextlib.AsyncExitStack() as streams:
        watching, ended = asyncio.Event(), asyncio.Event()

        async def watch(stream: Stream) -> None:
            watching.set()
            try:
                await stream.read(1)
            except StreamClosed:
                ended.set()

        await a.serve("watch", watch)
        async with plane() as b:
            await b.serve("echo", echo)
            await b.introduce(a.peer_id, await a.addresses())
            await a.introduce(b.peer_id, await b.addresses())
            await streams.enter_async_context(opened(b, a.peer_id, "watch"))
            stream = await streams.enter_async_context(opened(a, b.peer_id, "echo"))
            reading = asyncio.create_task(stream.read(1))
            await watching.wait()
        with pytest.raises(StreamClosed):
            await reading
        await ended.wait()

        async def write_on() -> None:
            while True:
                await stream.write(bytes(1 << 20))

        with pytest.raises(StreamClosed):
            await write_on()
        await unreachable(a, b.peer_id, "echo")
        await stream.close()


@pytest.mark.process
@pytest.mark.parametrize("fault", [Refused("no"), ZeroDivisionError("a bug")])
async def test_a_handler_that_fails_costs_its_stream_and_nothing_else(temporary: Path, fault: Exception) -> None:
    async with two_planes() as (a, b):

        async def fail(stream: Stream) -> None:
            raise fault

        await b.serve("fail", fail)
        await b.serve("echo", echo)
        async with opened(a, b.peer_id, "fail") as broken:
            with pytest.raises(StreamClosed):
                await broken.read(1)
        async with opened(a, b.peer_id, "echo") as stream:
            await write_message(stream, TransferReply(size=1))
            await stream.write(b"x")
            assert bytes(await stream.read(1)) == b"x"


@pytest.mark.process
@pytest.mark.parametrize("fault", [None, RuntimeError("a bug"), asyncio.CancelledError()])
async def test_no_process_socket_or_folder_is_left(temporary: Path, fault: BaseException | None) -> None:
    """Also where the block fails, and while a handler and a reader still wait."""
    before, handled = (children(), sockets()), asyncio.Event()

    async def wait(stream: Stream) -> None:
        handled.set()
        await stream.read(1)

    async def run() -> None:
        async with two_planes() as (a, b):
            await b.serve("wait", wait)
            async with opened(a, b.peer_id, "wait"):
                await handled.wait()
                assert len(list(temporary.glob("dtfm-*"))) == 2
                assert sorted(children()) == sorted([*before[0], "p2pd", "p2pd"])
                if fault is not None:
                    raise fault

    if fault is None:
        await run()
    else:
        with pytest.raises(type(fault)):
            await run()
    assert list(temporary.iterdir()) == []
    assert (children(), sockets()) == before


@pytest.mark.process
async def test_a_key_in_the_daemons_folder_is_for_its_owner_only(temporary: Path) -> None:
    async with asyncio.timeout(PATIENCE), plane():
        (folder,) = temporary.glob("dtfm-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.process
async def test_what_a_killed_process_left_is_swept_by_the_next_one(temporary: Path) -> None:
    (temporary / "dtfm-killed").mkdir()
    (temporary / "dtfm-killed" / "lock").touch()
    async with asyncio.timeout(PATIENCE), plane(), plane():
        assert not (temporary / "dtfm-killed").exists()
        assert len(list(temporary.glob("dtfm-*"))) == 2


@pytest.mark.process
async def test_addresses_end_in_the_peers_identity_and_announced_ones_replace_its_own(temporary: Path) -> None:
    async with asyncio.timeout(PATIENCE), plane() as a, plane(announce="swarm.example.org:7001") as b:
        own = await a.addresses()
        assert own
        assert all(address.startswith("/ip4/127.0.0.1/tcp/") for address in own)
        assert all(address.endswith(f"/p2p/{a.peer_id}") for address in own)
        assert await b.addresses() == (f"/dns4/swarm.example.org/tcp/7001/p2p/{b.peer_id}",)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"listen": "192.0.2.77"}, "the libp2p daemon did not start"),
        ({"announce": "swarm.example.org"}, "say the port too"),
        ({"announce": "swarm.example.org:http"}, "say the port too"),
    ],
)
async def test_a_plane_that_cannot_start_says_why_and_leaves_nothing(
    temporary: Path, options: dict[str, object], said: str
) -> None:
    before = children()
    with pytest.raises(UserError, match=said) as caught:
        async with asyncio.timeout(PATIENCE), plane(**options):
            pass
    assert "\n" not in str(caught.value)
    assert list(temporary.iterdir()) == []
    assert children() == before
