"""Tokens on disk: shards of little-endian integers in files named by their SHA-256, and their reader."""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.tokenizer import check_ids
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.resolved_job import MOST_SHARDS, Corpus, Shard

SHARD_BYTES = 2 << 20
"""Bytes of a shard: few enough to fetch it again after a broken transfer, and so many that its name costs nothing."""

OPEN_SHARDS = 64
"""Number of shards that a reader keeps open: each costs a file descriptor, of which a process has few."""

DType = Literal["uint16", "uint32"]
"""Type of the integers in a shard of tokens, little-endian."""
Tokens = npt.NDArray[np.integer[Any]]
"""Token ids, shape [tokens]."""


class ShardFolder:
    """The shards that this machine keeps, in one folder, which is made on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checked: set[str] = set()
        self._sizes: dict[str, int] | None = None
        """Bytes of each shard that is here, by hash, the one that was written first coming first; None: not looked."""

    def path(self, sha256: str) -> Path:
        """Return the path at which the shard of this hash lies, or would lie.

        Raises:
            Refused: `sha256` is no hash, so that no name from the network leads out of the folder.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise Refused(f"{sha256!r:.80} is no SHA-256 of a shard")
        return self._folder / f"{sha256}.tokens"

    def has(self, sha256: str) -> bool:
        """Whether the shard is here and whole.

        Its bytes are hashed the first time; a damaged file is taken away, so that it is fetched again.
        """
        path = self.path(sha256)
        if sha256 in self._checked:
            return path.exists()
        try:
            whole = _hash(path.read_bytes()) == sha256
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"cannot read the shard {path}: {error.strerror}") from None
        if not whole:
            self.drop(sha256)
            return False
        self._checked.add(sha256)
        return True

    def find(self, sha256: str) -> bytes | None:
        """Read the whole shard of this hash; None if it is not here."""
        return self.path(sha256).read_bytes() if self.has(sha256) else None

    def add(self, sha256: str, data: bytes) -> None:
        """Keep a shard that came from elsewhere; all of it or nothing.

        Raises:
            Refused: the bytes are not those of the hash.
            UserError: the disk is full or cannot be written.
        """
        path = self.path(sha256)
        if _hash(data) != sha256:
            raise Refused(f"shard {sha256[:12]}: {len(data)} bytes that have another hash")
        _write(path, data)
        self._checked.add(sha256)
        if self._sizes is not None:
            self._sizes[sha256] = len(data)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each shard that lies here, by hash, the one that was written first coming first."""
        if self._sizes is None:
            found = [(path, path.stat()) for path in self._folder.glob("*.tokens")] if self._folder.is_dir() else []
            found.sort(key=lambda one: one[1].st_mtime_ns)
            self._sizes = {path.stem: status.st_size for path, status in found}
        return dict(self._sizes)

    def drop(self, sha256: str) -> None:
        """Delete a shard; one that is being read stays readable."""
        self.path(sha256).unlink(missing_ok=True)
        self._checked.discard(sha256)
        if self._sizes is not None:
            self._sizes.pop(sha256, None)

    def open(self, shard: Shard, dtype: DType | Literal["uint8"]) -> np.memmap[Any, np.dtype[Any]]:
        """Map the shard's tokens, or what is kept beside them, into memory, [tokens]; they are read from disk as they
        are touched.

        Raises:
            Refused: the shard is not here, or its size is not that of its tokens.
        """
        path = self.path(shard.sha256)
        kind = _numpy(dtype)
        try:
            size = path.stat().st_size
        except OSError:
            raise Refused(f"shard {shard.sha256[:12]} is not here") from None
        if size != shard.tokens * kind.itemsize:
            raise Refused(f"shard {shard.sha256[:12]}: {size} bytes on disk, not {shard.tokens} tokens of {dtype}")
        return np.memmap(path, dtype=kind, mode="r")


def write_shards(
    folder: Path,
    tokens: Iterable[Tokens],
    vocab_size: int,
    shard_bytes: int = SHARD_BYTES,
    same_as: Corpus | None = None,
) -> Corpus:
    """Write tokens as shards and return what names them. A shard that is there already is not written again.

    Args:
        folder: the folder of the shards; made if it is not there.
        tokens: pieces of any length, [tokens] each, that follow each other.
        vocab_size: number of tokens there are; up to 65,536 each takes two bytes, above it four.
        shard_bytes: bytes of a shard; the last one may have fewer.
        same_as: corpus that these tokens must be; they are refused at the first shard that differs. None: any.

    Raises:
        UserError: there is no token, one is not in the vocabulary, there are more than a job can have, they are not
            the same as others, or the disk is full or cannot be written.
    """
    dtype = _dtype(vocab_size)
    kind = _numpy(dtype)
    kept = ShardFolder(folder)
    shards: list[Shard] = []
    for piece in _cut(tokens, max(1, shard_bytes // kind.itemsize)):
        check_ids(piece, vocab_size)
        data = piece.astype(kind).tobytes()
        digest = _hash(data)
        number = len(shards)
        if same_as is not None and (number >= len(same_as.shards) or same_as.shards[number].sha256 != digest):
            raise UserError(
                f"the state dir {folder.parent} holds a run of another job (the text, or its tokenizer, differs): give "
                "the same, or use another --state-dir"
            )
        if number == MOST_SHARDS:
            raise UserError(f"data: there are more than the {MOST_SHARDS} shards of one job: give less text")
        if not kept.has(digest):
            kept.add(digest, data)
        shards.append(Shard(sha256=digest, tokens=len(piece)))
    if not shards:
        raise UserError("data: there is no text in it")
    return Corpus(dtype=dtype, vocab_size=vocab_size, shards=tuple(shards))


def token_bytes(vocab_size: int) -> int:
    """Return the bytes that a token takes on disk."""
    return _numpy(_dtype(vocab_size)).itemsize


def kept_bytes(folder: Path) -> int:
    """Return the bytes of all shards that lie in a folder, which may not be there."""
    return sum(ShardFolder(folder).sizes().values())


def _dtype(vocab_size: int) -> DType:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def shard_bytes(corpus: Corpus, shard: Shard) -> int:
    """Return the bytes that a shard has, by its number of tokens."""
    return shard.tokens * _numpy(corpus.dtype).itemsize


class ShardMap:
    """The places of the corpus's tokens in its shards."""

    def __init__(self, corpus: Corpus) -> None:
        self._borders = np.array([0, *accumulate(shard.tokens for shard in corpus.shards)])

    def spans(self, start: int, count: int) -> Iterator[tuple[int, slice]]:
        """Find the shards that hold tokens `[start, start + count)`: each one's number, and the slice of it, in order.

        Raises:
            IndexError: the corpus ends before.
        """
        end = start + count
        if start < 0 or count < 0 or end > self._borders[-1]:
            raise IndexError(f"tokens {start} to {end} of a corpus of {self._borders[-1]}")
        shard = int(np.searchsorted(self._borders, start, side="right")) - 1
        while start < end:
            first, last = int(self._borders[shard]), int(self._borders[shard + 1])
            stop = min(end, last)
            yield shard, slice(start - first, stop - first)
            start = stop
            shard += 1


