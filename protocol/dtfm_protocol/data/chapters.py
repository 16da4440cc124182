"""Chapters of a corpus: lists of its shards, each in a file named by its hash, so that a job names few (pure)."""

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import Chapter, Shard

RECORD: Final = np.dtype([("sha256", "u1", 32), ("tokens", "<u4")])
"""A shard in the list of a chapter: its hash, and its number of tokens, little-endian."""
MARKED_RECORD: Final = np.dtype([*RECORD.descr, ("marks", "u1", 32)])
"""The same where the corpus has samples: then the hash of its marks, too."""


class ChapterList:
    """The shards of a chapter, in order."""

    def __init__(self, records: npt.NDArray[Any]) -> None:
        """Take records of `RECORD`, [shards]."""
        self._records = records
        self.borders: npt.NDArray[np.int64] = np.concatenate(
            [[0], np.cumsum(records["tokens"], dtype=np.int64)], dtype=np.int64
        )
        """Place in the chapter, in tokens, at which each shard begins, and at which the last one ends: [shards + 1]."""

    @classmethod
    def of_shards(cls, shards: Sequence[Shard], marks: Sequence[Shard] = ()) -> Self:
        """List shards, and their marks where there are any."""
        records = np.zeros(len(shards), MARKED_RECORD if marks else RECORD)
        for record, shard in zip(records, shards, strict=True):
            record["sha256"], record["tokens"] = _bytes_of(shard), shard.tokens
        for record, mark in zip(records, marks, strict=bool(marks)):
            record["marks"] = _bytes_of(mark)
        return cls(records)

    @classmethod
    def read(cls, data: bytes, chapter: Chapter, *, has_marks: bool = False) -> Self:
        """Read what `to_bytes` gives.

        Args:
            data: bytes that have the chapter's hash.
            chapter: what the job says of it.
            has_marks: whether the corpus has samples.

        Raises:
            Refused: it is another list than the job says.
        """
        size = chapter_bytes(chapter, has_marks=has_marks)
        if len(data) != size:
            raise Refused(f"{_name(chapter)}: {len(data)} bytes, not the {size} of its list")
        found = cls(np.frombuffer(data, MARKED_RECORD if has_marks else RECORD))
        if not found._records["tokens"].all():
            raise Refused(f"{_name(chapter)}: it lists a shard without tokens")
        if found.tokens != chapter.tokens:
            raise Refused(f"{_name(chapter)}: its shards have {found.tokens} tokens, and the job says {chapter.tokens}")
        return found

    def to_bytes(self) -> bytes:
        """Return the file of the chapter: a record a shard."""
        return self._records.tobytes()

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> Shard:
        """Return shard `number` of the chapter, from 0."""
        record = self._records[number]
        return Shard(sha256=record["sha256"].tobytes().hex(), tokens=int(record["tokens"]))

    def marks(self, number: int) -> Shard:
        """Return the marks of shard `number`, of a corpus with samples."""
        record = self._records[number]
        return Shard(sha256=record["marks"].tobytes().hex(), tokens=int(record["tokens"]))

    @property
    def tokens(self) -> int:
        """Number of tokens of all its shards."""
        return int(self.borders[-1])


def chapter_bytes(chapter: Chapter, *, has_marks: bool = False) -> int:
    """Return the bytes of a chapter's file, by its number of shards and whether the corpus has samples."""
    return chapter.shards * (MARKED_RECORD if has_marks else RECORD).itemsize


def _bytes_of(shard: Shard) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(shard.sha256), np.uint8)


def _name(chapter: Chapter) -> str:
    return f"chapter {chapter.sha256[:12]} of the text"
