"""The control plane on the embedded broker: what is kept, what is dropped, and what outlives a broken connection."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.control.messages import (
    PHASE,
    PLAN,
    PRESENCE,
    PROBE,
    REPORT,
    TOPICS,
    Phase,
    Presence,
    ProbeRound,
    Report,
    Topic,
)
from dtfm_protocol.control.mqtt import BrokerAddress, ControlPlane, split_broker_url
from dtfm_protocol.errors import Cause, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.freshness_files import FreshnessFile
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Schema
from dtfm_protocol.transport.pinned_tls import PinnedContext
from dtfm_protocol.transport.shown_credential import show_credential
from tests.harness.entrances import HOST, client, free_port, open_entrance
from tests.harness.membership import SWARM, coordinator_of, member_of

OWNER, ALICE, BOB = Identity.generate(), Identity.generate(), Identity.generate()
BOTH = (OWNER.peer_id, BOB.peer_id)
"""Coordinators, where there are two."""
PATIENCE = 30.0


def plan(version: int) -> Plan:
    return Plan(version=version, stages=((0, 1),), routes=(("a",),))


def here(session: str = "s") -> Presence:
    return Presence(online=True, session=session)


@pytest.fixture
def free() -> Callable[[], int]:
    """Finds free ports."""
    return free_port


@pytest.fixture
def port(free: Callable[[], int]) -> int:
    """A free port."""
    return free()


def admission_of(identity: Identity, coordinators: tuple[str, ...]) -> Admission:
    """A member's, or a coordinator's own."""
    if identity.peer_id in coordinators:
        return coordinator_of(identity, coordinators=coordinators)
    return member_of(OWNER, identity=identity)[1]


class Member:
    """A control plane, and what it was told."""

    def __init__(
        self,
        port: int,
        identity: Identity,
        *topics: Topic,
        session: str = "s",
        coordinators: tuple[str, ...] = (OWNER.peer_id,),
        others: tuple[BrokerAddress, ...] = (),
        answer: float = TIMEOUTS.broker_answer,
        broker: Identity = OWNER,
        admission: Admission | None = None,
        heard: FreshnessFile | None = None,
    ):
        self.address = BrokerAddress(HOST, port, broker.peer_id)
        self.identity = identity
        timeouts = replace(TIMEOUTS, broker_retry_shortest=0.01, broker_retry_longest=0.05, broker_answer=answer)
        self.control = ControlPlane(
            self.address,
            SWARM,
            coordinators,
            Post(SWARM, identity),
            session,
            others,
            heard=heard,
            identity=identity,
            admission=admission or admission_of(identity, coordinators),
            timeouts=timeouts,
        )
        self._inbox: asyncio.Queue[tuple[str, str, Schema]] = asyncio.Queue()
        self._last: dict[tuple[str, str], Schema] = {}
        for topic in topics:
            self.control.on(topic, self._reader(topic))

    def _reader(self, topic: Topic) -> Callable[[str, Any], None]:
        return lambda sender, body: self._inbox.put_nowait((topic.name, sender, body))

    async def next(self) -> tuple[str, str, Schema]:
        """The next message that was let through; MQTT may deliver one more than once."""
        while True:
            name, sender, body = await asyncio.wait_for(self._inbox.get(), PATIENCE)
            if self._last.get((name, sender)) != body:
                self._last[name, sender] = body
                return name, sender, body

    def nothing(self) -> bool:
        """Whether no message waits to be read."""
        return self._inbox.empty()

    @contextlib.asynccontextmanager
    async def running(self, *, connected: bool = True) -> AsyncIterator["Member"]:
        task = asyncio.create_task(self.control.run())
        try:
            if connected:
                await asyncio.wait_for(self.control.connected.wait(), PATIENCE)
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=PATIENCE)
            assert task.done()
            if not task.cancelled():
                task.result()  # a bug in the control plane must not be lost


def member(port: int, identity: Identity, *topics: Topic, **options: Any) -> Any:
    return Member(port, identity, *topics, **options).running()


class NoRules(TopicRules):
    """Those of a broker that lets everybody write everything."""

    def check_message(self, peer: str, topic: str, size: int, *, retain: bool) -> Topic:
        return TOPICS[topic.split("/")[2]]


@contextlib.asynccontextmanager
async def on_broker(
    port: int, owner: Identity = OWNER, *, rules: TopicRules | None = None, coordinators: tuple[str, ...] = ()
) -> AsyncIterator[None]:
    """An embedded broker; it ends in time, or the test fails."""
    of = coordinators or (OWNER.peer_id,)
    admission = coordinator_of(owner, coordinators=of)
    for other in (OWNER, BOB):
        if other.peer_id in of:
            admission.trust(authority_certificate(other))
    opening = open_entrance(owner, port=port, admission=admission, rules=rules or TopicRules(SWARM, of))
    async with asyncio.timeout(3 * PATIENCE), opening:
        yield


async def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event of its own."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Wire:
    """A wire between a client and the broker that can be cut, or go dead without a word."""

    def __init__(self, port: int) -> None:
        self._broker = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[tuple["Wire", int]]:
        wire = cls(port)
        server = await asyncio.start_server(wire._connect, HOST, 0)
        try:
            yield wire, server.sockets[0].getsockname()[1]
        finally:
            wire._flows.set()
            await until(lambda: not wire._writers)
            server.close()

    def cut(self) -> None:
        """Both ends see the connection break; neither has said goodbye."""
        for writer in self._writers:
            writer.transport.abort()

    def go_dead(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._flows.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(HOST, self._broker)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, there[1]}
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        self._writers -= {writer, there[1]}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def without_rules(port: int, *coordinators: str) -> contextlib.AbstractAsyncContextManager[None]:
    """A broker that lets everybody write everything, as an external one may."""
    of = coordinators or (OWNER.peer_id,)
    return on_broker(port, rules=NoRules(SWARM, of), coordinators=of)


async def say(port: int, topic: str, *said: bytes, retain: bool = False) -> None:
    """Publish anything, as a member without scruples can where the broker has none."""
    async with client(port, OWNER, BOB, admission_of(BOB, ())) as mallory:
        for data in said:
            await mallory.publish(f"dtfm/{SWARM}/{topic}", data, qos=1, retain=retain)


async def test_messages_reach_those_who_listen_with_their_writers_name(port: int) -> None:
    async with on_broker(port), member(port, OWNER, REPORT, PRESENCE) as owner, member(port, ALICE, PLAN) as alice:
        await owner.control.publish(PLAN, plan(1))
        assert await alice.next() == ("plan", OWNER.peer_id, plan(1))
        report = Report(session="s", state="idle", text="äöü")
        await alice.control.publish(REPORT, report)
        assert await owner.next() == ("report", ALICE.peer_id, report)
        assert owner.control.dropped == alice.control.dropped == {}


async def test_what_is_retained_reaches_late_joiners_and_what_is_not_does_not(port: int) -> None:
    async with on_broker(port), member(port, OWNER, PLAN, PROBE) as owner:
        await owner.control.publish(PLAN, plan(1))
        await owner.control.publish(PROBE, ProbeRound(id=1, pairs=(), addresses={}))
        await owner.control.publish(PLAN, plan(2))
        assert [(await owner.next())[0] for _ in range(3)] == ["plan", "probe", "plan"]
        async with member(port, ALICE, PLAN, PROBE, PHASE) as late:
            assert await late.next() == ("plan", OWNER.peer_id, plan(2))
            await owner.control.publish(PHASE, Phase(name="training", text=""))
            assert (await late.next())[0] == "phase"


async def test_what_was_said_before_there_was_a_connection_is_said_then_if_it_is_retained(port: int) -> None:
    alice, owner = Member(port, ALICE), Member(port, OWNER, PRESENCE, REPORT)
    await alice.control.publish(REPORT, Report(session="s", state="idle"))
    await alice.control.publish(PRESENCE, here())
    async with on_broker(port), owner.running(), alice.running():
        assert await owner.next() == ("presence", ALICE.peer_id, here())
        await alice.control.publish(REPORT, Report(session="s", state="training"))
        assert (await owner.next())[2] == Report(session="s", state="training")


async def test_who_leaves_says_goodbye(port: int) -> None:
    async with on_broker(port), member(port, OWNER, PRESENCE) as owner:
        async with member(port, ALICE) as alice:
            await alice.control.publish(PRESENCE, here())
            assert (await owner.next())[2] == here()
        assert (await owner.next())[2] == Presence(online=False, session="s")
        async with member(port, BOB, PRESENCE) as late:
            assert (await late.next())[2] == Presence(online=False, session="s")


async def test_a_connection_that_breaks_is_told_by_the_last_will_and_mended(port: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(on_broker(port))
        wire, detour = await stack.enter_async_context(Wire.to(port))
        owner = await stack.enter_async_context(member(port, OWNER, PRESENCE))
        alice = await stack.enter_async_context(member(detour, ALICE, PLAN))
        await alice.control.publish(PRESENCE, here())
        assert (await owner.next())[2] == here()
        wire.cut()
        assert (await owner.next())[1:] == (ALICE.peer_id, Presence(online=False, session="s"))
        assert (await owner.next())[2] == here()  # back by itself
        await owner.control.publish(PLAN, plan(1))
        assert (await alice.next())[2] == plan(1)
        assert alice.control.last_error


@pytest.mark.parametrize("who", ["expired", "banned", "of another swarm"])
async def test_who_is_no_member_never_connects_and_hears_why(port: int, who: str) -> None:
    admission = {
        "expired": member_of(OWNER, identity=ALICE, expires=1e9)[1],
        "banned": member_of(OWNER, identity=ALICE)[1],
        "of another swarm": member_of(OWNER, "f" * 16, identity=ALICE)[1],
    }[who]
    own = coordinator_of(OWNER)
    own.ban([Ban.of(OWNER, SWARM, f"peer:{ALICE.peer_id}")] if who == "banned" else [])
    async with open_entrance(OWNER, port=port, admission=own):
        alice = Member(port, ALICE, PLAN, admission=admission)
        async with alice.running(connected=False):
            await until(lambda: alice.control.last_error)
            assert not alice.control.connected.is_set()
            assert "not authorized" in alice.control.last_error.lower()
        async with member(port, OWNER) as owner:
            assert owner.control.connected.is_set()


async def test_a_member_that_plays_the_broker_is_refused_before_a_word_is_said(port: int) -> None:
    """Its certificate is genuine, and signed by the coordinator that the invite names."""
    mallory, admission = member_of(OWNER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show_credential(context, mallory, admission.certificate)
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            heard.put_nowait(await reader.read())
        writer.close()

    async with await asyncio.start_server(hear, HOST, port, ssl=context):
        alice = Member(port, ALICE, PLAN)
        async with alice.running(connected=False):
            assert await asyncio.wait_for(heard.get(), PATIENCE) == b""
            await until(lambda: alice.control.last_error)
        assert "not the coordinator that the invite names" in alice.control.last_error
        assert not alice.control.connected.is_set()
        while not heard.empty():
            assert heard.get_nowait() == b""
    async with on_broker(port), alice.running():
        assert alice.control.connected.is_set()  # the same context lets the coordinator in


async def test_asyncio_is_held_to_the_pin_as_well(port: int) -> None:
    mallory, admission = member_of(OWNER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show_credential(context, mallory, admission.certificate)
    async with await asyncio.start_server(lambda _, writer: writer.close(), HOST, port, ssl=context):
        with pytest.raises(ssl.SSLError, match="not the coordinator"):
            await asyncio.open_connection(HOST, port, ssl=PinnedContext(OWNER.peer_id))


async def test_a_broker_that_is_not_there_says_why_and_is_found_when_it_comes(port: int) -> None:
    alice = Member(port, ALICE, PLAN)
    async with alice.running(connected=False):
        await until(lambda: alice.control.last_error)
        assert not alice.control.connected.is_set()
        assert "refused" in alice.control.last_error.lower()
        async with on_broker(port):
            await asyncio.wait_for(alice.control.connected.wait(), PATIENCE)
        await until(lambda: not alice.control.connected.is_set())


async def test_where_the_first_broker_cannot_be_reached_another_one_is_tried(
    port: int, free: Callable[[], int]
) -> None:
    """And what is retained is said there, too."""
    nobody, second = free(), port
    async with on_broker(second), member(second, OWNER, PRESENCE) as owner:
        others = (BrokerAddress(HOST, free(), OWNER.peer_id), BrokerAddress(HOST, second, OWNER.peer_id))
        alice = Member(nobody, ALICE, PLAN, others=others)
        await alice.control.publish(PRESENCE, here())
        async with alice.running():
            assert await owner.next() == ("presence", ALICE.peer_id, here())
            await owner.control.publish(PLAN, plan(1))
            assert await alice.next() == ("plan", OWNER.peer_id, plan(1))


async def test_when_its_broker_is_gone_a_member_finds_its_coordinator_at_the_other_one_and_back(
    port: int, free: Callable[[], int]
) -> None:
    """A coordinator with a broker of its own dies, another one takes over, and dies, too."""
    first, second = port, free()
    alice = Member(first, ALICE, PLAN, others=(BrokerAddress(HOST, second, BOB.peer_id),), coordinators=BOTH)
    async with alice.running(connected=False):
        for at, identity, version in ((first, OWNER, 1), (second, BOB, 2), (first, OWNER, 3)):
            opening = on_broker(at, identity, coordinators=BOTH)
            async with opening, member(at, identity, coordinators=BOTH, broker=identity) as leader:
                await leader.control.publish(PLAN, plan(version))
                assert await alice.next() == ("plan", identity.peer_id, plan(version))
            await until(lambda: not alice.control.connected.is_set())


async def test_a_broker_that_breaks_off_is_tried_again_before_the_other_one(port: int, free: Callable[[], int]) -> None:
    """Else a swarm would come apart at every hiccup of a network."""
    second = free()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(on_broker(port))
        await stack.enter_async_context(on_broker(second))
        wire, detour = await stack.enter_async_context(Wire.to(port))
        owner = await stack.enter_async_context(member(port, OWNER, PRESENCE))
        alice = await stack.enter_async_context(
            member(detour, ALICE, others=(BrokerAddress(HOST, second, OWNER.peer_id),))
        )
        await alice.control.publish(PRESENCE, here())
        assert (await owner.next())[2] == here()
        wire.cut()
        assert (await owner.next())[2] == Presence(online=False, session="s")
        assert (await owner.next())[2] == here()


async def test_after_a_restart_of_the_broker_what_is_retained_is_there_again(port: int) -> None:
    owner, alice = Member(port, OWNER, PRESENCE), Member(port, ALICE, PLAN)
    async with owner.running(connected=False), alice.running(connected=False):
        async with on_broker(port):
            await asyncio.gather(owner.control.connected.wait(), alice.control.connected.wait())
            await owner.control.publish(PLAN, plan(1))
            await alice.control.publish(PRESENCE, here())
            assert (await alice.next())[2] == plan(1)
            assert (await owner.next())[2] == here()
        await until(lambda: not owner.control.connected.is_set())
        await owner.control.publish(PLAN, plan(2))  # while there is no broker
        async with on_broker(port):
            await until(owner.control.connected.is_set)
            async with member(port, BOB, PLAN, PRESENCE) as late:
                heard = {(name, sender): body for name, sender, body in [await late.next(), await late.next()]}
                assert heard == {("plan", OWNER.peer_id): plan(2), ("presence", ALICE.peer_id): here()}


async def test_a_plan_that_changes_while_its_author_reconnects_is_not_lost(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is on its way to the broker at the very moment when the new one is published."""
    owner = Member(port, OWNER)
    await owner.control.publish(PLAN, plan(1))

    class Interrupted(aiomqtt.Client):
        async def publish(self, *arguments: Any, **options: Any) -> None:
            nonlocal changed
            await super().publish(*arguments, **options)
            if not changed:
                changed = True
                await owner.control.publish(PLAN, plan(2))

    changed = False
    monkeypatch.setattr(aiomqtt, "Client", Interrupted)
    async with on_broker(port), owner.running(), member(port, ALICE, PLAN) as alice:
        assert changed
        if (await alice.next())[2] == plan(1):
            assert (await alice.next())[2] == plan(2)


