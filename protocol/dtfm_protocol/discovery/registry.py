"""The registry of a swarm: what its peers publish of themselves, typed, sealed and checked, over any discovery."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Collection
from typing import Protocol

from hivemind.utils import timed_storage

from dtfm_protocol.bounds import printable
from dtfm_protocol.discovery.records import RECORD_LIMIT, Entry, LinkReport, Profile, Record
from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.envelope import Post, read_body
from dtfm_protocol.identity.freshness import Freshness
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS

SHELVES = 16
"""Keys over which profiles are spread, to be found without knowing who is there. Whoever stores one, or looks for one,
has the peers around that key send all that lies there, over their uplinks: with one key for all, what homes send
for that would grow with the square of their number."""

LATE_SECONDS = 30.0
"""A record is stored so much later than it was signed, at most: peers that were lost are met again in between."""


class Discovery(Protocol):
    """A key-value store that all peers share. Under each key every peer has one entry of its own."""

    async def publish(self, key: str, record: bytes, seconds: float) -> bool:
        """Store this peer's entry under `key` for `seconds`; return whether any peer took it, this one among them."""

    async def collect(self, key: str) -> dict[str, bytes]:
        """Return every peer's entry under `key`, by peer id."""

    async def greet(self) -> None:
        """Make this peer known to those by whom it came in: one of them that was started again may know of nobody."""


class Registry:
    """A reader and writer of typed records of one swarm, which counts what it drops."""

    def __init__(self, swarm: str, post: Post) -> None:
        self._swarm = swarm
        self._post = post
        self.dropped: Counter[Cause] = Counter()
        """Number of records dropped, by cause."""
        self._heard = Freshness()

    async def publish(self, discovery: Discovery, record: Record) -> bool:
        """Sign `record` and store it as this peer's; return whether any peer took it."""
        seconds = TIMEOUTS.links_lifetime if isinstance(record, LinkReport) else TIMEOUTS.profile_lifetime
        until = timed_storage.get_dht_time() + seconds
        sealed = self._post.seal("record", Entry(record=record, until=until))
        return await discovery.publish(self.key(record.kind, self._post.peer_id), sealed, seconds)

    async def profiles(self, discovery: Discovery, wanted: Collection[str] | None = None) -> dict[str, Profile]:
        """Look up the profile of every peer that has a valid one, by peer id.

        Args:
            wanted: peers whose profiles alone are looked for; None: all.
        """
        shelves = range(SHELVES) if wanted is None else {_shelf(peer) for peer in wanted}
        collected = await asyncio.gather(*(discovery.collect(f"{self._swarm}/profile/{shelf}") for shelf in shelves))
        found = {}
        for shelf, entries in zip(shelves, collected, strict=True):
            for peer, data in entries.items():
                if _shelf(peer) != shelf or (wanted is not None and peer not in wanted):
                    continue
                record = self.check(peer, data)
                if isinstance(record, Profile):
                    found[peer] = record
        return found

    async def links(self, discovery: Discovery, peer: str) -> LinkReport | None:
        """Look up the links that `peer` has probed; None where there is no valid record of them."""
        data = (await discovery.collect(self.key("links", peer))).get(peer)
        record = self.check(peer, data) if data is not None else None
        return record if isinstance(record, LinkReport) else None

    def check(self, peer: str, data: bytes, expires: float = 0.0) -> Record | None:
        """Return the record that `peer` signed, or None after counting what is wrong with it.

        Args:
            peer: whose record it is to be.
            data: the record in its envelope.
            expires: Unix seconds up to which it is to be stored; 0: it is not to be.
        """
        try:
            letter = self._post.open(data, "record", RECORD_LIMIT)
            if letter.sender != peer:
                raise Refused("signed by another peer than it is stored under", Cause.AUTHOR)
            entry = read_body(letter, Entry)
            if expires > entry.until + LATE_SECONDS:
                raise Refused("a record that somebody stores for longer than its writer has", Cause.STALE)
            self._heard.admit(peer, entry.record.kind, letter.counter, again=True)
            return entry.record
        except Refused as error:
            self.drop(peer, error)
            return None

    def drop(self, peer: str, error: Refused) -> None:
        """Count a record that is dropped, which says that it is of `peer`; "": it says nothing."""
        if not self.dropped[error.cause]:
            log.warning("dropped a DHT record of %s: %s", printable(short(peer)) or "nobody", error)
        self.dropped[error.cause] += 1

    def key(self, kind: str, peer: str) -> str:
        """Return the key under which `peer` publishes its record of a kind, "profile" or "links"."""
        return f"{self._swarm}/{kind}/{_shelf(peer) if kind == 'profile' else peer}"


def _shelf(peer: str) -> int:
    return zlib.crc32(peer.encode()) % SHELVES
