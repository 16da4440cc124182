"""Flows by which a far link is measured: what the kernel counts of them, and of frames beside them, is what it carries.

On this machine links have no delay, and only what a peer allows itself to send limits one.
"""

import asyncio
import contextlib
from typing import Any

import pytest

from dtfm_node.links import probe
from dtfm_node.links.flows import flow_rate
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.short_queue import HeldFlow
from dtfm_node.links.steady_rate import SteadyRate
from dtfm_node.links.timed_transfers import PROBE, ProbeRequest
from dtfm_node.links.witness import Witness
from dtfm_protocol.discovery.records import Link
from dtfm_protocol.transport.rate_cap import RateCap, TrafficCaps
from dtfm_protocol.wire.stream import DataPlane, Stream, write_message
from tests.protocol.direct_planes import ALICE, BOB, PATIENCE, World


class Watched(UplinkPacer):
    """Takes note of whose frames have had to wait for a measurement."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []

    def measuring(self, peer: str) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        self.held.append(peer)
        return super().measuring(peer)


async def test_one_flow_each_way_tells_what_a_link_carries_by_the_kernels_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And frames wait at neither end."""
    monkeypatch.setattr(probe, "LONG_TRIP", 0.0)
    monkeypatch.setattr(probe, "_throughput", None)
    flow, made, held = probe.flow_rate, list[str](), list[str]()

    def holding(stream: Stream) -> HeldFlow:
        held.append(stream.peer)
        return HeldFlow(stream)

    monkeypatch.setattr(probe, "HeldFlow", holding)

    async def noted(plane: DataPlane, streams: Any, requests: Any, *given: Any) -> float:
        made.append(requests[0][0].kind)
        return await flow(plane, streams, requests, *given)

    monkeypatch.setattr(probe, "flow_rate", noted)
    world, ours, theirs, caps = World(), Watched(), Watched(), TrafficCaps(RateCap(2e6), RateCap())
    mine, witness, told = Witness(), Witness(), dict[str, Link]()
    witness.when_seen = told.__setitem__
    async with asyncio.timeout(PATIENCE), world.peer(ALICE, caps=caps) as a, world.peer(BOB) as b:
        await b.serve(PROBE, lambda stream: probe.answer(stream, theirs, witness))
        link = await probe.probe(a, b.peer_id, ours, mine, quick=True)
        while theirs.round_trip(a.peer_id, "direct") is None:  # noqa: ASYNC110 - it is on its way
            await asyncio.sleep(0.01)
    assert link.sent_gbps == pytest.approx(caps.up.gbps, rel=0.2)
    assert link.received_gbps > 10 * link.sent_gbps
    assert theirs.pace(a.peer_id) > 10 * ours.pace(b.peer_id)
    assert made == ["send", "fetch"]
    assert held == [b.peer_id], "the flow of this end fills a queue that the other one's request waits in"
    assert not ours.held
    assert not theirs.held, "frames of the other end wait"
    seen = told[a.peer_id]
    assert seen.received_gbps == pytest.approx(link.sent_gbps, rel=0.25)
    assert seen.sent_gbps > 10 * seen.received_gbps
    assert mine.carried == {b.peer_id: (link.sent_gbps, link.received_gbps)}


@pytest.mark.parametrize("way", ["send", "fetch"])
async def test_what_training_sends_beside_a_flow_counts_as_the_links(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow alone would get half of what the line carries, and say that it has become slow."""
    monkeypatch.setattr(probe, "LONG_TRIP", 0.0)
    monkeypatch.setattr(probe, "_throughput", None)
    caps = TrafficCaps(RateCap(2e6), RateCap())
    slow, fast = (ALICE, BOB) if way == "send" else (BOB, ALICE)
    world, passed = World(), 0

    async def swallow(stream: Stream) -> None:
        while True:
            await stream.read(1 << 18)

    async with asyncio.timeout(PATIENCE), world.peer(slow, caps=caps) as from_, world.peer(fast) as to:
        here, there = (from_, to) if way == "send" else (to, from_)
        await there.serve(PROBE, lambda stream: probe.answer(stream, UplinkPacer(), Witness()))
        await to.serve("frames", swallow)
        frames = await from_.open(to.peer_id, "frames")

        async def send() -> None:
            nonlocal passed
            while True:
                await frames.write(bytes(1 << 18))
                passed += 1 << 18

        sending = asyncio.create_task(send())
        link = await probe.probe(here, there.peer_id, UplinkPacer(), quick=True)
        sending.cancel()
        await asyncio.wait({sending})
    assert (link.sent_gbps if way == "send" else link.received_gbps) == pytest.approx(caps.up.gbps, rel=0.4)
    assert passed >= 1 << 18


@pytest.mark.parametrize("kinds", [(), ("send",), ("fetch",)])
async def test_of_half_a_measurement_nothing_is_told(kinds: tuple[Any, ...]) -> None:
    """Nor of one that ends before anything has come: whoever asks for that learns nothing, and says nothing by it."""
    world, witness, told = World(), Witness(), dict[str, Link]()
    witness.when_seen = told.__setitem__
    async with asyncio.timeout(PATIENCE), world.peer(ALICE) as a, world.peer(BOB) as b:
        await b.serve(PROBE, lambda stream: probe.answer(stream, uplink, witness))
        uplink = UplinkPacer()
        for kind in kinds:
            asked = [[ProbeRequest(kind=kind, size=probe.FLOW_BYTES, beside=True)]]
            await flow_rate(a, [await a.open(b.peer_id, PROBE)], asked, SteadyRate(1e-3), lambda: None)
        stream = await a.open(b.peer_id, PROBE)
        await write_message(stream, ProbeRequest(kind="found", gbps=1.0, round_trip=1e-3))
        while uplink.round_trip(a.peer_id, "direct") is None:  # noqa: ASYNC110 - it is on its way
            await asyncio.sleep(0.01)
    assert told == {}
    assert witness.carried == {}
