"""The writer of a corpus: tokens of any number become shards, and many shards chapters, as they come."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.chapters import ChapterList
from dtfm_protocol.data.marks import Marks, TargetCounter
from dtfm_protocol.data.token_shards import (
    SHARD_BYTES,
    ShardFolder,
    ShardMap,
    Tokens,
    digest_of,
    integers,
    narrowest,
)
from dtfm_protocol.data.tokenizer import check_ids
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.resolved_job import (
    CHAPTER_SHARDS,
    MOST_CHAPTERS,
    MOST_SHARDS,
    Chapter,
    Corpus,
    HeldOutSet,
    Shard,
)


class WrittenShard(NamedTuple):
    """A shard that was written."""

    tokens: Shard
    marks: Shard | None
    """Its marks, of a corpus with samples."""


class EncodedSet(NamedTuple):
    """A set for evaluation, as tokens."""

    name: str
    windows: int
    tokens: Tokens
    """Those of its windows, one after the other; of a stream, one more."""
    marks: Marks | None
    """Those of the tokens, where documents stand apart."""


class CorpusWriter:
    """Writer of one corpus. It holds less than a shard of tokens, and the names of one chapter's shards."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        *,
        shard_bytes: int = SHARD_BYTES,
        chapter_shards: int = CHAPTER_SHARDS,
        same_as: Corpus | None = None,
        sequence_length: int | None = None,
    ) -> None:
        """Write nothing yet.

        Args:
            folder: the folder of the shards; made if it is not there.
            vocab_size: number of tokens there are; up to 65,536 each takes two bytes, above it four.
            shard_bytes: bytes of a shard; the last one may have fewer.
            chapter_shards: shards of a chapter; the last one may have fewer. The corpus names the shards itself where
                they are no more than that.
            same_as: corpus that these tokens must be; they are refused at the first shard that differs. None: any.
            sequence_length: tokens of a window, where the corpus has samples; None: it has none.
        """
        self._dtype = narrowest(vocab_size)
        self._kind = integers(self._dtype)
        self._vocab_size, self._chapter_shards, self._same_as = vocab_size, chapter_shards, same_as
        if same_as is not None:
            self._chapter_shards = same_as.chapters[0].shards if same_as.chapters else MOST_SHARDS
        self.shard_tokens = max(1, shard_bytes // self._kind.itemsize)
        """Tokens of a shard."""
        self._folder, self._state = ShardFolder(folder), folder.parent
        self._before = ShardMap(same_as, self._folder) if same_as is not None else None
        self._held: list[Tokens] = []
        self._held_marks: list[Marks] = []
        self._count = 0
        self._shards: list[Shard] = []
        """Those of no chapter yet."""
        self._marks: list[Shard] = []
        """Marks of these."""
        self._targets = TargetCounter(sequence_length) if sequence_length is not None else None
        self._chapters: list[Chapter] = []
        self._held_out: list[HeldOutSet] = []
        self.shards = 0
        """Number of shards that are there."""

    def add(self, tokens: Tokens, marks: Marks | None = None) -> list[WrittenShard]:
        """Take tokens that follow those before, [tokens], and return the shards that they have filled.

        A shard that is in the folder already is not written again.

        Args:
            marks: those of the tokens, where the corpus has samples, [tokens].

        Raises:
            UserError: one is not in the vocabulary, there are more than a job can have, they are not the same as
                others, or the disk is full or cannot be written.
        """
        check_ids(tokens, self._vocab_size)
        if self._targets is not None:
            if marks is None or len(marks) != len(tokens):
                raise ValueError("each token of a corpus with samples has a mark")
            self._targets.add(marks)
        filled = []
        while len(tokens):
            part = tokens[: self.shard_tokens - self._count]
            self._held.append(part)
            self._count += len(part)
            tokens = tokens[len(part) :]
            if marks is not None:
                self._held_marks.append(marks[: len(part)])
                marks = marks[len(part) :]
            if self._count == self.shard_tokens:
                filled.append(self._write())
        return filled

    def is_whole(self, written: WrittenShard) -> bool:
        """Whether a shard is in the folder as it was written."""
        return all(self._folder.has(part.sha256) for part in written if part is not None)

    def has_before(self, written: WrittenShard) -> bool:
        """Take a shard that an earlier writer has written as the next one, before any tokens; whether it is there and
        whole, and has the tokens of a shard."""
        shard, marks = written
        parts = [part for part in written if part is not None]
        if self._count or any(part.tokens != self.shard_tokens for part in parts):
            return False
        if (marks is None) != (self._targets is None) or not self.is_whole(written):
            return False
        self._name(shard, marks)
        if self._targets is not None and marks is not None:
            self._targets.add(np.array(self._folder.open(marks, "uint8")))
        return True

    def left(self) -> tuple[Tokens, Marks]:
        """Return the tokens that fill no shard yet, and their marks where the corpus has samples: [tokens] each."""
        none = np.empty(0, dtype=np.uint8)
        return np.concatenate([none, *self._held]), np.concatenate([none, *self._held_marks])

    def make_last(self, shards: Iterable[WrittenShard]) -> None:
        """Flush shards to the disk, so that they survive a power cut."""
        self._folder.make_last(part.sha256 for shard in shards for part in shard if part is not None)

    def add_set(self, one: EncodedSet) -> None:
        """Take a set for evaluation, behind all that is trained on; raises as `add` does."""
        start = self.shards * self.shard_tokens + self._count
        self._held_out.append(HeldOutSet(name=one.name, start=start, windows=one.windows))
        self.add(one.tokens, one.marks)

    def end(self) -> Corpus:
        """Write what is left, and return what names all of it.

        Raises:
            UserError: there is no token, or as `add` does.
        """
        if self._count:
            self._write()
        if not self.shards:
            raise UserError("data: there is no text in it")
        if self._chapters and self._shards:
            self._list()
        named: dict[str, Any] = {"chapters": tuple(self._chapters)} if self._chapters else {"shards": self._shards}
        if self._targets is not None:
            targets = self._keep(self._targets.counts())
            named["samples"] = {"marks": self._marks, "targets": targets} if self._marks else {"targets": targets}
        named["held_out"] = tuple(self._held_out)
        corpus = Corpus.model_validate({"dtype": self._dtype, "vocab_size": self._vocab_size} | named)
        if self._same_as is not None and corpus != self._same_as:
            self._refuse()
        return corpus

    def _write(self) -> WrittenShard:
        tokens = np.concatenate(self._held).astype(self._kind)
        self._compare(Shard(sha256=digest_of(tokens.tobytes()), tokens=len(tokens)))
        shard = self._keep(tokens)
        marks = self._keep(np.concatenate(self._held_marks).astype(np.uint8)) if self._held_marks else None
        self._held, self._held_marks, self._count = [], [], 0
        self._name(shard, marks)
        return WrittenShard(shard, marks)

    def _keep(self, values: npt.NDArray[Any]) -> Shard:
        """Have values in a file of the folder, all of them or nothing."""
        data = values.tobytes()
        digest = digest_of(data)
        if not self._folder.has(digest):
            self._folder.add(digest, data)
        return Shard(sha256=digest, tokens=len(values))

    def _name(self, shard: Shard, marks: Shard | None) -> None:
        """Name one more shard in the corpus."""
        self._compare(shard)
        if len(self._shards) == self._chapter_shards:
            self._list()
        self._shards.append(shard)
        self._marks += [marks] if marks is not None else []
        self.shards += 1

    def _list(self) -> None:
        """Make a chapter of the shards that are in none."""
        if self._chapter_shards == MOST_SHARDS or len(self._chapters) == MOST_CHAPTERS:
            most = self._chapter_shards * (MOST_CHAPTERS if self._chapters else 1)
            raise UserError(f"data: there are more than the {most} shards of one job: give less text")
        listed = ChapterList.of_shards(self._shards, self._marks)
        data = listed.to_bytes()
        chapter = Chapter(sha256=digest_of(data), shards=len(listed), tokens=listed.tokens)
        number = len(self._chapters)
        if self._same_as is not None and self._same_as.chapters[number : number + 1] != (chapter,):
            self._refuse()
        if not self._folder.has(chapter.sha256):
            self._folder.add(chapter.sha256, data)
        self._chapters.append(chapter)
        self._shards, self._marks = [], []

    def _compare(self, shard: Shard) -> None:
        """Refuse a shard that is not the one of the corpus that this one must be."""
        if self._before is None:
            return
        try:
            if self.shards >= len(self._before) or self._before[self.shards] != shard:
                self._refuse()
        except Refused:  # the list of its chapter is lost: the whole chapter is compared once it is there
            return

    def _refuse(self) -> None:
        raise UserError(
            f"the state dir {self._state} holds a run of another job (the text, or its tokenizer, differs): give "
            "the same, or use another --state-dir"
        )


def write_shards(
    folder: Path,
    tokens: Iterable[Tokens],
    vocab_size: int,
    shard_bytes: int = SHARD_BYTES,
    same_as: Corpus | None = None,
    *,
    chapter_shards: int = CHAPTER_SHARDS,
    marks: Marks | None = None,
    sequence_length: int | None = None,
) -> Corpus:
    """Write tokens as a corpus and return what names it.

    Args:
        tokens: pieces of any length, [tokens] each, that follow each other.
        folder, vocab_size, shard_bytes, same_as, chapter_shards, sequence_length: as of `CorpusWriter`.
        marks: those of all tokens, where the corpus has samples, [tokens].

    Raises:
        UserError: as `CorpusWriter` does.
    """
    writer = CorpusWriter(
        folder,
        vocab_size,
        shard_bytes=shard_bytes,
        chapter_shards=chapter_shards,
        same_as=same_as,
        sequence_length=sequence_length,
    )
    done = 0
    for piece in tokens:
        writer.add(piece, None if marks is None else marks[done : done + len(piece)])
        done += len(piece)
    return writer.end()
