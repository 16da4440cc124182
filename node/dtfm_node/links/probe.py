"""Measurement of a link: round-trip time and throughput to another peer, both ways, over the streams that training
uses."""

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from dtfm_node.links.burst_rate import LEAST_ROUND_TRIP
from dtfm_node.links.flows import LOOK_SECONDS, flow_rate
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.rate_search import RateSearch
from dtfm_node.links.short_queue import HeldFlow
from dtfm_node.links.steady_rate import SteadyRate
from dtfm_node.links.timed_transfers import (
    PROBE,
    ProbeRequest,
    Queued,
    Swallowed,
    is_counted,
    opened,
    pour,
    swallow,
    transfer,
)
from dtfm_node.links.witness import Witness
from dtfm_protocol.discovery.records import Link
from dtfm_protocol.wire.stream import DataPlane, Stream, read_message, write_message

FEW_ECHOES, MORE_ECHOES = 3, 6
ECHOES_SECONDS = 0.3
"""Where a few echoes take longer, more of them are not worth the wait: a machine's own delays are small beside that."""
LONG_TRIP = 0.02
"""Seconds of a round trip from which, where somebody waits, the kernel's word on it does (what machines add is little
beside that, and echoes would take several more), and one flow each way tells the rates."""
FLOW_BYTES = 1 << 24
"""Of a flow at most: it takes no more of a fast line than transfers would."""
QUICK_STREAMS = 5
"""Streams of a quick measurement: one for what is asked and found, one for a flow each way, one for a second begin of
the latter, and one for echoes, which tell of the queue on the way back."""
OPENING_ROUND_TRIPS = 1.5
"""Round trips after which a second flow may begin, where the first one's window still opens: half a round trip from
when its bursts go, and come."""
DRAINED, DRAIN_SECONDS = 2.0, 10.0
"""A round trip that takes so many times what it took before is behind what training has left on the way: for so long it
is waited for."""
OTHERS = 0.1
"""Share of a transfer's bytes; where an end has sent or received more besides, it has shared its line."""
_ECHO = b"dtfmecho"


class _OtherTraffic:
    """Other traffic of this node during a transfer of `size` bytes that it sends, or else receives."""

    def __init__(self, uplink: UplinkPacer, size: int, *, sends: bool) -> None:
        self._uplink, self._size, self._place = uplink, size, 0 if sends else 1
        self._before = uplink.traffic()[self._place]

    @property
    def bytes(self) -> int:
        """Bytes of it since this was made."""
        return max(0, self._uplink.traffic()[self._place] - self._before - self._size)


async def probe(
    plane: DataPlane,
    peer: str,
    uplink: UplinkPacer,
    witness: Witness | None = None,
    *,
    quick: bool = False,
    ahead: Sequence[Stream] = (),
) -> Link:
    """Measure the link to `peer`. Tensors wait meanwhile at both ends, but where the kernel counts what they take.

    Args:
        witness: keeps what this end's kernel has counted itself.
        quick: whether rates within a tenth or two are wanted soon.
        ahead: `QUICK_STREAMS` to the peer that were opened ahead, which the caller closes; none: they are opened.

    Raises:
        ConnectionError: the peer cannot be reached, or vanished.
    """
    if witness is not None:
        witness.carried.pop(peer, None)  # it may have changed
    async with contextlib.AsyncExitStack() as stack:
        is_direct = plane.way(peer) in {None, "direct"}  # over relays, and through holes, each stream takes long
        count = QUICK_STREAMS if quick and is_direct else 1
        stream, *flows = ahead or await opened(plane, (peer,) * count, stack)
        known = uplink.round_trip(peer, stream.way)
        told = _told_round_trip(stream, known) if quick else None
        if told is not None and flows and is_counted(stream):
            round_trip, is_least = told, False
            sent, received = await _flows(plane, flows, told if known is None else min(told, known))
            round_trip = min(told, _told_round_trip(flows[-1], known) or told)  # the line was in use, as streams opened
            if witness is not None:
                witness.carried[peer] = sent, received
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


