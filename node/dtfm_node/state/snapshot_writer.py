"""Writer of states to this node's disk beside training: one at a time, on a thread of its own. It votes on each."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from dtfm_node.engine.runtime import Compute
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.snapshots import Snapshot, Snapshots, write_snapshot
from dtfm_node.state.state_reading import COPY_BYTES, Reading
from dtfm_protocol.checkpoint.shard import tensor_entry
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS

Voter = Callable[[Mark, LayerRange, str], StateVote]
"""Signs this node's vote on the digest of a part of a state."""


@dataclass(frozen=True)
class Extract:
    """Extract of a state that is due: tensors that are written, and others that are only hashed.

    Attributes:
    to_write: tensors of the snapshot, by key; of a stage that trains nothing there are none. None: no snapshot is due.
    to_read: all tensors that are hashed, by key, those of the snapshot among them.
    voted: keys of what this node votes on, the same on all replicas of the stage, whether or not they write it.
    rows: metrics that are to lie beside the snapshot.
    """

    mark: Mark
    layers: LayerRange
    commit: SignedCommit | None
    rows: tuple[StepMetrics, ...]
    to_write: Mapping[str, torch.Tensor] | None
    to_read: Mapping[str, torch.Tensor]
    voted: frozenset[str]

    def digest(self, hashes: Mapping[str, str]) -> str:
        """Return the digest that is voted on, from the hashes of the tensors by key."""
        return digest_of_state({key: hashes[key] for key in self.voted})


@dataclass(frozen=True)
class SnapshotWritten:
    """Outcome of writing an `Extract`: its snapshot, if one was due, the SHA-256 of each tensor, by key, and this
    node's vote."""

    snapshot: Snapshot | None
    hashes: dict[str, str]
    vote: StateVote


@dataclass
class _Job:
    """Extract of a state that is being written, and its reading."""

    state: TrainingStage
    extract: Extract
    copy_bytes: int
    reading: Reading = field(default_factory=lambda: Reading({}))

    def read(self) -> None:
        """Begin the reading anew; from now on an update of the state waits for it."""
        self.reading = Reading(self.extract.to_read, self.copy_bytes)
        self.state.before_update = self.reading.settle


class SnapshotWriter:
    """Writer of snapshots. While it reads a state, an update of that state waits, or copies what is left.

    Args:
        snapshots: gets to know what was written, and what was voted.
        voter: signs this node's vote on the digest of a part of a state.
        disk: runs functions on the disk's thread.
        tasks: owns the writing: an error that is none of the disk's ends it.
        copy_bytes: see `Reading`.
        retry_seconds: see `Timeouts.snapshot_retry`.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        disk: Compute,
        tasks: asyncio.TaskGroup,
        voter: Voter,
        *,
        copy_bytes: int = COPY_BYTES,
        retry_seconds: float = TIMEOUTS.snapshot_retry,
    ) -> None:
        self._snapshots, self._disk, self._tasks, self._voter = snapshots, disk, tasks, voter
        self._copy_bytes, self._retry_seconds = copy_bytes, retry_seconds
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a state is being written."""
        return self._writing is not None and not self._writing.done()

    async def written(self) -> None:
        """Wait until no state is being written, whatever has become of the last one."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def begin(
        self, state: TrainingStage, extract: Extract, *, last: bool, then: Callable[[SnapshotWritten], None]
    ) -> None:
        """Begin to write `extract`, which is of the present `state`; nothing else may be being written.

        Args:
            last: whether no step follows: where there is no room for it now, it is tried again until there is, and
                older snapshots make room for it.
            then: called when it is written; it is not called if there is no room.
        """
        assert not self.is_writing, "one state is written at a time"
        job = _Job(state, extract, self._copy_bytes)
        self._writing = self._tasks.create_task(self._write(job, last, then))
        # However it ends, and were it before it has begun: no update may wait for a reading that nobody goes on with.
        self._writing.add_done_callback(lambda _: job.reading.abandon())
        job.read()

    def cancel(self) -> None:
        """Give up the state that is being written."""
        if self._writing is not None:
            self._writing.cancel()

    async def save(self, state: TrainingStage, rows: tuple[StepMetrics, ...]) -> None:
        """Write all of a state now, unless it is there already; without room for it, it is lost."""
        await self.written()
        assert state.mark is not None
        if self._snapshots.has(state.mark, state.layers):
            return
        tensors = dict(state_tensors(state.parameters, state.optimizer))
        own = keys_of_file(state, tensors)
        extract = Extract(state.mark, state.layers, state.commit, rows, tensors, tensors, own)
        try:
            await self._disk(_write_extract, self._snapshots, extract, Reading(tensors), self._voter)
        except UserError as error:
            log.warning("%s", error)

    async def _write(self, job: _Job, last: bool, then: Callable[[SnapshotWritten], None]) -> None:
        while True:
            try:
                written: SnapshotWritten = await self._disk(
                    _write_extract, self._snapshots, job.extract, job.reading, self._voter
                )
            except UserError as error:
                # Training goes on: a full disk takes away what a fault could go back to, not the state itself.
                log.warning("%s; there is no snapshot of step %d", error, job.extract.mark.step)
                if not last:
                    return
                # All peers hold the last state, and the end waits for this file: of what is older, one will do.
                self._snapshots.keep_newest(job.extract.layers, 1)
                await asyncio.sleep(self._retry_seconds)
                job.read()
            else:
                self._snapshots.cast(written.vote)
                if written.snapshot is not None:
                    self._snapshots.add(written.snapshot)
                then(written)
                return


def keys_of_file(state: TrainingStage, keys: Iterable[str]) -> frozenset[str]:
    """Return those `keys` that belong to the file of the state's stage: what both ends hold is the first stage's."""
    tied = frozenset() if state.is_first else state.gradients.shared
    return frozenset(key for key in keys if key.partition("/")[2] not in tied)


def _write_extract(snapshots: Snapshots, extract: Extract, reading: Reading, voter: Voter) -> SnapshotWritten:
    """Write the snapshot that is due, or only hash what `reading` reads where none is.

    Raises:
        UserError: there is no room.
        Abandoned: `reading` was given up.
    """

    def vote(hashes: Mapping[str, str]) -> StateVote:
        return voter(extract.mark, extract.layers, extract.digest(hashes))

    if extract.to_write is None:
        hashes = _hashes(reading)
        return SnapshotWritten(None, hashes, vote(hashes))
    try:
        with snapshots.budget.claimed(sum(one.nbytes for one in extract.to_write.values()), "a snapshot"):
            snapshot, hashes = write_snapshot(
                snapshots.folder,
                extract.mark,
                extract.layers,
                extract.to_write,
                reading,
                extract.commit,
                extract.rows,
                lambda hashes: (vote(hashes),),
            )
    except UserError:
        reading.abandon()  # nobody reads on: an update must not wait
        raise
    return SnapshotWritten(snapshot, hashes, snapshot.votes[0])


def _hashes(reading: Reading) -> dict[str, str]:
    """Return the SHA-256 of each tensor that `reading` reads, by key."""
    hashes: dict[str, str] = {}

    def look(key: str, tensor: torch.Tensor) -> None:
        hashes[key] = tensor_entry("weights.safetensors", tensor)[0].sha256

    reading.visit(look)
    return hashes
