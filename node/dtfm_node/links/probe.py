"""Measurement of a link: round-trip time and throughput to another peer, both ways, over the streams that training
uses."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dtfm_node.links.pacing import HEADROOM, UplinkPacer
from dtfm_node.links.rate_search import FIRST_BYTES, LAST_BYTES, PIECE_BYTES, RateSearch, paced
from dtfm_node.links.steady_rate import SteadyRate
from dtfm_node.links.witness import Witness
from dtfm_protocol.bounds import Count
from dtfm_protocol.discovery.records import Limits, Link
from dtfm_protocol.identity.keys import short
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.stream import DataPlane, Stream, StreamClosed, read_message, write_message

PROBE = "probe"
FEW_ECHOES, MORE_ECHOES = 3, 6
ECHOES_SECONDS = 0.3
"""Where a few echoes take longer, more of them are not worth the wait: a machine's own delays are small beside that."""
LONG_TRIP = 0.02
"""Seconds of a round trip from which, where somebody waits, the kernel's word on it does (what machines add is little
beside that, and echoes would take several more), and one flow each way tells the rates."""
LOOK_SECONDS = 0.02
"""Pause between two looks at how far a flow is."""
FLOW_BYTES = 1 << 24
"""Of a flow at most: it takes no more of a fast line than transfers would."""
FLOW_STREAMS = 3
"""Streams for flows: one each way, and one for echoes, which tell of the queue on the way back."""
DRAINED, DRAIN_SECONDS = 2.0, 10.0
"""A round trip that takes so many times what it took before is behind what training has left on the way: for so long it
is waited for."""
BULK_BYTES = 1 << 18
"""Bytes of each piece of a transfer but the first: on a fast link smaller ones keep the processor busy."""
FAN_SECONDS, OPENING_SECONDS = 0.4, 0.1
"""Of what each link can carry, for a transfer beside others, and for one before that, of a round trip at least: what is
on the way at a time must have become as much as the link holds."""
SHARED = 0.8
"""Share of what several links carry alone, in sum; if they carry less together, they share a limit."""
OTHERS = 0.1
"""Share of a transfer's bytes; where an end has sent or received more besides, it has shared its line."""
MOST_SECONDS = 3600.0
"""That somebody may say to have waited."""
_ECHO = b"dtfmecho"

Carried = Callable[[str], tuple[int, int]]
"""Function that returns the bytes that have got to a peer, and come from there, as `DataPlane.carried`."""


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


class _OtherTraffic:
    """Other traffic of this node during a transfer of `size` bytes that it sends, or else receives."""

    def __init__(self, uplink: UplinkPacer, size: int, *, sends: bool) -> None:
        self._uplink, self._size, self._place = uplink, size, 0 if sends else 1
        self._before = uplink.traffic()[self._place]

    @property
    def bytes(self) -> int:
        """Bytes of it since this was made."""
        return max(0, self._uplink.traffic()[self._place] - self._before - self._size)


async def probe(plane: DataPlane, peer: str, uplink: UplinkPacer, *, quick: bool = False) -> Link:
    """Measure the link to `peer`. Frames wait meanwhile at both ends, but where the kernel counts what they take.

    Args:
        quick: whether rates within a tenth or two are wanted soon.

    Raises:
        ConnectionError: the peer cannot be reached, or vanished.
    """
    async with contextlib.AsyncExitStack() as stack:
        is_direct = plane.way(peer) in {None, "direct"}  # over relays, and through holes, each stream takes long
        stream, *flows = await _opened(plane, (peer,) * (1 + FLOW_STREAMS if quick and is_direct else 1), stack)
        known = uplink.round_trip(peer, stream.way)
        told = _told_round_trip(stream, known) if quick else None
        if told is not None and flows and _is_counted(stream):
            round_trip, is_least = told, False
            sent, received = await _flows(flows, told if known is None else min(told, known), plane.carried)
        else:
            stack.enter_context(uplink.measuring(peer))
            round_trip = await _round_trip(stream, known) if told is None else told
            least = round_trip if known is None else min(round_trip, known)
            ways: tuple[Literal["send", "fetch"], ...] = ("send", "fetch")
            (sent, sent_least), (received, received_least) = [
                await _throughput(stream, way, least, uplink, again=known is not None, quick=quick) for way in ways
            ]
            is_least = sent_least or received_least
        await write_message(stream, ProbeRequest(kind="found", gbps=received, round_trip=round_trip))
    uplink.measured(peer, sent, round_trip, stream.way)
    return Link(
        round_trip_ms=round_trip * 1e3, sent_gbps=sent, received_gbps=received, way=stream.way, is_least=is_least
    )


