"""IP addresses: from where each can be reached, and which of them are this machine's."""

import ipaddress
import socket
from typing import Literal

import psutil

Kind = Literal["loopback", "link-local", "private", "carrier", "global"]
"""The reach of an IP address; "carrier": behind the provider's own NAT (RFC 6598)."""
CARRIER = ipaddress.ip_network("100.64.0.0/10")
"""Addresses behind providers' own NAT (RFC 6598)."""


def kind_of(ip: str) -> Kind:
    """Return from where an IP address can be reached.

    Raises:
        ValueError: `ip` is no IP address.
    """
    address = ipaddress.ip_address(ip.partition("%")[0])
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.version == 4 and address in CARRIER:
        return "carrier"
    return "global" if address.is_global else "private"


def own_addresses() -> tuple[str, ...]:
    """Return this machine's IP addresses, without those of loopback and link-local ones."""
    found = (
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in {socket.AF_INET, socket.AF_INET6}
    )
    return tuple(dict.fromkeys(ip for ip in found if kind_of(ip) not in {"loopback", "link-local"}))
