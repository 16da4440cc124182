"""Tokens on disk: shards of little-endian integers in files named by their SHA-256, and their reader.

The lists of chapters (`chapters`) lie beside them, in files named alike: they are fetched, checked and kept as shards
are.
"""

import contextlib
import os
import re
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.chapters import ChapterList
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.resolved_job import Chapter, Corpus, Shard
from dtfm_protocol.process.state_dir import sync_folder

SHARD_BYTES = 2 << 20
"""Bytes of a shard: few enough to fetch it again after a broken transfer, and so many that its name costs nothing."""

OPEN_SHARDS = 64
"""Number of shards that a reader keeps open: each costs a file descriptor, of which a process has few."""

OPEN_CHAPTERS = 64
"""Number of chapters' lists that a reader keeps in memory, each of at most 180 kB."""

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
        """Bytes of each shard that is here, by hash, the one that was not needed for longest coming first; None: not
        looked."""

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
            whole = digest_of(path.read_bytes()) == sha256
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
        if digest_of(data) != sha256:
            raise Refused(f"shard {sha256[:12]}: {len(data)} bytes that have another hash")
        _write(path, data)
        self._checked.add(sha256)
        if self._sizes is not None:
            self._sizes[sha256] = len(data)

    def make_last(self, names: Iterable[str]) -> None:
        """Flush shards to the disk, so that they survive a power cut from here on.

        Raises:
            UserError: the disk is full or cannot be written.
        """
        for name in names:
            try:
                with self.path(name).open("rb") as file:
                    os.fsync(file.fileno())
            except OSError as error:
                raise UserError(f"cannot write {self.path(name)}: {error.strerror}") from None
        if self._folder.is_dir():
            sync_folder(self._folder)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each shard here, by hash, the one that was not needed for longest coming first."""
        if self._sizes is None:
            found = [(path, path.stat()) for path in self._folder.glob("*.tokens")] if self._folder.is_dir() else []
            found.sort(key=lambda one: one[1].st_mtime_ns)
            self._sizes = {path.stem: status.st_size for path, status in found}
        return dict(self._sizes)

    def used(self, sha256: str) -> None:
        """Note that a shard is needed now, also for a later life of this program."""
        with contextlib.suppress(OSError):  # it cannot be noted: then it counts as it did
            os.utime(self.path(sha256))
        if self._sizes is not None and sha256 in self._sizes:
            self._sizes[sha256] = self._sizes.pop(sha256)

    def clear_drafts(self) -> None:
        """Delete what a program that was killed has left half-written."""
        for path in self._folder.glob(".*.tokens.*") if self._folder.is_dir() else ():
            path.unlink(missing_ok=True)

    def keep_only(self, wanted: Iterable[str]) -> None:
        """Delete all but these."""
        for name in self.sizes().keys() - set(wanted):
            self.drop(name)

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
        kind = integers(dtype)
        try:
            size = path.stat().st_size
        except OSError:
            raise Refused(f"shard {shard.sha256[:12]} is not here") from None
        if size != shard.tokens * kind.itemsize:
            raise Refused(f"shard {shard.sha256[:12]}: {size} bytes on disk, not {shard.tokens} tokens of {dtype}")
        return np.memmap(path, dtype=kind, mode="r")


def token_bytes(vocab_size: int) -> int:
    """Return the bytes that a token takes on disk."""
    return integers(narrowest(vocab_size)).itemsize


def kept_bytes(folder: Path) -> int:
    """Return the bytes of all shards that lie in a folder, which may not be there."""
    return sum(ShardFolder(folder).sizes().values())


def narrowest(vocab_size: int) -> DType:
    """Return the type of the integers of a shard, by the number of tokens that there are."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def shard_bytes(corpus: Corpus, shard: Shard) -> int:
    """Return the bytes that a shard has, by its number of tokens."""
    return shard.tokens * integers(corpus.dtype).itemsize


