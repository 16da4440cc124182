"""What a node publishes of its links."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dtfm_node.control.display import Display
from dtfm_node.control.reporter import Reporter
from dtfm_node.links import measured_links
from dtfm_node.links import publisher as listings
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.probe import QUICK_STREAMS
from dtfm_node.links.publisher import MOST_WATCHED, Publisher
from dtfm_node.links.witness import Witness
from dtfm_protocol.control.messages import Fan, ProbeResult, ProbeRound, Report, Topic
from dtfm_protocol.discovery.records import Limits, Link, LinkReport, Profile
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryDiscovery, MemoryNetwork
from dtfm_protocol.view.view import LayerSeconds
from dtfm_protocol.wire.stream import Stream, StreamClosed
from tests.coordinator.peers import until
from tests.harness.manual_clock import ManualClock, settle
from tests.node.answering import Answering

PROFILE = Profile(
    device="cpu",
    flops={"fp32": 1e11},
    layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
    memory_bytes=1e9,
    addresses=(),
    version="0.1.0",
)
ME = Identity.generate()
REGISTRY = Registry("swarm", Post("swarm", ME))


class Forgetful(MemoryDiscovery):
    """Takes link records while `works`, and keeps count."""

    works = True
    times = 0

    async def publish(self, key: str, record: bytes, seconds: float) -> bool:
        if "links" in key:
            self.times += 1
            if not self.works:
                raise OSError("the DHT does not answer")
        return await super().publish(key, record, seconds)


async def test_a_node_that_has_moved_is_found_at_its_new_addresses_at_once() -> None:
    clock, network = ManualClock(), MemoryNetwork()
    discovery = MemoryDiscovery(network, ME.peer_id)
    publisher = publisher_on(discovery, clock)
    await publisher.moved()
    before = (await REGISTRY.profiles(discovery, [ME.peer_id]))[ME.peer_id].addresses

    async def moved() -> tuple[str, ...]:
        return ("/ip4/198.51.100.3/tcp/1",)

    publisher._plane.addresses = moved  # type: ignore[method-assign]
    await publisher.moved()
    after = (await REGISTRY.profiles(discovery, [ME.peer_id]))[ME.peer_id].addresses
    assert after == ("/ip4/198.51.100.3/tcp/1",) != before


def publisher_on(discovery: MemoryDiscovery, clock: ManualClock) -> Publisher:
    """A publisher of no links."""
    plane = MemoryDataPlane(discovery._network, ME.peer_id)
    return Publisher(plane, discovery, REGISTRY, PROFILE, UplinkPacer(), Witness(), clock)


def listing_on(discovery: MemoryDiscovery, clock: ManualClock) -> tuple[Publisher, asyncio.Task[None]]:
    """A publisher of no links that refreshes."""
    publisher = publisher_on(discovery, clock)
    return publisher, asyncio.create_task(publisher.refresh())


async def test_links_of_an_earlier_life_are_taken_back_at_the_start(clock: ManualClock) -> None:
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    link = Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0)
    await REGISTRY.publish(discovery, LinkReport(links={"gone": link}))
    _, refreshing = listing_on(discovery, clock)
    await clock.advance(5 * TIMEOUTS.publish_look)
    refreshing.cancel()
    report = await REGISTRY.links(discovery, ME.peer_id)
    assert report is not None
    assert report.links == {}
    assert discovery.times == 2


async def test_links_that_nobody_took_are_published_again_soon_and_then_rarely(clock: ManualClock) -> None:
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    publisher, refreshing = listing_on(discovery, clock)
    await clock.advance(2 * TIMEOUTS.publish_look)
    discovery.works, before = False, discovery.times
    with pytest.raises(OSError, match="does not answer"):
        await publisher._publish_links(1e9)
    await clock.advance(3 * TIMEOUTS.publish_look)
    assert discovery.times > before + 2
    discovery.works, before = True, discovery.times
    await clock.advance(5 * TIMEOUTS.publish_look)
    refreshing.cancel()
    assert discovery.times == before + 1


async def test_what_is_measured_while_an_older_report_is_on_its_way_comes_after_it(clock: ManualClock) -> None:
    class Slow(MemoryDiscovery):
        def __init__(self, network: MemoryNetwork) -> None:
            super().__init__(network, ME.peer_id)
            self.slow, self.begun = asyncio.Event(), asyncio.Event()

        async def publish(self, key: str, record: bytes, seconds: float) -> bool:
            if not self.begun.is_set():
                self.begun.set()
                await self.slow.wait()
            return await super().publish(key, record, seconds)

    discovery = Slow(MemoryNetwork())
    publisher = publisher_on(discovery, clock)
    older = asyncio.create_task(publisher._publish_links(1e9))
    await discovery.begun.wait()
    publisher._probed = 7
    newer = asyncio.create_task(publisher._publish_links(0.0))
    await settle()
    discovery.slow.set()
    await asyncio.gather(older, newer)
    report = await REGISTRY.links(discovery, ME.peer_id)
    assert report is not None
    assert report.probed == 7
    assert publisher._links_due <= clock.now()


class Heard:
    """A broker that loses reports while it is `deaf`."""

    def __init__(self) -> None:
        self.deaf = False
        self.results: list[ProbeResult | None] = []

    async def publish(self, topic: Topic, body: Report) -> None:
        if not self.deaf:
            self.results.append(body.probed)


@pytest.fixture
def clock() -> ManualClock:
    """Stands until a test moves it."""
    return ManualClock()


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    return Reporter("one", tmp_path / "status.json", Display("plain"))


def measure_as(gbps: float) -> Callable[..., Awaitable[Link]]:
    async def measure(plane: MemoryDataPlane, peer: str, uplink: UplinkPacer, witness: Witness, **_: object) -> Link:
        plane.ways[peer] = "direct"
        return Link(round_trip_ms=1.0, sent_gbps=gbps, received_gbps=gbps)

    return measure


def pair_of(number: int, *peers: str) -> ProbeRound:
    return ProbeRound(id=number, pairs=(peers,), addresses={})  # type: ignore[arg-type]


async def test_results_are_published_once_when_rounds_are_over_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    publisher, refreshing = listing_on(discovery, clock)
    await settle()
    monkeypatch.setattr(measured_links, "probe", measure_as(2.0))
    before = discovery.times
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    for number, other in ((3, "near"), (4, "far")):
        rounds.put_nowait(pair_of(number, ME.peer_id, other))
    await until(lambda: publisher._probed == 4)
    await clock.advance(TIMEOUTS.links_calm - 0.1)
    assert discovery.times == before
    rounds.put_nowait(pair_of(5, "near", "far"))  # not its own
    await clock.advance(TIMEOUTS.links_calm - 0.1)
    assert discovery.times == before
    await clock.advance(2 * TIMEOUTS.links_calm)
    measuring.cancel()
    refreshing.cancel()
    assert discovery.times == before + 1
    report = await REGISTRY.links(discovery, ME.peer_id)
    assert report is not None
    assert report.probed == 4
    assert {peer: link.round for peer, link in report.links.items()} == {"near": 3, "far": 4}


async def test_results_that_the_dht_did_not_take_are_published_again(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    publisher, refreshing = listing_on(discovery, clock)
    await settle()
    monkeypatch.setattr(measured_links, "probe", measure_as(2.0))
    discovery.works = False
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    rounds.put_nowait(pair_of(3, ME.peer_id, "near"))
    await clock.advance(TIMEOUTS.links_calm)
    discovery.works = True
    await clock.advance(TIMEOUTS.publish_look)
    assert not measuring.done()
    measuring.cancel()
    refreshing.cancel()
    report = await REGISTRY.links(discovery, ME.peer_id)
    assert report is not None
    assert report.probed == 3


async def test_a_result_is_said_again_with_every_report_until_a_later_one(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    monkeypatch.setattr(measured_links, "probe", measure_as(2.0))
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    publisher = publisher_on(discovery, clock)
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    broker: Any = Heard()
    broker.deaf = True
    rounds.put_nowait(pair_of(3, ME.peer_id, "near"))
    await until(lambda: reporter._report.probed is not None)
    await reporter.send(broker)
    broker.deaf = False
    rounds.put_nowait(pair_of(4, "near", "far"))
    await settle()
    for _ in range(2):
        await reporter.send(broker)
    link = Link(round_trip_ms=1.0, sent_gbps=2.0, received_gbps=2.0, round=3)
    assert broker.results == [ProbeResult(round=3, link=link)] * 2

    async def unreachable(*_: object, **__: object) -> Link:
        raise ConnectionError("gone")

    monkeypatch.setattr(measured_links, "probe", unreachable)
    rounds.put_nowait(pair_of(5, ME.peer_id, "near"))
    await until(lambda: reporter._report.probed is not None and reporter._report.probed.round == 5)
    await reporter.send(broker)
    assert broker.results[2:] == [ProbeResult(round=5)]
    measuring.cancel()


async def test_what_was_seen_of_the_other_ends_measurement_is_told_for_the_round_in_which_that_one_measures(
    reporter: Reporter, clock: ManualClock
) -> None:
    publisher = publisher_on(Forgetful(MemoryNetwork(), ME.peer_id), clock)
    link, rounds = Link(round_trip_ms=1.0, sent_gbps=2.0, received_gbps=3.0), asyncio.Queue[ProbeRound]()
    publisher._witness.when_seen("near", link)
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    for turn in (pair_of(3, "far", ME.peer_id), pair_of(4, "near", ME.peer_id)):
        rounds.put_nowait(turn)
        await settle()
        publisher._witness.when_seen("far", link)
        assert reporter._report.probed == ProbeResult(round=3, link=link)
    broker: Any = Heard()
    await reporter.send(broker)
    publisher._witness.when_seen("near", link)
    assert reporter._report.probed == ProbeResult(round=4, link=link)
    await reporter.send(broker)
    publisher._witness.when_seen("near", link.model_copy(update={"sent_gbps": 9.0}))
    assert reporter._report.probed == ProbeResult(round=4, link=link), "who measures again is not told of again"
    rounds.put_nowait(pair_of(5, "near", "far"))
    await settle()
    publisher._witness.when_seen("near", link)
    measuring.cancel()
    assert reporter._report.probed == ProbeResult(round=4, link=link), "nobody has asked for it"


async def test_what_was_seen_is_told_though_the_next_round_has_begun(reporter: Reporter, clock: ManualClock) -> None:
    """The coordinator's word may be here before the last one of a far peer that measured."""
    publisher = publisher_on(Forgetful(MemoryNetwork(), ME.peer_id), clock)
    link, rounds = Link(round_trip_ms=1.0, sent_gbps=2.0, received_gbps=3.0), asyncio.Queue[ProbeRound]()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    for turn in range(3, 3 + 2 * MOST_WATCHED):
        rounds.put_nowait(pair_of(turn, f"peer {turn}", ME.peer_id))
    await settle()
    newest = 2 + 2 * MOST_WATCHED
    broker: Any = Heard()
    for turn in (newest - 1, newest):
        publisher._witness.when_seen(f"peer {turn}", link)
        assert reporter._report.probed == ProbeResult(round=turn, link=link)
        await reporter.send(broker)
    publisher._witness.when_seen("peer 3", link)
    measuring.cancel()
    assert reporter._report.probed == ProbeResult(round=newest, link=link), "so long ago that nothing is kept of it"


