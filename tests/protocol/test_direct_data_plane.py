"""The direct plane as a whole, on real sockets and both event loops: peers meet, and nothing is left at its end."""

import asyncio
import math
import socket
import time
from pathlib import Path

import psutil
import pytest

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.transport.certificates import Trust
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.endpoint_exchange import DIRECT
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable
from tests.harness.event_loops import event_loop_policy
from tests.harness.membership import OWNER, member_of
from tests.protocol.direct_planes import (
    ALICE,
    BOB,
    World,
    echo,
    echoed,
    logged,
    meeting,
    opened,
    port_of,
    two_peers,
    until,
)

__all__ = ["event_loop_policy", "logged"]  # fixtures


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