class ShardMap:
    """The places of the corpus's tokens in its shards, whichever way these are named.

    Shards are counted from 0, over all chapters. A chapter's list is read when it is first asked for, and few stay in
    memory.
    """

    def __init__(self, corpus: Corpus, folder: ShardFolder | None = None) -> None:
        """Read nothing.

        Args:
            folder: where the lists of chapters lie, if the corpus has any.
        """
        self._corpus, self._folder = corpus, folder
        chapters = corpus.chapters
        self._firsts = [0, *accumulate(chapter.shards for chapter in chapters)] if chapters else [0, len(corpus.shards)]
        tokens = (chapter.tokens for chapter in chapters) if chapters else (corpus.tokens,)
        self._borders = np.array([0, *accumulate(tokens)], dtype=np.int64)
        self._list = lru_cache(maxsize=OPEN_CHAPTERS)(self._read_list)

    def __len__(self) -> int:
        """Return the number of shards."""
        return self._firsts[-1]

    def __iter__(self) -> Iterator[Shard]:
        """Yield all shards, in order."""
        yield from (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Shard:
        """Return a shard.

        Raises:
            Refused: the list that names it is not here, or is another one than the job says.
        """
        chapter = bisect_right(self._firsts, number) - 1
        return self._list(chapter)[number - self._firsts[chapter]]

    def chapters_at(self, starts: Iterable[int], count: int) -> list[Chapter]:
        """List the chapters whose lists must be here to find `count` tokens from each of `starts` on."""
        if not self._corpus.chapters:
            return []
        found = {chapter for start in starts for chapter, _ in _spans(self._borders, start, count)}
        return [self._corpus.chapters[chapter] for chapter in sorted(found)]

    def marks(self, number: int) -> Shard:
        """Return the marks of a shard, of a corpus with samples.

        Raises:
            Refused: as for the shard.
        """
        chapter = bisect_right(self._firsts, number) - 1
        return self._list(chapter).marks(number - self._firsts[chapter])

    def numbers_at(self, starts: Iterable[int], count: int) -> list[int]:
        """List the numbers of the shards that hold `count` tokens from each of `starts` on, ascending.

        Raises:
            IndexError: the corpus ends before.
            Refused: the list that names one is not here, or is another one than the job says.
        """
        return sorted({number for start in starts for number, _ in self.spans(start, count)})

    def spans(self, start: int, count: int) -> Iterator[tuple[int, slice]]:
        """Find the shards that hold tokens `[start, start + count)`: each one's number, and the slice of it, in order.

        Raises:
            IndexError: the corpus ends before.
            Refused: the list that names one is not here, or is another one than the job says.
        """
        for chapter, inside in _spans(self._borders, start, count):
            borders = self._list(chapter).borders
            for shard, where in _spans(borders, inside.start, inside.stop - inside.start):
                yield self._firsts[chapter] + shard, where

    def _read_list(self, number: int) -> ChapterList:
        samples = self._corpus.samples
        if not self._corpus.chapters:
            return ChapterList.of_shards(self._corpus.shards, samples.marks if samples is not None else ())
        chapter = self._corpus.chapters[number]
        data = self._folder.find(chapter.sha256) if self._folder is not None else None
        if data is None:
            raise Refused(f"chapter {chapter.sha256[:12]} of the text is not here")
        return ChapterList.read(data, chapter, has_marks=samples is not None)


def _spans(borders: npt.NDArray[np.int64], start: int, count: int) -> Iterator[tuple[int, slice]]:
    """Find the parts that hold tokens `[start, start + count)`: each one's number, and the slice of it, in order.

    Args:
        borders: where each part begins, and where the last one ends: [parts + 1].

    Raises:
        IndexError: they end before.
    """
    end = start + count
    if start < 0 or count < 0 or end > borders[-1]:
        raise IndexError(f"tokens {start} to {end} of a corpus of {borders[-1]}")
    part = int(np.searchsorted(borders, start, side="right")) - 1
    while start < end:
        first, last = int(borders[part]), int(borders[part + 1])
        stop = min(end, last)
        yield part, slice(start - first, stop - first)
        start = stop
        part += 1


class TokenReader:
    """A reader of the corpus out of a folder of its shards, across their borders."""

    def __init__(self, corpus: Corpus, shards: ShardFolder) -> None:
        self._map = ShardMap(corpus, shards)
        self._open = lru_cache(maxsize=OPEN_SHARDS)(lambda shard: shards.open(self._map[shard], corpus.dtype))

    def close(self) -> None:
        """Close all shards: what is read next is opened anew."""
        self._open.cache_clear()

    def read(self, start: int, count: int) -> Tokens:
        """Read tokens `[start, start + count)` of the corpus: [count], a copy.

        Raises:
            IndexError: the corpus ends before.
            Refused: a shard, or the list that names it, is not in the folder, or is another one than the job says.
        """
        parts = [self._open(shard)[where] for shard, where in self._map.spans(start, count)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def corpus_files(corpus: Corpus, folder: ShardFolder) -> Iterator[str]:
    """Yield the hash of each file that a corpus is made of: the list of each chapter before the files that it names.

    Raises:
        Refused: a list is not here, or is another one than the job says.
    """
    yield from (chapter.sha256 for chapter in corpus.chapters)
    names = ShardMap(corpus, folder)
    yield from (shard.sha256 for shard in names)
    if corpus.samples is not None:
        yield from (names.marks(number).sha256 for number in range(len(names)))
        yield corpus.samples.targets.sha256


def corpus_bytes(corpus: Corpus) -> int:
    """Return the bytes of all shards of a corpus, with what is kept beside them of its samples."""
    size = corpus.tokens * integers(corpus.dtype).itemsize
    return size if corpus.samples is None else size + corpus.tokens + 4 * corpus.samples.targets.tokens


def digest_of(data: bytes) -> str:
    """Return the hash by which a file is named."""
    return sha256(data).hexdigest()


def integers(dtype: DType | Literal["uint8"]) -> np.dtype[Any]:
    """Return the type of a shard's integers, little-endian on every machine."""
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
