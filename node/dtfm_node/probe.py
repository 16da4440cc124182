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
ENOUGH_SECONDS = 0.8
ENOUGH_ROUND_TRIPS = 3.2
"""A transfer that takes this long says how fast the link is, if another one was before it."""
LENGTH = 1.5
"""A transfer is as long as takes so many times that, if it is no faster than the one before."""
FIRST_SECONDS, FIRST_AGAIN_SECONDS, FIRST_ROUND_TRIPS = 4.0, 1.0, 8.0
"""The first one says it if it takes this long: a round trip then carries less than TCP's first window (10 packets), and
another one would take too long. That is so sooner where the link was measured before: what training has put into its
queue holds up every request."""
MOST_TRANSFERS = 12
LONG_SECONDS, AGAIN_SECONDS = 15.0, 5.0
"""After so long, two transfers that are long enough must do; for a link that was measured before, which training may be
waiting for, and keep from being steady."""
LAST_SECONDS = 22.0
"""After so long, whatever was found must do."""
SEARCHING, FURTHER, CLOSE = 3.0, 1.3, 1.2
"""A transfer may be so many times faster than what was found before: until a queue has grown on the way; where one that
came later has filled none (squared where the next one has not, and so on); and where the last one did, so little that
the queue does not run over while it lasts."""
HELD_BACK = 0.9
"""A transfer that comes at more than so much of its pace may be slower than its link."""
FILLED, FILLED_SECONDS = 0.25, 0.002
"""Where a transfer is faster than its link, a queue grows: so much of a round trip, and so many seconds, at least."""
STEADY = 0.95
"""Of two transfers that differ by more, one has shared the link for a while, was short, or has lost packets to a pace
that was too high."""
AGREE = 2.0
"""Of two transfers that differ by more, one was disturbed: who was kept from reading takes in all at once."""
FAN_SECONDS = 1.0
"""Of what each link can carry, for a transfer beside others."""
SHARED = 0.8
"""Links that together carry less than so much of what they carry alone share a limit."""
MOST_SECONDS = 3600.0
"""That somebody may say to have waited."""
_PIECE = 1 << 14
_ECHO = b"dtfmecho"


