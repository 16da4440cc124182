"""A sample of a job's documents, which stands for all of them where there are many."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtfm_protocol.data.contents import Chat, Content
from dtfm_protocol.data.documents import DocumentReader
from dtfm_protocol.data.row_formats import FORMATS
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.data.text import PIECE_BYTES, text_piece

SAMPLES = 64
"""Places of all sources at which documents are read."""


@dataclass(frozen=True)
class SourceSample:
    """A sample of a source."""

    contents: tuple[Content, ...]
    """What documents of it say; of text files, pieces."""
    bytes: int
    """Bytes of these in UTF-8."""
    documents: int
    """Documents that the whole source has, each counted once; of text files they are counted, else estimated."""
    total: int
    """Bytes that these have in UTF-8; of text files they are counted, else estimated."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of what it has read."""
        return tuple(content.text for content in self.contents)


def samples_of(sources: Sequence[SourceFiles], chat: Chat | None = None) -> list[SourceSample]:
    """Read documents at even distances over all files as if they were one; of each source at least at one place.

    Args:
        chat: writes down the messages of sources that have such.

    Raises:
        UserError: a file is out of reach, or holds what cannot be read.
    """
    total = sum(one.bytes for one in sources)
    return [_sample(one, max(1, round(SAMPLES * one.bytes / max(1, total))), chat) for one in sources]


def read_piece(
    source: SourceFiles, file: Path, at: int, size: int = PIECE_BYTES, chat: Chat | None = None
) -> tuple[list[Content], float]:
    """Read documents from about byte `at` of a file on until they have `size` bytes; of a text file a piece of them.

    Returns the documents that are not empty, and the bytes of the file that they take.

    Raises:
        UserError: the file is out of reach, or holds what cannot be read.
    """
    form, reader = source.source.form, DocumentReader(source, chat)
    rows = text_piece(source, file, at, size) if form == "text" else FORMATS[form].rows(source, file, at)
    contents, read, found = list[Content](), 0.0, 0
    for row in rows:
        read += row.size
        content = reader.content(row, file, at=at)
        if content.text:
            contents.append(content)
            found += len(content.text.encode())
        if max(found, read) >= size:
            break
    return contents, read


def _sample(source: SourceFiles, places: int, chat: Chat | None) -> SourceSample:
    sizes = [source.bytes_of(file) for file in source.files]
    total, contents, read = sum(sizes), list[Content](), 0.0
    if source.source.form == "hub":  # its beginning stands for all: what is farther on comes after it, over the network
        places = 1
    for number in range(places):
        at = number * total // places
        place = 0
        while place < len(sizes) - 1 and at >= sizes[place]:
            at -= sizes[place]
            place += 1
        found, taken = read_piece(source, source.files[place], at, chat=chat)
        contents += found
        read += taken
    size = sum(len(content.text.encode()) for content in contents)
    if source.source.form == "text":
        return SourceSample(tuple(contents), size, sum(one > 0 for one in sizes), total)
    scale = total / read if read else 0.0
    return SourceSample(tuple(contents), size, round(len(contents) * scale), round(size * scale))