async def echo(plane: DataPlane, peer: str) -> float:
    """Return the seconds of a round trip to `peer`, the fastest of several, as where somebody waits. Frames need not
    wait for it.

    Raises:
        ConnectionError: the peer cannot be reached, or vanished.
    """
    stream = await plane.open(peer, PROBE)
    try:
        told = _told_round_trip(stream, None)
        return await _fastest_echo(stream) if told is None else told
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
        streams = dict(zip(gbps, await _opened(plane, gbps, stack), strict=True))
        for peer in gbps:
            stack.enter_context(uplink.measuring(peer))
        up = await _together(streams, "send", {peer: there for peer, (there, _) in gbps.items()})
        down = await _together(streams, "fetch", {peer: back for peer, (_, back) in gbps.items()})
    return Limits(up_gbps=up, down_gbps=down)


async def _together(
    streams: Mapping[str, Stream], kind: Literal["send", "fetch"], alone: Mapping[str, float]
) -> float | None:
    """Return the Gbit/s of transfers over all of `streams` at once; None where that is about what they have alone."""

    async def carry(peer: str, stream: Stream) -> tuple[int, float]:
        rate, told = alone[peer] * 1.25e8, stream.progress()
        opening = max(OPENING_SECONDS, min(told.round_trip, ECHOES_SECONDS) if told is not None else 0.0)
        sizes = [_bounded(rate * opening), _bounded(rate * FAN_SECONDS)]
        return sizes[-1], (await _transfers(stream, kind, sizes, paced(HEADROOM * rate)))[-1][0]

    carried = await asyncio.gather(*(carry(peer, stream) for peer, stream in streams.items()))
    gbps = sum(size for size, _ in carried) * 8e-9 / max(1e-6, *(seconds for _, seconds in carried))
    return gbps if gbps < SHARED * sum(alone.values()) else None


def _bounded(size: float) -> int:
    return int(min(LAST_BYTES, max(FIRST_BYTES, size)))


async def answer(stream: Stream, uplink: UplinkPacer, witness: Witness) -> None:
    """Answer the requests of a peer that measures, until its stream ends. From the first for which frames must wait on,
    they do. `witness` watches flows."""
    poured, holds = 0, False
    with contextlib.ExitStack() as stack:
        while True:
            request = await read_message(stream, ProbeRequest)
            if not (holds or request.beside or request.kind == "found"):
                stack.enter_context(uplink.measuring(stream.peer))
                holds = True
            if request.kind == "echo":
                for _ in range(min(request.size, MORE_ECHOES)):
                    await stream.write(await stream.read(len(_ECHO)))
            elif request.kind == "send":
                others, coming = _OtherTraffic(uplink, request.size, sends=False), _swallow(stream, request.size)
                seconds = await (witness.watching(stream, "send", coming) if request.beside else coming)
                await write_message(stream, Swallowed(seconds=seconds, others=others.bytes))
            elif request.kind == "fetch":
                stream.pace(request.pace or math.inf)
                others, going = _OtherTraffic(uplink, request.size, sends=True), _pour(stream, request.size)
                await (witness.watching(stream, "fetch", going) if request.beside else going)
                poured = others.bytes
            elif request.kind == "queued":
                await write_message(stream, Queued(seconds=stream.queued(), others=poured))
            else:
                uplink.measured(stream.peer, request.gbps, request.round_trip, stream.way)
                witness.ended(stream)


