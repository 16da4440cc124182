"""What members take of the messages that a broker hands them, and what they drop: unsigned, forged, or said again."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dtfm_protocol.control.messages import PHASE, PLAN, PRESENCE, REPORT, Phase, Presence, Report
from dtfm_protocol.errors import Cause
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.freshness_files import FreshnessFile
from tests.harness.entrances import client
from tests.harness.membership import SWARM
from tests.protocol.control_planes import (
    ALICE,
    BOB,
    BOTH,
    OWNER,
    PATIENCE,
    Member,
    Wire,
    admission_of,
    here,
    member,
    on_broker,
    plan,
    port,
    until,
    without_rules,
)

__all__ = ["port"]  # fixtures


async def say(port: int, topic: str, *said: bytes, retain: bool = False) -> None:
    """Publish anything, as a member without scruples can where the broker has none."""
    async with client(port, OWNER, BOB, admission_of(BOB, ())) as mallory:
        for data in said:
            await mallory.publish(f"dtfm/{SWARM}/{topic}", data, qos=1, retain=retain)


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
