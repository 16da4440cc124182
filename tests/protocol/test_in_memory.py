"""The in-memory network: as reliable as the real one by default, and as unreliable as a test wants it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dtfm_protocol.control.in_memory_control import BROKER, MemoryBroker, MemoryControlPlane
from dtfm_protocol.control.messages import PHASE, PRESENCE, REPORT, Phase, Presence, Report
from dtfm_protocol.schema import Schema
from dtfm_protocol.transport.in_memory import DHT, MemoryDataPlane, MemoryDiscovery, MemoryNetwork
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable

PATIENCE = 30.0
LATE = 0.05


async def settle() -> None:
    """Let everything happen that waits for no time."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(seed=7)


async def echoing(network: MemoryNetwork) -> MemoryDataPlane:
    """`b` sends back to `a` what comes."""

    async def echo(stream: Stream) -> None:
        while True:
            await stream.write(await stream.read(1))

    await MemoryDataPlane(network, "b").serve("echo", echo)
    return MemoryDataPlane(network, "a")


async def test_without_a_fault_what_is_written_has_arrived(network: MemoryNetwork) -> None:
    stream = await (await echoing(network)).open("b", "echo")
    await stream.write(b"abc")
    async with asyncio.timeout(PATIENCE):
        assert bytes(await stream.read(3)) == b"abc"
    await stream.close()
    with pytest.raises(StreamClosed):
        await stream.write(b"x")


async def test_a_delayed_stream_is_late_and_in_order_even_when_the_delay_shrinks(network: MemoryNetwork) -> None:
    stream, loop = await (await echoing(network)).open("b", "echo"), asyncio.get_running_loop()
    network.link("a", "b").delay = LATE
    begun = loop.time()
    await stream.write(b"1", b"2")
    network.link("a", "b").delay = 0.0
    await stream.write(b"3")
    async with asyncio.timeout(PATIENCE):
        assert bytes(await stream.read(3)) == b"123"
    assert loop.time() - begun >= LATE - 2e-3


async def test_what_was_written_before_closing_arrives_also_late_and_then_the_end(network: MemoryNetwork) -> None:
    got = asyncio.get_running_loop().create_future()

    async def take(stream: Stream) -> None:
        data = bytes(await stream.read(2))
        with pytest.raises(StreamClosed):
            await stream.read(1)
        got.set_result(data)

    await MemoryDataPlane(network, "b").serve("take", take)
    network.link("a", "b").delay = LATE
    stream = await MemoryDataPlane(network, "a").open("b", "take")
    await stream.write(b"ab")
    await stream.close()
    assert not got.done()
    assert await asyncio.wait_for(got, PATIENCE) == b"ab"


async def test_a_link_that_is_held_lets_nothing_pass_and_loses_nothing(network: MemoryNetwork) -> None:
    stream = await (await echoing(network)).open("b", "echo")
    network.link("b", "a").hold()
    await stream.write(b"1")
    await stream.write(b"2")
    reading = asyncio.create_task(stream.read(2))
    await settle()
    assert not reading.done()
    assert network.link("b", "a").is_held
    network.link("b", "a").release()
    assert bytes(await asyncio.wait_for(reading, PATIENCE)) == b"12"


async def test_a_cut_ends_both_ends_loses_what_is_on_its_way_and_lasts_until_it_is_mended(
    network: MemoryNetwork,
) -> None:
    plane = await echoing(network)
    stream, ended = await plane.open("b", "echo"), asyncio.Event()

    async def watch(stream: Stream) -> None:
        with pytest.raises(StreamClosed):
            await stream.read(1)
        ended.set()

    await MemoryDataPlane(network, "b").serve("watch", watch)
    await plane.open("b", "watch")
    other = await MemoryDataPlane(network, "c").open("b", "echo")
    await settle()
    network.link("a", "b").hold()
    await stream.write(b"x")
    network.cut("a", "b")
    network.link("a", "b").release()
    with pytest.raises(StreamClosed):
        await stream.read(1)
    with pytest.raises(StreamClosed):
        await stream.write(b"x")
    with pytest.raises(Unreachable):
        await plane.open("b", "echo")
    await asyncio.wait_for(ended.wait(), PATIENCE)
    await other.write(b"y")
    assert bytes(await asyncio.wait_for(other.read(1), PATIENCE)) == b"y"
    network.mend("b", "a")
    stream = await plane.open("b", "echo")
    await stream.write(b"z")
    assert bytes(await asyncio.wait_for(stream.read(1), PATIENCE)) == b"z"


async def test_a_mute_peer_takes_streams_and_never_answers(network: MemoryNetwork) -> None:
    plane = await echoing(network)
    network.mute("b")
    stream = await plane.open("b", "echo")
    await stream.write(b"x")
    reading = asyncio.create_task(stream.read(1))
    await settle()
    assert not reading.done()
    network.unmute("b")
    again = await plane.open("b", "echo")
    await again.write(b"y")
    assert bytes(await asyncio.wait_for(again.read(1), PATIENCE)) == b"y"
    reading.cancel()