def _is_counted(stream: Stream) -> bool:
    """Whether the kernel tells how many bytes have come, and have got there."""
    told = stream.progress()
    return told is not None and told.delivered > 0 and told.received > 0


async def _flows(streams: Sequence[Stream], round_trip: float, carried: Carried) -> tuple[float, float]:
    """Return the Gbit/s to and from a peer, by one flow each way, the second after the first: at once each would hold
    up the other's acknowledgements. What else streams carry between the two counts: it is on the same link.

    Args:
        streams: `FLOW_STREAMS` of them to the peer, of no use afterwards.
        carried: as `DataPlane.carried`.
    """
    there, back, beside = streams
    queues = [0.0]

    async def look() -> None:
        while True:
            await write_message(beside, ProbeRequest(kind="echo", size=1, beside=True))
            queues.append(await _echo(beside) - round_trip)

    sent = await _flow(there, "send", round_trip, there.queued, carried)
    looking = asyncio.create_task(look())
    try:
        received = await _flow(back, "fetch", round_trip, lambda: queues[-1], carried)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    return sent * 8e-9, received * 8e-9


async def _opened(plane: DataPlane, peers: Collection[str], stack: contextlib.AsyncExitStack) -> list[Stream]:
    """Open a stream to each of `peers`, all at once; `stack` closes them.

    Raises:
        ConnectionError: one of them cannot be reached.
    """
    found = await asyncio.gather(*(plane.open(peer, PROBE) for peer in peers), return_exceptions=True)
    streams = [one for one in found if not isinstance(one, BaseException)]
    for stream in streams:
        stack.push_async_callback(stream.close)
    for failure in found:
        if isinstance(failure, BaseException):
            raise failure
    return streams


async def _flow(
    stream: Stream,
    kind: Literal["send", "fetch"],
    round_trip: float,
    queued: Callable[[], float | None],
    carried: Carried,
) -> float:
    """Return the bytes a second of a flow that is as fast as TCP lets it be, and of all beside it with the same peer,
    as this end's kernel counts them."""
    rate, begun, before, passed = SteadyRate(round_trip), time.perf_counter(), stream.progress(), 0
    place = 0 if kind == "send" else 1
    others = carried(stream.peer)[place]
    await write_message(stream, ProbeRequest(kind=kind, size=FLOW_BYTES, beside=True))
    moving = asyncio.create_task(_pour(stream, FLOW_BYTES) if kind == "send" else _drain(stream, FLOW_BYTES))
    try:
        while rate.rate is None and not moving.done():
            await asyncio.wait([moving], timeout=LOOK_SECONDS)
            told = stream.progress()
            if told is None or before is None:
                break
            own = told.delivered - before.delivered if kind == "send" else told.received - before.received
            passed = max(passed, own, carried(stream.peer)[place] - others)  # what a stream carried that ended is gone
            rate.came(time.perf_counter() - begun, passed, queued())
        if moving.done():
            moving.result()
    finally:
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        await stream.close()  # what is still on its way is dropped
    found = rate.rate or rate.mean or passed / (time.perf_counter() - begun)  # the last: all came between two looks
    if found <= 0:
        raise StreamClosed(f"nothing has come to, or from, {short(stream.peer)}")
    return found


def _told_round_trip(stream: Stream, known: float | None) -> float | None:
    """Return the seconds of the fastest round trip while the stream was opened, as the kernel tells it; None: it does
    not, the round trip is short, or training's data was on the way, as `_round_trip` sees it."""
    told = stream.progress()
    if told is None or not LONG_TRIP <= told.round_trip <= (DRAINED * known if known else DRAIN_SECONDS):
        return None
    return told.round_trip


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
        seconds += [await _echo(stream) for _ in range(count)]
        if sum(seconds) > ECHOES_SECONDS:
            break
    return min(seconds)


