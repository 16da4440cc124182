"""Publisher of this node's profile, and of the links that it measures when it is asked to, over the DHT."""

import asyncio
import contextlib

from dtfm_node.control.reporter import Reporter
from dtfm_node.links.measured_links import MeasuredLinks
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.witness import Witness
from dtfm_protocol.control.messages import ProbeResult, ProbeRound
from dtfm_protocol.discovery.records import Link, LinkReport, Profile
from dtfm_protocol.discovery.registry import Discovery, Registry
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.outage import Outage
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane

MOST_WATCHED = 16
"""Rounds at most of which it may still be told what was seen."""
UNUSED_SECONDS = 30.0
"""After so long without a round, what was opened ahead for one is closed."""


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
        self._witness = witness
        self._measured = MeasuredLinks(plane, uplink, witness, self._clock)
        self._probed, self._unpublished = 0, False
        self._profile_due = 0.0
        self._profile_rest = 0.0
        """Seconds until the profile is published again. 0 at first, so that it is published twice: whether others have
        it is not known, as hivemind counts what it keeps itself."""
        self._links_due = 0.0
        """Time (`time.monotonic()`) when the links are due again: at once at the start, for records of an earlier
        process of this node may still be there."""
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
        for peer, link in list(self._measured.links.items()):
            if self._plane.way(peer) != link.way:
                log.info("streams to %s are %s now: measuring that link anew", short(peer), self._plane.way(peer))
                await self._measured.measure(peer, ProbeRound(id=self._probed, addresses={}, quick=True))
                self._links_due = 0.0

    async def measure(self, rounds: asyncio.Queue[ProbeRound], reporter: Reporter) -> None:
        """Measure and report the links that the coordinator asks for, one round at a time, until cancelled.

        The DHT's copy is for a coordinator that comes back, or another one. Of a link that the other end measures it
        reports what it has seen of that.
        """
        watched = dict[str, int]()

        def seen(peer: str, link: Link) -> None:
            if peer in watched:  # once: else whoever measures again and again has this node flood the broker
                reporter.measured(ProbeResult(round=watched.pop(peer), link=link))

        self._witness.when_seen = seen
        try:
            while True:
                turn = await self._next_of(rounds)
                # From far away an end's last word on a round comes after the coordinator's first on the next one.
                watched |= {peer: turn.id for peer, other in turn.pairs if other == self._plane.peer_id}
                while len(watched) > MOST_WATCHED:
                    watched.pop(next(iter(watched)))
                found = await self._measured.act(turn)
                if found is not None:
                    self._probed, self._unpublished = turn.id, True
                    reporter.measured(found)
        finally:
            await self._measured.ahead.close()

    async def _next_of(self, rounds: asyncio.Queue[ProbeRound]) -> ProbeRound:
        """Return the next round. Where none comes for a while, publish what was found, and after a longer while close
        what was opened ahead."""
        while True:
            unused = UNUSED_SECONDS if self._measured.ahead.is_open else None
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(TIMEOUTS.links_calm if self._unpublished else unused):
                    return await rounds.get()
            if not self._unpublished:
                await self._measured.ahead.close()
                continue
            self._unpublished = False
            try:
                await self._publish_links(TIMEOUTS.links_lifetime / 3)
            except (OSError, RuntimeError) as error:
                self._is_not_found(f"cannot publish links to the DHT: {error}")

    async def _publish_links(self, again: float) -> None:
        """Publish what was measured, and have it published again after `again` seconds, or soon if that fails."""
        async with self._publishing:  # else an older report might end up on top of a newer one
            self._links_due = 0.0
            report = LinkReport(links=self._measured.links, limits=self._measured.limits, probed=self._probed)
            if await self._registry.publish(self._discovery, report):
                self._links_due = self._clock.now() + again
