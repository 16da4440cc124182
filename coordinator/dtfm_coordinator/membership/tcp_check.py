"""Check whether something takes connections at a peer's addresses."""

import asyncio

from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport import tcp_knock as knocking
from dtfm_protocol.transport.dial_rule import ANYWHERE, DialRule
from dtfm_protocol.transport.dialling import addresses_to_dial
from dtfm_protocol.transport.multiaddress import tcp_address


def door_of(address: str) -> tuple[str, int] | None:
    """Return host and port of a multiaddress; None if it has none."""
    at = tcp_address(address)
    return at[:2] if at is not None else None


async def open_doors(addresses: tuple[str, ...], dials: DialRule = ANYWHERE) -> tuple[str, ...]:
    """Return those multiaddresses that `dials` allows and at which something takes connections now."""
    doors = [(address, door) for address in addresses if (door := door_of(address)) is not None]
    answers = await asyncio.gather(*(knock(*door, dials=dials) for _, door in doors))
    return tuple(address for (address, _), answer in zip(doors, answers, strict=True) if answer)


async def knock(host: str, port: int, seconds: float = TIMEOUTS.knock, *, dials: DialRule = ANYWHERE) -> bool | None:
    """Whether something takes connections there: False where the host says no, None where nobody answers, or where
    `dials` does not let it be asked."""
    try:
        async with asyncio.timeout(seconds):
            allowed = await addresses_to_dial(host, dials)
    except (OSError, ValueError):
        return None
    if not allowed:
        return None
    return {"open": True, "refused": False}.get((await knocking.knock(allowed[0], port, seconds)).answer)
