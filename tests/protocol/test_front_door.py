"""A front door on real sockets, on both event loops: what strangers say comes to nothing, members get in, all ends."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import psutil
import pytest
from benchmarks.flooder import client_hello

from dtfm_protocol.transport.front_door import DoorLimits, FrontDoor, Visitor
from dtfm_protocol.transport.handshake_turns import HandshakeRates
from dtfm_protocol.transport.sockets import listener_at
from tests.harness.event_loops import event_loop_policy

__all__ = ["event_loop_policy"]  # a fixture

HOST, PATIENCE = "127.0.0.1", 30.0
LIMITS = DoorLimits(patience=PATIENCE, pending=64, pending_of_one=32, silence=0)
HELLO = client_hello()


@dataclass
class House:
    """Whom a door has let in, each of whom stays until it is sent away."""

    listener: socket.socket
    welcomed: list[Visitor] = field(default_factory=list)
    door: FrontDoor = field(init=False)

    async def welcome(self, visitor: Visitor) -> None:
        """Take what the visitor has said, answer with a byte, and wait."""
        visitor.connection.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(visitor.connection, 1 << 16) == HELLO
        self.welcomed.append(visitor)
        visitor.connection.send(b"!")
        await asyncio.Event().wait()

    @property
    def hosts(self) -> list[str]:
        return [visitor.host for visitor in self.welcomed]


@contextlib.asynccontextmanager
async def house(limits: DoorLimits = LIMITS) -> AsyncIterator[House]:
    listener = listener_at(HOST, 0)
    with listener:
        opened = House(listener)
        opened.door = FrontDoor(listener, limits, opened.welcome)
        running = asyncio.create_task(opened.door.run())
        try:
            async with asyncio.timeout(PATIENCE):
                yield opened
        finally:
            running.cancel()
            await asyncio.wait([running])
            await opened.door.end()


async def connected(opened: House, stack: contextlib.ExitStack, host: str = HOST) -> socket.socket:
    """A connection from `host`, an address of the loopback device."""
    connection = stack.enter_context(socket.socket())
    connection.setblocking(False)
    connection.bind((host, 0))
    await asyncio.get_running_loop().sock_connect(connection, opened.listener.getsockname())
    return connection


async def heard(connection: socket.socket) -> bytes:
    """What comes next; b"": the other end has closed."""
    try:
        return await asyncio.get_running_loop().sock_recv(connection, 1)
    except ConnectionError:
        return b""


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for are counters
        await asyncio.sleep(0.005)


async def test_who_says_a_first_message_is_let_in_also_in_pieces_and_elsewhere() -> None:
    loop = asyncio.get_running_loop()
    async with house() as opened:
        with contextlib.ExitStack() as stack:
            whole, pieces = [await connected(opened, stack) for _ in range(2)]
            await loop.sock_sendall(whole, HELLO)
            assert await heard(whole) == b"!"
            for place, byte in enumerate(HELLO):
                await loop.sock_sendall(pieces, bytes([byte]))
                await asyncio.sleep(0)
                assert len(opened.welcomed) == 1 or place == len(HELLO) - 1
            assert await heard(pieces) == b"!"
            with socket.create_server((HOST, 0)) as hole:  # a hole, where connections come about as well
                punched = stack.enter_context(socket.create_connection(hole.getsockname()))
                opened.door.admit(hole.accept()[0], "punched")
            punched.setblocking(False)
            await loop.sock_sendall(punched, HELLO)
            assert await heard(punched) == b"!"
            assert [visitor.way for visitor in opened.welcomed] == ["direct", "direct", "punched"]


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(20_000), b"\x13/multistream/1.0.0\n" + HELLO, HELLO + bytes(20_000), HELLO[:5]],
    ids=["http", "zeros", "libp2p", "does not wait", "no more"],
)
async def test_who_says_anything_else_is_closed_and_nothing_is_done_for_it(said: bytes) -> None:
    async with house() as opened:
        with contextlib.ExitStack() as stack:
            for pieces in ([said], [said[:1], said[1:]]):
                connection = await connected(opened, stack)
                for piece in pieces:
                    with contextlib.suppress(ConnectionError):
                        await asyncio.get_running_loop().sock_sendall(connection, piece)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                assert await heard(connection) == b""
            await until(lambda: opened.door.turned_away.total() == 2)
            assert opened.welcomed == []
            assert opened.door.pending == 0


async def test_who_says_half_of_it_and_then_waits_costs_no_processor_and_goes_in_time() -> None:
    """What has come is not read, and yet it does not wake the loop up again and again."""
    async with house(replace(LIMITS, patience=1.0)) as opened:
        with contextlib.ExitStack() as stack:
            for said in (b"", HELLO[:1], HELLO[:8], HELLO[:100]):
                connection = await connected(opened, stack)
                await asyncio.get_running_loop().sock_sendall(connection, said)
            await until(lambda: opened.door.pending == 4)
            begun, used = time.monotonic(), time.process_time()
            await heard(connection)
            assert time.process_time() - used < (time.monotonic() - begun) / 2
            await until(lambda: opened.door.turned_away["too slow"] == 4)
            assert opened.door.pending == 0


async def test_a_flood_from_one_host_crowds_out_itself_alone() -> None:
    async with house(replace(LIMITS, pending=24, pending_of_one=16)) as opened:
        with contextlib.ExitStack() as stack:
            quiet = await connected(opened, stack, "127.0.0.2")
            await until(lambda: opened.door.pending == 1)
            for _ in range(100):
                await connected(opened, stack, "127.0.0.3")
            await until(lambda: opened.door.turned_away["too many at once"] == 100 - 16)
            await asyncio.get_running_loop().sock_sendall(quiet, HELLO)
            assert await heard(quiet) == b"!"
            assert opened.hosts == ["127.0.0.2"]


async def test_of_handshakes_only_so_many_begin_and_other_hosts_and_members_have_their_turn() -> None:
    rates = HandshakeRates(strangers=0.001, strangers_burst=4.0)
    loop = asyncio.get_running_loop()
    async with house(replace(LIMITS, rates=rates)) as opened:
        with contextlib.ExitStack() as stack:
            member = await connected(opened, stack, "127.0.0.2")
            await loop.sock_sendall(member, HELLO)
            assert await heard(member) == b"!"
            opened.door.proven(opened.welcomed[0])
            for _ in range(20):
                rude = await connected(opened, stack, "127.0.0.3")
                await loop.sock_sendall(rude, HELLO)
            await until(lambda: opened.door.pending == 20)
            for _ in range(2):
                again = await connected(opened, stack, "127.0.0.2")
                await loop.sock_sendall(again, HELLO)
                assert await heard(again) == b"!"
            assert opened.hosts == ["127.0.0.2", *["127.0.0.3"] * 3, *["127.0.0.2"] * 2]


async def test_who_waits_for_its_turn_gets_it() -> None:
    rates = HandshakeRates(strangers=20.0, strangers_burst=1.0)
    async with house(replace(LIMITS, rates=rates)) as opened:
        with contextlib.ExitStack() as stack:
            crowd = [await connected(opened, stack) for _ in range(6)]
            for connection in crowd:
                await asyncio.get_running_loop().sock_sendall(connection, HELLO)
            assert [await heard(connection) for connection in crowd] == [b"!"] * 6


async def test_who_is_crowded_out_before_its_turn_is_forgotten_and_the_last_ones_have_it() -> None:
    rates = HandshakeRates(strangers=4.0, strangers_burst=1.0)
    async with house(replace(LIMITS, pending_of_one=2, rates=rates)) as opened:
        with contextlib.ExitStack() as stack:
            crowd = [await connected(opened, stack) for _ in range(8)]
            for connection in crowd:
                with contextlib.suppress(ConnectionError):
                    await asyncio.get_running_loop().sock_sendall(connection, HELLO)
            assert [await heard(connection) for connection in crowd][-2:] == [b"!", b"!"]
            assert opened.door.pending == 2


async def test_strangers_that_come_all_at_once_are_looked_at_without_a_pause() -> None:
    """They are more than are taken before other work has its turn, and the pause is longer than the test may take."""
    async with house(replace(LIMITS, breath=10 * PATIENCE)) as opened:
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                rude = stack.enter_context(socket.create_connection(opened.listener.getsockname()))
                rude.sendall(b"GET / HTTP/1.1")
            await until(lambda: opened.door.turned_away["no TLS"] == 300)


@pytest.mark.skipif(not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="the kernel has to keep them")
async def test_who_says_nothing_does_not_even_reach_the_process() -> None:
    async with house(replace(LIMITS, silence=10)) as opened:
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                await connected(opened, stack)
            last = await connected(opened, stack)
            await asyncio.get_running_loop().sock_sendall(last, HELLO)
            assert await heard(last) == b"!"
            assert opened.door.pending == 1
            assert opened.door.turned_away.total() == 0


async def test_in_the_end_nothing_is_left_and_nobody_is_admitted() -> None:
    before = asyncio.all_tasks(), len(psutil.Process().net_connections("tcp"))
    with contextlib.ExitStack() as stack:
        rates = HandshakeRates(strangers=0.001, strangers_burst=1.0)
        async with house(replace(LIMITS, patience=10 * PATIENCE, rates=rates)) as opened:
            loop = asyncio.get_running_loop()
            silent, half, first, second = [await connected(opened, stack) for _ in range(4)]
            for connection, said in ((half, HELLO[:50]), (first, HELLO), (second, HELLO)):
                await loop.sock_sendall(connection, said)
            assert await heard(first) == b"!"
            await until(lambda: opened.door.pending == 4)
        for connection in (silent, half, first, second):
            assert await heard(connection) == b""
        with socket.create_server((HOST, 0)) as hole:
            punched = stack.enter_context(socket.create_connection(hole.getsockname()))
            opened.door.admit(hole.accept()[0], "punched")
        punched.setblocking(False)
        async with asyncio.timeout(PATIENCE):
            assert await heard(punched) == b""
    assert opened.door.pending == 0
    assert (asyncio.all_tasks(), len(psutil.Process().net_connections("tcp"))) == before
