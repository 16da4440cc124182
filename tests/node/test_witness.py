"""A witness of flows by which others measure: how long it looks is its own decision."""

import asyncio

import pytest

from dtfm_node.links import witness as witnessing
from dtfm_node.links.flows import LOOK_SECONDS
from dtfm_node.links.witness import Witness
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.wire.stream import BytesOnTheWay

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
    assert looks < 0.5 * SENT / LOOK_SECONDS
