"""What a node publishes of its links."""

import asyncio
import time
from pathlib import Path

import pytest

from dtfm_node import listing as listings
from dtfm_node.display import Display
from dtfm_node.journal import Journal
from dtfm_node.listing import Listing
from dtfm_node.uplink import Uplink
from dtfm_protocol.control import ProbeRound
from dtfm_protocol.envelope import Post
from dtfm_protocol.identity import Identity
from dtfm_protocol.planes.discovery import Registry
from dtfm_protocol.planes.memory import MemoryDataPlane, MemoryDiscovery, MemoryNetwork
from dtfm_protocol.records import Link, LinkReport, Profile
from dtfm_protocol.view import LayerSeconds

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


async def listing_on(discovery: Forgetful, monkeypatch: pytest.MonkeyPatch) -> tuple[Listing, asyncio.Task[None]]:
    """A listing of no links that refreshes as fast as it can."""
    monkeypatch.setattr(listings, "LOOK_SECONDS", 0.0)
    listing = Listing(MemoryDataPlane(discovery._network, ME.peer_id), discovery, REGISTRY, PROFILE, Uplink())
    return listing, asyncio.create_task(listing.refresh())


async def test_links_of_an_earlier_life_are_taken_back_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    link = Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0)
    await REGISTRY.publish(discovery, LinkReport(links={"gone": link}))
    _, refreshing = await listing_on(discovery, monkeypatch)
    await asyncio.sleep(0.02)
    refreshing.cancel()
    report = await REGISTRY.links(discovery, ME.peer_id)
    assert report is not None
    assert report.links == {}
    assert discovery.times == 2


async def test_links_that_nobody_took_are_published_again_soon_and_then_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    listing, refreshing = await listing_on(discovery, monkeypatch)
    await asyncio.sleep(0.02)
    discovery.works, before = False, discovery.times
    with pytest.raises(OSError, match="does not answer"):
        await listing._publish_links(1e9)
    await asyncio.sleep(0.02)
    assert discovery.times > before + 2
    discovery.works, before = True, discovery.times
    await asyncio.sleep(0.02)
    refreshing.cancel()
    assert discovery.times == before + 1


async def test_what_is_measured_while_an_older_report_is_on_its_way_comes_after_it_and_twice() -> None:
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
    listing = Listing(MemoryDataPlane(discovery._network, ME.peer_id), discovery, REGISTRY, PROFILE, Uplink())
    older = asyncio.create_task(listing._publish_links(1e9))
    await discovery.begun.wait()
    listing._probed = 7
    newer = asyncio.create_task(listing._publish_links(0.0))
    await asyncio.sleep(0.01)
    discovery.slow.set()
    await asyncio.gather(older, newer)
    report = await REGISTRY.links(discovery, ME.peer_id)
    assert report is not None
    assert report.probed == 7
    assert listing._links_due <= time.monotonic()


async def test_what_was_just_measured_is_published_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    discovery = Forgetful(MemoryNetwork(), ME.peer_id)
    listing, refreshing = await listing_on(discovery, monkeypatch)
    await asyncio.sleep(0.02)
    before = discovery.times
    rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
    rounds.put_nowait(ProbeRound(id=3, pairs=((ME.peer_id, "gone"),), addresses={}))
    measuring = asyncio.create_task(listing.measure(rounds, Journal("one", tmp_path / "status.json", Display("plain"))))
    await asyncio.sleep(0.05)
    measuring.cancel()
    refreshing.cancel()
    assert discovery.times == before + 2
    report = await REGISTRY.links(discovery, ME.peer_id)
    assert report is not None
    assert report.probed == 3


async def test_a_profile_is_published_twice_and_then_rarely() -> None:
    """Each time costs half of the swarm an answer with all that it holds."""
    times = 0

    class Counting(MemoryDiscovery):
        async def publish(self, key: str, record: bytes, seconds: float) -> bool:
            nonlocal times
            times += "profile" in key
            return times > 3 and await super().publish(key, record, seconds)

    discovery = Counting(MemoryNetwork(), ME.peer_id)
    listing = Listing(MemoryDataPlane(discovery._network, ME.peer_id), discovery, REGISTRY, PROFILE, Uplink())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listings, "LOOK_SECONDS", 0.0)
        refreshing = asyncio.create_task(listing.refresh())
        await asyncio.sleep(0.05)
        refreshing.cancel()
    assert times == 3 + 2  # nobody took the first three
    assert list(await REGISTRY.profiles(discovery)) == [ME.peer_id]


async def test_a_link_is_measured_anew_when_streams_take_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    network, me = MemoryNetwork(), Identity.generate()
    plane, discovery = MemoryDataPlane(network, me.peer_id), MemoryDiscovery(network, me.peer_id)
    uplink = Uplink()
    listing = Listing(plane, discovery, Registry("swarm", Post("swarm", me)), PROFILE, uplink)
    measured: list[str] = []

    async def measure(plane: MemoryDataPlane, peer: str, given: Uplink) -> Link:
        assert given is uplink
        measured.append(peer)
        return Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0, way=(await plane.open(peer, "x")).way)

    async def ignore(_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(listings, "probe", measure)
    for peer in ("near", "far"):
        await MemoryDataPlane(network, peer).serve("x", ignore)
        await listing._probe(peer, (), 7)
    await listing.follow_ways()
    assert measured == ["near", "far"]
    plane.ways["far"] = "relayed"
    for _ in range(2):
        await listing.follow_ways()
        assert measured == ["near", "far", "far"]
        assert listing._links["far"].way == "relayed"
    assert listing._links["near"].round == 7