async def test_round_trips_are_taken_all_at_once_and_who_does_not_answer_is_missing(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    under_way: set[str] = set()
    all_are = asyncio.Event()

    async def take(plane: MemoryDataPlane, peer: str) -> float:
        under_way.add(peer)
        if len(under_way) == 3:
            all_are.set()
        if peer == "far":
            raise ConnectionError("its door is shut")
        if peer == "stuck":
            await asyncio.Event().wait()
        await all_are.wait()
        return 0.02

    monkeypatch.setattr(measured_links, "echo", take)
    publisher = publisher_on(Forgetful(MemoryNetwork(), ME.peer_id), clock)
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    rounds.put_nowait(ProbeRound(id=3, echoes={ME.peer_id: ("near", "far", "stuck", ME.peer_id)}, addresses={}))
    await until(lambda: len(under_way) == 3)
    await clock.advance(TIMEOUTS.round_trips)
    await until(lambda: reporter._report.probed is not None)
    assert reporter._report.probed == ProbeResult(round=3, echoes={"near": 20.0})
    assert ME.peer_id not in under_way
    measuring.cancel()


async def test_round_trips_and_what_was_seen_meanwhile_are_both_sent_however_close_together(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    async def take(plane: MemoryDataPlane, peer: str) -> float:
        return 0.02

    monkeypatch.setattr(measured_links, "echo", take)
    publisher = publisher_on(Forgetful(MemoryNetwork(), ME.peer_id), clock)
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    rounds.put_nowait(
        ProbeRound(id=3, pairs=(("near", ME.peer_id),), echoes={ME.peer_id: ("near",)}, addresses={}, quick=True)
    )
    await until(lambda: reporter._report.probed is not None)
    link = Link(round_trip_ms=1.0, sent_gbps=2.0, received_gbps=3.0)
    publisher._witness.when_seen("near", link)
    broker: Any = Heard()
    for _ in range(3):
        await reporter.send(broker)
    seen, echoes = ProbeResult(round=3, link=link), ProbeResult(round=3, echoes={"near": 20.0})
    assert broker.results == [echoes, seen, seen]
    measuring.cancel()


async def test_streams_for_the_next_round_are_opened_while_this_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    network, given = MemoryNetwork(), list[tuple[str, list[str]]]()
    there = {peer: await Answering.on(network, peer) for peer in ("near", "far")}
    going_on = asyncio.Event()

    async def measure(_: object, peer: str, *__: object, quick: bool, ahead: list[Stream]) -> Link:
        given.append((peer, [stream.peer for stream in ahead]))
        await going_on.wait()
        return Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0)

    monkeypatch.setattr(measured_links, "probe", measure)
    publisher = publisher_on(Forgetful(network, ME.peer_id), clock)
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    rounds.put_nowait(pair_of(3, ME.peer_id, "near").model_copy(update={"next": ((ME.peer_id, "far"),)}))
    await until(lambda: there["far"].open == QUICK_STREAMS)
    assert given == [("near", [])]
    going_on.set()
    rounds.put_nowait(pair_of(4, ME.peer_id, "far").model_copy(update={"next": (("far", ME.peer_id),)}))
    await until(lambda: publisher._probed == 4)
    assert given[1:] == [("far", ["far"] * QUICK_STREAMS)]
    await settle()
    assert (there["far"].opened, there["far"].open) == (QUICK_STREAMS, 0), "the other end opens those for the next one"
    rounds.put_nowait(pair_of(5, "near", "far").model_copy(update={"next": ((ME.peer_id, "near"),)}))
    await until(lambda: there["near"].open == QUICK_STREAMS)
    await clock.advance(TIMEOUTS.links_calm)
    await clock.advance(listings.UNUSED_SECONDS - 1)
    assert there["near"].open == QUICK_STREAMS
    await clock.advance(2)
    assert there["near"].open == 0, "nobody has asked for them"
    measuring.cancel()


async def test_where_streams_that_were_opened_ahead_are_gone_others_are_opened(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    network, given = MemoryNetwork(), list[int]()
    far = await Answering.on(network, "far")

    async def measure(_: object, __: str, *___: object, quick: bool, ahead: Sequence[Stream] = ()) -> Link:
        given.append(len(ahead))
        if ahead:
            raise StreamClosed("far has gone, and come back")
        return Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0)

    monkeypatch.setattr(measured_links, "probe", measure)
    publisher = publisher_on(Forgetful(network, ME.peer_id), clock)
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    rounds.put_nowait(pair_of(3, "near", "far").model_copy(update={"next": ((ME.peer_id, "far"),)}))
    rounds.put_nowait(pair_of(4, ME.peer_id, "far"))
    await until(lambda: publisher._probed == 4)
    assert given == [QUICK_STREAMS, 0]
    assert set(publisher._measured.links) == {"far"}
    await settle()
    assert far.open == 0
    measuring.cancel()


async def test_who_is_the_centre_of_a_group_reports_what_it_can_send_in_all(
    monkeypatch: pytest.MonkeyPatch, reporter: Reporter, clock: ManualClock
) -> None:
    async def measure(plane: object, gbps: object, uplink: UplinkPacer, counted: object) -> Limits:
        assert counted == {"near": (0.25, 0.5)}
        return Limits(up_gbps=0.5)

    monkeypatch.setattr(measured_links, "fan", measure)
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    publisher = publisher_on(discovery, clock)
    publisher._witness.carried["near"] = 0.25, 0.5
    introduced: list[tuple[str, tuple[str, ...], int | None]] = []

    async def introduce(peer: str, addresses: tuple[str, ...], port: int | None = None) -> None:
        introduced.append((peer, addresses, port))

    publisher._plane.introduce = introduce  # type: ignore[method-assign]
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    measuring = asyncio.create_task(publisher.measure(rounds, reporter))
    group = Fan(centre=ME.peer_id, gbps={"near": (1.0, 1.0), "far": (1.0, 1.0), "nowhere": (1.0, 1.0)})
    there = {"near": ("/near",), "far": ("/far",), "other": ()}
    rounds.put_nowait(ProbeRound(id=8, fans=(group,), addresses=there, ports={"near": 4002, "other": 1}))
    await until(lambda: reporter._report.probed is not None)
    assert reporter._report.probed == ProbeResult(round=8, limits=Limits(up_gbps=0.5))
    assert introduced == [("near", ("/near",), 4002), ("far", ("/far",), None)]
    measuring.cancel()


async def test_a_profile_is_published_twice_and_then_rarely(clock: ManualClock) -> None:
    """Each time costs half of the swarm an answer with all that it holds."""
    times = 0

    class Counting(MemoryDiscovery):
        async def publish(self, key: str, record: bytes, seconds: float) -> bool:
            nonlocal times
            times += "profile" in key
            return times > 3 and await super().publish(key, record, seconds)

    discovery = Counting(MemoryNetwork(), ME.peer_id)
    _, refreshing = listing_on(discovery, clock)
    await clock.advance(6 * TIMEOUTS.publish_look)
    refreshing.cancel()
    assert times == 3 + 2  # nobody took the first three
    assert list(await REGISTRY.profiles(discovery)) == [ME.peer_id]


async def test_a_link_is_measured_anew_when_streams_take_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    network, me = MemoryNetwork(), Identity.generate()
    plane, discovery = MemoryDataPlane(network, me.peer_id), MemoryDiscovery(network, me.peer_id)
    uplink = UplinkPacer()
    publisher = Publisher(plane, discovery, Registry("swarm", Post("swarm", me)), PROFILE, uplink, Witness())
    measured: list[str] = []

    async def measure(plane: MemoryDataPlane, peer: str, given: UplinkPacer, witness: Witness, **_: object) -> Link:
        assert given is uplink
        measured.append(peer)
        return Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0, way=(await plane.open(peer, "x")).way)

    async def ignore(_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(measured_links, "probe", measure)
    for peer in ("near", "far"):
        await MemoryDataPlane(network, peer).serve("x", ignore)
        await publisher._measured.measure(peer, ProbeRound(id=7, addresses={}))
    await publisher.follow_ways()
    assert measured == ["near", "far"]
    plane.ways["far"] = "relayed"
    for _ in range(2):
        await publisher.follow_ways()
        assert measured == ["near", "far", "far"]
        assert publisher._measured.links["far"].way == "relayed"
    assert publisher._measured.links["near"].round == 7
