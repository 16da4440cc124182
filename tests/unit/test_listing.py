"""What a node publishes of its links."""

import asyncio

import pytest

from dtfm_node import listing as listings
from dtfm_node.listing import Listing
from dtfm_node.uplink import HEADROOM, Uplink
from dtfm_protocol.envelope import Post
from dtfm_protocol.identity import Identity
from dtfm_protocol.planes.discovery import Registry
from dtfm_protocol.planes.memory import MemoryDataPlane, MemoryDiscovery, MemoryNetwork
from dtfm_protocol.records import Link, Profile
from dtfm_protocol.view import LayerSeconds

PROFILE = Profile(
    device="cpu",
    flops={"fp32": 1e11},
    layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
    memory_bytes=1e9,
    addresses=(),
    version="0.1.0",
)


async def test_a_link_is_measured_anew_when_streams_take_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    network, me = MemoryNetwork(), Identity.generate()
    plane, discovery = MemoryDataPlane(network, me.peer_id), MemoryDiscovery(network, me.peer_id)
    uplink = Uplink()
    listing = Listing(plane, discovery, Registry("swarm", Post("swarm", me)), PROFILE, uplink)
    measured: list[str] = []

    async def measure(plane: MemoryDataPlane, peer: str) -> Link:
        measured.append(peer)
        return Link(round_trip_ms=1.0, sent_gbps=1.0, received_gbps=1.0, way=(await plane.open(peer, "x")).way)

    async def ignore(_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(listings, "probe", measure)
    for peer in ("near", "far"):
        await MemoryDataPlane(network, peer).serve("x", ignore)
        await listing._probe(peer, ())
    await listing.follow_ways()
    assert measured == ["near", "far"]
    plane.ways["far"] = "relayed"
    for _ in range(2):
        await listing.follow_ways()
        assert measured == ["near", "far", "far"]
        assert listing._links["far"].way == "relayed"
    assert uplink.pace("near") == HEADROOM * 1.25e8
