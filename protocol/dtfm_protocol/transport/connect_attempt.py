"""Attempt to connect: whether something takes TCP connections at an address: yes, no, or no answer."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ConnectAttempt:
    """The outcome of an attempt to connect to one address over TCP."""

    host: str
    port: int
    answer: Literal["open", "refused", "silent", "unreachable"]
    """The answer. refused: the host is there and nothing listens; silent: nobody answered; unreachable: this machine
    knows no way."""
    seconds: float = 0.0
    """Seconds until the answer came."""
    why: str = ""
    """The system's words for an address that is unreachable."""


async def attempt_connect(host: str, port: int, seconds: float) -> ConnectAttempt:
    """Connect to an address within so many seconds, and leave again; return the outcome."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return ConnectAttempt(host, port, "silent", seconds)
    except ConnectionRefusedError:
        return ConnectAttempt(host, port, "refused", loop.time() - begun)
    except OSError as error:
        return ConnectAttempt(host, port, "unreachable", why=error.strerror or str(error))
    except (ValueError, OverflowError) as error:  # no name of a host, no port
        return ConnectAttempt(host, port, "unreachable", why=str(error))
    took = loop.time() - begun
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ConnectAttempt(host, port, "open", took)
