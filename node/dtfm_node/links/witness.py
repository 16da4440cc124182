"""Witness of flows by which another peer measures its link with this one: what this end's kernel counts of them.

One end's word is not believed where its rates are too good. The other end has seen the same bytes come, or has sent
them: where it says so, the link need not be measured a second time before a plan uses it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from dtfm_node.links.steady_rate import SteadyRate
from dtfm_protocol.discovery.records import Link
from dtfm_protocol.wire.stream import Stream

LOOK_SECONDS = 0.05
"""Pause between two looks at how far a flow is: what is wanted is no finer than a tenth."""
LEAST_RATE = 1.0
"""Bytes a second of a flow below which nothing was seen of it."""
_T = TypeVar("_T")


class Witness:
    """Witness of one node. What it has seen of both flows of a measurement it tells by `when_seen` once that ends."""

    def __init__(self) -> None:
        self.when_seen: Callable[[str, Link], object] = lambda peer, link: None
        """Function that is called with the peer that has measured, and the link to it as seen from here."""
        self._flows: dict[str, dict[str, float]] = {}
        """Bytes a second of flows that were seen since the last end of a measurement, by peer, and as that one asked
        for them."""

    async def watching(self, stream: Stream, kind: Literal["send", "fetch"], moving: Coroutine[Any, Any, _T]) -> _T:
        """Return what `moving` returns, and watch meanwhile how the flow over `stream` goes.

        Args:
            kind: "send": the other peer sends; "fetch": this one does.
        """
        begun, before = time.perf_counter(), stream.progress()
        if before is None:
            return await moving
        rate, seen = SteadyRate(before.round_trip), self._flows.setdefault(stream.peer, {})
        seen.pop(kind, None)
        flow = asyncio.create_task(moving)
        try:
            while not flow.done():
                await asyncio.wait([flow], timeout=LOOK_SECONDS)
                told = stream.progress()
                if told is None:
                    break
                passed = told.received - before.received if kind == "send" else told.delivered - before.delivered
                elapsed = time.perf_counter() - begun
                rate.came(elapsed, passed, stream.queued() if kind == "fetch" else None)
                if not flow.done() or kind not in seen:
                    # What comes of late: the other end goes on until that is what the link carries.
                    seen[kind] = rate.mean or passed / elapsed
            return await flow
        finally:
            flow.cancel()
            await asyncio.gather(flow, return_exceptions=True)

    def ended(self, stream: Stream) -> None:
        """Tell what was seen of a measurement by the peer at the other end of `stream`, which has just ended; nothing
        where that was not both flows."""
        flows, told = self._flows.pop(stream.peer, {}), stream.progress()
        received, sent = flows.get("send", 0.0), flows.get("fetch", 0.0)
        if told is None or told.round_trip <= 0 or min(received, sent) < LEAST_RATE:
            return
        link = Link(
            round_trip_ms=told.round_trip * 1e3,
            sent_gbps=sent * 8e-9,
            received_gbps=received * 8e-9,
            way=stream.way,
        )
        self.when_seen(stream.peer, link)
