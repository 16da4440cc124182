"""Sessions at a coordinator's entrance, on real sockets: what a bad member tries ends its own and nothing else."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from dtfm_coordinator.serve.session_gate import BROKER_LIMITS
from dtfm_protocol.control.messages import PRESENCE, TOPICS
from tests.coordinator.entrance_guests import (
    CONNACK,
    OWNER,
    PUBACK,
    SUBACK,
    Party,
    Raw,
    coordinator,
    introduction,
    publish,
    subscribe,
    topic,
    until,
)
from tests.coordinator.test_mqtt_packets import packet, text
from tests.harness.entrances import open_entrance
from tests.harness.event_loops import event_loop_policy

__all__ = ["event_loop_policy"]  # a fixture


@pytest.mark.parametrize(
    "wrong",
    [
        lambda me, victim: publish(topic("presence", victim), b"gone", retain=True),
        lambda me, victim: publish(topic("presence", victim), b"", retain=True),
        lambda me, victim: publish(topic("plan"), b"mine", retain=True),
        lambda me, victim: publish(topic("plan"), b"", retain=True),
        lambda me, victim: publish(topic("report", victim), b"lies"),
        lambda me, victim: publish(topic("presence", me), b"", retain=True),
        lambda me, victim: publish(topic("presence", me), bytes(PRESENCE.limit + 1), retain=True),
        lambda me, victim: publish(topic("anything", me), b"kept", retain=True),
        lambda me, victim: subscribe("#"),
        lambda me, victim: subscribe(topic("report", "+")),
        lambda me, victim: b"\x30\xff\xff\xff\x7f",
    ],
    ids=[
        "another's presence", "clears another's", "the plan", "clears the plan", "another's report", "clears its own",
        "too large", "an unknown topic", "reads all", "reads reports", "a giant",
    ],
)  # fmt: skip
async def test_a_member_that_oversteps_loses_its_session_and_nothing_else_happens(
    wrong: Callable[[str, str], bytes],
) -> None:
    mallory, alice, owner = Party(), Party(), coordinator()
    async with open_entrance(OWNER) as (door, broker), owner.session(door) as leads, alice.session(door) as victim:
        leads.say(publish(topic("plan"), b"plan", retain=True))
        assert await leads.hear(4) == PUBACK
        victim.say(publish(topic("presence", alice.peer), b"here", retain=True))
        assert await victim.hear(4) == PUBACK
        leads.say(subscribe(topic("presence", "+"), topic("report", "+"), topic("plan")))
        await leads.hear(7)
        async with mallory.session(door) as raw:
            raw.say(wrong(mallory.peer, alice.peer))
            assert await raw.ended() == b""
        assert broker.ended == {mallory.peer: 1}
        async with Party().session(door) as late:
            late.say(subscribe(topic("plan"), topic("presence", "+")))
            kept = [
                packet(0x31, text(topic("plan")) + b"plan"),
                packet(0x31, text(topic("presence", alice.peer)) + b"here"),
            ]
            assert await late.hear(6 + len(b"".join(kept))) == b"\x90\x04\x00\x01\x00\x00" + b"".join(kept)
        victim.say(publish(topic("report", alice.peer), b"well"))
        assert await victim.hear(4) == PUBACK
        heard = await leads.hear(len(b"".join(kept)) + len(packet(0x30, text(topic("report", alice.peer)) + b"well")))
        assert heard.endswith(b"well")
        assert b"lies" not in heard
        assert b"mine" not in heard


async def test_nobody_takes_the_session_of_another() -> None:
    mallory, alice = Party(), Party()
    async with open_entrance(OWNER) as (door, broker), alice.session(door, "secret") as victim:
        async with Raw.to(door, mallory.context) as raw:
            raw.say(introduction(alice.peer, "secret"))
            assert await raw.ended() == b""
        assert broker.sessions == [alice.peer]
        victim.say(b"\xc0\x00")
        assert await victim.hear(2) == b"\xd0\x00"


async def test_a_peers_new_session_takes_the_place_of_its_own_old_one_alone() -> None:
    alice, bob = Party(), Party()
    limits = replace(BROKER_LIMITS, peer_sessions=2)
    async with open_entrance(OWNER, broker_limits=limits) as (door, broker), contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(bob.session(door))
        first, second, again = [
            await stack.enter_async_context(alice.session(door, name)) for name in ("one", "two", "two")
        ]
        await second.ended()
        third = await stack.enter_async_context(alice.session(door, "three"))
        await first.ended()
        for raw in (again, third):
            raw.say(b"\xc0\x00")
            assert await raw.hear(2) == b"\xd0\x00"
        assert sorted(broker.sessions) == sorted([bob.peer, alice.peer, alice.peer])


async def test_144_mib_of_kept_messages_come_to_nothing() -> None:
    """A member may have the broker keep one presence, of bounded size, however often it says so."""
    mallory = Party()
    limits = replace(BROKER_LIMITS, packet_burst=1e6, byte_burst=1e12)
    async with open_entrance(OWNER, broker_limits=limits) as (door, broker):
        async with mallory.session(door) as raw:
            for _ in range(300):
                raw.say(publish(topic("presence", mallory.peer), bytes(4096), retain=True))
            await raw.hear(4 * 300)
        for number in range(20):
            async with mallory.session(door, str(number)) as raw:
                raw.say(publish(topic("presence", f"{mallory.peer}{number}"), bytes(4096), retain=True))
                await raw.ended()
        async with coordinator().session(door) as raw:
            raw.say(subscribe(*(topic(kind.name, "+" if kind.author == "peer" else "") for kind in TOPICS.values())))
            kept = packet(0x31, text(topic("presence", mallory.peer)) + bytes(4096))
            assert (await raw.hear(4 + len(TOPICS) + len(kept)))[4 + len(TOPICS) :] == kept
            raw.say(b"\xc0\x00")
            assert await raw.hear(2) == b"\xd0\x00"  # and nothing else was kept
        assert broker.ended == {mallory.peer: 20}


async def test_a_flood_ends_in_a_closed_session_that_is_named_and_others_go_on() -> None:
    mallory, alice = Party(), Party()
    limits = replace(BROKER_LIMITS, packet_burst=200.0, packets=1.0)
    async with open_entrance(OWNER, broker_limits=limits) as (door, broker), alice.session(door) as honest:
        for turn in range(5):  # it comes back, and has nothing left
            async with Raw.to(door, mallory.context) as raw:
                raw.say(introduction(mallory.peer, str(turn)), 2000 * publish(topic("report", mallory.peer), b"x"))
                acknowledged = (await raw.ended()).count(PUBACK)
                assert acknowledged <= (200 if turn == 0 else 20)
        assert broker.ended == {mallory.peer: 5}
        honest.say(publish(topic("report", alice.peer), b"well"))
        assert await honest.hear(4) == PUBACK


async def test_bytes_are_bounded_too() -> None:
    mallory = Party()
    limits = replace(BROKER_LIMITS, byte_burst=3e6, bytes=1.0)
    async with open_entrance(OWNER, broker_limits=limits) as (door, broker), mallory.session(door) as raw:
        with contextlib.suppress(OSError):
            for _ in range(100):
                raw.say(publish(topic("report", mallory.peer), bytes(1 << 20)))
                await raw.writer.drain()
        await raw.ended()
        assert broker.ended == {mallory.peer: 1}


async def test_who_comes_back_too_often_is_closed() -> None:
    mallory = Party()
    limits = replace(BROKER_LIMITS, connects=0.001, connect_burst=3.0)
    async with open_entrance(OWNER, broker_limits=limits) as (door, broker):
        for _ in range(3):
            async with mallory.session(door):
                pass
        async with Raw.to(door, mallory.context) as raw:
            raw.say(introduction(mallory.peer))
            assert await raw.ended() == b""
        assert broker.ended == {mallory.peer: 1}


async def test_what_waits_for_a_member_that_does_not_read_is_bounded() -> None:
    mallory, owner = Party(), coordinator()
    limits = replace(BROKER_LIMITS, backlog=4 << 20)
    async with (
        open_entrance(OWNER, broker_limits=limits) as (door, broker),
        mallory.session(door) as raw,
        owner.session(door) as leads,
    ):
        raw.say(subscribe(topic("plan")))
        assert await raw.hear(5) == SUBACK
        raw.writer.transport.pause_reading()
        for _ in range(64):
            leads.say(publish(topic("plan"), bytes(1 << 20), retain=True))
            assert await leads.hear(4) == PUBACK
        assert broker.ended == {mallory.peer: 1}
        assert broker.sessions == [OWNER.peer_id]


async def test_a_member_that_falls_silent_is_dead_after_its_own_time() -> None:
    alice, owner = Party(), coordinator()
    async with open_entrance(OWNER) as (door, broker), owner.session(door) as hears:
        hears.say(subscribe(topic("presence", alice.peer)))
        assert await hears.hear(5) == SUBACK
        async with Raw.to(door, alice.context) as raw:
            fields = text(f"{alice.peer}.1") + text(topic("presence", alice.peer)) + text("gone")
            raw.say(packet(0x10, b"\x00\x04MQTT\x04\x26\x00\x01" + fields))  # a second
            assert await raw.hear(4) == CONNACK
            assert await raw.ended() == b""
            assert (await hears.hear(len(packet(0x30, text(topic("presence", alice.peer)) + b"gone")))).endswith(
                b"gone"
            )
        assert broker.ended == {alice.peer: 1}


async def test_who_says_goodbye_leaves_no_last_will() -> None:
    alice, owner = Party(), coordinator()
    async with open_entrance(OWNER) as (door, broker), owner.session(door) as hears:
        hears.say(subscribe(topic("presence", "+")))
        assert await hears.hear(5) == SUBACK
        async with alice.session(door, will=b"gone") as raw:
            raw.say(b"\xe0\x00")
            assert await raw.ended() == b""
        await until(lambda: broker.sessions == [OWNER.peer_id])
        hears.say(b"\xc0\x00")
        assert await hears.hear(2) == b"\xd0\x00"
