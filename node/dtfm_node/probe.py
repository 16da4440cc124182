"""Links: round-trip time and throughput to another peer, both ways, over the same streams that training uses."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from dtfm_node.uplink import HEADROOM, UNPACED
from dtfm_protocol.planes.data import DataPlane, Stream, read_message, write_message
from dtfm_protocol.records import Limits, Link
from dtfm_protocol.schema import Schema

PROBE = "probe"
FEW_ECHOES, MORE_ECHOES = 3, 6
ECHOES_SECONDS = 1.0
"""Where a few echoes take longer, more of them are not worth the wait: a machine's own delays are small beside that."""
FIRST_BYTES, LAST_BYTES = 1 << 16, 1 << 25
ENOUGH_SECONDS = 1.0
ENOUGH_ROUND_TRIPS = 4.0
"""A transfer that takes this long says how fast the link is, if another one was before it."""
FIRST_ROUND_TRIPS = 8.0
"""The first one says it if it takes this long: a round trip then carries less than TCP's first window (10 packets)."""
STEADY = 1.1
"""A transfer that is faster than the one before by less has found what the link carries."""
MOST_TRANSFERS = 8
FILLED, FILLED_SECONDS = 0.25, 0.002
"""Where a transfer is faster than its link, a queue grows: so much of a round trip, and so many seconds, at least."""
LONG_SECONDS = 10.0
"""After so long, what was found must do."""
NEXT = 1.5
"""A transfer may be so many times faster than the one before: far enough above what that one lost to its start."""
AGREE = 2.0
"""Of two transfers that differ by more, one was disturbed: who was kept from reading takes in all at once."""
HELD_BACK = 0.85
"""A transfer that comes at more than so much of its pace may be slower than its link."""
FAN_SECONDS = 1.0
"""Of what each link can carry, for a transfer beside others."""
SHARED = 0.8
"""Links that together carry less than so much of what they carry alone share a limit."""
_PIECE = 1 << 14
_ECHO = b"dtfmecho"


