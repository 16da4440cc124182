"""Token shards, and marks of tokens, that this peer reads: fetched by hash from other peers, or the coordinator, and
kept on its disk."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from dtfm_node.runner.first_given import FirstGiven
from dtfm_node.runner.first_offer import PAUSE_SECONDS
from dtfm_node.state.disk_budget import DiskBudget
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.chapters import chapter_bytes
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.data.sample_shards import target_bytes
from dtfm_protocol.data.token_shards import ShardFolder, ShardMap, shard_bytes
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane

BEFORE = 7
"""Peers that are asked for a file before the coordinator is: with pauses between them, two seconds at most."""
AHEAD_STEPS = 8
"""Steps whose shards are let go of last: no more than these are looked at."""


class KeptFile(NamedTuple):
    """A file that this peer has here while it reads it."""

    sha256: str
    bytes: int
    readers: Sequence[str]
    """Peers that read such files, too."""


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
        pause: float = PAUSE_SECONDS,
        piece_seconds: float = TIMEOUTS.piece,
    ) -> None:
        """Nothing is fetched before `ensure`.

        Args:
            batches: tells which shards a step reads; None: those of the job as it began.
            budget: of the disk on which `shards` lie; None: unlimited.
            retry_seconds: see `Timeouts.tokens_retry`.
            pause: seconds after which the next peer is asked, too.
            piece_seconds: see `Timeouts.piece`.
        """
        self._retry_seconds, self._pause, self._piece_seconds = retry_seconds, pause, piece_seconds
        self.reader = CorpusReader(job.corpus, shards)
        self._map = ShardMap(job.corpus, shards)
        self._plane, self._job, self._shards, self._coordinator = plane, job, shards, coordinator
        self._batches = batches or Batches(job.corpus, job.training, job.evaluation)
        self._fetching = asyncio.Lock()
        self._unreliable: set[str] = set()
        """Peers that offered a file and did not give it, or too slowly, or did not answer."""
        self._budget = budget or DiskBudget()
        self._asked: tuple[Plan, str]
        self._step = 0
        """The step that was asked for last."""
        self._in_use: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        """Hashes of the files of the last two steps that were asked for: one may still be computed."""
        self._soon: dict[str, int] | None = None

    async def ensure(self, plan: Plan, me: str, step: int) -> None:
        """Fetch what `me` lacks of the files that `step` and the evaluation touch; waits while nobody has them.

        The first and the last stage read tokens; where the job has samples, all stages read their marks, and how many
        targets there are. Chapters' lists come first, as they name the others. Where the disk's budget has no room for
        a file, others make room (`_make_room`).

        Raises:
            Refused: there is not as much room, or a chapter is another one than the job says.
        """
        async with self._fetching:
            self._asked = plan, me
            if step != self._step:
                self._step, self._in_use, self._soon = step, (self._in_use[1], frozenset()), None
            starts = self._starts(step) + self._batches.evaluation_windows()
            await self._hold(self._lists(starts))
            await self._hold(self._files(starts))
            if (samples := self._job.corpus.samples) is not None:
                await self._hold([KeptFile(samples.targets.sha256, target_bytes(samples), plan.peers)])

    async def _hold(self, files: Sequence[KeptFile]) -> None:
        """Have files here while this step and the next are computed."""
        self._in_use = self._in_use[0], self._in_use[1] | {file.sha256 for file in files}
        for file in files:
            if self._shards.has(file.sha256):
                self._shards.used(file.sha256)
                continue
            self._make_room(file.bytes)
            try:
                with self._budget.claimed(file.bytes, "a shard of the text"):
                    await self._fetch(file)
            except UserError as error:
                raise Refused(str(error)) from None

    def _starts(self, step: int) -> list[int]:
        """Return where the windows begin that this peer reads for a step."""
        plan, me = self._asked
        return self._batches.windows_for(step, plan.micro_batches(me))

    def _lists(self, starts: Sequence[int]) -> list[KeptFile]:
        """List the files that name those of the windows at `starts`."""
        has_marks = self._job.corpus.samples is not None
        readers = self._asked[0].peers if has_marks else self._readers
        chapters = self._map.chapters_at(starts, self._batches.window_tokens)
        return [KeptFile(one.sha256, chapter_bytes(one, has_marks=has_marks), readers) for one in chapters]

    def _files(self, starts: Sequence[int]) -> list[KeptFile]:
        """List the files that hold the windows at `starts`, as far as this peer reads them.

        Raises:
            Refused: the list that names one is not here, or is another one than the job says.
        """
        (plan, me), corpus, found = self._asked, self._job.corpus, list[KeptFile]()
        numbers = self._map.numbers_at(starts, self._batches.window_tokens)
        if me in self._readers:
            shards = (self._map[number] for number in numbers)
            found += [KeptFile(one.sha256, shard_bytes(corpus, one), self._readers) for one in shards]
        if corpus.samples is not None:
            marks = (self._map.marks(number) for number in numbers)
            found += [KeptFile(one.sha256, one.tokens, plan.peers) for one in marks]
        return found

    @property
    def _readers(self) -> Sequence[str]:
        """Peers that read tokens."""
        plan, _ = self._asked
        return tuple(dict.fromkeys(plan.replicas(0) + plan.replicas(len(plan.stages) - 1)))

    def _make_room(self, size: int) -> None:
        """Delete shards until there is room for `size` bytes: first those that no step needs soon, the one that was
        needed longest ago before others; then those whose step is farthest away. What the step under way and the next
        one read stays.

        Nothing is lost by it: the coordinator has all shards.
        """
        if self._budget.room >= size:
            return
        soon, kept = self._needed_soon(), self._in_use[0] | self._in_use[1]
        spare = [sha256 for sha256 in self._shards.sizes() if sha256 not in kept]
        self.reader.close()  # the space of a file that is open would not come free
        for sha256 in sorted(spare, key=lambda one: -soon.get(one, AHEAD_STEPS)):
            if self._budget.room >= size:
                return
            self._shards.drop(sha256)

    def _needed_soon(self) -> dict[str, int]:
        """Return in how many steps each file is read next, by hash, of those that are read within `AHEAD_STEPS`."""
        if self._soon is None:
            self._soon = {}
            for ahead in range(1, AHEAD_STEPS):
                starts = self._starts(self._step + ahead)
                files = self._lists(starts)
                with contextlib.suppress(Refused):  # a list is not here: nor are, most likely, the shards that it names
                    files += self._files(starts)
                for file in files:
                    self._soon.setdefault(file.sha256, ahead)
        return self._soon

    def _sources(self, readers: Sequence[str]) -> Sequence[str]:
        """Return the peers that read the same, a different one first for each peer, and the coordinator after some of
        them: they have its line spared, but where none has the file, as when a run begins, it is soon asked. Whoever
        has once not kept an offer, or slowly, comes last: nobody can hold up one file after the other."""
        _, me = self._asked
        turn = readers.index(me) if me in readers else 0
        others = [peer for peer in [*readers[turn:], *readers[:turn]] if peer != me]
        first = [peer for peer in others if peer not in self._unreliable]
        last = [peer for peer in others if peer in self._unreliable]
        return [*first[:BEFORE], self._coordinator, *first[BEFORE:], *last]

    async def _fetch(self, file: KeptFile) -> None:
        while not self._shards.has(file.sha256):
            given = FirstGiven(
                self._plane,
                file.sha256,
                file.bytes,
                self._sources(file.readers),
                pause=self._pause,
                piece_seconds=self._piece_seconds,
            )
            data = await given.take()
            self._unreliable |= given.late
            if data is not None:
                self._shards.add(file.sha256, data)
                return
            log.warning("nobody offers token shard %s now; trying again", file.sha256[:8])
            await asyncio.sleep(self._retry_seconds)
