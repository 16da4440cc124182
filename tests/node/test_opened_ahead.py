"""Streams that are opened before the round in which they are used."""

import asyncio

import pytest

from dtfm_node.links.opened_ahead import OpenedAhead
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from tests.harness.manual_clock import settle
from tests.node.answering import Answering

PATIENCE = 60.0


async def nowhere() -> None:
    """The plane knows where peers are."""


async def test_streams_are_taken_once_by_who_measures_with_that_peer() -> None:
    network = MemoryNetwork()
    near = await Answering.on(network, "near")
    ahead = OpenedAhead(MemoryDataPlane(network, "me"), 3)
    assert await ahead.take("near") == []
    await ahead.begin("near", nowhere)
    assert ahead.is_open
    streams = await ahead.take("near")
    assert [stream.peer for stream in streams] == ["near"] * 3
    assert not ahead.is_open
    assert await ahead.take("near") == []
    await ahead.close()
    await settle()
    assert near.open == 3, "they are the taker's"


async def test_what_is_not_asked_for_is_closed() -> None:
    network = MemoryNetwork()
    near, far = [await Answering.on(network, peer) for peer in ("near", "far")]
    ahead = OpenedAhead(MemoryDataPlane(network, "me"), 2)
    await ahead.begin("near", nowhere)
    await settle()
    assert near.open == 2
    await ahead.begin("far", nowhere)
    await settle()
    assert (near.open, far.open) == (0, 2)
    assert await ahead.take("near") == []
    await settle()
    assert far.open == 0
    await ahead.begin("far", nowhere)
    await ahead.close()
    assert not ahead.is_open
    await settle()
    assert far.open == 0, "also where they were just being opened"


async def test_who_cannot_be_reached_costs_nothing_but_the_try() -> None:
    ahead = OpenedAhead(MemoryDataPlane(MemoryNetwork(), "me"), 2)
    await ahead.begin("nobody", nowhere)
    assert await ahead.take("nobody") == []
    await ahead.begin("nobody", nowhere)
    await settle()
    await ahead.close()


async def test_where_each_stream_takes_long_to_open_none_is_opened_ahead() -> None:
    network = MemoryNetwork()
    plane, near = MemoryDataPlane(network, "me"), await Answering.on(network, "near")
    plane.ways["near"] = "relayed"
    ahead = OpenedAhead(plane, 2)
    await ahead.begin("near", nowhere)
    await settle()
    assert (near.opened, ahead.is_open) == (0, False)


@pytest.mark.parametrize("ends", ["closed", "late"])
async def test_of_streams_of_which_not_all_open_none_is_left(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = MemoryNetwork()
    plane, near = MemoryDataPlane(network, "me"), await Answering.on(network, "near")
    open_, asked = plane.open, 0

    async def open_some(peer: str, service: str) -> MemoryStream:
        nonlocal asked
        asked += 1
        if asked == 3:
            await asyncio.Event().wait()
        return await open_(peer, service)

    monkeypatch.setattr(plane, "open", open_some)
    ahead = OpenedAhead(plane, 3, limit=PATIENCE if ends == "closed" else 1.0)
    await ahead.begin("near", nowhere)
    await settle()
    assert near.open == 2
    if ends == "closed":
        await ahead.close()
    else:
        assert await ahead.take("near") == []
    await settle()
    assert near.open == 0


async def test_a_taker_that_gives_up_leaves_nothing_open() -> None:
    network, known = MemoryNetwork(), asyncio.Event()
    near, ahead = await Answering.on(network, "near"), OpenedAhead(MemoryDataPlane(network, "me"), 2)

    async def find_out() -> None:
        await known.wait()

    await ahead.begin("near", find_out)
    taking = asyncio.create_task(ahead.take("near"))
    await settle()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    known.set()
    await settle()
    assert (near.opened, ahead.is_open) == (0, False)
