"""Discovery: signed records of who is here, on hivemind's Kademlia DHT. A record that does not verify is dropped."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils import timed_storage

from dtfm_protocol.discovery.dht_calls import DhtCalls, node_id_of
from dtfm_protocol.discovery.dht_entry import enter
from dtfm_protocol.discovery.record_rules import MembersRecords
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.compat.hivemind import LEAST_SECONDS, refuse_stale_records, replace_clock
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.libp2p import DAEMON_SHUTDOWN_SECONDS, LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import by_peer

REPLICAS = 20
"""Peers that keep each record: as many as a bucket of the routing table has, as in Kademlia. In a swarm that is not
larger, everyone holds every record that reached them, so that a lookup finds it whoever answers late."""


class HivemindDiscovery:
    """Discovery on a hivemind DHT that lives on the data plane's own libp2p daemon. Create it with `running`."""

    def __init__(self, node: Any, peer_id: str, bootstrap: tuple[str, ...], coordinators: Coordinators) -> None:
        self._node = node
        self._peer_id = peer_id
        self._doors, self._coordinators = tuple(by_peer(bootstrap)), coordinators
        self._stored: dict[str, float] = {}
        """When this peer's newest entry under each key expires."""

    @property
    def _bootstrap(self) -> list[PeerID]:
        """Peers by which this one has come in, or who has taken their places."""
        return [PeerID.from_base58(self._coordinators.present(peer)) for peer in self._doors]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        plane: LibP2PDataPlane,
        identity: Identity,
        admission: Admission,
        registry: Registry,
        bootstrap: tuple[str, ...] = (),
        known_peers: tuple[str, ...] = (),
        patience: float = TIMEOUTS.dht_entry,
    ) -> AsyncIterator["HivemindDiscovery"]:
        """Join the DHT that `bootstrap` belongs to, or start one.

        Args:
            plane: gives the libp2p daemon on which the DHT lives; it stays open.
            identity: this peer's key.
            admission: this peer's credential, and whose requests and records count.
            registry: reads records.
            bootstrap: multiaddresses of peers to enter the DHT by.
            known_peers: multiaddresses at which peers of an earlier run were reached, who may belong to it, too;
                nothing is lost where they do not.
            patience: seconds for which `bootstrap` is tried again where nobody of it answers.

        Raises:
            UserError: none of `bootstrap` answers.
        """
        refuse_stale_records()
        node = await DHTNode.create(
            p2p=DhtCalls(plane),
            node_id=node_id_of(plane.peer_id),
            num_replicas=REPLICAS,
            wait_timeout=TIMEOUTS.dht_answer,
            record_validator=MembersRecords(registry, identity, admission),
            # A peer's newest record must be seen at once: a cached or half-replicated one would plan on the past.
            cache_locally=False,
            cache_on_store=False,
            cache_nearest=0,
        )
        nearing: asyncio.Future[Any] = asyncio.Future()
        try:
            if bootstrap:
                await enter(node.protocol, bootstrap, patience)
                nearing = asyncio.create_task(node.find_nearest_nodes([node.node_id]))
                await asyncio.wait({nearing}, timeout=TIMEOUTS.dht_joining)

            async def meet(peer: str, addresses: tuple[str, ...]) -> None:
                await plane.introduce(peer, addresses)
                await node.protocol.call_ping(PeerID.from_base58(peer), strict=False)

            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUTS.dht_greeting):
                    meetings = (meet(peer, addresses) for peer, addresses in by_peer(known_peers).items())
                    await asyncio.gather(*meetings, return_exceptions=True)
            yield cls(node, plane.peer_id, bootstrap, admission.coordinators)
        finally:
            nearing.cancel()
            with contextlib.suppress(TimeoutError):  # it waits for answers of a daemon that may be gone
                async with asyncio.timeout(DAEMON_SHUTDOWN_SECONDS):
                    await node.shutdown()

    async def publish(self, key: str, record: bytes, seconds: float) -> bool:
        """Store this peer's entry under `key` in the DHT, as `Discovery.publish`."""
        await self._meet_again()
        # Of two entries the one that expires later counts: one that is written at once after another must be that one.
        expires = max(timed_storage.get_dht_time() + seconds, self._stored.get(key, 0.0) + LEAST_SECONDS)
        self._stored[key] = expires
        try:
            return bool(await self._node.store(key, record, expires, subkey=self._peer_id))
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


def go_by(ahead: Callable[[], float]) -> None:
    """Set this process's DHT to a clock that is so many seconds ahead of the machine's as `ahead` returns, whenever it
    is looked at.

    Records expire by wall clock, and all who keep them must agree on it.
    """
    replace_clock(lambda: time.time() + ahead())
