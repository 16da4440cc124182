"""Samples on disk: readers of marks and of the windows' numbers of targets, in files as token shards are."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.token_shards import OPEN_SHARDS, ShardFolder, ShardMap
from dtfm_protocol.job.resolved_job import Corpus, Samples


class MarkReader:
    """A reader of the corpus's marks out of a folder of their shards, across the shards' borders."""

    def __init__(self, corpus: Corpus, shards: ShardFolder) -> None:
        """Open nothing yet; the corpus has samples."""
        _samples(corpus)
        self._map = ShardMap(corpus, shards)
        self._open = lru_cache(maxsize=OPEN_SHARDS)(lambda shard: shards.open(self._map.marks(shard), "uint8"))

    def close(self) -> None:
        """Close all files: what is read next is opened anew."""
        self._open.cache_clear()

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


def target_bytes(samples: Samples) -> int:
    """Return the bytes of the file of the windows' numbers of targets."""
    return 4 * samples.targets.tokens


def _samples(corpus: Corpus) -> Samples:
    if corpus.samples is None:
        raise ValueError("a corpus without samples has no marks")
    return corpus.samples
