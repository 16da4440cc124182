"""Samples on disk: marks, and the windows' numbers of targets, in files as token shards are, and their readers."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.marks import window_targets
from dtfm_protocol.data.token_shards import OPEN_SHARDS, ShardFolder, ShardMap
from dtfm_protocol.job.resolved_job import Corpus, Samples, Shard


class SampleWriter:
    """A writer of the samples of a corpus, whose tokens are written at the same time."""

    def __init__(self, folder: Path, sequence_length: int, shard_tokens: int) -> None:
        """Begin; `shard_tokens` is the number of tokens of each of the corpus's shards but the last."""
        self._kept, self._length, self._shard_tokens = ShardFolder(folder), sequence_length, shard_tokens
        self._marks = np.empty(0, dtype=np.uint8)
        """Those of the shard that is not full."""
        self._shards: list[Shard] = []
        self._window = np.empty(0, dtype=np.uint8)
        """Marks of the window that is not full, and the one before it."""
        self._counts: list[npt.NDArray[np.uint32]] = []

    def add(self, marks: npt.NDArray[np.uint8]) -> None:
        """Take marks of tokens that come after those before: [tokens].

        Raises:
            UserError: the disk is full or cannot be written.
        """
        self._window = np.concatenate([self._window, marks])
        if windows := (len(self._window) - 1) // self._length:
            whole = windows * self._length
            self._counts.append(window_targets(self._window[: whole + 1], self._length))
            self._window = self._window[whole:]
        self._marks = np.concatenate([self._marks, marks])
        while len(self._marks) >= self._shard_tokens:
            self._shards.append(self._keep(self._marks[: self._shard_tokens]))
            self._marks = self._marks[self._shard_tokens :]

    def samples(self) -> Samples:
        """Write what is left, and return what names it all.

        Raises:
            ValueError: the tokens are not one more than those of a number of windows.
            UserError: as `add` does.
        """
        if len(self._window) != 1 or not self._counts:
            raise ValueError(f"{len(self._window)} tokens behind {len(self._counts)} runs of windows")
        marks = [*self._shards, *([self._keep(self._marks)] if len(self._marks) else [])]
        counts = np.concatenate(self._counts).astype("<u4")
        return Samples(marks=tuple(marks), targets=self._keep(counts))

    def _keep(self, values: npt.NDArray[np.integer[Any]]) -> Shard:
        data = values.tobytes()
        digest = sha256(data).hexdigest()
        if not self._kept.has(digest):
            self._kept.add(digest, data)
        return Shard(sha256=digest, tokens=len(values))


class MarkReader:
    """A reader of the corpus's marks out of a folder of their shards, across the shards' borders."""

    def __init__(self, corpus: Corpus, shards: ShardFolder) -> None:
        """Open nothing yet; the corpus has samples."""
        samples = _samples(corpus)
        self._map = ShardMap(corpus)
        self._open = lru_cache(maxsize=OPEN_SHARDS)(lambda shard: shards.open(samples.marks[shard], "uint8"))

    def read(self, start: int, count: int) -> npt.NDArray[np.uint8]:
        """Read the marks of tokens `[start, start + count)` of the corpus: [count], a copy.

        Raises:
            IndexError: the corpus ends before.
            Refused: a shard is not in the folder, or not of its size.
        """
        parts = [self._open(shard)[where] for shard, where in self._map.spans(start, count)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)


class TargetCounts:
    """The number of targets of each window of the corpus."""

    def __init__(self, corpus: Corpus, shards: ShardFolder) -> None:
        """Open nothing yet; the corpus has samples."""
        targets = _samples(corpus).targets
        self._length = (corpus.tokens - 1) // targets.tokens
        self._open = lru_cache(maxsize=1)(lambda: shards.open(targets, "uint32"))

    def total(self, windows: Sequence[int]) -> int:
        """Return the number of targets of windows, by the offset in the corpus, in tokens, of each.

        Raises:
            ValueError: an offset is none of a window.
            Refused: the file is not in the folder, or not of its size.
        """
        if wrong := [start for start in windows if start % self._length]:
            raise ValueError(f"no window of {self._length} tokens begins at {wrong[0]}")
        counts = self._open()
        return sum(int(counts[start // self._length]) for start in windows)


def sample_files(corpus: Corpus) -> Iterator[tuple[Shard, int]]:
    """Yield each file that tells of samples, and its size in bytes; none where there are no samples."""
    if corpus.samples is not None:
        yield from ((shard, shard.tokens) for shard in corpus.samples.marks)
        yield target_file(corpus.samples)


def target_file(samples: Samples) -> tuple[Shard, int]:
    """Return the file of the windows' numbers of targets, and its size in bytes."""
    return samples.targets, 4 * samples.targets.tokens


def _samples(corpus: Corpus) -> Samples:
    if corpus.samples is None:
        raise ValueError("a corpus without samples has no marks")
    return corpus.samples
