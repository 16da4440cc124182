"""File from whichever of several peers gives it first: beside one that offers it and takes long, another one does."""

import asyncio
from collections.abc import Sequence
from functools import partial

from dtfm_node.runner.first_offer import PAUSE_SECONDS, first_offer
from dtfm_protocol.checkpoint.transfers import ShardOffer, ask_for_shard
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane

LONG_SECONDS = 4.0
"""For a shard of tokens: a line of 2 Mbit/s has brought one of a megabyte by then."""
BESIDE = 2
"""Peers that give a file beside the first: more would take the line of a reader that is slow itself."""


class FirstGiven:
    """File of `size` bytes, by its hash, from whichever of `sources` gives it first.

    Args:
        sources: peers in the order in which they are asked.
        pause: seconds after which the next one is asked, where the one before has not answered.
        piece_seconds: see `Timeouts.piece`.
        long: seconds after which another one gives it, too.
    """

    def __init__(
        self,
        plane: DataPlane,
        sha256: str,
        size: int,
        sources: Sequence[str],
        *,
        pause: float = PAUSE_SECONDS,
        piece_seconds: float = TIMEOUTS.piece,
        long: float = LONG_SECONDS,
    ) -> None:
        self._plane, self._sha256, self._size, self._left = plane, sha256, size, list(sources)
        self._pause, self._piece_seconds, self._long = pause, piece_seconds, long
        self.late: set[str] = set()
        """Peers that did not answer, that offered it and did not give it, or so slowly that another one was quicker."""

    async def take(self, beside: int = BESIDE) -> bytes | None:
        """Return the file; None where nobody gives it.

        Args:
            beside: how many may give it beside the one that does at first.
        """
        while (offer := await self._offer()) is not None:
            self._left.remove(offer.peer)
            giving = [asyncio.create_task(self._give(offer))]
            try:
                await asyncio.wait(giving, timeout=self._long if beside else None)
                if not giving[0].done():
                    giving.append(asyncio.create_task(self.take(beside - 1)))
                for first in asyncio.as_completed(giving):
                    if (data := await first) is not None:
                        if not giving[0].done():
                            self.late.add(offer.peer)
                        return data
            finally:
                for one in giving:
                    one.cancel()
                await asyncio.gather(*giving, return_exceptions=True)
        return None

    async def _offer(self) -> ShardOffer | None:
        return await first_offer([partial(self._ask, peer) for peer in self._left], self._pause)

    async def _ask(self, peer: str) -> ShardOffer | None:
        try:
            async with asyncio.timeout(self._piece_seconds):
                return await ask_for_shard(self._plane, peer, self._sha256, self._size)
        except ConnectionError:
            return None
        except TimeoutError:
            log.warning("%s does not say whether it has a shard; trying another peer", short(peer))
            self.late.add(peer)
            return None
        except Refused as error:
            log.warning("%s; trying another peer", error)
            return None

    async def _give(self, offer: ShardOffer) -> bytes | None:
        try:
            data = await offer.take(self._piece_seconds)
        except (ConnectionError, Refused) as error:
            log.warning("%s; trying another peer", error)
            self.late.add(offer.peer)
            return None
        log.debug("token shard %s from %s", self._sha256[:8], short(offer.peer))
        return data
