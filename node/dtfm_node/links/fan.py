"""Fan: what this peer can send to, and receive from, several others at once."""

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from dtfm_node.links.flows import flow_rate
from dtfm_node.links.pacing import HEADROOM, UplinkPacer
from dtfm_node.links.probe import ECHOES_SECONDS
from dtfm_node.links.rate_search import FIRST_BYTES, LAST_BYTES, paced
from dtfm_node.links.steady_rate import SteadyRate
from dtfm_node.links.timed_transfers import ProbeRequest, is_counted, opened, transfers
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.wire.stream import DataPlane, Stream

FAN_SECONDS, OPENING_SECONDS = 0.4, 0.1
"""Of what each link can carry, for a transfer beside others, and for one before that, of a round trip at least: what is
on the way at a time must have become as much as the link holds."""
FLOW_SECONDS = 6.0
"""Of what each link can carry, for a flow beside others: before that all are as fast as they get, and seen to be. What
is not needed is not sent."""
MOST_BYTES = 4 * LAST_BYTES
"""Of such a flow: a link that is no bottleneck is not looked at for longer."""
FIRST_WINDOW = 14_600
"""Bytes that TCP sends before the first acknowledgement (RFC 6928); from then on it doubles with each round trip."""
OPENING_BYTES = 2 * LAST_BYTES
"""Of all flows together while their windows open, about: with a line that is both fast and far one does not wait."""
SHARED = 0.8
"""Share of what several links carry alone, in sum; if they carry less together, they share a limit."""
_Kind = Literal["send", "fetch"]
_KINDS: tuple[_Kind, _Kind] = ("send", "fetch")


async def fan(
    plane: DataPlane,
    gbps: Mapping[str, tuple[float, float]],
    uplink: UplinkPacer,
    counted: Mapping[str, tuple[float, float]],
) -> Limits:
    """Measure what this peer can send to, and receive from, several others at once.

    Args:
        gbps: Gbit/s to and from each of them, by peer id, as measured alone. They may be the others' word.
        counted: Gbit/s to and from peers, by peer id, as this end's kernel has counted them alone. Of any one link the
            lesser of both is what this peer's line carries at least.

    Raises:
        ConnectionError: one of them cannot be reached, or vanished.
    """
    async with contextlib.AsyncExitStack() as stack:
        streams = await opened(plane, (*gbps, *gbps), stack)
        ways = streams[: len(gbps)], streams[len(gbps) :]
        for peer in gbps:
            stack.enter_context(uplink.measuring(peer))
        alone, own = list(gbps.values()), [counted.get(peer, (0.0, 0.0)) for peer in gbps]
        up, down = [
            await _together(plane, ways[way], kind, [one[way] for one in alone], [one[way] for one in own])
            for way, kind in enumerate(_KINDS)
        ]
    return Limits(up_gbps=up, down_gbps=down)


async def _together(
    plane: DataPlane, streams: Sequence[Stream], kind: _Kind, alone: Sequence[float], counted: Sequence[float]
) -> float | None:
    """Return the Gbit/s over all of `streams` at once; None where that is about what they have alone."""
    carry = _by_flows if all(map(is_counted, streams)) else _by_transfers
    gbps = max(8e-9 * await carry(plane, streams, kind, [rate * 1.25e8 for rate in alone]), *map(min, alone, counted))
    return gbps if gbps < SHARED * sum(alone) else None


async def _by_flows(plane: DataPlane, streams: Sequence[Stream], kind: _Kind, alone: Sequence[float]) -> float:
    """Return the bytes a second of flows, as this end's kernel counts them."""
    requests, round_trips, openings = [], [0.0], [0.0]
    for stream, most in zip(streams, alone, strict=True):
        if (told := stream.progress()) is not None:
            round_trips.append(told.round_trip)
            openings.append(_opening(most, told.round_trip))
        pace = paced(HEADROOM * most)
        count = max(1, math.ceil(min(FLOW_SECONDS * most, MOST_BYTES) / LAST_BYTES))
        size = _bounded(FLOW_SECONDS * most / count)
        requests.append([ProbeRequest(kind=kind, size=size, pace=0.0 if math.isinf(pace) else pace)] * count)
        stream.pace(pace)
    rate = SteadyRate(max(round_trips), opened=True)

    def queued() -> float | None:
        """Return the seconds for which what is on the way waits at most; None: that is not known of any."""
        queues = (stream.queued() for stream in streams) if kind == "send" else ()
        return max((one for one in queues if one is not None), default=None)

    opening = min(max(openings), OPENING_BYTES / max(1.0, sum(alone)))
    return await flow_rate(plane, streams, requests, rate, queued, opening)


async def _by_transfers(plane: DataPlane, streams: Sequence[Stream], kind: _Kind, alone: Sequence[float]) -> float:
    """Return the bytes a second of timed transfers, where no kernel counts."""

    async def carry(stream: Stream, rate: float) -> tuple[int, float]:
        told = stream.progress()
        opening = max(OPENING_SECONDS, min(told.round_trip, ECHOES_SECONDS) if told is not None else 0.0)
        sizes = [_bounded(rate * opening), _bounded(rate * FAN_SECONDS)]
        return sizes[-1], (await transfers(stream, kind, sizes, paced(HEADROOM * rate)))[-1][0]

    carried = await asyncio.gather(*map(carry, streams, alone))
    return sum(size for size, _ in carried) / max(1e-6, *(seconds for _, seconds in carried))


def _opening(rate: float, round_trip: float) -> float:
    """Return the seconds after which a flow alone would be as fast as its link: its first bytes are acknowledged after
    one round trip, and then its window doubles with each. Before that a near one may seem to be all that a line
    carries."""
    return round_trip * (1 + math.ceil(math.log2(max(1.0, rate * round_trip / FIRST_WINDOW))))


def _bounded(size: float) -> int:
    return int(min(LAST_BYTES, max(FIRST_BYTES, size)))
