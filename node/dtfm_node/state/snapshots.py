"""Snapshots: states of stages on this node's disk, its own and those that it keeps for others. Each is whole or not
there."""

import contextlib
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from pydantic import ValidationError

from dtfm_node.state.disk_budget import DiskBudget
from dtfm_node.state.state_reading import Reading
from dtfm_protocol.checkpoint.manifest import Key, TensorEntry
from dtfm_protocol.checkpoint.shard import describe_shard, shard_header, tensor_entry
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.resolved_job import Sha256
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark
from dtfm_protocol.plan.signed_commit import SignedCommit, is_one_state
from dtfm_protocol.plan.state_vote import StateVote, Votes, digest_of_state
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema
from dtfm_protocol.wire.stream import Bytes

Vouch = Callable[[Mapping[str, str]], Votes]
"""Makes the votes that are to lie beside a snapshot, from the hashes of its tensors by key."""
UNSAFE_FILES = 3
"""Number of snapshots that may wait until the swarm has one of them whole; with so many, no further one is begun."""
VOTES_KEPT = 8
"""Votes of this node that are remembered, the newest, whether or not there is a file to which they belong."""


class Snapshot(Schema):
    """Description of a snapshot, in a file beside it, which says that all of it was written."""

    mark: Mark
    layers: LayerRange
    bytes: int
    sha256: Sha256
    tensors: dict[Key, TensorEntry]
    commit: SignedCommit | None = None
    """The commit that made its step final; None: not known."""
    rows: tuple[StepMetrics, ...] = ()
    """Metrics up to its step that the coordinator may lack: no other node may live to report them."""
    votes: Votes = ()
    """Votes on its tensors: this node's own, or those that came with a copy."""

    @property
    def stem(self) -> str:
        """File name of the snapshot, without the ending."""
        return stem_of(self.mark, self.layers)


def stem_of(mark: Mark, layers: LayerRange) -> str:
    """Return the file name of a snapshot, without the ending."""
    return f"step-{mark.step:08d}-plan-{mark.plan}-layers-{layers[0]}-{layers[1]}"


def write_snapshot(
    folder: Path,
    mark: Mark,
    layers: LayerRange,
    tensors: Mapping[str, torch.Tensor],
    reading: Reading,
    commit: SignedCommit | None = None,
    rows: tuple[StepMetrics, ...] = (),
    vouch: Vouch = lambda _: (),
) -> tuple[Snapshot, dict[str, str]]:
    """Write a state to `folder`; it is there when its last byte is on the disk, and else not.

    Args:
        tensors: tensors to be written, by key; `reading` may read more.

    Returns:
        The snapshot, and the SHA-256 of every tensor that was read, by key.

    Raises:
        UserError: there is no room.
        Abandoned: `reading` was given up. Whatever is raised, no file is left, and no update waits.
    """
    path = folder / f"{stem_of(mark, layers)}.safetensors"
    draft, placed = path.with_suffix(".draft"), False
    entries: dict[str, TensorEntry] = {}
    hashes: dict[str, str] = {}
    try:
        header, places = shard_header(tensors)
        whole = hashlib.sha256(header)
        with draft.open("wb") as file:
            file.write(header)

            def look(key: str, tensor: torch.Tensor) -> None:
                entry, data = tensor_entry(path.name, tensor, places.get(key, (0, 0))[0])
                hashes[key] = entry.sha256
                if key in places:
                    entries[key] = entry
                    whole.update(data)
                    file.write(data)
                point("mid-checkpoint", mark.step)

            reading.visit(look)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        snapshot = Snapshot(
            mark=mark,
            layers=layers,
            bytes=size,
            sha256=whole.hexdigest(),
            tensors=entries,
            commit=commit,
            rows=rows,
            votes=vouch(hashes),
        )
        draft.replace(path)
        placed = True
        write_atomically(path.with_suffix(".json"), snapshot.model_dump_json(), lasting=True)
    except BaseException as error:
        reading.abandon()
        draft.unlink(missing_ok=True)
        if placed:
            path.unlink(missing_ok=True)
        if isinstance(error, UserError):
            raise UserError(f"cannot write a snapshot: {error}") from None
        if isinstance(error, OSError):
            raise UserError(f"cannot write a snapshot to {folder}: {error}: make room there") from None
        raise
    return snapshot, hashes


