"""Measurement of a link: round-trip time and throughput to another peer, both ways, over the streams that training
uses."""

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from dtfm_node.links.pacing import HEADROOM, UplinkPacer
from dtfm_node.links.rate_search import FIRST_BYTES, LAST_BYTES, PIECE_BYTES, RateSearch, paced
from dtfm_protocol.discovery.records import Limits, Link
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.stream import DataPlane, Stream, read_message, write_message

PROBE = "probe"
FEW_ECHOES, MORE_ECHOES = 3, 6
ECHOES_SECONDS = 0.3
"""Where a few echoes take longer, more of them are not worth the wait: a machine's own delays are small beside that."""
DRAINED, DRAIN_SECONDS = 2.0, 10.0
"""A round trip that takes so many times what it took before is behind what training has left on the way: for so long it
is waited for."""
BULK_BYTES = 1 << 18
"""Bytes of each piece of a transfer but the first: on a fast link smaller ones keep the processor busy."""
FAN_SECONDS = 0.4
"""Of what each link can carry, for a transfer beside others."""
SHARED = 0.8
"""Share of what several links carry alone, in sum; if they carry less together, they share a limit."""
MOST_SECONDS = 3600.0
"""That somebody may say to have waited."""
_ECHO = b"dtfmecho"


class ProbeRequest(Message):
    """Request that opens one measurement on a probe stream."""

    kind: Literal["echo", "send", "fetch", "queued", "found"]
    """Kind of measurement, as the asked peer does it. "echo": send back `size` echoes; "send": take in `size` bytes,
    and answer how long they took; "fetch": send `size` bytes; "queued": answer how much of a queue they have left on
    the way; "found": note that the link carries `gbps` towards the asking peer with a `round_trip` of so many seconds.
    """
    size: Annotated[int, Field(ge=0, le=LAST_BYTES)] = 0
    pace: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Bytes a second that the asked peer should not exceed; 0: no limit."""
    gbps: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    round_trip: Annotated[float, Field(ge=0, le=MOST_SECONDS)] = 0.0
    """Seconds of a round trip, as found by the asking peer."""


class Swallowed(Message):
    """Answer to "send": seconds that the transfer took, from its first piece on."""

    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)]


class Queued(Message):
    """Answer to "queued": seconds of queue that the last transfer has left on the way; None where its sender cannot
    know."""

    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None


async def probe(plane: DataPlane, peer: str, uplink: UplinkPacer, *, quick: bool = False) -> Link:
    """Measure the link to `peer`, which no frame uses meanwhile.

    Args:
        quick: whether rates within a tenth or two are wanted soon.

    Raises:
        ConnectionError: the peer cannot be reached, or vanished.
    """
    with uplink.measuring(peer):
        stream = await plane.open(peer, PROBE)
        try:
            known = uplink.round_trip(peer, stream.way)
            round_trip = await _round_trip(stream, known)
            least = round_trip if known is None else min(round_trip, known)
            sent = await _throughput(stream, "send", least, again=known is not None, quick=quick)
            received = await _throughput(stream, "fetch", least, again=known is not None, quick=quick)
            await write_message(stream, ProbeRequest(kind="found", gbps=received, round_trip=round_trip))
        finally:
            await stream.close()
    uplink.measured(peer, sent, round_trip, stream.way)
    return Link(round_trip_ms=round_trip * 1e3, sent_gbps=sent, received_gbps=received, way=stream.way)


async def echo(plane: DataPlane, peer: str) -> float:
    """Return the seconds of a round trip to `peer`, the fastest of several. Frames need not wait for it.

    Raises:
        ConnectionError: the peer cannot be reached, or vanished.
    """
    stream = await plane.open(peer, PROBE)
    try:
        return await _fastest_echo(stream)
    finally:
        await stream.close()


async def fan(plane: DataPlane, gbps: Mapping[str, tuple[float, float]], uplink: UplinkPacer) -> Limits:
    """Measure what this peer can send to, and receive from, several others at once.

    Args:
    gbps: Gbit/s to and from each of them, by peer id, as measured alone.

    Raises:
    ConnectionError: one of them cannot be reached, or vanished.
    """
    async with contextlib.AsyncExitStack() as stack:
        streams: dict[str, Stream] = {}

        async def connect(peer: str) -> None:
            streams[peer] = await plane.open(peer, PROBE)
            stack.push_async_callback(streams[peer].close)

        for failure in await asyncio.gather(*map(connect, gbps), return_exceptions=True):
            if failure is not None:
                raise failure
        for peer in gbps:
            stack.enter_context(uplink.measuring(peer))
        up = await _together(streams, "send", {peer: there for peer, (there, _) in gbps.items()})
        down = await _together(streams, "fetch", {peer: back for peer, (_, back) in gbps.items()})
    return Limits(up_gbps=up, down_gbps=down)


async def _together(
    streams: Mapping[str, Stream], kind: Literal["send", "fetch"], alone: Mapping[str, float]
) -> float | None:
    """Return the Gbit/s of transfers over all of `streams` at once; None where that is about what they have alone."""
    size = {peer: int(min(LAST_BYTES, max(FIRST_BYTES, gbps * 1.25e8 * FAN_SECONDS))) for peer, gbps in alone.items()}
    pace = {peer: paced(HEADROOM * gbps * 1.25e8) for peer, gbps in alone.items()}
    seconds = [0.0]
    for share in (4, 1):  # the first, smaller ones open the congestion windows
        seconds = await asyncio.gather(
            *(_transfer(stream, kind, size[peer] // share, pace[peer]) for peer, stream in streams.items())
        )
    gbps = sum(size.values()) * 8e-9 / max(*seconds, 1e-6)
    return gbps if gbps < SHARED * sum(alone.values()) else None


async def answer(stream: Stream, uplink: UplinkPacer) -> None:
    """Answer the requests of a peer that measures, until its stream ends."""
    with uplink.measuring(stream.peer):
        while True:
            request = await read_message(stream, ProbeRequest)
            if request.kind == "echo":
                for _ in range(min(request.size, MORE_ECHOES)):
                    await stream.write(await stream.read(len(_ECHO)))
            elif request.kind == "send":
                await write_message(stream, Swallowed(seconds=await _swallow(stream, request.size)))
            elif request.kind == "fetch":
                stream.pace(request.pace or math.inf)
                await _pour(stream, request.size)
            elif request.kind == "queued":
                await write_message(stream, Queued(seconds=stream.queued()))
            else:
                uplink.measured(stream.peer, request.gbps, request.round_trip, stream.way)


async def _round_trip(stream: Stream, known: float | None) -> float:
    """Return the seconds of the fastest of several echoes: what else a machine does can only add to them.

    Args:
    known: seconds that it took before. Where it takes much longer, training's data is still on the way; that is waited
    for, but not for ever.
    """
    begun = time.perf_counter()
    found = await _fastest_echo(stream)
    while known and found > DRAINED * known and time.perf_counter() - begun < DRAIN_SECONDS:
        found = min(found, await _fastest_echo(stream))
    return found


async def _fastest_echo(stream: Stream) -> float:
    seconds: list[float] = []
    for count in (FEW_ECHOES, MORE_ECHOES):
        await write_message(stream, ProbeRequest(kind="echo", size=count))
        for _ in range(count):
            begun = time.perf_counter()
            await stream.write(_ECHO)
            await stream.read(len(_ECHO))
            seconds.append(time.perf_counter() - begun)
        if sum(seconds) > ECHOES_SECONDS:
            break
    return min(seconds)


async def _throughput(
    stream: Stream, kind: Literal["send", "fetch"], round_trip: float, *, again: bool, quick: bool
) -> float:
    """Return the Gbit/s that the link carries, as the receiver timed them."""
    search = RateSearch(round_trip, again=again, quick=quick)
    begun = time.perf_counter()
    while search.rate is None:
        seconds = await _transfer(stream, kind, search.size, search.pace)
        queued = await _queued(stream, kind) if search.asks_for_queue(seconds) else None
        search.came(seconds, queued, time.perf_counter() - begun)
    return search.rate * 8e-9


async def _transfer(stream: Stream, kind: Literal["send", "fetch"], size: int, pace: float) -> float:
    """Make one transfer; return the seconds that it took to come in, from its first piece on."""
    await write_message(stream, ProbeRequest(kind=kind, size=size, pace=0.0 if math.isinf(pace) else pace))
    if kind == "fetch":
        return await _swallow(stream, size)
    stream.pace(pace)
    await _pour(stream, size)
    return (await read_message(stream, Swallowed)).seconds


async def _queued(stream: Stream, kind: Literal["send", "fetch"]) -> float | None:
    """Return the seconds of queue that the last transfer has left on the way; None where its sender cannot know."""
    if kind == "send":
        return stream.queued()
    await write_message(stream, ProbeRequest(kind="queued"))
    return (await read_message(stream, Queued)).seconds


def _pieces(size: int) -> Iterator[int]:
    """Yield the sizes of a transfer's pieces, a small one first: it is timed from that one on."""
    yield min(PIECE_BYTES, size)
    for offset in range(PIECE_BYTES, size, BULK_BYTES):
        yield min(BULK_BYTES, size - offset)


async def _pour(stream: Stream, size: int) -> None:
    zeros = memoryview(bytes(BULK_BYTES))
    for piece in _pieces(size):
        await stream.write(zeros[:piece])


async def _swallow(stream: Stream, size: int) -> float:
    """Take in `size` bytes; return the seconds from the first piece to the last."""
    pieces = _pieces(size)
    await stream.read(next(pieces))
    begun = time.perf_counter()
    for piece in pieces:
        await stream.read(piece)
    return time.perf_counter() - begun