class ProbeRequest(Schema):
    """Opens one measurement on a probe stream."""

    kind: Literal["echo", "send", "fetch", "found"]
    """echo: `size` of them come; send: `size` bytes come, say how long they took; fetch: send `size` bytes; found: so
    many `gbps` you can send."""
    size: Annotated[int, Field(ge=0, le=LAST_BYTES)] = 0
    pace: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Bytes a second that you should not exceed; 0: none."""
    gbps: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class Swallowed(Schema):
    """How long a transfer took, from its first piece on."""

    seconds: Annotated[float, Field(ge=0)]


class Poured(Schema):
    """How long a queue a transfer has left on the way when it was sent, in seconds, where the sender knows."""

    queued: Annotated[float, Field(ge=0)] | None


async def probe(plane: DataPlane, peer: str, known: Link | None = None) -> Link:
    """Measure the link to `peer`.

    Args:
        known: what was measured before. Where training fills the link's queue, a round trip takes far longer than the
            link does: transfers need not last as long as that asks for.

    Raises:
        ConnectionError: it cannot be reached, or vanished.
    """
    stream = await plane.open(peer, PROBE)
    try:
        round_trip = await _round_trip(stream)
        least = min(round_trip, known.round_trip_ms * 1e-3) if known is not None else round_trip
        sent = await _throughput(stream, "send", least)
        received = await _throughput(stream, "fetch", least)
        await write_message(stream, ProbeRequest(kind="found", gbps=received))
    finally:
        await stream.close()
    return Link(round_trip_ms=round_trip * 1e3, sent_gbps=sent, received_gbps=received, way=stream.way)


async def fan(plane: DataPlane, gbps: Mapping[str, tuple[float, float]]) -> Limits:
    """What this peer can send to, and receive from, several others at once.

    Args:
        gbps: to and from each of them, as measured alone.

    Raises:
        ConnectionError: one of them cannot be reached, or vanished.
    """
    async with contextlib.AsyncExitStack() as stack:
        streams = {}
        for peer in gbps:
            streams[peer] = await plane.open(peer, PROBE)
            stack.push_async_callback(streams[peer].close)
        up = await _together(streams, "send", {peer: there for peer, (there, _) in gbps.items()})
        down = await _together(streams, "fetch", {peer: back for peer, (_, back) in gbps.items()})
    return Limits(up_gbps=up, down_gbps=down)


async def _together(
    streams: Mapping[str, Stream], kind: Literal["send", "fetch"], alone: Mapping[str, float]
) -> float | None:
    """Gbit/s of transfers over all of `streams` at once, where that is less than they have alone."""
    size = {peer: int(min(LAST_BYTES, max(FIRST_BYTES, gbps * 1.25e8 * FAN_SECONDS))) for peer, gbps in alone.items()}
    pace = {peer: _paced(HEADROOM * gbps * 1.25e8) for peer, gbps in alone.items()}
    seconds = [0.0]
    for share in (4, 1):  # the first, smaller ones open the congestion windows
        found = await asyncio.gather(
            *(_transfer(stream, kind, size[peer] // share, pace[peer]) for peer, stream in streams.items())
        )
        seconds = [taken for taken, _ in found]
    gbps = sum(size.values()) * 8e-9 / max(*seconds, 1e-6)
    return gbps if gbps < SHARED * sum(alone.values()) else None


async def answer(stream: Stream, found: Callable[[str, float], None]) -> None:
    """The other side of `probe`; ends when the stream does.

    Args:
        found: called with the peer, and the Gbit/s that it says it can receive.
    """
    while True:
        request = await read_message(stream, ProbeRequest)
        if request.kind == "echo":
            for _ in range(min(request.size, MORE_ECHOES)):
                await stream.write(await stream.read(len(_ECHO)))
        elif request.kind == "send":
            await write_message(stream, Swallowed(seconds=await _swallow(stream, request.size)))
        elif request.kind == "fetch":
            stream.pace(request.pace or math.inf)
            await write_message(stream, Poured(queued=await _pour(stream, request.size)))
        else:
            found(stream.peer, request.gbps)


async def _round_trip(stream: Stream) -> float:
    """Seconds of the fastest of several echoes: what else a machine does can only add to it."""
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


async def _throughput(stream: Stream, kind: Literal["send", "fetch"], round_trip: float) -> float:
    """Gbit/s of the faster one of the last two of several transfers, as it came in.

    The first ones open the congestion window: their round trips are no rate. Each is held to 1.5 or 2 times what the
    one before it has found, so that no queue on the way runs full: what it loses comes late, and stalls the rest. One
    that was held back, is faster than the one before, or far slower, has not found what the link carries; nor has one
    that filled no queue, as where TCP has stopped opening its window early: further ones, for a while, open it.
    """
    size, pace, rates = FIRST_BYTES, math.inf, [0.0]
    enough = max(ENOUGH_SECONDS, ENOUGH_ROUND_TRIPS * round_trip)
    filled = max(FILLED_SECONDS, FILLED * round_trip)
    end = time.perf_counter() + LONG_SECONDS
    while True:
        seconds, queued = await _transfer(stream, kind, size, pace)
        seconds = max(1e-6, seconds)
        rate, before = (size - _PIECE) / seconds, rates[-1]
        rates.append(rate)
        was_held_back = rate > HELD_BACK * pace
        if before == 0.0 and seconds >= max(ENOUGH_SECONDS, FIRST_ROUND_TRIPS * round_trip):
            return rate * 8e-9
        is_steady = seconds >= enough and not was_held_back and rate < STEADY * before < STEADY * AGREE * rate
        if queued is not None and queued < filled and time.perf_counter() < end:
            is_steady = False
        if is_steady or size >= LAST_BYTES or len(rates) > MOST_TRANSFERS:
            return (max(rate, before) if before < AGREE * rate else rate) * 8e-9
        pace = _paced(rate * (2.0 if was_held_back or before == 0.0 else NEXT))
        size = int(min(LAST_BYTES, 4 * size, max(size, 1.25 * rate * enough)))


def _paced(rate: float) -> float:
    """A pace of `rate` bytes a second; none where that is no bottleneck."""
    return rate if rate < UNPACED else math.inf


async def _transfer(
    stream: Stream, kind: Literal["send", "fetch"], size: int, pace: float
) -> tuple[float, float | None]:
    """Seconds that one transfer takes to come in, from its first piece on; and of the queue that it fills, if known."""
    await write_message(stream, ProbeRequest(kind=kind, size=size, pace=0.0 if math.isinf(pace) else pace))
    if kind == "send":
        stream.pace(pace)
        queued = await _pour(stream, size)
        return (await read_message(stream, Swallowed)).seconds, queued
    seconds = await _swallow(stream, size)
    return seconds, (await read_message(stream, Poured)).queued


async def _pour(stream: Stream, size: int) -> float | None:
    """Send `size` bytes; seconds of queue that they fill, if known."""
    piece = bytes(_PIECE)
    for offset in range(0, size, _PIECE):
        await stream.write(piece[: min(_PIECE, size - offset)])
    return stream.queued()


async def _swallow(stream: Stream, size: int) -> float:
    """Take in `size` bytes; seconds from the first piece to the last."""
    begun = time.perf_counter()
    for offset in range(0, size, _PIECE):
        await stream.read(min(_PIECE, size - offset))
        if not offset:
            begun = time.perf_counter()
    return time.perf_counter() - begun