async def _echo(stream: Stream) -> float:
    """Return the seconds of one echo, which was asked for."""
    begun = time.perf_counter()
    await stream.write(_ECHO)
    await stream.read(len(_ECHO))
    return time.perf_counter() - begun


async def _throughput(
    stream: Stream,
    kind: Literal["send", "fetch"],
    round_trip: float,
    uplink: UplinkPacer,
    *,
    again: bool,
    quick: bool,
) -> tuple[float, bool]:
    """Return the Gbit/s that the link carries, as the receiver timed them, and whether it may carry more, as lines were
    shared."""
    search = RateSearch(round_trip, again=again, quick=quick)
    begun = time.perf_counter()
    while search.rate is None:
        size, here = search.size, _OtherTraffic(uplink, search.size, sends=kind == "send")
        seconds, others = await _transfer(stream, kind, size, search.pace)
        most = max(here.bytes, others)
        queued = None
        if search.asks_for_queue(seconds):
            queued, others = await _queued(stream, kind)
            most = max(most, others)
        search.came(seconds, queued, time.perf_counter() - begun, shared=most > OTHERS * size)
    return search.rate * 8e-9, search.is_least


async def _transfer(stream: Stream, kind: Literal["send", "fetch"], size: int, pace: float) -> tuple[float, int]:
    """Make one transfer; return the seconds that it took to come in, from its first piece on, and the bytes of other
    traffic that have come to the other end meanwhile."""
    return (await _transfers(stream, kind, [size], pace))[0]


async def _transfers(
    stream: Stream, kind: Literal["send", "fetch"], sizes: Sequence[int], pace: float
) -> list[tuple[float, int]]:
    """Make transfers of these sizes, one right behind the other; return of each what `_transfer` does."""
    requests = [ProbeRequest(kind=kind, size=size, pace=0.0 if math.isinf(pace) else pace) for size in sizes]
    if kind == "fetch":
        for request in requests:
            await write_message(stream, request)
        return [(await _swallow(stream, size), 0) for size in sizes]
    stream.pace(pace)
    for request in requests:
        await write_message(stream, request)
        await _pour(stream, request.size)
    answers = [await read_message(stream, Swallowed) for _ in sizes]
    return [(answer.seconds, answer.others) for answer in answers]


async def _queued(stream: Stream, kind: Literal["send", "fetch"]) -> tuple[float | None, int]:
    """Return the seconds of queue that the last transfer has left on the way, None where its sender cannot know; and
    the bytes of other traffic that the other end has sent meanwhile."""
    if kind == "send":
        return stream.queued(), 0
    await write_message(stream, ProbeRequest(kind="queued"))
    answer = await read_message(stream, Queued)
    return answer.seconds, answer.others


def _pieces(size: int) -> Iterator[int]:
    """Yield the sizes of a transfer's pieces, a small one first: it is timed from that one on."""
    yield min(PIECE_BYTES, size)
    for offset in range(PIECE_BYTES, size, BULK_BYTES):
        yield min(BULK_BYTES, size - offset)


async def _pour(stream: Stream, size: int) -> None:
    zeros = memoryview(bytes(BULK_BYTES))
    for piece in _pieces(size):
        await stream.write(zeros[:piece])


async def _drain(stream: Stream, size: int) -> None:
    for piece in _pieces(size):
        await stream.read(piece)


async def _swallow(stream: Stream, size: int) -> float:
    """Take in `size` bytes; return the seconds from the first piece to the last."""
    pieces = _pieces(size)
    await stream.read(next(pieces))
    begun = time.perf_counter()
    for piece in pieces:
        await stream.read(piece)
    return time.perf_counter() - begun
