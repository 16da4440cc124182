"""Multiaddresses: whose they are, where they lead, and how they are announced."""

import re
from typing import TYPE_CHECKING, NamedTuple

import base58

from dtfm_protocol.errors import UserError

CIRCUIT = "/p2p-circuit"
"""Part of a multiaddress: what comes before is a relay's, and what follows is reached over it."""
if TYPE_CHECKING:
    from hivemind.utils.multiaddr import Multiaddr

_P2P = b"\xa5\x03"
"""The code of /p2p in binary multiaddresses, 421, as a varint."""
_TCP = re.compile(r"/(?:ip[46]|dns[46]?)/([^/]+)/tcp/([0-9]{1,5})(?:/p2p/([^/]+))?(/.*)?", re.DOTALL)
_LOOPBACK = ("127.", "localhost", "::1")


def by_peer(addresses: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Group multiaddresses by the peer in which each of them ends."""
    found: dict[str, tuple[str, ...]] = {}
    for address in addresses:
        peer = address.rpartition("/p2p/")[2]
        found[peer] = (*found.get(peer, ()), address)
    return found


class TcpAddress(NamedTuple):
    """A TCP port to which a multiaddress leads, and the peer that it names there."""

    host: str
    port: int
    peer: str
    """Peer id at that port; "": not said."""
    further: str
    """The way on from that peer, as over a relay; "": it ends there."""


def tcp_address(address: str) -> TcpAddress | None:
    """Parse the TCP port to which a multiaddress leads; None: it leads to none."""
    match = _TCP.fullmatch(address)
    if match is None or int(match[2]) > 65535:
        return None
    return TcpAddress(match[1], int(match[2]), match[3] or "", match[4] or "")


def hosts_of(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """List the hosts of multiaddresses, each once, but for relays': there it is not the peer that listens."""
    found = (tcp_address(address) for address in addresses if CIRCUIT not in address)
    return tuple(dict.fromkeys(at.host for at in found if at is not None))


def is_local(listen: str) -> bool:
    """Whether only this machine reaches the host at which a peer listens."""
    return listen.startswith(_LOOPBACK)


def binary(address: str) -> "Multiaddr":
    """Encode a multiaddress as libp2p's daemon reads it: hivemind codes a peer id as a CID, which the daemon refuses.

    Raises:
        ValueError: `address` is no multiaddress.
    """
    from hivemind.utils.multiaddr import Multiaddr  # seconds of importing, of which `join` says what is wrong before

    first, *rest = address.split("/p2p/")
    data = Multiaddr(first).to_bytes()
    for part in rest:
        peer, slash, more = part.partition("/")
        identity = base58.b58decode(peer)
        if len(identity) > 127:
            raise ValueError(f"{peer} is no peer id")
        data += _P2P + bytes([len(identity)]) + identity + (Multiaddr(slash + more).to_bytes() if slash else b"")
    return Multiaddr(data)


def announced_port(announce: str | None) -> int:
    """Return the port of an `announce` of the form HOST:PORT, else 0."""
    host, _, port = (announce or "").rpartition(":")
    return int(port) if port.isdigit() and host and ":" not in host else 0


def announced(announce: str | None, port: int, peer_id: str) -> tuple[str, ...]:
    """Spell `announce` ("host" or "host:port") out as multiaddresses of `peer_id`; none where it is None.

    Raises:
        UserError: `announce` is not of that form.
    """
    if announce is None:
        return ()
    given = announced_port(announce)
    host, number = announce.removesuffix(f":{given}") if given else announce, given or port
    if not 0 < number < 65536 or not host:
        raise UserError(f"--announce {announce}: say the port too, as HOST:PORT, or listen on a fixed one")
    kind = "ip6" if ":" in host else "ip4" if host.replace(".", "").isdigit() else "dns4"
    return (f"/{kind}/{host}/tcp/{number}/p2p/{peer_id}",)
