"""Links: round-trip time and throughput to another peer, both ways, over the same streams that training uses."""

import statistics
import time
from typing import Annotated, Literal

from pydantic import Field

from dtfm_protocol.planes.data import DataPlane, Stream, read_message, write_message
from dtfm_protocol.records import Link
from dtfm_protocol.schema import Schema

PROBE = "probe"
ECHOES = 9
FIRST_BYTES, LAST_BYTES = 1 << 16, 1 << 25
ENOUGH_SECONDS = 1.0
ENOUGH_ROUND_TRIPS = 6.0
"""A transfer that takes this long says how fast the link is, if another one was before it."""
_PIECE = 1 << 14
_ECHO = b"dtfmecho"


class ProbeRequest(Schema):
    """Opens one measurement on a probe stream."""

    kind: Literal["echo", "send", "fetch"]
    """send: `size` bytes come, say how long they took; fetch: send `size` bytes."""
    size: Annotated[int, Field(ge=0, le=LAST_BYTES)] = 0


class Swallowed(Schema):
    """How long a transfer took, from its first piece on."""

    seconds: Annotated[float, Field(ge=0)]


async def probe(plane: DataPlane, peer: str) -> Link:
    """Measure the link to `peer`.

    Raises:
        ConnectionError: it cannot be reached, or vanished.
    """
    stream = await plane.open(peer, PROBE)
    try:
        round_trip = await _round_trip(stream)
        sent = await _throughput(stream, "send", round_trip)
        received = await _throughput(stream, "fetch", round_trip)
    finally:
        await stream.close()
    return Link(round_trip_ms=round_trip * 1e3, sent_gbps=sent, received_gbps=received, way=stream.way)


async def answer(stream: Stream) -> None:
    """The other side of `probe`; ends when the stream does."""
    while True:
        request = await read_message(stream, ProbeRequest)
        if request.kind == "echo":
            for _ in range(ECHOES):
                await stream.write(await stream.read(len(_ECHO)))
        elif request.kind == "send":
            await write_message(stream, Swallowed(seconds=await _swallow(stream, request.size)))
        else:
            await _pour(stream, request.size)


async def _round_trip(stream: Stream) -> float:
    """Median seconds of an echo."""
    await write_message(stream, ProbeRequest(kind="echo"))
    seconds = []
    for _ in range(ECHOES):
        begun = time.perf_counter()
        await stream.write(_ECHO)
        await stream.read(len(_ECHO))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


async def _throughput(stream: Stream, kind: Literal["send", "fetch"], round_trip: float) -> float:
    """Gbit/s of the last of ever larger transfers, as it came in.

    The first ones open the congestion window: their round trips are no rate. A transfer is looked at as a whole: what
    was lost of its beginning comes late, and much of the rest at once with it.
    """
    size, is_first = FIRST_BYTES, True
    while True:
        await write_message(stream, ProbeRequest(kind=kind, size=size))
        if kind == "send":
            await _pour(stream, size)
            seconds = (await read_message(stream, Swallowed)).seconds
        else:
            seconds = await _swallow(stream, size)
        enough = seconds >= max(ENOUGH_SECONDS, ENOUGH_ROUND_TRIPS * round_trip)
        if (enough and not is_first) or size >= LAST_BYTES:
            return (size - _PIECE) * 8e-9 / max(seconds, 1e-6)
        # One that took long enough began slowly if it was the first.
        size, is_first = min(LAST_BYTES, (2 if enough else 4) * size), False


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
