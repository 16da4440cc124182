"""Newcomers at a coordinator's entrance, on real sockets: who does not say in time who it is keeps nobody out."""

import asyncio
import contextlib
import socket
from dataclasses import replace

from dtfm_coordinator.serve.entrance import ENTRANCE_LIMITS
from dtfm_coordinator.serve.session_gate import BROKER_LIMITS
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.enrolment import GREETING
from tests.coordinator.entrance_guests import OWNER, Party, Raw, until
from tests.harness.entrances import HOST, open_entrance
from tests.harness.event_loops import event_loop_policy

__all__ = ["event_loop_policy"]  # a fixture


async def test_300_silent_sockets_keep_nobody_out_and_are_gone_in_the_end() -> None:
    alice = Party()
    limits = replace(ENTRANCE_LIMITS, pending=64, pending_an_address=32, handshake=0.5, silence=0)
    async with open_entrance(OWNER, limits=limits) as (door, _), contextlib.AsyncExitStack() as stack:
        for _ in range(300):
            silent = stack.enter_context(socket.socket())
            silent.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                silent.connect((HOST, door.port))
        await until(lambda: sum(door.turned_away.values()) >= 300 - 32)
        assert door.turned_away["too many at once"] > 100
        assert door.pending <= 32
        async with alice.session(door) as raw:
            raw.say(b"\xc0\x00")
            assert await raw.hear(2) == b"\xd0\x00"
        await until(lambda: door.pending == 0)


async def test_handshakes_that_nothing_follows_end_too() -> None:
    alice = Party()
    limits = replace(ENTRANCE_LIMITS, pending_an_address=32, first_bytes=0.5)
    async with open_entrance(OWNER, limits=limits) as (door, _), contextlib.AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(Raw.to(door)) for _ in range(60)]
        assert door.pending <= 32
        async with alice.session(door):
            pass
        for raw in raws:
            raw.say(GREETING[:3])
            await raw.ended()
        await until(lambda: door.pending == 0)


async def test_a_newcomer_that_dawdles_is_sent_away() -> None:
    async def enrol(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        await reader.read()

    async with open_entrance(OWNER, enrol=enrol, limits=replace(ENTRANCE_LIMITS, enrolment=0.2)) as (door, _):
        async with Raw.to(door) as raw:
            raw.say(GREETING)
            await raw.ended()
        await until(lambda: door.turned_away["too slow"] == 1)


async def test_why_a_newcomer_is_refused_is_counted() -> None:
    async def enrol(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        writer.write(b"no")
        raise Refused("a token that is used up")

    async with open_entrance(OWNER, enrol=enrol) as (door, _), Raw.to(door) as raw:
        raw.say(GREETING)
        assert await raw.ended() == b"no"
        assert door.turned_away == {"a token that is used up": 1}


async def test_a_giant_first_packet_is_refused_before_it_comes() -> None:
    mallory = Party()
    async with open_entrance(OWNER) as (door, broker), Raw.to(door, mallory.context) as raw:
        raw.say(b"\x10\xff\xff\xff\x7f")
        assert await raw.ended() == b""
        assert broker.ended == {mallory.peer: 1}


async def test_a_member_without_an_introduction_is_closed() -> None:
    mallory = Party()
    limits = replace(BROKER_LIMITS, first_packet=0.1)
    async with open_entrance(OWNER, broker_limits=limits) as (door, broker), Raw.to(door, mallory.context) as raw:
        raw.say(b"\x10")
        await raw.ended()
        assert broker.ended == {mallory.peer: 1}
