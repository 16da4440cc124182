"""Publisher of this node's profile, and of the links that it measures when it is asked to, over the DHT."""

import asyncio
import contextlib
from collections.abc import Mapping

from dtfm_node.control.reporter import Reporter
from dtfm_node.links.fan import fan
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.probe import echo, probe
from dtfm_node.links.witness import Witness
from dtfm_protocol.control.messages import ECHO_LIMIT, ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Limits, Link, LinkReport, Profile
from dtfm_protocol.discovery.registry import Discovery, Registry
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.outage import Outage
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane, Unreachable

MOST_WATCHED = 16
"""Rounds at most of which it may still be told what was seen."""


class Publisher:
    """Publisher of one peer's records."""

    def __init__(
        self,
        plane: DataPlane,
        discovery: Discovery,
        registry: Registry,
        profile: Profile,
        uplink: UplinkPacer,
        witness: Witness,
        clock: MonotonicClock | None = None,
    ) -> None:
        """Nothing is measured yet; `witness` tells what this end's kernel has counted of measurements."""
        self._clock = clock or MonotonicClock()
        self._plane, self._discovery, self._registry, self._profile = plane, discovery, registry, profile
        self._uplink, self._witness = uplink, witness
        self._links: dict[str, Link] = {}
        self._limits: Limits | None = None
        self._probed = 0
        self._profile_due = 0.0
        self._profile_rest = 0.0
        """Seconds until the profile is published again. 0 at first, so that it is published twice: whether others have
        it is not known, as hivemind counts what it keeps itself."""
        self._links_due = 0.0
        """Time (`time.monotonic()`) when the links are due again: at once at the start, for records of an earlier
        process of this node may still be there."""
        self._probing = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._outage = Outage(self._clock.now)

    async def refresh(self) -> None:
        """Publish profile and links again before they expire, until cancelled."""
        while True:
            try:
                await self._discovery.greet()
                await self._follow_addresses()
                if self._clock.now() > self._profile_due:
                    if await self._registry.publish(self._discovery, self._profile):
                        self._profile_due = self._clock.now() + self._profile_rest
                        self._profile_rest = TIMEOUTS.profile_lifetime / 3
                        self._is_found()
                    else:
                        self._is_not_found("no DHT peer took this node's profile")
                await self.follow_ways()
                if self._clock.now() > self._links_due:
                    await self._publish_links(TIMEOUTS.links_lifetime / 3)
            except (OSError, RuntimeError) as error:
                # Training must go on without the DHT: it carries no tensor.
                self._is_not_found(f"cannot publish to the DHT: {error}")
            await self._clock.sleep(TIMEOUTS.publish_look)

    async def moved(self) -> None:
        """Publish the profile at once: this machine may have other addresses than a moment ago."""
        self._profile_due, self._profile_rest = 0.0, 0.0
        self._witness.carried.clear()
        with contextlib.suppress(OSError, RuntimeError):
            await self._follow_addresses()
            if await self._registry.publish(self._discovery, self._profile):
                self._profile_due = self._clock.now() + TIMEOUTS.publish_look

    async def _follow_addresses(self) -> None:
        """Have the profile name the addresses at which this node can be reached now."""
        addresses = await self._plane.addresses()
        if set(addresses) != set(self._profile.addresses):
            self._profile = self._profile.model_copy(update={"addresses": addresses})
            self._profile_due = 0.0

    def _is_not_found(self, why: str) -> None:
        """Say that others do not find this node in the DHT, unless that was said lately."""
        if line := self._outage.fails(why):
            log.warning("%s", line)

    def _is_found(self) -> None:
        if line := self._outage.ends("others find this node"):
            log.info("%s", line)

    async def follow_ways(self) -> None:
        """Measure anew the links of peers to which streams take another way now."""
        for peer, link in list(self._links.items()):
            if self._plane.way(peer) != link.way:
                log.info("streams to %s are %s now: measuring that link anew", short(peer), self._plane.way(peer))
                await self._probe(peer, ProbeRound(id=self._probed, addresses={}, quick=True))
                self._links_due = 0.0

    async def measure(self, rounds: asyncio.Queue[ProbeRound], reporter: Reporter) -> None:
        """Measure and report the links that the coordinator asks for, one round at a time, until cancelled.

        The DHT's copy is for a coordinator that comes back, or another one. Of a link that the other end measures it
        reports what it has seen of that.
        """
        unpublished, watched = False, dict[str, int]()

        def seen(peer: str, link: Link) -> None:
            if peer in watched:  # once: else whoever measures again and again has this node flood the broker
                reporter.measured(ProbeResult(round=watched.pop(peer), link=link))

        self._witness.when_seen = seen
        while True:
            try:
                async with self._clock.timeout(TIMEOUTS.links_calm if unpublished else None):
                    turn = await rounds.get()
            except TimeoutError:
                unpublished = False
                try:
                    await self._publish_links(TIMEOUTS.links_lifetime / 3)
                except (OSError, RuntimeError) as error:
                    self._is_not_found(f"cannot publish links to the DHT: {error}")
                continue
            # From far away an end's last word on a round comes after the coordinator's first on the next one.
            watched |= {peer: turn.id for peer, other in turn.pairs if other == self._plane.peer_id}
            while len(watched) > MOST_WATCHED:
                watched.pop(next(iter(watched)))
            found = await self._act(turn)
            if found is not None:
                self._probed, unpublished = turn.id, True
                reporter.measured(found)

    async def _act(self, turn: ProbeRound) -> ProbeResult | None:
        """Do this node's part of a round, in which it measures a pair or a fan, or takes round trips, while another may
        measure a pair with it; return the result, None if it has no part."""
        me = self._plane.peer_id
        for peer, other in turn.pairs:
            if peer == me:
                return ProbeResult(round=turn.id, link=await self._probe(other, turn))
        for one in turn.fans:
            if one.centre == me:
                return ProbeResult(round=turn.id, limits=await self._measure_limits(one.gbps, turn))
        if wanted := turn.echoes.get(me):
            return ProbeResult(round=turn.id, echoes=await self._round_trips(wanted[:ECHO_LIMIT], turn))
        return None

    async def _publish_links(self, again: float) -> None:
        """Publish what was measured, and have it published again after `again` seconds, or soon if that fails."""
        async with self._publishing:  # else an older report might end up on top of a newer one
            self._links_due = 0.0
            report = LinkReport(links=self._links, limits=self._limits, probed=self._probed)
            if await self._registry.publish(self._discovery, report):
                self._links_due = self._clock.now() + again

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
                found = self._limits = await fan(self._plane, gbps, self._uplink, self._witness.carried)
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

    async def _probe(self, peer: str, turn: ProbeRound) -> Link | None:
        """Measure the link to `peer`, in a round or after it; None if that failed."""
        try:
            async with self._probing, self._clock.timeout(TIMEOUTS.probe):
                await self._introduce(peer, turn)
                link = await probe(self._plane, peer, self._uplink, self._witness, quick=turn.quick)
                found = self._links[peer] = link.model_copy(update={"round": turn.id})
                return found
        except (ConnectionError, Refused, TimeoutError) as error:
            self._links.pop(peer, None)
            log.warning("cannot measure the link to %s: %s", short(peer), str(error) or "no answer")
            return None
