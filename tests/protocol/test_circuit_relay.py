"""The relay in memory: members get circuits to members, and nobody else gets any."""

import asyncio
from collections.abc import Callable
from typing import Any

import base58
import pytest

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.circuit_relay import (
    CONNECTION_FAILED,
    LIMIT_EXCEEDED,
    MALFORMED,
    MESSAGE_LIMIT,
    NO_RESERVATION,
    OK,
    REFUSED,
    CircuitRelay,
    _receive,
    _send,
)
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.transport.libp2p_messages import packed, unpacked, varint
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable

ALICE, BOB, CAROL = (Identity.generate().peer_id for _ in range(3))
RESERVE, CONNECT = {1: 0}, {1: 1}
PATIENCE = 30.0


class Joined(MemoryStream):
    """A stream in memory that can be joined to another one."""

    async def forward(self, other: Stream) -> None:
        while piece := await self._incoming.read(4096):
            await other.write(piece)

    @staticmethod
    def pair(a: str, b: str) -> tuple["Joined", "Joined"]:
        at_a, at_b = Joined(b), Joined(a)
        at_a._other, at_b._other = at_b, at_a
        return at_a, at_b


class World:
    """A relay, its guests, and how they answer what it offers them."""

    def __init__(self, **limits: Any) -> None:
        self.relay = CircuitRelay(self._offer, clock=lambda: 1000.0, **limits)
        self.answers: dict[str, Callable[[MemoryStream], object]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def guest(self, peer: str) -> MemoryStream:
        here, there = Joined.pair(peer, "relay")
        self._spawn(self.relay.take_guest, there)
        await here.read(1)
        return here

    async def ask(self, peer: str, request: dict[int, int | bytes]) -> tuple[MemoryStream, object]:
        """The stream on which `peer` has asked, and the status of the answer."""
        here, there = Joined.pair(peer, "relay")
        self._spawn(self.relay.answer, there)
        await _send(here, request)
        answer = await _receive(here)
        return here, answer[5]

    async def _offer(self, peer: str) -> Joined:
        if peer not in self.answers:
            raise Unreachable("away")
        here, there = Joined.pair("relay", peer)
        task = asyncio.ensure_future(self.answers[peer](there))  # type: ignore[arg-type]
        self.tasks.add(task)
        return here

    def _spawn(self, handler: Callable[[Joined], object], stream: Joined) -> None:
        async def run() -> None:
            try:
                await handler(stream)  # type: ignore[misc]
            except StreamClosed:
                pass
            finally:
                await stream.close()

        self.tasks.add(asyncio.ensure_future(run()))


def to(peer: str) -> dict[int, int | bytes]:
    return {**CONNECT, 2: packed({1: base58.b58decode(peer)})}


async def settled() -> None:
    """Let everything in memory happen that is about to."""
    for _ in range(50):
        await asyncio.sleep(0)


async def accept(stream: MemoryStream) -> None:
    """Agree to a circuit, and say who has asked for it; then send back what comes."""
    request = await _receive(stream)
    assert request[1] == 0
    asking = unpacked(request[2])[1]  # type: ignore[arg-type]
    await _send(stream, {1: 1, 4: OK})
    await stream.write(asking)  # type: ignore[arg-type]
    try:
        while True:
            await stream.write(await stream.read(1))
    except StreamClosed:
        pass


async def test_a_circuit_carries_bytes_both_ways_until_one_end_leaves() -> None:
    world = World()
    world.answers[BOB] = accept
    async with asyncio.timeout(PATIENCE):
        await world.guest(ALICE)
        await world.guest(BOB)
        stream, status = await world.ask(ALICE, to(BOB))
        assert status == OK
        asking = base58.b58decode(ALICE)
        assert await stream.read(len(asking)) == asking
        for byte in (b"x", b"y"):
            await stream.write(byte)
            assert await stream.read(1) == byte
        assert world.relay._circuits == {ALICE: 1, BOB: 1}
        await stream.close()
        await settled()
        assert not world.relay._circuits


async def test_only_guests_get_and_are_offered_circuits_and_only_while_they_are_guests() -> None:
    world = World()
    world.answers[BOB] = accept
    async with asyncio.timeout(PATIENCE):
        assert (await world.ask(ALICE, to(BOB)))[1] == REFUSED
        assert (await world.ask(ALICE, RESERVE))[1] == REFUSED
        staying = await world.guest(ALICE)
        assert (await world.ask(ALICE, RESERVE))[1] == OK
        assert (await world.ask(ALICE, to(BOB)))[1] == NO_RESERVATION
        await world.guest(BOB)
        assert (await world.ask(ALICE, to(BOB)))[1] == OK
        assert (await world.ask(CAROL, to(BOB)))[1] == REFUSED
        await staying.close()
        await settled()
        assert (await world.ask(ALICE, to(BOB)))[1] == REFUSED


async def refuse(stream: MemoryStream) -> None:
    await _receive(stream)
    await _send(stream, {1: 1, 4: REFUSED})


async def leave(stream: MemoryStream) -> None:
    await stream.close()


async def babble(stream: MemoryStream) -> None:
    await stream.write(b"\xff" * 8)


@pytest.mark.parametrize("how", [refuse, leave, babble, None])
async def test_a_guest_that_takes_no_circuit_costs_the_one_who_asked_and_nobody_else(
    how: Callable[[MemoryStream], object] | None,
) -> None:
    world = World()
    if how is not None:
        world.answers[BOB] = how
    async with asyncio.timeout(PATIENCE):
        await world.guest(ALICE)
        await world.guest(BOB)
        assert (await world.ask(ALICE, to(BOB)))[1] == CONNECTION_FAILED
        world.answers[BOB] = accept
        assert (await world.ask(ALICE, to(BOB)))[1] == OK


async def test_a_peer_has_so_many_circuits_and_no_more() -> None:
    world = World(circuits=2)
    world.answers |= {BOB: accept, CAROL: accept}
    async with asyncio.timeout(PATIENCE):
        for peer in (ALICE, BOB, CAROL):
            await world.guest(peer)
        streams = [(await world.ask(ALICE, to(BOB)))[0] for _ in range(2)]
        assert (await world.ask(ALICE, to(CAROL)))[1] == LIMIT_EXCEEDED
        assert (await world.ask(CAROL, to(BOB)))[1] == LIMIT_EXCEEDED
        await streams[0].close()
        await settled()
        assert (await world.ask(ALICE, to(CAROL)))[1] == OK


async def test_strangers_who_ask_for_nothing_are_few_and_hold_up_no_guest() -> None:
    world = World(strangers=2, request=0.05)
    async with asyncio.timeout(PATIENCE):
        await world.guest(ALICE)
        silent = [asyncio.create_task(world.relay.answer(Joined.pair(CAROL, "relay")[1])) for _ in range(2)]
        await settled()
        assert (await world.ask(ALICE, RESERVE))[1] == OK
        with pytest.raises(StreamClosed):
            await world.ask(BOB, RESERVE)
        for task in silent:
            with pytest.raises(StreamClosed):  # which nobody takes for a fault of this side
                await task
        assert (await world.ask(BOB, RESERVE))[1] == REFUSED


@pytest.mark.parametrize("request_", [{1: 7}, CONNECT, {**CONNECT, 2: b""}, {**CONNECT, 2: packed({1: b"no id"})}, {}])
async def test_a_request_that_makes_no_sense_is_answered_so(request_: dict[int, int | bytes]) -> None:
    world = World()
    async with asyncio.timeout(PATIENCE):
        await world.guest(ALICE)
        assert (await world.ask(ALICE, request_))[1] == MALFORMED


async def test_what_is_too_long_for_a_message_of_the_protocol_is_refused() -> None:
    here, there = Joined.pair(ALICE, BOB)
    await here.write(varint(MESSAGE_LIMIT + 1))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Refused):
            await _receive(there)
