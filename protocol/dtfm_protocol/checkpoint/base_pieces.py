"""The folder of the pieces of weights that a job begins with: safetensors files named by their SHA-256."""

import hashlib
import mmap
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor, describe_shard, shard_header, tensor_bytes
from dtfm_protocol.errors import Refused, UserError

if TYPE_CHECKING:
    import torch

FOLDER = "base"
"""Name of the folder in a state folder."""
_PART = ".part-"
"""Prefix of the names of files that are no pieces yet."""


class PieceFolder:
    """The pieces that this machine keeps, in one folder, which is made on first use. Threads may share one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[str, dict[str, TensorEntry]] = {}
        """Tensors of each piece that was read and has its hash."""

    def path(self, sha256: str) -> Path:
        """Return the path at which the piece of this hash lies, or would lie.

        Raises:
            Refused: `sha256` is no hash, so that no name from the network leads out of the folder.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise Refused(f"{sha256!r:.80} is no SHA-256 of a piece")
        return self._folder / f"{sha256}.safetensors"

    def has(self, sha256: str) -> bool:
        """Whether the piece is here and whole: its bytes are hashed the first time. A damaged file is taken away."""
        if sha256 in self._entries:
            return self.path(sha256).exists()
        try:
            self._described(sha256)
        except FileNotFoundError:
            return False
        except Refused:
            self.drop(sha256)
            return False
        return True

    def tensor(self, sha256: str, key: str) -> "torch.Tensor":
        """Return one tensor of a piece, in memory of its own; no more of the piece is loaded.

        Raises:
            Refused: the piece is not here, its bytes have another hash, or it has no such tensor.
        """
        try:
            entries = self._entries.get(sha256) or self._described(sha256)
            if (entry := entries.get(key)) is None:
                raise Refused(f"there is no tensor {key:.80} in the piece {sha256[:12]}")
            with self.path(sha256).open("rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.bytes)
        except OSError as error:
            raise Refused(f"the piece {self.path(sha256)} cannot be read: {error.strerror}") from None
        return decode_tensor(entry, data)

    def read(self, sha256: str, offset: int, size: int) -> bytes | None:
        """Return `size` bytes of a piece from `offset` on; None: it is not here, or has no so many."""
        try:
            with self.path(sha256).open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError:
            return None
        return data if len(data) == size else None

    def write(self, tensors: "Mapping[str, torch.Tensor]") -> tuple[str, int]:
        """Write a piece, tensor by tensor; return its hash and its bytes. Equal tensors make equal bytes.

        Raises:
            UserError: the disk is full or cannot be written.
        """
        tensors = dict(sorted(tensors.items()))
        header, _ = shard_header(tensors)
        digest, size = hashlib.sha256(header), len(header)
        with self._draft() as (path, file):
            file.write(header)
            for tensor in tensors.values():
                data = tensor_bytes(tensor)
                file.write(data)
                digest.update(data)
                size += data.nbytes
            self._keep(path, file, digest.hexdigest())
        return digest.hexdigest(), size

    @contextmanager
    def receiving(self, sha256: str) -> "Iterator[ReceivedPiece]":
        """Take in a piece that comes from elsewhere; within the block it is written, and kept by `ReceivedPiece.keep`,
        else nothing of it stays.

        Raises:
            Refused: `sha256` is no hash.
            UserError: the disk is full or cannot be written.
        """
        self.path(sha256)
        with self._draft() as (path, file):
            yield ReceivedPiece(self, path, file, sha256)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file in the folder, those that are not whole yet included, by the name's stem."""
        if not self._folder.is_dir():
            return {}
        found = dict[str, int]()
        for path in self._folder.iterdir():
            try:
                found[path.stem] = path.stat().st_size
            except FileNotFoundError:
                continue
        return found

    def drop(self, sha256: str) -> None:
        """Delete a piece; one that is being read stays readable."""
        self.path(sha256).unlink(missing_ok=True)
        self._entries.pop(sha256, None)

    def keep_only(self, hashes: Iterable[str]) -> None:
        """Delete all pieces but those of `hashes`, and what is left of others."""
        kept = {self.path(sha256).name for sha256 in hashes}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in kept:
                path.unlink(missing_ok=True)
                self._entries.pop(path.stem, None)

    def _described(self, sha256: str) -> dict[str, TensorEntry]:
        path = self.path(sha256)
        with path.open("rb") as stream:
            if not os.fstat(stream.fileno()).st_size:
                raise Refused(f"the piece {path} is empty")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                file, entries = describe_shard(path.name, data)
        if file.sha256 != sha256:
            raise Refused(f"the piece {path} has another hash than when it was made: its file has changed")
        self._entries[sha256] = entries
        return entries

    @contextmanager
    def _draft(self) -> Iterator[tuple[Path, BinaryIO]]:
        path = self._folder / f"{_PART}{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with path.open("xb") as file:
                    yield path, file
            finally:
                path.unlink(missing_ok=True)
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            raise UserError(
                f"cannot write a piece of the weights in {self._folder}: {error.strerror}: free some space or choose "
                "another folder"
            ) from None

    def _keep(self, path: Path, file: BinaryIO, sha256: str) -> None:
        file.flush()
        os.fsync(file.fileno())
        path.replace(self.path(sha256))
        self._entries.pop(sha256, None)


class ReceivedPiece:
    """A piece that comes in, byte after byte."""

    def __init__(self, folder: PieceFolder, path: Path, file: BinaryIO, sha256: str) -> None:
        self._folder, self._path, self._file, self._sha256 = folder, path, file, sha256
        self._digest = hashlib.sha256()
        self.bytes = 0
        """Bytes that have come."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes to what has come."""
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)

    def begin_again(self) -> None:
        """Forget what has come."""
        self._file.seek(0)
        self._file.truncate()
        self._digest, self.bytes = hashlib.sha256(), 0

    def keep(self) -> bool:
        """Keep what has come, if it has the piece's hash; return whether it has."""
        if self._digest.hexdigest() != self._sha256:
            return False
        self._folder._keep(self._path, self._file, self._sha256)
        return True
