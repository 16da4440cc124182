"""File from whichever of several peers gives it first: beside one that offers it and takes long, another one does."""

import asyncio
from collections.abc import Collection, Sequence
from functools import partial

from dtfm_node.runner.first_offer import PAUSE_SECONDS, first_offer
from dtfm_protocol.checkpoint.transfers import ShardOffer, ask_for_shard
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane

LONG_SECONDS = 6.0
"""For a shard of tokens: a line of 3 Mbit/s has brought one by then (`SHARD_BYTES`)."""
AT_ONCE = 3
"""Peers that give a file at a time: more would take the line of a reader that is slow itself."""


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

    async def take(self) -> bytes | None:
        """Return the file; None where nobody gives it."""
        giving: dict[asyncio.Task[bytes | None], str] = {}
        asking = [asyncio.create_task(self._offer())]
        try:
            while giving or asking:
                is_waited_for = bool(asking) or not self._may_ask(giving)
                limit = None if is_waited_for else self._long
                done, _ = await asyncio.wait([*giving, *asking], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                for one in [one for one in giving if one in done]:
                    if (data := one.result()) is not None:
                        earlier = list(giving).index(one)
                        self.late |= {*list(giving.values())[:earlier]}
                        return data
                    del giving[one]
                if asking and asking[0] in done:
                    if (offer := asking.pop().result()) is None:
                        self._left.clear()
                    else:
                        self._left.remove(offer.peer)
                        giving[asyncio.create_task(self._give(offer))] = offer.peer
                elif not asking and self._may_ask(giving) and not (giving and done):
                    asking.append(asyncio.create_task(self._offer()))
            return None
        finally:
            for task in (*giving, *asking):
                task.cancel()
            for found in await asyncio.gather(*asking, *giving, return_exceptions=True):
                if isinstance(found, ShardOffer):
                    await found.decline()

    def _may_ask(self, giving: Collection[object]) -> bool:
        """Whether one more may give it, and there is one that was not asked."""
        return bool(self._left) and len(giving) < AT_ONCE

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
