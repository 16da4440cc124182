"""Streams that peers open: each is given to its handler, and what goes wrong with it goes no further."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import Stream, StreamClosed

T = TypeVar("T", bound=Stream)


async def answer(handler: Callable[[T], Awaitable[None]], stream: T) -> None:
    """Let `handler` have a stream that a peer has opened; nothing that goes wrong with it goes further."""
    try:
        await handler(stream)
    except StreamClosed:
        pass
    except Refused as error:
        log.warning("refused a stream of %s: %s", short(stream.peer), error)
    except asyncio.CancelledError:
        pass  # the plane is closing, and nobody awaits this task
    except Exception:  # noqa: BLE001 - a bug in one handler must not end the daemon; it is logged whole
        log.exception("a stream of %s failed here", short(stream.peer))
    finally:
        await stream.close()


@contextlib.contextmanager
def counted(counter: Counter[str], peer: str) -> Iterator[None]:
    """Count `peer` once more as long as the block lasts."""
    counter[peer] += 1
    try:
        yield
    finally:
        counter[peer] -= 1
        if not counter[peer]:
            del counter[peer]
