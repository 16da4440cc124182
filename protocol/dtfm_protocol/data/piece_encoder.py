"""The encoder of pieces of text: reads the rows of one, and gives the tokens of its documents, a few at a time."""

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.chat_template import ChatTemplate
from dtfm_protocol.data.contents import Chat, Content
from dtfm_protocol.data.documents import DocumentReader
from dtfm_protocol.data.row_formats import FORMATS
from dtfm_protocol.data.rows import Cut, Fault
from dtfm_protocol.data.sample_encoding import Sample, encode_samples
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.data.tokenizer import encode_batch
from dtfm_protocol.job.data_table import Data

PART_CHARACTERS = 1 << 20
"""Characters that are encoded at a time: their tokens take hundreds of bytes each until they are numbers alone."""


class ReadPart(NamedTuple):
    """Documents that follow each other in a piece, as they were read."""

    contents: list[Content]
    """What they say; none is empty."""
    faults: tuple[Fault, ...]
    """Rows that cannot be read, which are counted from the first of the piece."""
    read: float
    """Bytes of the file that were read for it."""
    rows: int | None
    """Rows of the piece; None: more parts follow."""


class EncodedPart(NamedTuple):
    """Documents that follow each other in a piece, as tokens."""

    tokens: npt.NDArray[np.uint32]
    """Of one document after the other; in a stream with the end of text before each: [tokens]."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each document: [documents]."""
    is_target: npt.NDArray[np.bool_]
    """Which tokens are learned: [tokens]; of a stream, where all are: [0]."""
    is_whole: npt.NDArray[np.bool_]
    """Which documents make no sense in pieces: [documents]; of a stream: [0]."""
    faults: tuple[Fault, ...]
    """Rows that cannot be read, which are counted from the first of the piece."""
    read: float
    """Bytes of the file that were read for it."""
    rows: int | None
    """Rows of the piece; None: more parts follow."""

    def samples(self) -> Iterator[Sample]:
        """Yield its documents, which stand apart from each other."""
        bounds = pairwise(accumulate(self.lengths.tolist(), initial=0))
        for (first, after), is_whole in zip(bounds, self.is_whole.tolist(), strict=True):
            yield Sample(self.tokens[first:after].astype(np.int64), self.is_target[first:after], is_whole)


class PieceEncoder:
    """Encoder of pieces, the same in every process: for a stream of text, or documents that stand apart from each
    other, as the job says."""

    def __init__(self, data: Data, tokenizer: Any) -> None:
        """Take the job's table and its tokenizer.

        Raises:
            UserError: as `ChatTemplate.of_job`.
        """
        self._data, self._tokenizer = data, tokenizer
        self._end = np.array([tokenizer.eos_token_id], dtype=np.uint32)
        self._chat = ChatTemplate.of_job(data)

    def parts(self, source: SourceFiles, file: Path, cut: Cut) -> Iterator[EncodedPart]:
        """Yield the documents of a piece, at last with the number of its rows.

        Raises:
            UserError: the file is out of reach.
        """
        for part in read_parts(source, file, cut, self._chat):
            yield self._part(part)

    def of_texts(self, texts: Iterable[str], read: float) -> EncodedPart:
        """Return documents that stand in no file as the only part of a piece."""
        contents = [Content(text) for text in texts]
        return self._part(ReadPart(contents, (), read, len(contents)))

    def _part(self, part: ReadPart) -> EncodedPart:
        targets, is_whole = np.empty(0, dtype=np.bool_), np.empty(0, dtype=np.bool_)
        if self._data.is_laid_out:
            samples = list(encode_samples(self._data, self._tokenizer, part.contents))
            documents: list[npt.NDArray[Any]] = [sample.tokens for sample in samples]
            targets = np.concatenate([targets, *(sample.is_target for sample in samples)])
            is_whole = np.array([sample.is_whole for sample in samples], dtype=np.bool_)
            lengths = [len(tokens) for tokens in documents]
        else:
            texts = [content.text for content in part.contents]
            encoded = encode_batch(self._data, self._tokenizer, texts) if texts else []
            documents = [tokens for ids in encoded for tokens in (self._end, ids)]
            lengths = [1 + len(ids) for ids in encoded]
        tokens = np.concatenate([np.empty(0, dtype=np.uint32), *documents]).astype(np.uint32)
        counts = np.array(lengths, dtype=np.int64)
        return EncodedPart(tokens, counts, targets, is_whole, part.faults, part.read, part.rows)


def read_parts(source: SourceFiles, file: Path, cut: Cut, chat: Chat | None = None) -> Iterator[ReadPart]:
    """Read the documents of a piece, at last with the number of its rows.

    Args:
        chat: what writes down the messages of a source that has such.

    Raises:
        UserError: the file is out of reach.
    """
    reader, rows = DocumentReader(source, chat), FORMATS[source.source.form].part(source, file, cut)
    contents, faults, size, read, count = list[Content](), list[Fault](), 0, 0.0, None
    while count is None:
        try:
            row = next(rows)
        except StopIteration as end:
            count = int(end.value)
        else:
            read += row.size
            found = row if isinstance(row, Fault) else reader.filled(row)
            if isinstance(found, Fault):
                faults.append(found)
            elif found.text:
                contents.append(found)
                size += len(found.text)
        if size >= PART_CHARACTERS or len(faults) >= PART_CHARACTERS // 256 or count is not None:
            yield ReadPart(contents, tuple(faults), read, count)
            contents, faults, size, read = [], [], 0, 0.0
