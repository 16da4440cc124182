"""A checkpoint that is being written: seen by nobody until all of it is on the disk."""

import contextlib
import hashlib
import json
import mmap
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from pydantic import TypeAdapter, ValidationError

from dtfm_protocol.checkpoint.manifest import File, FileName, Manifest, TensorEntry
from dtfm_protocol.checkpoint.shard import Bytes, describe_shard
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.plan.peer_state import LayerRange
from dtfm_protocol.process.state_dir import sync_folder

MANIFEST = "manifest.json"
"""Name of the manifest's file in a checkpoint's folder."""
TEMPORARY = ".draft-"
"""Prefix of the names of folders that are no checkpoints: not yet, or no more."""
_FILE_NAME: TypeAdapter[str] = TypeAdapter(FileName)


class Draft:
    """A checkpoint that is being written, in a folder of its own beside the others."""

    def __init__(self, folder: Path, target: Path, step: int, whole: set[int]) -> None:
        """Make the folder; `CheckpointStore.draft` gives the arguments."""
        self._folder = folder
        self._target = target
        self._step = step
        self._whole = whole
        self._files: dict[str, tuple[str, int]] = {}
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """Take away what was written, unless it was committed."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, name: str, data: Bytes) -> None:
        """Write a whole file of the checkpoint; one of the same name is replaced.

        Raises:
            Refused: `name` is not a plain file name that ends in `.safetensors`.
            UserError: the disk is full or cannot be written.
        """
        with self.open(name) as file:
            file.write(data)

    @contextlib.contextmanager
    def open(self, name: str) -> "Iterator[DraftFile]":
        """Write a file of the checkpoint piece by piece; it counts when the block ends well, else it is taken away.

        Raises:
            Refused: `name` is not a plain file name that ends in `.safetensors`.
            UserError: the disk is full or cannot be written.
        """
        path = self._path(name)
        self._files.pop(name, None)
        with _written(path) as file:
            yield file
        self._files[name] = (file.sha256, file.bytes)

    def describe(self, name: str, layers: LayerRange | None = None) -> tuple[File, dict[str, TensorEntry]]:
        """Describe a file of this draft as `describe_shard` does, without loading it into memory.

        Raises:
            Refused: the file was not added, or is no safetensors file.
        """
        if name not in self._files:
            raise Refused(f"{name:.80} is not in the draft")
        with self._path(name).open("rb") as stream:
            if not self._files[name][1]:
                return describe_shard(name, b"", layers)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return describe_shard(name, data, layers)

    def commit(self, manifest: Manifest) -> None:
        """Make this the checkpoint of its step, in place of one that is there; after a crash it is whole or absent.

        Raises:
            Refused: the manifest is of another step, or of other files than were added.
            UserError: the disk is full or cannot be written.
        """
        if manifest.step != self._step:
            raise Refused(f"a manifest of step {manifest.step} for the checkpoint of step {self._step}")
        if {file.name: (file.sha256, file.bytes) for file in manifest.files} != self._files:
            raise Refused(f"the manifest of step {self._step} names other files than were handed in")
        values = manifest.model_dump(mode="json")
        with _written(self._folder / MANIFEST) as file:
            file.write(json.dumps(values | {"sha256": seal(values)}, indent=1).encode())
        with writing(self._target):
            sync_folder(self._folder)
            if self._target.exists():
                take_away(self._target)
            self._folder.rename(self._target)
            sync_folder(self._target.parent)
        self._whole.add(self._step)

    def _path(self, name: str) -> Path:
        try:
            return self._folder / _FILE_NAME.validate_python(name)
        except ValidationError:
            raise Refused(f"{name!r:.80} is no name for a file of a checkpoint") from None


class DraftFile:
    """A file of a checkpoint that is being written and hashed."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._digest = hashlib.sha256()
        self.bytes = 0
        """Bytes written so far."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was written so far, in hexadecimal digits."""
        return self._digest.hexdigest()

    def write(self, piece: Bytes) -> None:
        """Append bytes to the file, and to what is hashed.

        Raises:
            UserError: the disk is full or cannot be written.
        """
        with writing(self._path):
            self._stream.write(piece)
        self._digest.update(piece)
        self.bytes += len(piece)


def seal(values: dict[str, Any]) -> str:
    """Hash a manifest: its SHA-256 in hexadecimal digits, whatever the order of its keys and its spacing."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def take_away(folder: Path) -> None:
    """Delete a checkpoint's folder so that the checkpoint is never seen half-deleted."""
    leftover = folder.with_name(f"{TEMPORARY}gone-{secrets.token_hex(4)}")
    folder.rename(leftover)
    shutil.rmtree(leftover)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing to `path` in the block into a UserError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the checkpoint {path}: {error.strerror}: free some space or choose another state dir"
        ) from None


@contextlib.contextmanager
def _written(path: Path) -> Iterator[DraftFile]:
    """Write a file that is on the disk when the block ends well, and taken away when it does not."""
    with writing(path):
        stream = path.open("wb")
    try:
        yield DraftFile(path, stream)
        with writing(path):
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
    except BaseException:
        with contextlib.suppress(OSError):  # closing writes what the full disk had no room for
            stream.close()
        path.unlink(missing_ok=True)
        raise