class ProbeRequest(Schema):
    """Opens one measurement on a probe stream."""

    kind: Literal["echo", "send", "fetch", "queued", "found"]
    """echo: `size` of them come; send: `size` bytes come, say how long they took; fetch: send `size` bytes; queued: say
    how much of a queue they have filled; found: so many `gbps` you can send."""
    size: Annotated[int, Field(ge=0, le=LAST_BYTES)] = 0
    pace: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Bytes a second that you should not exceed; 0: none."""
    gbps: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class Swallowed(Schema):
    """How long a transfer took, from its first piece on."""

    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)]


class Queued(Schema):
    """How long a queue the last transfer has left on the way, where its sender knows."""

    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None


async def probe(plane: DataPlane, peer: str, known: Link | None = None) -> Link:
    """Measure the link to `peer`.

    Args:
        known: what was measured before. Training may go on over that link: where it fills its queue, a round trip
            takes far longer than the link does, and transfers need not last as long as that asks for.

    Raises:
        ConnectionError: it cannot be reached, or vanished.
    """
    stream = await plane.open(peer, PROBE)
    try:
        round_trip = await _round_trip(stream)
        least = min(round_trip, known.round_trip_ms * 1e-3) if known is not None else round_trip
        sent = await _throughput(stream, "send", least, again=known is not None)
        received = await _throughput(stream, "fetch", least, again=known is not None)
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
        seconds = await asyncio.gather(
            *(_transfer(stream, kind, size[peer] // share, pace[peer]) for peer, stream in streams.items())
        )
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
            await _pour(stream, request.size)
        elif request.kind == "queued":
            await write_message(stream, Queued(seconds=stream.queued()))
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


async def _throughput(stream: Stream, kind: Literal["send", "fetch"], round_trip: float, *, again: bool) -> float:
    """Gbit/s that the link carries, as it came in.

    The first transfers open the congestion window: their round trips are no rate. Each is held to a pace, for a queue
    that runs over loses packets, and who waits for those that are sent again measures that wait. What counts is one
    that is hardly faster than the link, still fills a queue (else it was its pace, or TCP's window, that it has found),
    and is as fast as those before it; where none is in time, the fastest one.
    """
    size, pace, step, search = FIRST_BYTES, math.inf, SEARCHING, SEARCHING
    before, found = 0.0, 0.0
    enough = max(ENOUGH_SECONDS, ENOUGH_ROUND_TRIPS * round_trip)
    patience, first = (AGAIN_SECONDS, FIRST_AGAIN_SECONDS) if again else (LONG_SECONDS, FIRST_SECONDS)
    begun = time.perf_counter()
    for number in range(1, MOST_TRANSFERS + 1):
        if time.perf_counter() - begun > LAST_SECONDS:
            break
        seconds = max(1e-6, await _transfer(stream, kind, size, pace))
        rate = (size - _PIECE) / seconds
        if number == 1 and seconds >= max(first, FIRST_ROUND_TRIPS * round_trip):
            return rate * 8e-9
        # In a few round trips there is no queue to tell from a link's own unevenness, nor from training's.
        is_brief = number == 1 and seconds < FIRST_ROUND_TRIPS * round_trip
        queued = None if is_brief or again else await _queued(stream, kind)
        if queued is not None and rate > AGREE * pace:
            continue  # the kernel has held it to its pace: who read it was kept from reading, and then had all at once
        was_held_back = rate > HELD_BACK * pace
        if queued is None:
            fills = not was_held_back and not math.isinf(pace)
        else:
            fills = queued >= max(FILLED_SECONDS, FILLED * round_trip)
        if before >= AGREE * rate:
            before, found, step, search = rate, 0.0, SEARCHING, SEARCHING
        else:
            is_steady = STEADY * before < rate < before / STEADY
            if seconds >= enough or size >= LAST_BYTES:
                # One that is long because it was interrupted tells nothing: it takes another one.
                is_second = found > 0.0 and (fills or rate < before)
                found = max(found, rate)
                is_late = time.perf_counter() - begun > patience
                if (is_steady and step == CLOSE and fills) or (is_late and (is_steady or is_second)):
                    return found * 8e-9
            if size >= LAST_BYTES and not was_held_back and (is_steady or math.isinf(pace)):
                break
            search = 1.0 if fills else min(SEARCHING, FURTHER * search)
            step = CLOSE if fills else search
            before = rate if rate > before else (before + rate) / 2
        pace = _paced(step * before)
        size = int(min(LAST_BYTES, 4 * size, max(FIRST_BYTES, LENGTH * before * enough)))
    return max(found, before) * 8e-9


def _paced(rate: float) -> float:
    """A pace of `rate` bytes a second; none where that is no bottleneck."""
    return rate if rate < UNPACED else math.inf


async def _transfer(stream: Stream, kind: Literal["send", "fetch"], size: int, pace: float) -> float:
    """Seconds that one transfer takes to come in, from its first piece on."""
    await write_message(stream, ProbeRequest(kind=kind, size=size, pace=0.0 if math.isinf(pace) else pace))
    if kind == "fetch":
        return await _swallow(stream, size)
    stream.pace(pace)
    await _pour(stream, size)
    return (await read_message(stream, Swallowed)).seconds


async def _queued(stream: Stream, kind: Literal["send", "fetch"]) -> float | None:
    """Seconds of queue that the last transfer has left on the way, if its sender knows."""
    if kind == "send":
        return stream.queued()
    await write_message(stream, ProbeRequest(kind="queued"))
    return (await read_message(stream, Queued)).seconds


async def _pour(stream: Stream, size: int) -> None:
    piece = bytes(_PIECE)
    for offset in range(0, size, _PIECE):
        await stream.write(piece[: min(_PIECE, size - offset)])


async def _swallow(stream: Stream, size: int) -> float:
    """Take in `size` bytes; seconds from the first piece to the last."""
    begun = time.perf_counter()
    for offset in range(0, size, _PIECE):
        await stream.read(min(_PIECE, size - offset))
        if not offset:
            begun = time.perf_counter()
    return time.perf_counter() - begun