async def test_leaving_ends_although_the_broker_is_dead(port: int) -> None:
    """The goodbye cannot be delivered; the daemon must end all the same."""
    async with on_broker(port), Wire.to(port) as (wire, detour):
        alice = Member(detour, ALICE, answer=0.2)
        task = asyncio.create_task(alice.control.run())
        await asyncio.wait_for(alice.control.connected.wait(), PATIENCE)
        await alice.control.publish(PRESENCE, here())
        wire.go_dead()
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.cancelled()


async def test_the_broker_ends_in_time_while_its_members_talk(port: int) -> None:
    """A coordinator that is stopped in the middle of a run must not hang."""
    owner, alice = Member(port, OWNER, REPORT), Member(port, ALICE, PLAN)
    async with owner.running(connected=False), alice.running(connected=False):
        for turn in range(20):
            async with asyncio.timeout(PATIENCE), on_broker(port):
                await until(lambda: owner.control.connected.is_set() and alice.control.connected.is_set())
                await owner.control.publish(PLAN, plan(turn + 1))
                await alice.control.publish(REPORT, Report(session="s", state="idle", step=turn))
                await alice.next()
                await owner.next()  # whose acknowledgement is under way now
            await until(lambda: not owner.control.connected.is_set() and not alice.control.connected.is_set())


