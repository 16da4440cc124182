"""Transfers between two peers over the streams that training uses, as a link is measured by, and the requests for
them."""

import asyncio
import contextlib
import math
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dtfm_node.links.rate_search import LAST_BYTES, PIECE_BYTES
from dtfm_protocol.bounds import Count
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.stream import DataPlane, Stream, read_message, write_message

PROBE = "probe"
BULK_BYTES = 1 << 18
"""Bytes of each piece of a transfer but the first: on a fast link smaller ones keep the processor busy."""
MOST_SECONDS = 3600.0
"""That somebody may say to have waited."""


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
    beside: bool = False
    """Whether frames of the asked peer need not wait for it: the asking one counts them."""


class Swallowed(Message):
    """Answer to "send": seconds that the transfer took, from its first piece on."""

    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)]
    others: Count = 0
    """Bytes of other traffic that have come to the asked peer meanwhile."""


class Queued(Message):
    """Answer to "queued": seconds of queue that the last transfer has left on the way; None where its sender cannot
    know."""

    seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None
    others: Count = 0
    """Bytes of other traffic that the asked peer has sent while it sent that transfer."""


async def opened(plane: DataPlane, peers: Collection[str], stack: contextlib.AsyncExitStack) -> list[Stream]:
    """Open a stream to each of `peers`, all at once; `stack` closes them.

    Raises:
        ConnectionError: one of them cannot be reached.
    """

    async def one(peer: str) -> Stream:
        stream = await plane.open(peer, PROBE)
        stack.push_async_callback(stream.close)  # also where this is cancelled before the others are open
        return stream

    found = await asyncio.gather(*map(one, peers), return_exceptions=True)
    for failure in found:
        if isinstance(failure, BaseException):
            raise failure
    return [stream for stream in found if not isinstance(stream, BaseException)]


def is_counted(stream: Stream) -> bool:
    """Whether the kernel tells how many bytes have come, and have got there."""
    told = stream.progress()
    return told is not None and told.delivered > 0 and told.received > 0


async def transfer(stream: Stream, kind: Literal["send", "fetch"], size: int, pace: float) -> tuple[float, int]:
    """Make one transfer; return the seconds that it took to come in, from its first piece on, and the bytes of other
    traffic that have come to the other end meanwhile."""
    return (await transfers(stream, kind, [size], pace))[0]


async def transfers(
    stream: Stream, kind: Literal["send", "fetch"], sizes: Sequence[int], pace: float
) -> list[tuple[float, int]]:
    """Make transfers of these sizes, one right behind the other; return of each what `transfer` does."""
    requests = [ProbeRequest(kind=kind, size=size, pace=0.0 if math.isinf(pace) else pace) for size in sizes]
    if kind == "fetch":
        for request in requests:
            await write_message(stream, request)
        return [(await swallow(stream, size), 0) for size in sizes]
    stream.pace(pace)
    for request in requests:
        await write_message(stream, request)
        await pour(stream, request.size)
    answers = [await read_message(stream, Swallowed) for _ in sizes]
    return [(answer.seconds, answer.others) for answer in answers]


def _pieces(size: int) -> Iterator[int]:
    """Yield the sizes of a transfer's pieces, a small one first: it is timed from that one on."""
    yield min(PIECE_BYTES, size)
    for offset in range(PIECE_BYTES, size, BULK_BYTES):
        yield min(BULK_BYTES, size - offset)


async def pour(stream: Stream, size: int) -> None:
    zeros = memoryview(bytes(BULK_BYTES))
    for piece in _pieces(size):
        await stream.write(zeros[:piece])


async def drain(stream: Stream, size: int) -> None:
    for piece in _pieces(size):
        await stream.read(piece)


async def swallow(stream: Stream, size: int) -> float:
    """Take in `size` bytes; return the seconds from the first piece to the last."""
    pieces = _pieces(size)
    await stream.read(next(pieces))
    begun = time.perf_counter()
    for piece in pieces:
        await stream.read(piece)
    return time.perf_counter() - begun