async def answer(stream: Stream, uplink: UplinkPacer, witness: Witness) -> None:
    """Answer the requests of a peer that measures, until its stream ends. From the first for which tensors must wait,
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
                others, coming = _OtherTraffic(uplink, request.size, sends=False), swallow(stream, request.size)
                seconds = await (witness.watching(stream, "send", coming) if request.beside else coming)
                await write_message(stream, Swallowed(seconds=seconds, others=others.bytes))
            elif request.kind == "fetch":
                stream.pace(request.pace or math.inf)
                if request.beside:
                    stream.grow_until_loss()
                others, going = _OtherTraffic(uplink, request.size, sends=True), pour(stream, request.size)
                watching = partial(witness.watching, stream, "fetch", holding=not request.pace)
                await (watching(going) if request.beside else going)
                poured = others.bytes
            elif request.kind == "queued":
                await write_message(stream, Queued(seconds=stream.queued(), others=poured))
            else:
                uplink.measured(stream.peer, request.gbps, request.round_trip, stream.way)
                witness.ended(stream)


async def _flows(plane: DataPlane, streams: Sequence[Stream], round_trip: float) -> tuple[float, float]:
    """Return the Gbit/s to and from a peer, by one flow each way. The second begins when the first is over: else each
    would hold up the other's acknowledgements. From far away it begins before that, while the first one's window is
    small: so is its own then, and its bursts come while those of the first are on their way. Where it is about to fill
    its link before the first is over, it is begun anew after that.

    Args:
        streams: four of them to the peer, of no use afterwards.
    """
    there, back, again, beside = streams
    rate, early = SteadyRate(round_trip), SteadyRate(round_trip)
    queued, least = 0.0, round_trip
    there.grow_until_loss()

    async def look() -> None:
        nonlocal queued, least
        while True:
            await write_message(beside, ProbeRequest(kind="echo", size=1, beside=True))
            took = await _echo(beside)
            least = min(least, took)
            queued = took - least

    def fetch(stream: Stream, judge: SteadyRate) -> asyncio.Task[float]:
        return asyncio.create_task(flow_rate(plane, [stream], _asked("fetch"), judge, lambda: queued))

    sending = asyncio.create_task(flow_rate(plane, [there], _asked("send"), rate, HeldFlow(there).look))
    fetching, looking = None, None
    try:
        if round_trip >= LEAST_ROUND_TRIP:
            await asyncio.wait([sending], timeout=OPENING_ROUND_TRIPS * round_trip)
            if rate.has_bursts and not sending.done():
                looking, fetching = asyncio.create_task(look()), fetch(back, early)
        while fetching is not None and not (sending.done() or fetching.done()):
            await asyncio.wait([sending, fetching], timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if early.has_long_bursts and not (sending.done() or fetching.done()):
                await _cancelled(fetching)
                fetching, back = None, again
        sent = await sending
        looking = looking or asyncio.create_task(look())
        fetching = fetching or fetch(back, SteadyRate(round_trip))
        received = await fetching
    finally:
        await _cancelled(sending, fetching, looking)
    return sent * 8e-9, received * 8e-9


async def _cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """End `tasks`, those that there are."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _asked(kind: Literal["send", "fetch"]) -> list[list[ProbeRequest]]:
    """Return what the other end of a flow is asked for."""
    return [[ProbeRequest(kind=kind, size=FLOW_BYTES, beside=True)]]


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
        known: seconds that it took before. Where it takes much longer, training's data is still on the way; that is
            waited for, but not for ever.
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
        seconds, others = await transfer(stream, kind, size, search.pace)
        most = max(here.bytes, others)
        queued = None
        if search.asks_for_queue(seconds):
            queued, others = await _queued(stream, kind)
            most = max(most, others)
        search.came(seconds, queued, time.perf_counter() - begun, shared=most > OTHERS * size)
    return search.rate * 8e-9, search.is_least


async def _queued(stream: Stream, kind: Literal["send", "fetch"]) -> tuple[float | None, int]:
    """Return the seconds of queue that the last transfer has left on the way, None where its sender cannot know; and
    the bytes of other traffic that the other end has sent meanwhile."""
    if kind == "send":
        return stream.queued(), 0
    await write_message(stream, ProbeRequest(kind="queued"))
    answer = await read_message(stream, Queued)
    return answer.seconds, answer.others
