"""Discovery: signed records of who is here, on hivemind's Kademlia DHT. A record that does not verify is dropped."""

import asyncio
import contextlib
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

import msgpack
from hivemind.dht.node import DHTNode
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils import timed_storage

from dtfm_protocol.bounds import printable
from dtfm_protocol.discovery.records import RECORD_LIMIT, Entry, LinkReport, Profile, Record
from dtfm_protocol.errors import Cause, Refused, UserError
from dtfm_protocol.identity.envelope import Post, read_body
from dtfm_protocol.identity.freshness import Freshness
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.compat.hivemind import replace_clock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.libp2p import DAEMON_SHUTDOWN_SECONDS, LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import by_peer

SHELVES = 16
"""Keys over which profiles are spread, to be found without knowing who is there. Whoever stores one, or looks for one,
has the peers around that key send all that lies there, over their uplinks: with one key for all, what homes send
for that would grow with the square of their number."""
REPLICAS = 20
"""Peers that keep each record: as many as a bucket of the routing table has, as in Kademlia. In a swarm that is not
larger, everyone holds every record that reached them, so that a lookup finds it whoever answers late."""

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


class HivemindDiscovery:
    """Discovery on a hivemind DHT that lives on the data plane's own libp2p daemon. Create it with `running`."""

    def __init__(self, node: Any, peer_id: str, bootstrap: tuple[str, ...] = ()) -> None:
        self._node = node
        self._peer_id = peer_id
        self._bootstrap = [PeerID.from_base58(peer) for peer in by_peer(bootstrap)]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        plane: LibP2PDataPlane,
        registry: "Registry",
        bootstrap: tuple[str, ...] = (),
        known_peers: tuple[str, ...] = (),
    ) -> AsyncIterator["HivemindDiscovery"]:
        """Join the DHT that `bootstrap` belongs to, or start one.

        Args:
            plane: gives the libp2p daemon on which the DHT lives; it stays open.
            registry: decides which records are kept.
            bootstrap: multiaddresses of peers to enter the DHT by.
            known_peers: multiaddresses at which peers of an earlier run were reached, who may belong to it, too;
                nothing
                is lost where they do not.

        Raises:
            UserError: none of `bootstrap` answers.
        """
        try:
            node = await DHTNode.create(
                p2p=plane.p2p,
                initial_peers=list(bootstrap) or None,
                ensure_bootstrap_success=bool(bootstrap),
                num_replicas=REPLICAS,
                wait_timeout=TIMEOUTS.dht_answer,
                record_validator=_Validator(registry),
                # A peer's newest record must be seen at once: a cached or half-replicated one would plan on the past.
                cache_locally=False,
                cache_on_store=False,
                cache_nearest=0,
            )
        except RuntimeError:
            raise UserError(f"no DHT peer answers at {', '.join(bootstrap)}: is the coordinator running?") from None
        try:

            async def meet(peer: str, addresses: tuple[str, ...]) -> None:
                await plane.introduce(peer, addresses)
                await node.protocol.call_ping(PeerID.from_base58(peer), strict=False)

            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUTS.dht_greeting):
                    meetings = (meet(peer, addresses) for peer, addresses in by_peer(known_peers).items())
                    await asyncio.gather(*meetings, return_exceptions=True)
            yield cls(node, plane.peer_id, bootstrap)
        finally:
            with contextlib.suppress(TimeoutError):  # it waits for answers of a daemon that may be gone
                async with asyncio.timeout(DAEMON_SHUTDOWN_SECONDS):
                    await node.shutdown()

    async def publish(self, key: str, record: bytes, seconds: float) -> bool:
        """Store this peer's entry under `key` in the DHT, as `Discovery.publish`."""
        await self._meet_again()
        try:
            return bool(
                await self._node.store(key, record, timed_storage.get_dht_time() + seconds, subkey=self._peer_id)
            )
        except P2PDaemonError as error:
            raise OSError(f"the DHT does not answer: {error}") from None

    async def greet(self) -> None:
        """Ping the peers of `bootstrap`, as `Discovery.greet`."""
        await asyncio.gather(*(self._node.protocol.call_ping(peer, strict=False) for peer in self._bootstrap))

    async def _meet_again(self) -> None:
        """Ping the peers of `bootstrap` that the routing table has lost.

        hivemind strikes off its list who once fails to answer in time. A peer that has struck off all others, because
        it or they were busy or cut off for a moment, would be alone with its records for good.
        """
        protocol = self._node.protocol
        lost = [peer for peer in self._bootstrap if peer not in protocol.routing_table]
        await asyncio.gather(*(protocol.call_ping(peer, strict=False) for peer in lost))

    async def collect(self, key: str) -> dict[str, bytes]:
        """Look up every peer's entry under `key` in the DHT, as `Discovery.collect`."""
        if not self._node.protocol.routing_table.peer_id_to_uid:
            await self._meet_again()
        try:
            found = await self._node.get(key, latest=True)
        except P2PDaemonError as error:
            raise OSError(f"the DHT does not answer: {error}") from None
        if found is None or not isinstance(found.value, dict):
            return {}
        return {
            peer: entry.value
            for peer, entry in found.value.items()
            if isinstance(peer, str) and isinstance(entry.value, bytes)
        }


def go_by(ahead: float) -> None:
    """Set this process's DHT to a clock that is `ahead` seconds ahead of the machine's.

    Records expire by wall clock, and all who keep them must agree on it.
    """
    replace_clock(lambda: time.time() + ahead)


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
        return await discovery.publish(self._key(record.kind, self._post.peer_id), sealed, seconds)

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
        data = (await discovery.collect(self._key("links", peer))).get(peer)
        record = self.check(peer, data) if data is not None else None
        return record if isinstance(record, LinkReport) else None

    def check(self, peer: str, data: bytes, expires: float = 0.0) -> Record | None:
        """Return the record that `peer` signed, or None after counting what is wrong with it.

        Args:
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
            if not self.dropped[error.cause]:
                log.warning("dropped a DHT record of %s: %s", printable(short(peer)), error)
            self.dropped[error.cause] += 1
            return None

    def _key(self, kind: str, peer: str) -> str:
        return f"{self._swarm}/{kind}/{_shelf(peer) if kind == 'profile' else peer}"


def _shelf(peer: str) -> int:
    return zlib.crc32(peer.encode()) % SHELVES


class _Validator(RecordValidatorBase):  # type: ignore[misc]
    """A validator for hivemind that refuses to store or to return what no member signed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def validate(self, record: DHTRecord) -> bool:
        try:
            peer, data = msgpack.unpackb(record.subkey), msgpack.unpackb(record.value)
        except (ValueError, TypeError, msgpack.UnpackException):
            return False
        if not isinstance(peer, str) or not isinstance(data, bytes):
            return False
        return self._registry.check(peer, data, record.expiration_time) is not None
