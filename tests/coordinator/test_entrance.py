"""A coordinator's entrance on real sockets: who gets in, who does not, and who is put out."""

import asyncio
import contextlib
import socket
import ssl
import time
from dataclasses import replace

import pytest

from dtfm_coordinator.serve.entrance import ENTRANCE_LIMITS, entrance
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.control.coordinator_lookup import look_for_new_keys
from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.enrolment import GREETING
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import Identity
from tests.coordinator.entrance_guests import (
    CONNACK,
    OWNER,
    PUBACK,
    REFUSED,
    STANDBY,
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
from tests.harness.entrances import HOST, enrol_nobody, open_entrance
from tests.harness.event_loops import event_loop_policy
from tests.harness.membership import SWARM, coordinator_of, invite_of

__all__ = ["event_loop_policy"]  # a fixture


async def test_a_stranger_may_enrol_and_nothing_else() -> None:
    met: list[str] = []

    async def enrol(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        met.append(host)
        writer.write(b"challenge " + await reader.readexactly(5))

    async with open_entrance(OWNER, enrol=enrol) as (door, broker):
        async with Raw.to(door) as raw:
            raw.say(GREETING, b"hello")
            assert await raw.ended() == b"challenge hello"
        for wrong in (introduction("alice"), b"GET / HTTP/1.1\r\n\r\n", bytes(100)):
            async with Raw.to(door) as raw:
                raw.say(wrong)
                assert await raw.ended() == b""
        assert met == [HOST]
        assert broker.sessions == []
        assert door.turned_away == {"no certificate, and no wish to enrol": 3}


async def test_where_the_broker_is_elsewhere_newcomers_enrol_all_the_same() -> None:
    async with entrance(HOST, 0, OWNER, coordinator_of(OWNER), enrol_nobody) as door:
        async with Raw.to(door) as raw:
            raw.say(GREETING)
            assert await raw.ended() == b"no"
        alice = Party()
        async with Raw.to(door, alice.context) as raw:
            raw.say(introduction(alice.peer))
            assert await raw.ended() == b""
        assert door.turned_away == {"a member, where there is no broker": 1}


async def test_a_certificate_of_another_authority_does_not_even_enrol() -> None:
    async with open_entrance(OWNER) as (door, broker):
        for stranger in (Party(Identity.generate()), Party(STANDBY)):
            async with Raw.to(door, stranger.context) as raw:
                raw.say(GREETING, introduction(stranger.peer))
                assert await raw.ended() == b""
        assert door.turned_away == {"no TLS, or no certificate of this swarm": 2}
        assert broker.sessions == []


async def test_plain_text_and_rubbish_are_no_tls() -> None:
    async with open_entrance(OWNER) as (door, _):
        for wrong in (introduction("alice"), b"\x16\x03\x01\xff\xff" + bytes(70_000)):
            reader, writer = await asyncio.open_connection(HOST, door.port)
            raw = Raw((reader, writer))
            raw.say(wrong)
            await raw.ended()
            writer.transport.abort()
        await until(lambda: door.turned_away.total() == 2)
        assert all(why.startswith("no TLS") for why in door.turned_away)


async def test_an_expired_member_is_let_in_as_long_as_the_plan_in_force_names_it() -> None:
    own, alice = coordinator_of(OWNER), Party(expires=1e9)
    async with open_entrance(OWNER, admission=own) as (door, broker):
        async with Raw.to(door, alice.context) as raw:
            raw.say(introduction(alice.peer))
            assert await raw.ended() == REFUSED
        own.follow([alice.peer])
        async with alice.session(door) as raw:
            own.follow([])
            await raw.ended()
        await until(lambda: broker.sessions == [])


async def test_a_coordinator_comes_in_with_its_own_certificate() -> None:
    async with open_entrance(OWNER) as (door, _), coordinator().session(door) as raw:
        raw.say(publish(topic("plan"), b"plan", retain=True))
        assert await raw.hear(4) == PUBACK


async def test_a_standbys_members_come_in_once_its_authority_is_known() -> None:
    own = coordinator_of(OWNER, coordinators=[OWNER.peer_id, STANDBY.peer_id])
    bob = Party(STANDBY)
    async with open_entrance(OWNER, admission=own) as (door, _):
        async with Raw.to(door, bob.context) as raw:
            raw.say(introduction(bob.peer))
            assert await raw.ended() == b""
        own.trust(authority_certificate(STANDBY))
        async with bob.session(door):
            pass


async def test_who_is_banned_loses_its_session_and_its_last_will_is_told() -> None:
    own, alice, owner = coordinator_of(OWNER), Party(), coordinator()
    async with open_entrance(OWNER, admission=own) as (door, broker), owner.session(door) as hears:
        hears.say(subscribe(topic("presence", "+")))
        assert await hears.hear(5) == SUBACK
        async with alice.session(door, will=b"gone") as raw:
            own.ban([Ban.of(OWNER, SWARM, f"peer:{alice.peer}")])
            await raw.ended()
        told = packet(0x30, text(topic("presence", alice.peer)) + b"gone")
        assert await hears.hear(len(told)) == told
        assert broker.sessions == [OWNER.peer_id]
        async with Raw.to(door, alice.context) as raw:
            raw.say(introduction(alice.peer))
            assert await raw.ended() == REFUSED


async def test_who_is_kicked_loses_its_session_and_may_come_back() -> None:
    own, alice, bob = coordinator_of(OWNER), Party(), Party()
    async with open_entrance(OWNER, admission=own) as (door, broker), bob.session(door):
        async with alice.session(door) as raw:
            own.kick(alice.peer, 1.0)
            await raw.ended()
        await until(lambda: broker.sessions == [bob.peer])
        async with alice.session(door):
            own.kick(alice.peer, 1.0)
            assert sorted(broker.sessions) == sorted([alice.peer, bob.peer])


async def test_who_knows_the_old_key_alone_finds_the_new_one_and_its_members_stay() -> None:
    """The certificate that is shown says why; a thief of the old key, who shows another one, is nobody then."""
    new, thief = Identity.generate(), Identity.generate()
    successions = [Succession.made(OWNER, SWARM, other.peer_id, int(time.time()), 1) for other in (new, thief)]
    shown, forged = (authority_certificate(other, (one,)) for other, one in zip((new, thief), successions, strict=True))
    own = Admission(SWARM, [new.peer_id], shown, [shown, authority_certificate(OWNER)])
    alice, seen = Party(), list[bytes]()
    known = alice.admission.coordinators
    context = BrokerAddress.embedded(f"{HOST}:1", OWNER.peer_id).context(
        alice.identity, alice.admission.certificate, known, seen.append
    )
    assert context is not None
    async with open_entrance(new, admission=own, rules=TopicRules(SWARM, own.coordinators)) as (door, _):
        async with Raw.to(door, context) as raw:
            raw.say(introduction(alice.peer))
            assert await raw.hear(4) == CONNACK
        assert seen == [shown]
        invite = invite_of(OWNER).model_copy(update={"entrance": f"{HOST}:{door.port}"})
        found = await look_for_new_keys(invite, Coordinators(SWARM, [OWNER.peer_id]))
        assert found.coordinator == new.peer_id
        assert all(address.endswith(f"/p2p/{new.peer_id}") for address in found.dht)
        alice.admission.trust(shown)
    own = Admission(SWARM, [thief.peer_id], forged, [forged])
    async with open_entrance(thief, admission=own) as (door, _):
        with pytest.raises(ssl.SSLError, match="not the coordinator"):
            async with Raw.to(door, context):
                pass
        invite = invite_of(OWNER).model_copy(update={"entrance": f"{HOST}:{door.port}"})
        assert (await look_for_new_keys(invite, known)).coordinator == new.peer_id


async def test_a_port_that_is_taken_is_a_user_error() -> None:
    with socket.create_server((HOST, 0)) as taken, pytest.raises(UserError, match="choose another --port"):
        async with open_entrance(OWNER, port=taken.getsockname()[1]):
            pass


async def test_after_the_end_nobody_is_connected_and_nothing_runs() -> None:
    alice, before = Party(), asyncio.all_tasks()
    async with contextlib.AsyncExitStack() as stack:
        async with open_entrance(OWNER, limits=replace(ENTRANCE_LIMITS, silence=0)) as (door, broker):
            member = await stack.enter_async_context(alice.session(door, will=b"gone"))
            stranger = await stack.enter_async_context(Raw.to(door))
            silent = Raw(await asyncio.open_connection(HOST, door.port))
            port = door.port
        for raw in (member, stranger, silent):
            assert await raw.ended() == b""
        silent.writer.transport.abort()
        assert broker.sessions == []
        assert asyncio.all_tasks() == before
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)
