"""The encoder of pieces of text: reads the rows of one, and gives the tokens of its documents, a few at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.contents import Chat, Content
from dtfm_protocol.data.documents import DocumentReader
from dtfm_protocol.data.row_formats import FORMATS
from dtfm_protocol.data.rows import Cut, Fault
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
    """Before each document the end of text: [tokens]."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each document, the end of text before it among them: [documents]."""
    faults: tuple[Fault, ...]
    """Rows that cannot be read, which are counted from the first of the piece."""
    read: float
    """Bytes of the file that were read for it."""
    rows: int | None
    """Rows of the piece; None: more parts follow."""


class PieceEncoder:
    """Encoder of pieces, the same in every process."""

    def __init__(self, data: Data, tokenizer: Any, end: int) -> None:
        """Take the job's table and its tokenizer, whose end of text is `end`."""
        self._data, self._tokenizer, self._end = data, tokenizer, np.array([end], dtype=np.uint32)

    def parts(self, source: SourceFiles, file: Path, cut: Cut) -> Iterator[EncodedPart]:
        """Yield the documents of a piece, at last with the number of its rows.

        Raises:
            UserError: the file is out of reach.
        """
        for part in read_parts(source, file, cut):
            yield self._part([one.text for one in part.contents], part.faults, part.read, part.rows)

    def of_texts(self, texts: list[str], read: float) -> EncodedPart:
        """Return documents that stand in no file as the only part of a piece."""
        return self._part(texts, (), read, len(texts))

    def _part(self, texts: list[str], faults: tuple[Fault, ...], read: float, rows: int | None) -> EncodedPart:
        encoded = encode_batch(self._data, self._tokenizer, texts) if texts else []
        pieces = [part for ids in encoded for part in (self._end, ids)]
        tokens = np.concatenate(pieces).astype(np.uint32) if pieces else np.empty(0, dtype=np.uint32)
        return EncodedPart(tokens, np.array([1 + len(ids) for ids in encoded], dtype=np.int64), faults, read, rows)


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
