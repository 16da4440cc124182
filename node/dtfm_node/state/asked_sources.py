"""Sources of a state, all asked at once what they have of it: each is of use as soon as it has answered."""

import asyncio
import math
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Collection

from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.transfers import CATALOGUE_LIMIT, STATE, Catalogue, WantCatalogue
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import DataPlane, Stream, read_message, write_message


class AskedSources:
    """Sources that were asked, each on a stream of its own, for what they have of the state `mark`.

    Args:
        seconds: for one to answer.
    """

    def __init__(self, plane: DataPlane, mark: Mark, peers: Collection[str], seconds: float) -> None:
        self._plane, self._mark, self._seconds = plane, mark, seconds
        self.streams: dict[str, Stream] = {}
        """Streams to those that have answered, by peer id."""
        self.catalogues: dict[str, dict[str, TensorEntry]] = {}
        """What they have, by peer id."""
        self.asking = {asyncio.create_task(self._ask(peer)): peer for peer in peers}
        """Those that have yet to answer."""

    async def answered(self, are_enough: Callable[[], bool], late_seconds: float) -> None:
        """Wait until all have answered; once those that have `are_enough`, no longer than these took once more, or
        `late_seconds`."""
        now = asyncio.get_running_loop().time
        begun, until = now(), math.inf
        while self.asking and now() < until:
            limit = until - now() if until < math.inf else None
            await asyncio.wait(self.asking, timeout=limit, return_when=FIRST_COMPLETED)
            self.taken()
            if until == math.inf and are_enough():
                until = now() + max(late_seconds, now() - begun)

    def taken(self) -> set[str]:
        """Return those that have answered since this was asked last."""
        done = [task for task in self.asking if task.done()]
        for task in done:
            task.result()
        return {self.asking.pop(task) for task in done} & self.catalogues.keys()

    async def close(self) -> None:
        """Ask nobody any more, and end the streams."""
        for task in self.asking:
            task.cancel()
        await asyncio.gather(*self.asking, return_exceptions=True)
        for stream in self.streams.values():
            await stream.close()

    async def _ask(self, peer: str) -> None:
        stream: Stream | None = None
        try:
            async with asyncio.timeout(self._seconds):
                stream = await self._plane.open(peer, STATE)
                await write_message(stream, WantCatalogue(mark=self._mark))
                self.catalogues[peer] = (await read_message(stream, Catalogue, CATALOGUE_LIMIT)).tensors
                self.streams[peer] = stream
        except (ConnectionError, Refused, TimeoutError) as error:
            log.info("%s gives nothing of %s: %s", short(peer), self._mark, str(error) or "no answer")
        finally:
            if stream is not None and peer not in self.streams:
                await stream.close()
