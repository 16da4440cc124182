"""Dialling of addresses that others announce: names are looked up before the rule is asked, and not again after it."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable

from dtfm_protocol.transport.dial_rule import DialRule, dial_rule
from dtfm_protocol.transport.ip_addresses import own_addresses
from dtfm_protocol.transport.multiaddress import CIRCUIT, tcp_address
from dtfm_protocol.wire.stream import Unreachable

DIRECT_HEAD_START_SECONDS = 1.5
"""Time in which a peer may be reached at its own addresses before its relays are tried, too: five round trips over half
the world take less."""


async def rule_around(host: str, *, lan: bool) -> DialRule:
    """Return this machine's rule for a swarm whose coordinator is at `host`; as `dial_rule`."""
    try:
        at = await _looked_up(host)
    except (OSError, ValueError):
        at = ()
    return dial_rule(own_addresses(), at, lan=lan)


async def addresses_to_dial(host: str, rule: DialRule) -> tuple[str, ...]:
    """Return the IP addresses of `host` that `rule` lets be dialled; of a name, IPv4 ones.

    Raises:
        OSError: the name has no address.
        ValueError: no host has such a name.
    """
    return tuple(ip for ip in await _looked_up(host) if rule.allows(ip))


async def multiaddresses_to_dial(addresses: tuple[str, ...], rule: DialRule) -> tuple[str, ...]:
    """Return the multiaddresses that `rule` lets be dialled, with IP addresses in the place of names: libp2p's daemon
    would look them up once more, and might get another answer."""
    if rule.everywhere:
        return addresses
    found: list[str] = []
    for address in addresses:
        at = tcp_address(address)
        if at is None:
            continue
        try:
            allowed = await addresses_to_dial(at.host, rule)
        except (OSError, ValueError):
            continue
        rest = f"/tcp/{at.port}" + (f"/p2p/{at.peer}" if at.peer else "") + at.further
        found += [f"/ip{6 if ':' in ip else 4}/{ip}{rest}" for ip in allowed]
    return tuple(dict.fromkeys(found))


async def doors_to_dial(doors: tuple[str, ...], rule: DialRule) -> tuple[str, ...]:
    """Return those of an invite's multiaddresses that `rule` lets be dialled, as they are: a coordinator may move to
    another address under its name."""
    return tuple([door for door in doors if await multiaddresses_to_dial((door,), rule)])


async def dial_before_relays(
    dial: Callable[[tuple[str, ...]], Awaitable[None]],
    addresses: tuple[str, ...],
    head_start: float = DIRECT_HEAD_START_SECONDS,
) -> None:
    """Connect to a peer at its own addresses, and only where that fails or takes longer than `head_start` seconds over
    relays, too: libp2p's daemon takes the connection that stands first and stays with it, and a relay is often nearer
    than the peer.

    Args:
        dial: connects to the peer at any of the addresses given; raises Unreachable where none leads there.

    Raises:
        Unreachable: no address leads there.
    """
    direct = tuple(address for address in addresses if CIRCUIT not in address)
    if direct and direct != addresses:
        with contextlib.suppress(Unreachable, TimeoutError):
            async with asyncio.timeout(head_start):
                await dial(direct)
                return
    await dial(addresses)


async def _looked_up(host: str) -> tuple[str, ...]:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        loop = asyncio.get_running_loop()
        answers = await loop.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))
    return (host,)