class Snapshots:
    """Snapshots in a folder.

    Args:
        folder: folder in which they lie; it is made if it does not exist.
        budget: of the disk on which it lies; None: unlimited.
    """

    def __init__(self, folder: Path, budget: DiskBudget | None = None) -> None:
        self.folder = folder
        self.budget = budget or DiskBudget()
        self.budget.counts(lambda: sum(snapshot.bytes for snapshot in list(self._known.values())))
        folder.mkdir(mode=0o700, exist_ok=True)
        self._known: dict[tuple[Mark, LayerRange], Snapshot] = {}
        self._told: list[Callable[[], None]] = []
        self._cast: dict[tuple[Mark, LayerRange], StateVote] = {}
        """Newest votes of this node, the last one cast at the end."""

    def when_added(self, told: Callable[[], None]) -> None:
        """Call `told`, from now on, whenever a snapshot is added."""
        self._told.append(told)

    def load(self) -> None:
        """Find the snapshots that an earlier process of this node left; damaged ones are deleted. Reads every byte."""
        for path in self.folder.iterdir():
            if path.suffix not in {".json", ".safetensors"}:
                path.unlink(missing_ok=True)
        for path in self.folder.glob("*.safetensors"):
            snapshot = self._verified(path)
            if snapshot is None:
                log.warning("the snapshot %s is damaged: it is taken away", path.name)
                path.unlink(missing_ok=True)
                path.with_suffix(".json").unlink(missing_ok=True)
            else:
                self._known[snapshot.mark, snapshot.layers] = snapshot

    @staticmethod
    def _verified(path: Path) -> Snapshot | None:
        with contextlib.suppress(OSError, ValidationError):
            snapshot = Snapshot.model_validate_json(path.with_suffix(".json").read_bytes())
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == snapshot.sha256 and snapshot.stem == path.stem:
                    return snapshot
        return None

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot that has been written."""
        self._known[snapshot.mark, snapshot.layers] = snapshot
        for told in self._told:
            told()

    def path(self, snapshot: Snapshot) -> Path:
        """Return the path of the file in which a snapshot's tensors lie."""
        return self.folder / f"{snapshot.stem}.safetensors"

    def cast(self, vote: StateVote) -> None:
        """Remember a vote of this node, and let the oldest of many go."""
        self._cast.pop(vote.subject, None)
        self._cast[vote.subject] = vote
        if len(self._cast) > VOTES_KEPT:
            del self._cast[next(iter(self._cast))]

    def votes_on(self, mark: Mark, layers: LayerRange) -> Votes:
        """Return the votes on a part of a state that are known here."""
        snapshot, cast = self._known.get((mark, layers)), self._cast.get((mark, layers))
        if snapshot is not None and snapshot.votes:
            return snapshot.votes
        return (cast,) if cast is not None else ()

    @property
    def newest_vote(self) -> StateVote | None:
        """This node's last vote on a state; None: none since it was started."""
        return next(reversed(self._cast.values()), None)

    def adopt(self, path: Path, vote: StateVote, sha256: str, commit: SignedCommit | None = None) -> Snapshot:
        """Take over a file that another peer sent, with that peer's `vote` on what is in it; `commit` made it final.

        Raises:
            Refused: the file is not what was announced, or not what was voted on.
            UserError: there is no room for its description.
        """
        mark, layers = vote.subject
        name = f"{stem_of(mark, layers)}.safetensors"
        with path.open("rb") as source:
            if not path.stat().st_size:
                raise Refused("a snapshot of no bytes")
            with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:  # it may be larger than memory
                file, entries = describe_shard(name, data, layers)
        if file.sha256 != sha256:
            raise Refused("a snapshot with another hash than was announced")
        if digest_of_state({key: entry.sha256 for key, entry in entries.items()}) != vote.digest:
            raise Refused(f"a snapshot of {mark} by {short(vote.peer)} that is not what {short(vote.peer)} has signed")
        snapshot = Snapshot(
            mark=mark,
            layers=layers,
            bytes=file.bytes,
            sha256=sha256,
            tensors=entries,
            commit=commit,
            votes=(vote,),
        )
        path.replace(self.folder / name)
        try:
            write_atomically(self.folder / f"{snapshot.stem}.json", snapshot.model_dump_json(), lasting=True)
        except UserError:
            (self.folder / name).unlink(missing_ok=True)
            raise
        return snapshot

    def discard(self, path: Path) -> None:
        """Delete a snapshot whose file turned out to be damaged."""
        for known, snapshot in list(self._known.items()):
            if snapshot.stem == path.stem:
                log.warning("the snapshot %s is damaged: it is taken away", path.name)
                del self._known[known]
                path.unlink(missing_ok=True)
                path.with_suffix(".json").unlink(missing_ok=True)

    def holdings(self) -> list[Holding]:
        """Return the states that the snapshots hold, as peers report them."""
        return [
            Holding(mark=one.mark, layers=one.layers, commit=one.commit, votes=one.votes)
            for one in self._known.values()
        ]

    def rows(self) -> Iterator[StepMetrics]:
        """Yield the metrics that lie beside snapshots."""
        for snapshot in self._known.values():
            yield from snapshot.rows

    def has(self, mark: Mark, layers: LayerRange) -> bool:
        """Whether a snapshot of these layers in the state `mark` is here."""
        return (mark, layers) in self._known

    def unsafe(self, safe: Mark) -> int:
        """Return the number of snapshots that are newer than the state `safe`, which the swarm has whole."""
        return sum(mark.order > safe.order for mark, _ in self._known)

    def of(self, mark: Mark, final: SignedCommit | None = None) -> dict[str, tuple[TensorEntry, Path]]:
        """Return the entry and file of each tensor of the state `mark` that is here, by key.

        Args:
            final: the commit that made it final; what another commit led to is another state. None: not known.
        """
        return {
            key: (entry, self.path(snapshot))
            for snapshot in self._known.values()
            if snapshot.mark == mark and is_one_state(snapshot.commit, final)
            for key, entry in snapshot.tensors.items()
        }

    def prune(self, safe: Mark) -> None:
        """Delete the snapshots that are older than the state `safe`, which the swarm has whole."""
        self._delete([known for known in self._known if known[0].order < safe.order])

    def keep_newest(self, layers: LayerRange, count: int) -> None:
        """Delete the snapshots of these layers but for the `count` newest."""
        found = sorted((known for known in self._known if known[1] == layers), key=lambda known: known[0].order)
        self._delete(found[:-count])

    def _delete(self, snapshots: list[tuple[Mark, LayerRange]]) -> None:
        for known in snapshots:
            stem = self._known.pop(known).stem
            for ending in (".json", ".safetensors"):
                (self.folder / f"{stem}{ending}").unlink(missing_ok=True)


def read_piece(path: Path, offset: int, size: int) -> Bytes | None:
    """Return `size` bytes of a file from `offset` on, or None if it is gone or shorter."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(size)
    except OSError:
        return None
    return data if len(data) == size else None