async def test_messages_are_dropped_as_told_or_by_chance_which_a_seed_decides() -> None:
    def arrived(seed: int) -> list[int]:
        got: list[int] = []
        link = MemoryNetwork(seed).link("a", "b")
        link.loss = 0.5
        for number in range(100):
            link.send(lambda number=number: got.append(number))  # type: ignore[misc]
        assert link.dropped == 100 - len(got)
        return got

    assert arrived(1) == arrived(1) != arrived(2)
    assert 30 < len(arrived(1)) < 70
    got: list[int] = []
    link = MemoryNetwork().link("a", "b")
    link.drop(2)
    assert [link.send(lambda number=number: got.append(number)) for number in range(4)] == [False, False, True, True]  # type: ignore[misc]
    assert got == [2, 3]


async def test_messages_overtake_each_other_by_chance_and_held_ones_as_told() -> None:
    async def arrived(seed: int) -> list[int]:
        got: list[int] = []
        link = MemoryNetwork(seed).link("a", "b")
        link.delay, link.jitter = 0.001, 0.05
        for number in range(20):
            link.send(lambda number=number: got.append(number))  # type: ignore[misc]
        async with asyncio.timeout(PATIENCE):
            while len(got) < 20:  # noqa: ASYNC110 - a message on its way signals nothing
                await asyncio.sleep(0.005)
        return got

    one = await arrived(1)
    assert sorted(one) == list(range(20)) != one
    got: list[int] = []
    link = MemoryNetwork().link("a", "b")
    for backwards in (False, True):
        link.hold()
        for number in range(3):
            link.send(lambda number=number: got.append(number))  # type: ignore[misc]
        assert got == []
        link.release(backwards=backwards)
        assert got == ([2, 1, 0] if backwards else [0, 1, 2])
        got.clear()


async def test_a_record_can_be_lost_or_come_later(network: MemoryNetwork) -> None:
    one, other = MemoryDiscovery(network, "a"), MemoryDiscovery(network, "b")
    network.link("a", DHT).drop()
    assert not await one.publish("key", b"lost", 60.0)
    network.link("a", DHT).hold()
    assert await one.publish("key", b"late", 60.0)
    assert await other.publish("key", b"at once", 60.0)
    assert await other.collect("key") == {"b": b"at once"}
    network.link("a", DHT).release()
    assert await other.collect("key") == {"a": b"late", "b": b"at once"}


class Listener:
    """A member of a broker, and what it has read."""

    def __init__(self, broker: MemoryBroker, peer: str) -> None:
        self.plane = MemoryControlPlane(broker, peer, ("owner",), f"session of {peer}")
        self.read: list[tuple[str, Schema]] = []
        for topic in (PRESENCE, PHASE, REPORT):
            self.plane.on(topic, lambda sender, body: self.read.append((sender, body)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Listener"]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.plane.run())
            await asyncio.wait_for(self.plane.connected.wait(), PATIENCE)
            yield self
            task.cancel()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def report(step: int) -> Report:
    return Report(session="s", state="training", step=step)


async def test_messages_reach_those_who_read_them_and_retained_ones_late_joiners(network: MemoryNetwork) -> None:
    broker = MemoryBroker(network)
    phase = Phase(name="training", text="")
    async with Listener(broker, "owner").running() as owner:
        await owner.plane.publish(PHASE, phase)
        async with Listener(broker, "a").running() as member:
            await until(lambda: member.read == [("owner", phase)])
            await member.plane.publish(PHASE, phase)  # which is not its to say
            await member.plane.publish(REPORT, report(1))
            await until(lambda: ("a", report(1)) in owner.read)
            await until(lambda: owner.plane.dropped.total() == 1)
            assert owner.read == [("owner", phase), ("a", report(1))]


async def test_who_is_cut_off_is_said_to_be_gone_and_says_what_is_retained_when_it_is_back(
    network: MemoryNetwork,
) -> None:
    broker, here = MemoryBroker(network), Presence(online=True, session="session of a")
    gone = Presence(online=False, session="session of a")
    async with Listener(broker, "owner").running() as owner:
        async with Listener(broker, "a").running() as member:
            await member.plane.publish(PRESENCE, here)
            await until(lambda: owner.read == [("a", here)])
            network.cut("a", BROKER)
            await until(lambda: owner.read == [("a", here), ("a", gone)])
            assert not member.plane.connected.is_set()
            await member.plane.publish(REPORT, report(1))  # nobody hears it, now or later
            network.mend("a", BROKER)
            await until(lambda: owner.read == [("a", here), ("a", gone), ("a", here)])
        await until(lambda: owner.read[3:] == [("a", gone)])


async def test_control_messages_are_late_lost_or_out_of_order_on_one_members_link_alone(
    network: MemoryNetwork,
) -> None:
    broker = MemoryBroker(network)
    async with (
        Listener(broker, "owner").running() as owner,
        Listener(broker, "b").running() as other,
        Listener(broker, "a").running() as member,
    ):
        network.link("a", BROKER).drop()
        network.link(BROKER, "owner").hold()
        for step in range(3):
            await member.plane.publish(REPORT, report(step))
        await until(lambda: other.read == [("a", report(1)), ("a", report(2))])
        assert owner.read == []
        network.link(BROKER, "owner").release(backwards=True)
        await until(lambda: owner.read == [("a", report(2)), ("a", report(1))])
