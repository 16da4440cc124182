"""Streams to the peer with which a link is measured next, opened ahead: from far away that takes a second, for which
the line is hardly used."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from dtfm_node.links.timed_transfers import opened
from dtfm_protocol.errors import Refused
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane, Stream


class OpenedAhead:
    """Streams to one peer at a time, until they are taken, or closed."""

    def __init__(self, plane: DataPlane, count: int, limit: float = TIMEOUTS.round_trips) -> None:
        """Nothing is opened yet; then it is `count` streams to a peer, within `limit` seconds."""
        self._plane, self._count, self._limit = plane, count, limit
        self._opening: tuple[str, asyncio.Task[list[Stream]]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether streams are there, or are being opened."""
        return self._opening is not None

    async def begin(self, peer: str, introduce: Callable[[], Awaitable[None]]) -> None:
        """Open streams to `peer`; nobody waits for that. Those to another one are closed.

        Args:
            introduce: tells the data plane where the peer is reached.
        """
        await self.close()
        if self._plane.way(peer) in {None, "direct"}:  # others take long to open, and one of them is used
            self._opening = peer, asyncio.create_task(self._open(peer, introduce))

    async def take(self, peer: str) -> list[Stream]:
        """Return the streams to `peer`, which are the caller's to close from now on; none where none could be opened
        ahead. Those to another one are closed."""
        if self._opening is None or self._opening[0] != peer:
            await self.close()
            return []
        (_, opening), self._opening = self._opening, None
        try:
            return await opening
        except (ConnectionError, Refused, TimeoutError):
            return []

    async def close(self) -> None:
        """Close what was not taken; idempotent."""
        if self._opening is None:
            return
        (_, opening), self._opening = self._opening, None
        opening.cancel()
        (found,) = await asyncio.gather(opening, return_exceptions=True)
        if not isinstance(found, BaseException):
            for stream in found:
                await stream.close()

    async def _open(self, peer: str, introduce: Callable[[], Awaitable[None]]) -> list[Stream]:
        async with contextlib.AsyncExitStack() as stack, asyncio.timeout(self._limit):
            await introduce()
            streams = await opened(self._plane, (peer,) * self._count, stack)
            stack.pop_all()
        return streams
