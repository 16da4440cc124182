"""Fan: what this peer can send to, and receive from, several others at once."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Literal

from dtfm_node.links.pacing import HEADROOM, UplinkPacer
from dtfm_node.links.probe import ECHOES_SECONDS
from dtfm_node.links.rate_search import FIRST_BYTES, LAST_BYTES, paced
from dtfm_node.links.timed_transfers import opened, transfers
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.wire.stream import DataPlane, Stream

FAN_SECONDS, OPENING_SECONDS = 0.4, 0.1
"""Of what each link can carry, for a transfer beside others, and for one before that, of a round trip at least: what is
on the way at a time must have become as much as the link holds."""
SHARED = 0.8
"""Share of what several links carry alone, in sum; if they carry less together, they share a limit."""


async def fan(plane: DataPlane, gbps: Mapping[str, tuple[float, float]], uplink: UplinkPacer) -> Limits:
    """Measure what this peer can send to, and receive from, several others at once.

    Args:
        gbps: Gbit/s to and from each of them, by peer id, as measured alone.

    Raises:
        ConnectionError: one of them cannot be reached, or vanished.
    """
    async with contextlib.AsyncExitStack() as stack:
        streams = dict(zip(gbps, await opened(plane, gbps, stack), strict=True))
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
        return sizes[-1], (await transfers(stream, kind, sizes, paced(HEADROOM * rate)))[-1][0]

    carried = await asyncio.gather(*(carry(peer, stream) for peer, stream in streams.items()))
    gbps = sum(size for size, _ in carried) * 8e-9 / max(1e-6, *(seconds for _, seconds in carried))
    return gbps if gbps < SHARED * sum(alone.values()) else None


def _bounded(size: float) -> int:
    return int(min(LAST_BYTES, max(FIRST_BYTES, size)))
