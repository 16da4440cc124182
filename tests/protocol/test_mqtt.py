"""The control plane's connection to its broker: what is kept there, and what outlives a connection that breaks."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiomqtt
import pytest

from dtfm_protocol.control import mqtt
from dtfm_protocol.control.messages import PHASE, PLAN, PRESENCE, PROBE, REPORT, Phase, Presence, ProbeRound, Report
from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.pinned_tls import PinnedContext
from dtfm_protocol.transport.shown_credential import show_credential
from tests.harness.entrances import HOST, open_entrance
from tests.harness.membership import SWARM, coordinator_of, member_of
from tests.protocol.control_planes import (
    ALICE,
    BOB,
    BOTH,
    OWNER,
    PATIENCE,
    Member,
    Wire,
    free,
    here,
    member,
    on_broker,
    plan,
    port,
    until,
)

__all__ = ["free", "port"]  # fixtures


async def test_messages_reach_those_who_listen_with_their_writers_name(port: int) -> None:
    async with on_broker(port), member(port, OWNER, REPORT, PRESENCE) as owner, member(port, ALICE, PLAN) as alice:
        await owner.control.publish(PLAN, plan(1))
        assert await alice.next() == ("plan", OWNER.peer_id, plan(1))
        report = Report(session="s", state="idle", text="äöü")
        await alice.control.publish(REPORT, report)
        assert await owner.next() == ("report", ALICE.peer_id, report)
        assert owner.control.dropped == alice.control.dropped == {}


async def test_of_a_coordinators_clock_the_message_tells_most_that_was_read_soonest(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is read late looks as if this machine's clock were ahead."""
    late = 0.0
    monkeypatch.setattr(mqtt, "time", SimpleNamespace(time=lambda: time.time() + late, monotonic=time.monotonic))
    told: list[float | None] = []
    async with on_broker(port), member(port, OWNER) as owner, member(port, ALICE, PROBE) as alice:
        assert alice.control.clock_ahead is None
        for number, late in enumerate((300.0, 60.0, 600.0), 1):  # noqa: B007 - the reader's clock reads it
            await owner.control.publish(PROBE, ProbeRound(id=number, pairs=(), addresses={}))
            await alice.next()
            told.append(alice.control.clock_ahead)
            assert alice.control.clock_told.is_set()
    assert told == [pytest.approx(-300.0, abs=PATIENCE), pytest.approx(-60.0, abs=PATIENCE), told[1]]


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


async def test_a_connection_that_may_lead_nowhere_is_made_anew(
    port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs a last will and a return, as a connection that broke; with one line, and one when it is back."""
    monkeypatch.setattr(log, "propagate", True)
    async with on_broker(port), member(port, OWNER, PRESENCE) as owner, member(port, ALICE) as alice:
        await alice.control.publish(PRESENCE, here())
        assert (await owner.next())[2] == here()
        with caplog.at_level("INFO", log.name):
            alice.control.reconnect()
            assert (await owner.next())[2] == Presence(online=False, session="s")
            assert (await owner.next())[2] == here()
    said = [one.getMessage() for one in caplog.records]
    assert [line for line in said if line.startswith("lost the coordinator at ")] == said[:1]
    assert said[1].startswith("connected to the coordinator at ")


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
        writer.write(b"\x16")  # until it says something the kernel keeps it to itself
        async with member(port, ALICE):
            pass  # who came later has been let in: the broker knows of the one who has not introduced itself
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(1), PATIENCE) == b""
    writer.close()