async def test_nobody_stays_connected_to_a_broker_that_has_ended(port: int) -> None:
    """Those who have just lost it come back while it ends: it would take them in, and hand on nothing."""
    async with on_broker(port):
        reader, writer = await asyncio.open_connection(HOST, port)
        async with member(port, ALICE):
            pass  # who came later has been let in: the broker knows of the one who has not introduced itself
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(1), PATIENCE) == b""
    writer.close()


def unsigned() -> bytes:
    return b'{"online": true, "session": "s"}'


def forged(sender: Identity, author: Identity) -> bytes:
    """Signed by `sender`, in `author`'s name."""
    values = json.loads(Post(SWARM, sender).seal("presence", here()))
    return json.dumps(values | {"sender": author.peer_id}).encode()


def with_signature(signature: str) -> bytes:
    return json.dumps(json.loads(Post(SWARM, BOB).seal("presence", here())) | {"signature": signature}).encode()


@pytest.mark.parametrize(
    ("topic", "data", "why"),
    [
        (f"presence/{ALICE.peer_id}", unsigned(), Cause.FORM),
        (f"presence/{ALICE.peer_id}", b"", Cause.FORM),
        (f"presence/{ALICE.peer_id}", b"\xff\x00", Cause.FORM),
        (f"presence/{ALICE.peer_id}", forged(BOB, ALICE), Cause.SIGNATURE),
        (f"presence/{ALICE.peer_id}", Post(SWARM, BOB).seal("presence", here()), Cause.AUTHOR),
        (f"presence/{BOB.peer_id}", with_signature(base64.b64encode(bytes(64)).decode()), Cause.SIGNATURE),
        (f"presence/{BOB.peer_id}", with_signature("é"), Cause.FORM),
        (f"presence/{BOB.peer_id}", Post("f" * 16, BOB).seal("presence", here()), Cause.SWARM),
        (f"presence/{BOB.peer_id}", Post(SWARM, BOB).seal("report", here()), Cause.KIND),
        (f"presence/{BOB.peer_id}", Post(SWARM, BOB).seal("presence", plan(1)), Cause.CONTENT),
        ("plan", Post(SWARM, BOB).seal("plan", plan(9)), Cause.AUTHOR),
        ("plan", Post(SWARM, OWNER).seal("plan", here()), Cause.CONTENT),
    ],
    ids=[
        "unsigned",
        "empty",
        "no text",
        "forged sender",
        "another's topic",
        "wrong signature",
        "no signature",
        "another swarm",
        "another kind",
        "another body",
        "not the coordinator",
        "no plan",
    ],
)
async def test_a_message_that_does_not_verify_is_dropped_and_counted_and_the_next_is_read(
    port: int, topic: str, data: bytes, why: Cause
) -> None:
    opening = without_rules(port)
    async with opening, member(port, ALICE, PLAN, PRESENCE) as alice, member(port, OWNER) as owner:
        await say(port, topic, data, data)
        await owner.control.publish(PLAN, plan(3))
        assert await alice.next() == ("plan", OWNER.peer_id, plan(3))
        assert alice.nothing()
        assert alice.control.dropped == {why: 2}


