"""Lookup of the profiles of peers that are there: the DHT is read while there is something to find in it."""

from collections.abc import Collection

from dtfm_coordinator.membership.known_peers import KnownPeers
from dtfm_coordinator.membership.members import Members
from dtfm_protocol.discovery.registry import Discovery, Registry
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log

PATIENCE, RARELY_SECONDS = 1.5, 20.0
"""While a profile is missing, the next lookup comes so many times later, and so much later at most: it costs many peers
an answer."""


class ProfileLookup:
    """Lookup of the profiles that are missing."""

    def __init__(
        self,
        members: Members,
        discovery: Discovery,
        registry: Registry,
        known_peers: KnownPeers,
        clock: MonotonicClock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._members, self._discovery, self._registry = members, discovery, registry
        self._known_peers = known_peers
        self._missing: dict[str, str] = {}
        self._due = self._pause = 0.0

    async def look(self, seconds: float) -> None:
        """Read the DHT if that is due: at once for a new peer, again after `seconds`, and then ever more rarely."""
        before, self._missing = self._missing, self._members.unlisted()
        if self._missing.items() - before.items():
            self._due, self._pause = 0.0, seconds
        if self._missing and self._clock.now() >= self._due:
            await self._read(self._missing)
            self._pause = min(PATIENCE * self._pause, RARELY_SECONDS)
            self._due = self._clock.now() + self._pause

    async def _read(self, peers: Collection[str]) -> None:
        try:
            self._members.listed(await self._registry.profiles(self._discovery, peers))
        except (OSError, RuntimeError) as error:
            log.warning("Who has joined cannot be looked up for now, and is tried again: %s", error)
            return
        here = self._members.online()
        self._known_peers.remember({m.peer: m.profile.addresses for m in here if m.profile is not None})
