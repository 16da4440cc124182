"""First of several peers that offers what all were asked for, one a moment after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from dtfm_protocol.checkpoint.transfers import ShardOffer

PAUSE_SECONDS = 0.25
"""After which the next peer is asked, too, where the one before has not answered: to connect takes several round trips,
and over half the world more than a second (as RFC 8305, section 8, has it between attempts to connect)."""
Ask = Callable[[], Awaitable[ShardOffer | None]]
"""A function that asks one peer, and returns its offer; None: it has nothing to offer."""


async def first_offer(asks: Iterable[Ask], pause: float = PAUSE_SECONDS) -> ShardOffer | None:
    """Return the offer that comes first; None where all have answered without one. Other offers are declined.

    Peers are asked in order, each once the one before has answered, or after `pause` seconds.
    """
    left, asked = list(asks), set[asyncio.Future[ShardOffer | None]]()
    try:
        while left or asked:
            if left:
                asked.add(asyncio.ensure_future(left.pop(0)()))
            done, _ = await asyncio.wait(asked, timeout=pause if left else None, return_when=asyncio.FIRST_COMPLETED)
            for answered in done:
                asked.remove(answered)
                if (offer := answered.result()) is not None:
                    return offer
        return None
    finally:
        for other in asked:
            other.cancel()
        for late in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(late, ShardOffer):
                await late.decline()