async def test_any_number_of_faulty_messages_makes_no_count_grow(port: int) -> None:
    """Each names another peer, another kind, another fault."""
    opening = without_rules(port)
    async with opening, member(port, ALICE, PLAN, PRESENCE) as alice, member(port, OWNER) as owner:
        for _ in range(20):
            stranger = Identity.generate()
            await say(
                port,
                f"presence/{ALICE.peer_id}",
                Post(SWARM, stranger).seal("presence", here()),
                Post(SWARM, stranger).seal(stranger.peer_id[-20:], here()),
                json.dumps({"sender": stranger.peer_id[:-4], "payload": "", "signature": ""}).encode(),
            )
        await owner.control.publish(PLAN, plan(3))
        assert await alice.next() == ("plan", OWNER.peer_id, plan(3))
        assert alice.control.dropped == {Cause.AUTHOR: 20, Cause.KIND: 20, Cause.SIGNATURE: 20}


class Eavesdropper:
    """A member that keeps what goes over the broker."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, port: int) -> AsyncIterator["Eavesdropper"]:
        one, ready = cls(port), asyncio.Event()
        task = asyncio.create_task(one._listen(ready))
        await asyncio.wait_for(ready.wait(), PATIENCE)
        yield one
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # the broker may have ended before

    async def _listen(self, ready: asyncio.Event) -> None:
        async with client(self._port, OWNER, BOB, admission_of(BOB, ()), "thief") as thief:
            for topic in ("phase", "presence/+"):
                await thief.subscribe(f"dtfm/{SWARM}/{topic}", qos=1)
            ready.set()
            async for message in thief.messages:
                assert isinstance(message.payload, bytes)
                await self.heard.put((str(message.topic).split("/", 2)[2], message.payload))

    async def next(self) -> tuple[str, bytes]:
        return await asyncio.wait_for(self.heard.get(), PATIENCE)


async def test_what_a_coordinator_once_said_tells_nothing_when_it_is_said_again(port: int) -> None:
    async with (
        without_rules(port),
        Eavesdropper.at(port) as thief,
        member(port, ALICE, PHASE, PLAN) as alice,
        member(port, OWNER) as owner,
    ):
        failed, training = Phase(name="failed", text="it broke"), Phase(name="training", text="all is well")
        for phase in (failed, training):
            await owner.control.publish(PHASE, phase)
            assert (await alice.next())[2] == phase
        kept = await thief.next()
        await say(port, *kept, retain=True)
        await say(port, *await thief.next())  # the newest one, once more
        await owner.control.publish(PLAN, plan(1))
        assert (await alice.next())[2] == plan(1)
        assert alice.control.dropped == {Cause.STALE: 1}


async def test_a_last_will_that_is_said_again_takes_no_live_peer_off(port: int) -> None:
    """Not even that of an earlier connection of the same run."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(without_rules(port))
        thief = await stack.enter_async_context(Eavesdropper.at(port))
        wire, detour = await stack.enter_async_context(Wire.to(port))
        owner = await stack.enter_async_context(member(port, OWNER, PRESENCE, REPORT))
        alice = await stack.enter_async_context(member(detour, ALICE))
        await alice.control.publish(PRESENCE, here())
        assert (await owner.next())[2] == here()
        hello = await thief.next()
        wire.cut()
        assert (await owner.next())[2] == Presence(online=False, session="s")
        will = await thief.next()
        assert (await owner.next())[2] == here()  # back by itself
        for replayed in (will, hello):
            await say(port, *replayed, retain=True)
        await alice.control.publish(REPORT, Report(session="s", state="idle"))
        assert (await owner.next())[0] == "report"
        assert owner.control.dropped == {Cause.STALE: 2}


