"""The rule of which addresses that others announce are dialled: none inside one's own network, unless the swarm itself
lies there. Pure.

Whoever connects on another's word connects on behalf of that other. A peer, or the swarm's owner, could have it try the
router, the printer and the neighbours' machines, where strangers get no further than the router. So an address that
only machines near this one reach is dialled if the coordinator was reached at such an address too, or the person at
this machine allows it.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

from dtfm_protocol.transport.ip_addresses import CARRIER

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that stand for the IPv4 address in their last four bytes (RFC 6052)."""
LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
NEARBY: tuple[Network, ...] = (
    *(ipaddress.ip_network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
    *(ipaddress.ip_network(block) for block in ("169.254.0.0/16", "fe80::/10", "198.18.0.0/15")),
    CARRIER,
)
"""Networks whose addresses lead to another machine in each place: private ones (RFC 1918, RFC 4193), link-local ones
(RFC 3927, RFC 4291), those of laboratories (RFC 2544), and those of providers' own NAT (RFC 6598)."""


@dataclass(frozen=True)
class DialRule:
    """The addresses that are dialled when others announce them, beside those that the whole internet reaches."""

    inside: tuple[Network, ...] = ()
    """Networks near this machine in which the swarm lies, or that the person at this machine allows."""
    own: frozenset[Address] = frozenset()
    """This machine's own addresses: what listens there may trust whoever connects from this machine."""
    here: bool = False
    """Whether peers of the swarm may be on this machine, so that its own addresses are dialled."""
    everywhere: bool = False
    """Whether any address is dialled."""

    def allows(self, host: str) -> bool:
        """Whether `host` is dialled; never where it is no IP address, for a name may lead anywhere."""
        if self.everywhere:
            return True
        try:
            address = _unwrapped(host)
        except ValueError:
            return False
        if any(address in network for network in self.inside):
            return True
        return self.here if address in self.own else _is_public(address)


ANYWHERE = DialRule(everywhere=True)
"""The rule by which any address is dialled."""


def dial_rule(own: Collection[str], coordinator: Collection[str], *, lan: bool = False) -> DialRule:
    """Return the rule for one machine.

    Args:
        own: this machine's own IP addresses.
        coordinator: IP addresses at which the coordinator was reached, or is announced. Where all of them lie in
            networks near this machine, so does the swarm, and addresses in the same networks are dialled; where it is
            on this machine, this machine's own are.
        lan: whether the person at this machine allows all addresses in its network, but for loopback.
    """
    at, mine = [_unwrapped(ip) for ip in coordinator], frozenset(map(_unwrapped, own))
    near = [network for network in (*LOOPBACK, *NEARBY) if any(ip in network for ip in at)]
    if any(_is_public(ip) for ip in at):
        near = []
    if any(ip.is_loopback for ip in at) and near:
        near += LOOPBACK
    allowed = NEARBY if lan else ()
    here = lan or any(ip in mine or ip.is_loopback for ip in at)
    return DialRule(tuple(dict.fromkeys((*near, *allowed))), mine, here)


def _unwrapped(host: str) -> Address:
    """Return the address that is reached at `host`: where that is an IPv6 address that stands for an IPv4 one, the
    latter.

    Raises:
        ValueError: `host` is no IP address.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 6:
        if address in _TRANSLATED:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        teredo = address.teredo
        return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
    return address


def _is_public(address: Address) -> bool:
    """Whether an address leads to the same machine from everywhere."""
    odd = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not odd and not (address.version == 6 and address.is_site_local)