class TokenReader:
    """A reader of the corpus out of a folder of its shards, across their borders."""

    def __init__(self, corpus: Corpus, shards: ShardFolder) -> None:
        self._map = ShardMap(corpus)
        self._open = lru_cache(maxsize=OPEN_SHARDS)(lambda shard: shards.open(corpus.shards[shard], corpus.dtype))

    def read(self, start: int, count: int) -> Tokens:
        """Read tokens `[start, start + count)` of the corpus: [count], a copy.

        Raises:
            IndexError: the corpus ends before.
            Refused: a shard is not in the folder, or not of its size.
        """
        parts = [self._open(shard)[where] for shard, where in self._map.spans(start, count)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _cut(tokens: Iterable[Tokens], size: int) -> Iterator[Tokens]:
    """Cut the same tokens into pieces of `size`; the last one may be smaller."""
    held: list[Tokens] = []
    count = 0
    for piece in tokens:
        while len(piece):
            part = piece[: size - count]
            held.append(part)
            count += len(part)
            piece = piece[len(part) :]
            if count == size:
                yield np.concatenate(held)
                held, count = [], 0
    if held:
        yield np.concatenate(held)


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


def _numpy(dtype: DType | Literal["uint8"]) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(
            f"cannot write the shard {path}: {error.strerror}: free some space or choose another folder"
        ) from None
