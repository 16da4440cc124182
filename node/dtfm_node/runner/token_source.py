"""Token shards, and marks of tokens, that this peer reads: fetched by hash from other peers, or the coordinator, and
kept on its disk."""

import asyncio
from collections.abc import Iterator, Sequence

from dtfm_node.state.disk_budget import DiskBudget
from dtfm_protocol.checkpoint.transfers import fetch_shard
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.sample_shards import MarkReader, TargetCounts, target_file
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader, shard_bytes
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.resolved_job import ResolvedJob, Shard
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
        budget: DiskBudget | None = None,
        batches: Batches | None = None,
    ) -> None:
        """Nothing is fetched before `ensure`.

        Args:
            batches: tells which shards a step reads; None: those of the job as it began.
            budget: of the disk on which `shards` lie; None: unlimited.
            retry_seconds: see `Timeouts.tokens_retry`.
        """
        self._retry_seconds = retry_seconds
        self.reader = TokenReader(job.corpus, shards)
        has_samples = job.corpus.samples is not None
        self.marks = MarkReader(job.corpus, shards) if has_samples else None
        """Reader of what the job says of its tokens; None: nothing."""
        self.counts = TargetCounts(job.corpus, shards) if has_samples else None
        """Numbers of targets of the corpus's windows; None: all tokens are targets."""
        self._plane, self._job, self._shards, self._coordinator = plane, job, shards, coordinator
        self._batches = batches or Batches(job.corpus, job.training, job.evaluation)
        self._fetching = asyncio.Lock()
        self._budget = budget or DiskBudget()
        self._in_use: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        """Hashes of the shards of the last two steps that were asked for: one may still be computed."""

    async def ensure(self, plan: Plan, me: str, step: int) -> None:
        """Fetch what `me` lacks of the files that `step` and the evaluation touch; waits while nobody has them.

        The first and the last stage read tokens; where the job has samples, all stages read their marks, and how many
        targets there are. Where the disk's budget has no room for a file, those that were fetched first make room.

        Raises:
            Refused: there is not as much room.
        """
        files = list(self._files(plan, me, step))
        async with self._fetching:
            self._in_use = self._in_use[1], frozenset(shard.sha256 for shard, *_ in files)
            for shard, size, readers in files:
                if not self._shards.has(shard.sha256):
                    self._make_room(size)
                    try:
                        with self._budget.claimed(size, "a shard of the text"):
                            await self._fetch(shard.sha256, size, self._sources(readers, me))
                    except UserError as error:
                        raise Refused(str(error)) from None

    def _files(self, plan: Plan, me: str, step: int) -> Iterator[tuple[Shard, int, Sequence[str]]]:
        """Yield the files that `step` and the evaluation touch, each with its size in bytes and the peers that read
        such, too."""
        wanted = set(self._batches.shards_for(step, plan.micro_batches(me)))
        if self._batches.evaluation_micro_batches:
            wanted |= set(self._batches.evaluation_shards())
        corpus = self._job.corpus
        readers = list(dict.fromkeys(plan.replicas(0) + plan.replicas(len(plan.stages) - 1)))
        if me in readers:
            for index in sorted(wanted):
                yield corpus.shards[index], shard_bytes(corpus, corpus.shards[index]), readers
        if corpus.samples is not None:
            for index in sorted(wanted):
                yield corpus.samples.marks[index], corpus.samples.marks[index].tokens, plan.peers
            yield *target_file(corpus.samples), plan.peers

    def _make_room(self, size: int) -> None:
        """Delete shards that no step now needs, those that were fetched first, until there is room for `size` bytes."""
        needed = self._in_use[0] | self._in_use[1]
        for sha256 in self._shards.sizes() if self._budget.room < size else ():
            if self._budget.room >= size:
                return
            if sha256 not in needed:
                self._shards.drop(sha256)

    def _sources(self, readers: Sequence[str], me: str) -> Sequence[str]:
        """Return the peers that read the same, a different one first for each peer, and last the coordinator."""
        turn = readers.index(me) if me in readers else 0
        others = [peer for peer in [*readers[turn:], *readers[:turn]] if peer != me]
        return [*others, self._coordinator]

    async def _fetch(self, sha256: str, size: int, sources: Sequence[str]) -> None:
        while not self._shards.has(sha256):
            for peer in sources:
                try:
                    data = await fetch_shard(self._plane, peer, sha256, size)
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
