"""The stack of planes on which peers meet: libp2p below, direct streams beside it, the DHT on its daemon."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from dtfm_protocol.discovery.dht import HivemindDiscovery
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.dial_rule import DialRule
from dtfm_protocol.transport.dialling import doors_to_dial
from dtfm_protocol.transport.direct_data_plane import DirectDataPlane
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.multiaddress import by_peer
from dtfm_protocol.transport.rate_cap import TrafficCaps


@dataclass(frozen=True)
class Planes:
    """The data plane of a running peer and its way to the DHT, both under one identity."""

    data: DirectDataPlane
    discovery: HivemindDiscovery


@contextlib.asynccontextmanager
async def open_planes(
    identity: Identity,
    admission: Admission,
    name_service: Callable[[str], str],
    registry: Registry,
    *,
    listen: str,
    dials: DialRule,
    port: int = 0,
    direct_port: int = 0,
    announce: str | None = None,
    bootstrap: tuple[str, ...] = (),
    known_peers: tuple[str, ...] = (),
    relay: bool = False,
    caps: TrafficCaps | None = None,
) -> AsyncIterator[Planes]:
    """Open a peer's data plane and its discovery for as long as the block lasts; each ends before what it stands on.

    Args:
        identity: the key under which others know this peer.
        admission: this peer's credential, and whom it lets in; who is a member no more loses its streams.
        name_service: gives the libp2p protocol of a service; everybody can ask the daemon for those.
        registry: decides which of the DHT's records are kept.
        listen: the address to listen at, for libp2p and for direct streams.
        dials: decides which addresses that others announce are dialled.
        port: the port of libp2p; 0: any.
        direct_port: the port of direct streams, if it is free; 0: any.
        announce: host or HOST:PORT at which others reach this peer's libp2p, e.g. a forwarded port.
        bootstrap: multiaddresses of peers to enter the network by.
        known_peers: multiaddresses at which peers of an earlier run of this program were reached.
        relay: whether this peer relays to others, as one does that everybody can connect to; any other peer may be
            the guest of those in `bootstrap`, which also tell it how it is seen from outside.
        caps: on what all streams together send and receive; None: there are none.

    Raises:
        UserError: nothing can listen there, the libp2p daemon does not start, or nobody of `bootstrap` answers, or may
            be dialled.
    """
    doors = await doors_to_dial(bootstrap, dials)
    if bootstrap and not doors:
        raise UserError(
            f"the swarm is to be entered at {', '.join(bootstrap)}: these are addresses inside a private network, and "
            "its broker is not there; if this machine is in that network, say --lan"
        )
    running = LibP2PDataPlane.running(
        identity,
        admission,
        name_service,
        listen=listen,
        port=port,
        announce=announce,
        bootstrap=doors,
        relay=relay,
        dials=dials,
        caps=caps,
    )
    mirrors = () if relay else tuple(by_peer(doors))
    async with (
        running as libp2p,
        DirectDataPlane.running(
            libp2p, identity, admission, listen=listen, port=direct_port, mirrors=mirrors, dials=dials, caps=caps
        ) as data,
        HivemindDiscovery.running(libp2p, identity, admission, registry, doors, known_peers) as discovery,
    ):
        yield Planes(data, discovery)