async def test_a_program_that_has_started_anew_knows_what_it_has_heard(port: int, tmp_path: Path) -> None:
    async with without_rules(port), Eavesdropper.at(port) as thief, member(port, OWNER) as owner:
        async with member(port, ALICE, PHASE, heard=FreshnessFile(tmp_path)) as alice:
            for name in ("failed", "training"):
                await owner.control.publish(PHASE, Phase.model_validate({"name": name, "text": ""}))
                assert (await alice.next())[2] == Phase.model_validate({"name": name, "text": ""})
        await say(port, *await thief.next(), retain=True)
        async with member(port, ALICE, PHASE, PLAN, heard=FreshnessFile(tmp_path)) as again:
            await owner.control.publish(PLAN, plan(1))
            assert (await again.next())[2] == plan(1)
            assert again.control.dropped == {Cause.STALE: 1}
        async with member(port, BOB, PHASE) as newcomer:  # for whom phases have a proof of their own
            assert (await newcomer.next())[0] == "phase"


async def test_each_of_several_coordinators_is_read_and_nobody_else(port: int) -> None:
    async with (
        without_rules(port, *BOTH),
        member(port, ALICE, PLAN, coordinators=BOTH) as alice,
        member(port, OWNER, coordinators=BOTH) as owner,
        member(port, BOB, coordinators=BOTH) as bob,
    ):
        await owner.control.publish(PLAN, plan(3))
        assert await alice.next() == ("plan", OWNER.peer_id, plan(3))
        await bob.control.publish(PLAN, plan(4))
        assert await alice.next() == ("plan", BOB.peer_id, plan(4))
        assert not alice.control.dropped
        await alice.control.publish(PLAN, plan(5))  # she hears herself
        await until(lambda: alice.control.dropped)
        assert alice.nothing()


