"""Flows by which a far link is measured: what the kernel counts of them, and of frames beside them, is what it carries.

On this machine links have no delay, and only what a peer allows itself to send limits one.
"""

import asyncio
import contextlib
import time
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
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.transport.rate_cap import RateCap, TrafficCaps
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Bytes, BytesOnTheWay, DataPlane, Stream, StreamClosed, write_message
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
    grown = list[str]()
    monkeypatch.setattr(TlsStream, "grow_until_loss", lambda stream: grown.append(stream.peer))
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
    assert grown == [b.peer_id, a.peer_id], "each end has the window of its own flow grow"
    assert held == [b.peer_id], "the flow of this end fills a queue that the other one's request waits in"
    assert not ours.held
    assert not theirs.held, "frames of the other end wait"
    seen = told[a.peer_id]
    assert seen.received_gbps == pytest.approx(link.sent_gbps, rel=0.25)
    assert seen.sent_gbps > 10 * seen.received_gbps
    assert mine.carried == {b.peer_id: (link.sent_gbps, link.received_gbps)}


@pytest.mark.parametrize(
    ("round_trip", "bursts", "begins"),
    [(0.1, True, "while the first one's window opens"), (0.1, False, "after it"), (0.05, True, "after it")],
)
async def test_a_far_links_second_flow_begins_while_the_first_ones_window_opens(
    round_trip: float, bursts: bool, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching, sent = asyncio.Event(), asyncio.Event()

    async def flow(_: DataPlane, streams: Any, requests: Any, rate: SteadyRate, *__: Any) -> float:
        if requests[0][0].kind == "fetch":
            assert begins == ("after it" if sent.is_set() else "while the first one's window opens")
            fetching.set()
            return 2e6
        monkeypatch.setattr(SteadyRate, "has_bursts", bursts)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3 if begins == "after it" else PATIENCE):
                await fetching.wait()
        sent.set()
        return 1e6

    monkeypatch.setattr(probe, "flow_rate", flow)
    plane = MemoryDataPlane(MemoryNetwork(), "me")
    streams = [MemoryStream.pair("me", "other")[0] for _ in range(4)]
    assert await probe._flows(plane, streams, round_trip) == pytest.approx((8e-3, 16e-3))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_second_flow_that_is_about_to_fill_its_link_waits_for_the_end_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What goes back over a link that is full, as acknowledgements do, waits in its queue."""
    streams = [MemoryStream.pair("me", "other")[0] for _ in range(4)]
    fetched, sent, stopped = list[int](), asyncio.Event(), asyncio.Event()

    async def flow(_: DataPlane, used: Any, requests: Any, rate: SteadyRate, *__: Any) -> float:
        if requests[0][0].kind == "send":
            monkeypatch.setattr(SteadyRate, "has_bursts", True)
            await stopped.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            sent.set()
            return 1e6
        fetched.append(streams.index(used[0]))
        if len(fetched) > 1:
            assert sent.is_set()
            return 2e6
        monkeypatch.setattr(SteadyRate, "has_long_bursts", True)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return 0.0

    monkeypatch.setattr(probe, "flow_rate", flow)
    async with asyncio.timeout(PATIENCE):
        found = await probe._flows(MemoryDataPlane(MemoryNetwork(), "me"), streams, 0.1)
    assert found == pytest.approx((8e-3, 16e-3))
    assert fetched == [1, 2], "on another stream, for the first one's is over"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_where_the_first_flow_fails_the_second_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching = asyncio.Event()

    async def flow(_: DataPlane, streams: Any, requests: Any, *__: Any) -> float:
        if requests[0][0].kind == "fetch":
            fetching.set()
            await asyncio.Event().wait()
        monkeypatch.setattr(SteadyRate, "has_bursts", True)
        await fetching.wait()
        raise StreamClosed("gone")

    monkeypatch.setattr(probe, "flow_rate", flow)
    streams = [MemoryStream.pair("me", "other")[0] for _ in range(4)]
    with pytest.raises(StreamClosed):
        await probe._flows(MemoryDataPlane(MemoryNetwork(), "me"), streams, 0.1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


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


async def test_what_comes_late_of_a_flow_that_is_over_does_not_make_its_link_slow() -> None:
    """Lost packets come last, and slowly."""
    begun, size = time.perf_counter(), probe.FLOW_BYTES

    class LossyStream(MemoryStream):
        def progress(self) -> BytesOnTheWay:
            passed = time.perf_counter() - begun
            come = min(passed / 0.1, 1.0) * (size - 3000) + max(0.0, passed - 0.1) * 1e4
            return BytesOnTheWay(acknowledged=0, busy=0.0, round_trip=0.03, delivered=int(come), received=1)

        async def write(self, *buffers: Bytes) -> None:
            await asyncio.sleep(0.4 / 64 * sum(map(len, buffers)) / (1 << 18))

    asked = [[ProbeRequest(kind="send", size=size, beside=True)]]
    plane = MemoryDataPlane(MemoryNetwork(), "me")
    found = await flow_rate(plane, [LossyStream("other")], asked, SteadyRate(0.03), lambda: None)
    assert found > size


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
