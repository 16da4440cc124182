"""Token shards that this peer reads: fetched by hash from other peers, or the coordinator, and kept on its disk."""

import asyncio
from collections.abc import Sequence

from dtfm_protocol.checkpoint.transfers import fetch_shard
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane


class TokenSource:
    """Source of a step's tokens, which fetches what is missing before the step is computed."""

    def __init__(
        self,
        plane: DataPlane,
        job: ResolvedJob,
        shards: ShardFolder,
        coordinator: str,
        retry_seconds: float = TIMEOUTS.tokens_retry,
    ) -> None:
        """Nothing is fetched before `ensure`.

        Args:
            retry_seconds: see `Timeouts.tokens_retry`.
        """
        self._retry_seconds = retry_seconds
        self.reader = TokenReader(job.corpus, shards)
        self._plane, self._job, self._shards, self._coordinator = plane, job, shards, coordinator
        self._batches = Batches(job.corpus, job.training, job.evaluation)
        self._fetching = asyncio.Lock()

    async def ensure(self, plan: Plan, me: str, step: int) -> None:
        """Fetch what `me` lacks of the shards that `step` and the evaluation touch; waits while nobody has them."""
        wanted = set(self._batches.shards_for(step, plan.micro_batches(me)))
        if self._job.evaluation.every:
            wanted |= set(self._batches.evaluation_shards())
        async with self._fetching:
            for index in sorted(wanted):
                await self._fetch(self._job.corpus.shards[index].sha256, self._sources(plan, me))

    def _sources(self, plan: Plan, me: str) -> Sequence[str]:
        """Return the peers that read tokens too, a different one first for each peer, and last the coordinator."""
        readers = list(dict.fromkeys(plan.replicas(0) + plan.replicas(len(plan.stages) - 1)))
        turn = readers.index(me) if me in readers else 0
        others = [peer for peer in readers[turn:] + readers[:turn] if peer != me]
        return [*others, self._coordinator]

    async def _fetch(self, sha256: str, sources: Sequence[str]) -> None:
        while not self._shards.has(sha256):
            for peer in sources:
                try:
                    data = await fetch_shard(self._plane, peer, sha256)
                except ConnectionError:
                    continue
                except Refused as error:
                    log.warning("%s; trying another peer", error)
                    continue
                if data is not None:
                    self._shards.add(sha256, data)
                    log.debug("token shard %s from %s", sha256[:8], short(peer))
                    break
            else:
                log.warning("nobody offers token shard %s now; trying again", sha256[:8])
                await asyncio.sleep(self._retry_seconds)
