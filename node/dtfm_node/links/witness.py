"""Witness of flows by which another peer measures its link with this one: what this end's kernel counts of them.

One end's word is not believed where its rates are too good. The other end has seen the same bytes come, or has sent
them: where it says so, the link need not be measured a second time before a plan uses it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from dtfm_node.links.flows import LOOK_SECONDS
from dtfm_node.links.short_queue import HeldFlow
from dtfm_node.links.steady_rate import SteadyRate
from dtfm_protocol.discovery.records import Link
from dtfm_protocol.wire.stream import Stream

LONGEST_SECONDS = 30.0
"""Of a flow that is watched; the other end decides for how long it lasts."""
LEAST_RATE = 1.0
"""Bytes a second of a flow below which nothing was seen of it."""
_T = TypeVar("_T")


class Witness:
    """Witness of one node. What it has seen of both flows of another peer's measurement it tells by `when_seen` once
    that ends."""

    def __init__(self) -> None:
        self.when_seen: Callable[[str, Link], object] = lambda peer, link: None
        """Function that is called with the peer that has measured, and the link to it as seen from here."""
        self.carried: dict[str, tuple[float, float]] = {}
        """Gbit/s to and from peers, alone, by peer id, as this end's kernel has counted them last, whoever measured: no
        other program's word."""
        self._flows: dict[str, dict[str, SteadyRate]] = {}
        """Flows that were seen since the last end of a measurement, by peer, and as that one asked for them."""

    async def watching(
        self, stream: Stream, kind: Literal["send", "fetch"], moving: Coroutine[Any, Any, _T], *, holding: bool = False
    ) -> _T:
        """Return what `moving` returns, and watch meanwhile how the flow over `stream` goes.

        Args:
            kind: "send": the other peer sends; "fetch": this one does.
            holding: whether this one keeps the queue short that its flow fills.
        """
        begun, before = time.perf_counter(), stream.progress()
        if before is None:
            return await moving
        rate = self._flows.setdefault(stream.peer, {})[kind] = SteadyRate(before.round_trip)
        flow, passed = asyncio.create_task(moving), 0
        look = HeldFlow(stream).look if holding else stream.queued
        try:
            while not flow.done():
                await asyncio.wait([flow], timeout=LOOK_SECONDS)
                told = stream.progress()
                elapsed = time.perf_counter() - begun
                if told is None or elapsed > LONGEST_SECONDS or (flow.done() and passed):
                    break  # when the last bytes came is not known: they may have waited for what ended the flow
                passed = told.received - before.received if kind == "send" else told.delivered - before.delivered
                rate.came(elapsed, passed, look() if kind == "fetch" else None)
            return await flow
        finally:
            flow.cancel()
            await asyncio.gather(flow, return_exceptions=True)

    def ended(self, stream: Stream) -> None:
        """Tell what was seen of a measurement by the peer at the other end of `stream`, which has just ended; nothing
        where that was not both flows. That end went on until it knew what the link carries: so does what comes of late,
        or in bursts."""
        flows, told = self._flows.pop(stream.peer, {}), stream.progress()
        received, sent = (flows[kind].so_far() if kind in flows else 0.0 for kind in ("send", "fetch"))
        if told is None or told.round_trip <= 0 or min(received, sent) < LEAST_RATE:
            return
        link = Link(
            round_trip_ms=told.round_trip * 1e3,
            sent_gbps=sent * 8e-9,
            received_gbps=received * 8e-9,
            way=stream.way,
        )
        if all(flow.is_long for flow in flows.values()):  # the other end decides for how long they last
            self.carried[stream.peer] = link.sent_gbps, link.received_gbps
        self.when_seen(stream.peer, link)