async def test_one_may_listen_to_one_peer_alone(port: int) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def read(sender: str, _: Presence) -> None:
        await heard.put(sender)

    alice = Member(port, ALICE)
    alice.control.on(PRESENCE, read, ALICE.peer_id)
    async with on_broker(port), alice.running(), member(port, BOB) as bob:
        await bob.control.publish(PRESENCE, here())
        await alice.control.publish(PRESENCE, here())
        assert await asyncio.wait_for(heard.get(), PATIENCE) == ALICE.peer_id
        assert heard.empty()


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("mqtt://127.0.0.1", ("127.0.0.1", 1883, False, None, None)),
        ("mqtts://broker.example.org", ("broker.example.org", 8883, True, None, None)),
        ("mqtt://localhost:7700/", ("localhost", 7700, False, None, None)),
        ("mqtts://me:p%40ss%3A@broker.example.org:99", ("broker.example.org", 99, True, "me", "p@ss:")),
        ("mqtts://[2001:db8::1]:1884", ("2001:db8::1", 1884, True, None, None)),
        ("mqtt://[::1]:1884", ("::1", 1884, False, None, None)),
    ],
)
def test_a_brokers_address_is_taken_apart(url: str, parts: tuple[object, ...]) -> None:
    assert split_broker_url(url) == parts


