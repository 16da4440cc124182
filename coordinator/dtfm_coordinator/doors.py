"""Whether something takes connections at an address."""

import asyncio
import contextlib
import re

CONNECT_SECONDS = 1.0
_ADDRESS = re.compile(r"^/(?:ip[46]|dns[46]?)/([^/]+)/tcp/(\d+)")


def door_of(address: str) -> tuple[str, int] | None:
    """Host and port of a multiaddress, if it has them."""
    match = _ADDRESS.match(address)
    return (match[1], int(match[2])) if match else None


async def open_doors(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Those of multiaddresses at which something takes connections now."""
    doors = [(address, door) for address in addresses if (door := door_of(address)) is not None]
    answers = await asyncio.gather(*(knock(*door) for _, door in doors))
    return tuple(address for (address, _), answer in zip(doors, answers, strict=True) if answer)


async def knock(host: str, port: int) -> bool | None:
    """Whether something takes connections there: False where the host says no, None where nobody answers."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError, OverflowError):  # the latter: no name of a host, no port
        return None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
