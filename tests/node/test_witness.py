"""A witness of flows by which others measure: how long it looks, and what counts of that, is its own decision."""

import asyncio
import time
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_node.links import probe
from dtfm_node.links import witness as witnessing
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.steady_rate import SteadyRate
from dtfm_node.links.timed_transfers import ProbeRequest
from dtfm_node.links.witness import Witness
from dtfm_protocol.discovery.records import Link
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.wire.stream import BytesOnTheWay, Stream, StreamClosed, write_message

SENT = 0.5


@pytest.mark.parametrize("kind", ["send", "fetch"])
async def test_a_flow_that_does_not_end_is_watched_for_a_while_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever sends a byte now and then has this node take notes for ever."""
    monkeypatch.setattr(witnessing, "LONGEST_SECONDS", 0.1)
    stream, looks = MemoryStream.pair("me", "other")[0], 0

    def progress() -> BytesOnTheWay:
        nonlocal looks
        looks += 1
        return BytesOnTheWay(acknowledged=looks, busy=0.0, round_trip=0.3, delivered=looks, received=looks)

    monkeypatch.setattr(stream, "progress", progress)
    assert await Witness().watching(stream, kind, asyncio.sleep(SENT, "moved")) == "moved"  # type: ignore[arg-type]
    assert looks < 0.5 * SENT / witnessing.LOOK_SECONDS


@pytest.mark.parametrize(("kind", "holding"), [("fetch", True), ("fetch", False), ("send", True)])
async def test_a_flow_that_this_end_sends_is_held_where_that_is_asked_for(
    kind: str, holding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, begun, paces = MemoryStream.pair("me", "other")[0], time.perf_counter(), list[float]()

    def progress() -> BytesOnTheWay:
        came = int(1e6 * (time.perf_counter() - begun))
        return BytesOnTheWay(came, 0.0, 0.01, delivered=came, received=came, on_the_way=1_000_000)

    monkeypatch.setattr(stream, "progress", progress)
    monkeypatch.setattr(stream, "queued", lambda: 1.0)
    monkeypatch.setattr(stream, "pace", paces.append)
    await Witness().watching(stream, kind, asyncio.sleep(SENT), holding=holding)  # type: ignore[arg-type]
    assert bool(paces) == (holding and kind == "fetch")


@pytest.mark.parametrize("pace", [0.0, 1e6])
async def test_only_what_is_to_go_as_fast_as_it_can_is_held(pace: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is paced from the start fills no queue of its own."""
    here, there = MemoryStream.pair("me", "other")
    held: list[bool] = []

    async def watching(stream: Stream, kind: str, moving: Coroutine[Any, Any, None], *, holding: bool) -> None:
        held.append(holding)
        moving.close()
        raise StreamClosed("seen")

    witness = Witness()
    monkeypatch.setattr(witness, "watching", watching)
    await write_message(there, ProbeRequest(kind="fetch", size=1, pace=pace, beside=True))
    with pytest.raises(StreamClosed, match="seen"):
        await probe.answer(here, UplinkPacer(), witness)
    assert held == [pace == 0.0]


def flow(seconds: float) -> SteadyRate:
    """What was seen of a flow of 1 MB/s that went on for so long."""
    seen = SteadyRate(0.01)
    for look in range(1, int(seconds / 0.005) + 1):
        seen.came(look * 0.005, int(look * 5e3))
    return seen


@pytest.mark.parametrize(("received", "sent", "counts"), [(0.5, 0.5, True), (0.05, 0.5, False), (0.5, 0.05, False)])
def test_what_lasted_for_a_moment_is_told_but_does_not_count_as_what_a_line_carries(
    received: float, sent: float, counts: bool
) -> None:
    witness, told = Witness(), dict[str, Link]()
    witness.when_seen = told.__setitem__
    witness._flows["liar"] = {"send": flow(received), "fetch": flow(sent)}
    stream: Any = SimpleNamespace(
        peer="liar", way="direct", progress=lambda: SimpleNamespace(round_trip=0.01, delivered=1, received=1)
    )
    witness.ended(stream)
    assert told["liar"].received_gbps == pytest.approx(0.008, rel=0.1)
    assert witness.carried == ({"liar": (told["liar"].sent_gbps, told["liar"].received_gbps)} if counts else {})
