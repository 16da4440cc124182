"""Announced address of a coordinator: whom the invite that names it lets in, and whether it leads here."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Collection
from typing import Literal, NamedTuple

from dtfm_coordinator.serve.endpoints import Endpoints, Wishes, host_of
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.ip_addresses import kind_of, own_addresses
from dtfm_protocol.transport.pinned_tls import PinnedContext

MOST_OFFERED = 4
"""Addresses of this machine that are offered."""
Arrival = Literal["here", "elsewhere", "nowhere", "no such name"]
"""Where a connection to an address arrives. elsewhere: at somebody else than this coordinator; nowhere: nobody takes
it."""


class InviteAddress(NamedTuple):
    """What is known of the address in an invite."""

    host: str
    port: int
    is_chosen: bool
    """Whether the owner has named it by --announce; else it is this machine's own, or the one of --listen."""
    listens_here_only: bool
    """Whether nothing but this machine reaches the port, by --listen."""
    addresses: tuple[str, ...]
    """IP addresses of the host; none: it has none, or they are not known."""
    own: tuple[str, ...]
    """This machine's IP addresses."""


async def look_at_announced(ends: Endpoints, wishes: Wishes, peer: str) -> None:
    """Warn the owner in one line where nodes elsewhere cannot come by the address in the invite.

    Args:
        ends: where the coordinator is reached; its entrance is open.
        wishes: the owner's options of that.
        peer: peer id of this coordinator.
    """
    host, port = host_of(ends.announced_broker), ends.broker
    arrival, found = await arrival_at(host, port, peer)
    is_chosen, here_only = wishes.announce is not None, _is_loopback(wishes.listen)
    if said := announced_words(InviteAddress(host, port, is_chosen, here_only, found, own_addresses()), arrival):
        log.warning("%s", said)


def announced_words(known: InviteAddress, arrival: Arrival) -> str:
    """Return what the owner has to know of the address in the invite, and what to do; "": all is well.

    Args:
        known: the address, and this machine's.
        arrival: where a connection from this machine to it arrives.
    """
    host, port = known.host, known.port
    kinds = {kind_of(ip) for ip in known.addresses}
    if kinds == {"loopback"}:
        listen = " without --listen, and" if known.listens_here_only else ""
        return (
            f"The invite names {host}: only nodes on this machine can join by it. For others, start `serve`{listen} "
            f"with an address at which they reach this machine: {_offers(known.own)}."
        )
    if known.listens_here_only:
        return (
            f"Nodes elsewhere cannot join at {host}: --listen has this machine alone reach port {port}. Start `serve` "
            "without --listen."
        )
    if arrival == "no such name":
        return (
            f"--announce {host}: no such name is known here, so nodes will not find this coordinator. Check the "
            f"spelling, or give an address: {_offers(known.own)}."
        )
    if arrival == "elsewhere":
        return (
            f"{host} port {port}, which the invite names, leads to another program or machine than this coordinator: "
            "nodes are turned away there. Check --announce, and to which machine your router forwards that port."
        )
    if arrival == "nowhere":
        return (
            f"Nobody answers at {host} port {port}, which the invite names, when this machine asks. Have your router "
            f"forward TCP ports {port} to {port + 2} to this machine, and a firewall let them in. (Some routers do not "
            "let their own network in that way: then only a try from elsewhere tells.)"
        )
    if not known.is_chosen and kinds and kinds <= {"private", "carrier", "link-local"}:
        return (
            f"The invite names {host}, an address inside your own network: only machines there can join. For others, "
            f"have your router forward TCP ports {port} to {port + 2} to this machine, and start `serve` with "
            "--announce and your public name or address."
        )
    return ""


def _is_loopback(listen: str) -> bool:
    try:
        return kind_of(listen) == "loopback"
    except ValueError:  # a name
        return listen == "localhost"


def _offers(own: Collection[str]) -> str:
    """Return the options that this machine's addresses make, nearest to everybody first."""
    reach = {
        "global": "for everybody",
        "private": "for machines in your own network",
        "carrier": "inside your provider's network",
    }
    known = [ip for ip in own if kind_of(ip) in reach and ":" not in ip]  # its own broker knows IPv4 alone
    offers = sorted(known, key=lambda ip: list(reach).index(kind_of(ip)))[:MOST_OFFERED]
    if not offers:
        return "this machine has no address of its own now, so look whether its network is up"
    return ", ".join(f"`--announce {ip}` {reach[kind_of(ip)]}" for ip in offers)


async def arrival_at(host: str, port: int, peer: str) -> tuple[Arrival, tuple[str, ...]]:
    """Connect to a coordinator's entrance as a newcomer does.

    Args:
        host: name or IP address.
        port: the entrance's.
        peer: peer id of the coordinator that is to be there.

    Returns:
        Where the connection arrives, and the IP addresses of `host`.
    """
    loop = asyncio.get_running_loop()
    try:
        answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found = tuple(
            dict.fromkeys(str(ipaddress.ip_address(str(answer[4][0]).partition("%")[0])) for answer in answers)
        )
    except (OSError, ValueError):
        return "no such name", ()
    try:
        async with asyncio.timeout(TIMEOUTS.tcp_connect):
            _, writer = await asyncio.open_connection(host, port, ssl=PinnedContext(peer))
    except ssl.SSLError:
        return "elsewhere", found
    except ConnectionResetError:
        return "elsewhere", found
    except (OSError, TimeoutError, ValueError):
        return "nowhere", found
    writer.close()
    return "here", found
