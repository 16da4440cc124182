"""Flows: data over one stream, or several at once, as fast as TCP and their pace let them be, until this end's kernel
has told what the way carries."""

import asyncio
import time
from collections.abc import Callable, Sequence

from dtfm_node.links.steady_rate import SteadyRate
from dtfm_node.links.timed_transfers import ProbeRequest, drain, pour
from dtfm_protocol.identity.keys import short
from dtfm_protocol.wire.stream import DataPlane, Stream, StreamClosed, write_message

LOOK_SECONDS = 0.005
"""Pause between two looks at how far flows are: bursts are told apart."""


async def flow_rate(
    plane: DataPlane,
    streams: Sequence[Stream],
    requests: Sequence[Sequence[ProbeRequest]],
    rate: SteadyRate,
    queued: Callable[[], float | None],
    opening: float = 0.0,
) -> float:
    """Return the bytes a second of flows, and of all else that streams carry between the same two ends meanwhile: it is
    on the same way. All flows end with that.

    Args:
        plane: counts what all streams with a peer carry.
        streams: one for each flow, each to another peer; they are of no use afterwards.
        requests: what each of the other ends is asked for, one right behind the other; "send" for all, or "fetch".
        rate: judges what has come in all.
        queued: returns the seconds for which what is on the way waits in a queue; None: that is not known.
        opening: seconds for which nothing is judged yet: some flows' windows may still be small.

    Raises:
        StreamClosed: a peer is gone, or nothing has come.
    """
    sends = requests[0][0].kind == "send"
    counts = [_Count(plane, stream, sends=sends) for stream in streams]
    begun, passed, before = time.perf_counter(), 0, 0
    flows = [asyncio.create_task(_move(*one)) for one in zip(streams, requests, strict=True)]
    try:
        while rate.rate is None and not all(flow.done() for flow in flows):
            await asyncio.wait(flows, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            if any(flow.done() and flow.exception() for flow in flows) or not all(count.look() for count in counts):
                break
            passed = sum(count.bytes for count in counts)
            if (elapsed := time.perf_counter() - begun) < opening:
                before = passed
            else:
                rate.came(elapsed, passed - before, queued())
        for flow in flows:
            if flow.done():
                flow.result()
    finally:
        for stream in streams:
            stream.drop()  # what is measured next would wait in the queue behind what the kernel has yet to send
        for flow in flows:
            flow.cancel()
        await asyncio.gather(*flows, return_exceptions=True)
    # Where all has come before the rate was known, the last of it may have come slowly: what was lost on the way.
    found = rate.rate or max(rate.mean, passed / (time.perf_counter() - begun))
    if found <= 0:
        raise StreamClosed(f"nothing has come to, or from, {', '.join(short(stream.peer) for stream in streams)}")
    return found


class _Count:
    """The bytes that this node has sent to the peer at the other end of `stream`, or else received from there, since
    this was made."""

    def __init__(self, plane: DataPlane, stream: Stream, *, sends: bool) -> None:
        self._plane, self._stream, self._sends = plane, stream, sends
        self._own, self._all = self._passed(), self._carried()
        self.bytes = 0

    def look(self) -> bool:
        """Count anew; return whether the kernel tells."""
        own = self._passed()
        if own is None or self._own is None:
            return False
        # What a stream carried that has ended since is in no count: the flow's own is the least.
        self.bytes = max(self.bytes, own - self._own, self._carried() - self._all)
        return True

    def _passed(self) -> int | None:
        told = self._stream.progress()
        return None if told is None else told.delivered if self._sends else told.received

    def _carried(self) -> int:
        return self._plane.carried(self._stream.peer)[0 if self._sends else 1]


async def _move(stream: Stream, requests: Sequence[ProbeRequest]) -> None:
    for request in requests:
        await write_message(stream, request)
        if request.kind == "send":
            await pour(stream, request.size)
    for request in requests:
        if request.kind != "send":
            await drain(stream, request.size)
