"""A coordinator's entrance on real sockets: members come in; what strangers and bad members try comes to nothing."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import uvloop

from dtfm_coordinator.serve.entrance import ENTRANCE_LIMITS, Entrance, entrance
from dtfm_coordinator.serve.session_gate import BROKER_LIMITS
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.control.coordinator_lookup import look_for_new_keys
from dtfm_protocol.control.messages import PRESENCE, TOPICS
from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.enrolment import GREETING
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.succession import Succession
from dtfm_protocol.transport.pinned_tls import PinnedContext
from tests.coordinator.test_mqtt_packets import connect, packet, text
from tests.harness.entrances import HOST, context_of, enrol_nobody, open_entrance
from tests.harness.membership import SWARM, coordinator_of, invite_of, member_of

OWNER, STANDBY = Identity.generate(), Identity.generate()
PATIENCE = 30.0
CONNACK, PUBACK, REFUSED = b"\x20\x02\x00\x00", b"\x40\x02\x00\x01", b"\x20\x02\x00\x05"
SUBACK = b"\x90\x03\x00\x01\x00"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


def topic(name: str, peer: str = "") -> str:
    return f"dtfm/{SWARM}/{name}" + (f"/{peer}" if peer else "")


def publish(name: str, payload: bytes, *, retain: bool = False) -> bytes:
    """A message that is to be acknowledged."""
    return packet(0x32 | retain, text(name) + b"\x00\x01" + payload)


def subscribe(*names: str) -> bytes:
    return packet(0x82, b"\x00\x01" + b"".join(text(name) + b"\x00" for name in names))


def introduction(peer: str, name: str = "raw", *, will: bytes = b"") -> bytes:
    fields = [text(f"{peer}.{name}")]
    if will:
        fields += [text(topic("presence", peer)), text(will)]
    return connect(0x26 if will else 0x02, *fields)


class Raw:
    """A connection to the entrance by someone without scruples."""

    def __init__(self, streams: Streams) -> None:
        self.reader, self.writer = streams

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, door: Entrance, context: ssl.SSLContext | None = None) -> AsyncIterator["Raw"]:
        """Connect; without a context as a stranger."""
        async with asyncio.timeout(PATIENCE):
            found = cls(await asyncio.open_connection(HOST, door.port, ssl=context or PinnedContext(OWNER.peer_id)))
        try:
            yield found
        finally:
            found.writer.transport.abort()
            with contextlib.suppress(OSError):
                await found.writer.wait_closed()

    def say(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def hear(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(size)

    async def ended(self) -> bytes:
        """What came until the other end closed; the connection is over then."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except OSError:
                return b""


class Party:
    """A member: its key, its admission, and its way in."""

    def __init__(self, coordinator: Identity = OWNER, **options: float) -> None:
        self.identity, self.admission = member_of(coordinator, **options)  # type: ignore[arg-type]
        self.peer = self.identity.peer_id
        self.context = context_of(OWNER, self.identity, self.admission)

    @contextlib.asynccontextmanager
    async def session(self, door: Entrance, name: str = "raw", *, will: bytes = b"") -> AsyncIterator[Raw]:
        """A session that has begun."""
        async with Raw.to(door, self.context) as raw:
            raw.say(introduction(self.peer, name, will=will))
            assert await raw.hear(4) == CONNACK
            yield raw


def coordinator() -> Party:
    party = Party()
    party.identity, party.admission, party.peer = OWNER, coordinator_of(OWNER), OWNER.peer_id
    party.context = context_of(OWNER, OWNER, party.admission)
    return party


async def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event of its own."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# who gets in


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


# what members try


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


# before authentication


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


# the end


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
