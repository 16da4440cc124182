"""Addresses of peers at which something takes connections now."""

import asyncio

from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.connect_attempt import attempt_connect
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule
from dtfm_protocol.transport.dialling import addresses_to_dial
from dtfm_protocol.transport.multiaddress import tcp_address


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return host and port of a multiaddress; None if it has none."""
    at = tcp_address(address)
    return at[:2] if at is not None else None


async def still_reachable(addresses: tuple[str, ...], dials: DialRule = ANYWHERE) -> tuple[str, ...]:
    """Return those multiaddresses that `dials` allows and at which something takes connections now."""
    doors = [(address, door) for address in addresses if (door := host_and_port(address)) is not None]
    answers = await asyncio.gather(*(is_open(*door, dials=dials) for _, door in doors))
    return tuple(address for (address, _), answer in zip(doors, answers, strict=True) if answer)


async def is_open(
    host: str, port: int, seconds: float = TIMEOUTS.tcp_connect, *, dials: DialRule = ANYWHERE
) -> bool | None:
    """Whether something takes connections there: False where the host says no, None where nobody answers, or where
    `dials` does not let it be asked."""
    try:
        async with asyncio.timeout(seconds):
            allowed = await addresses_to_dial(host, dials)
    except (OSError, ValueError):
        return None
    if not allowed:
        return None
    attempt = await attempt_connect(allowed[0], port, seconds)
    return {"open": True, "refused": False}.get(attempt.answer)