@pytest.mark.parametrize(
    "url", ["", "embeded", "http://a", "mqtt://", "mqtt://:1883", "mqtt://a:x", "mqtt://a:70000", "mqtt://a/b", "//a",
            "mqtts://[", "mqtts://[a", "mqtts://]:1"],
)  # fmt: skip
def test_what_is_no_brokers_address_is_a_user_error(url: str) -> None:
    with pytest.raises(UserError, match="write embedded, or mqtt") as caught:
        split_broker_url(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["mqtt://me:secret@192.0.2.1", "mqtt://broker.example.org:1883", "mqtt://[2001:db8::1]"]
)
def test_a_broker_of_another_machine_without_tls_is_a_user_error(url: str) -> None:
    with pytest.raises(UserError, match="use mqtts://") as caught:
        split_broker_url(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def invite(**values: Any) -> Invite:
    token = EntryToken.issue(OWNER, SWARM, 1, 1 << 33)
    given = {"swarm": SWARM, "coordinator": OWNER.peer_id, "dht": ("d",), "entrance": "192.0.2.1:7700", "token": token}
    return Invite(**(given | values))


def standby(identity: Identity, entrance: str, broker: str | None = None) -> AppointedStandby:
    certificate = authority_certificate(identity).hex()
    card = StandbyCard(peer=identity.peer_id, certificate=certificate, entrance=entrance, broker=broker, dht=("d",))
    return AppointedStandby.appoint(card, SWARM, OWNER)


def test_the_embedded_broker_is_at_the_entrance_and_proves_its_coordinators_key() -> None:
    address = BrokerAddress.of(invite())
    assert (address.coordinator, address.tls, str(address)) == (OWNER.peer_id, True, "192.0.2.1:7700")
    assert BrokerAddress.of(invite(entrance="[2001:db8::1]:7700")).host == "2001:db8::1"
    other = BrokerAddress.of(invite(broker="mqtts://me:pw@b", broker_ca="PEM"))
    assert (other.username, other.password, other.tls, other.port, other.ca) == ("me", "pw", True, 8883, "PEM")
    assert other.coordinator is None


def test_the_other_brokers_of_an_invite_are_its_standbys_each_once_and_of_its_own_key() -> None:
    assert BrokerAddress.others(invite()) == ()
    carol = Identity.generate()
    standbys = (standby(BOB, "192.0.2.2:7700"), standby(carol, "192.0.2.3:7700", "mqtts://b"))
    second, third = BrokerAddress.others(invite(standbys=standbys))
    assert second == BrokerAddress("192.0.2.2", 7700, BOB.peer_id)
    assert third == BrokerAddress("b", 8883, None) == BrokerAddress.of(invite(standbys=standbys), carol.peer_id)
    shared = invite(broker="mqtts://b", standbys=(standby(BOB, "192.0.2.2:7700", "mqtts://b"),))
    assert BrokerAddress.others(shared) == ()
