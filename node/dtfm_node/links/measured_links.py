"""Measuring of this node's links in rounds that the coordinator asks for, and what was found so far."""

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial

from dtfm_node.links.fan import fan
from dtfm_node.links.opened_ahead import OpenedAhead
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.probe import QUICK_STREAMS, echo, probe
from dtfm_node.links.witness import Witness
from dtfm_protocol.control.messages import ECHO_LIMIT, ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import MOST_NEIGHBOURS, Limits, Link
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane, Unreachable


class MeasuredLinks:
    """Links of one node, as it has measured them itself."""

    def __init__(self, plane: DataPlane, uplink: UplinkPacer, witness: Witness, clock: MonotonicClock) -> None:
        """Nothing is measured yet; `witness` tells what this end's kernel has counted of measurements."""
        self._plane, self._uplink, self._witness, self._clock = plane, uplink, witness, clock
        self.links: dict[str, Link] = {}
        """Links by peer id of the other end."""
        self.limits: Limits | None = None
        """What this machine can send and receive in all; None: that was not measured."""
        self.ahead = OpenedAhead(plane, QUICK_STREAMS)
        """Streams for the next round."""
        self._probing = asyncio.Lock()

    async def act(self, turn: ProbeRound) -> ProbeResult | None:
        """Do this node's part of a round, in which it measures a pair or a fan, or takes round trips, while another may
        measure a pair with it; return the result, None if it has no part."""
        me = self._plane.peer_id
        for peer, other in turn.pairs:
            if peer == me:
                return ProbeResult(round=turn.id, link=await self.measure(other, turn))
        await self._open_ahead(turn)
        for one in turn.fans:
            if one.centre == me:
                return ProbeResult(round=turn.id, limits=await self._measure_limits(one.gbps, turn))
        if wanted := turn.echoes.get(me):
            return ProbeResult(round=turn.id, echoes=await self._round_trips(wanted[:ECHO_LIMIT], turn))
        return None

    async def _introduce(self, peer: str, turn: ProbeRound) -> None:
        """Have `peer` be found where a round says that it is, if it says so."""
        if peer in turn.addresses:
            with contextlib.suppress(Unreachable):
                await self._plane.introduce(peer, turn.addresses[peer], turn.ports.get(peer))

    async def _measure_limits(self, gbps: Mapping[str, tuple[float, float]], turn: ProbeRound) -> Limits | None:
        """Measure what this machine can send and receive in all; None if that could not be measured."""
        try:
            async with self._probing, self._clock.timeout(TIMEOUTS.probe):
                for peer in gbps:
                    await self._introduce(peer, turn)
                found = self.limits = await fan(self._plane, gbps, self._uplink, self._witness.carried)
                return found
        except (ConnectionError, Refused, TimeoutError) as error:
            log.warning("cannot measure what this machine can send and receive in all: %s", str(error) or "no answer")
            return None

    async def _round_trips(self, peers: tuple[str, ...], turn: ProbeRound) -> dict[str, float]:
        """Return the milliseconds of a round trip to each of `peers` that answers in time, taken all at once."""
        found: dict[str, float] = {}

        async def take(peer: str) -> None:
            with contextlib.suppress(ConnectionError, Refused, TimeoutError):
                async with self._clock.timeout(TIMEOUTS.round_trips):
                    await self._introduce(peer, turn)
                    found[peer] = await echo(self._plane, peer) * 1e3

        async with self._probing, asyncio.TaskGroup() as tasks:
            for peer in peers:
                if peer != self._plane.peer_id:
                    tasks.create_task(take(peer))
        return found

    async def _open_ahead(self, turn: ProbeRound) -> None:
        """Open streams to the peer that this one measures its link with in the round after `turn`, if there is one."""
        for peer, other in turn.next:
            if peer == self._plane.peer_id != other:
                await self.ahead.begin(other, partial(self._introduce, other, turn))
                return

    async def measure(self, peer: str, turn: ProbeRound) -> Link | None:
        """Measure the link to `peer`, in a round or after it; None if that failed."""
        try:
            async with self._probing, self._clock.timeout(TIMEOUTS.probe), contextlib.AsyncExitStack() as stack:
                ahead = await self.ahead.take(peer)
                for stream in ahead:
                    stack.push_async_callback(stream.close)
                await self._open_ahead(turn)
                await self._introduce(peer, turn)
                measure = partial(probe, self._plane, peer, self._uplink, self._witness, quick=turn.quick)
                try:
                    link = await measure(ahead=ahead)
                except (ConnectionError, Refused):
                    if not ahead:
                        raise
                    link = await measure()  # what was opened a while ago may be gone
                self.links.pop(peer, None)
                found = self.links[peer] = link.model_copy(update={"round": turn.id})
                while len(self.links) > MOST_NEIGHBOURS:
                    del self.links[next(iter(self.links))]  # what was measured longest ago
                return found
        except (ConnectionError, Refused, TimeoutError) as error:
            self.links.pop(peer, None)
            log.warning("cannot measure the link to %s: %s", short(peer), str(error) or "no answer")
            return None
