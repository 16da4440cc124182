"""The documents of a job: read from its sources anew each time they are gone through, a few at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dtfm_protocol.data.chat_template import ChatTemplate
from dtfm_protocol.data.contents import Chat, Content, ContentReader
from dtfm_protocol.data.row_formats import FORMATS
from dtfm_protocol.data.rows import Fault, Row
from dtfm_protocol.data.source_files import SourceFiles, sources_of
from dtfm_protocol.data.text_pieces import in_order, repeats_of
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.document_template import Unfillable

NO_TEXT = "{}: there is no text in {}: every document is empty, or was passed over"
"""What is said of a source without any, by its key and path."""
SKIP = 'or pass over such with on_error = "skip"'
"""What may be done about a row that is wrong, rather than mend it."""


class Document(NamedTuple):
    """A document, and where it comes from."""

    content: Content
    """What it says; the text is never empty."""
    file: Path | None
    """Its file, or folder of a dataset; None: Python's manual."""
    row: int
    """Its row or line there, from 1."""
    read: float
    """Bytes of the sources that were read for it since the document before."""

    @property
    def text(self) -> str:
        """The text of it."""
        return self.content.text


class Skipped:
    """Rows that were passed over, as their sources let them be."""

    def __init__(self) -> None:
        """Begin with none."""
        self.rows = 0
        self.first = ""
        """The place of the first, and what is wrong with it."""

    def add(self, rows: int, what: str) -> None:
        """Count some."""
        self.rows += rows
        self.first = self.first or what

    def __str__(self) -> str:
        noun = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return f"Passed over {noun} of the text: {self.first}{'' if self.rows == 1 else ', and others'}."


class Documents:
    """The documents of a job, in the order in which they become tokens.

    Sources come in the order of the job file, but for those of a weight above 1, which come before all others: what
    is held out, at the end of the corpus, should not be trained on. Within a source, files come by their paths, rows
    as they stand, empty ones left out; what is repeated comes after all of its source, not at once. `text` has a
    document a file, or one a topic of Python's own manual.
    """

    def __init__(self, data: Data, seed: int = 0) -> None:
        """Find the files.

        Args:
            data: the job's `[data]`, with paths made absolute (`Job.rooted`).
            seed: decides which documents of a source are there, where its weight is no whole number.

        Raises:
            UserError: names the path that leads to nothing, or the file that is no text; or messages have no chat
                template.
        """
        self._chat = ChatTemplate.of_job(data)
        self._sources = in_order(sources_of(data))
        self._seed = seed
        self._manual: tuple[str, ...] = () if self._sources else _manual()
        self.skipped = Skipped()
        """Rows that were passed over when the documents were gone through last."""

    @property
    def manual(self) -> tuple[str, ...]:
        """Documents that stand in no file."""
        return self._manual

    @property
    def sources(self) -> list[SourceFiles]:
        """Sources, in the order of the corpus."""
        return self._sources

    @property
    def bytes(self) -> float:
        """Bytes that are read when all documents are gone through."""
        manual = sum(map(len, self._manual))
        return manual + sum(one.bytes * repeats_of(one, self._seed).rounds for one in self._sources)

    def __iter__(self) -> Iterator[Document]:
        """Read them.

        Raises:
            UserError: names the row that cannot be read, or the source in which there is no text.
        """
        yield from self.repeated()
        yield from self.others()

    def repeated(self) -> Iterator[Document]:
        """Read those of sources with a weight above 1."""
        self.skipped = Skipped()
        for source in self._sources:
            if source.source.weight > 1:
                yield from self._of(source)

    def others(self) -> Iterator[Document]:
        """Read those that come after them: what is held out must lie among these."""
        for number, topic in enumerate(self._manual, start=1):
            yield Document(Content(topic), None, number, len(topic))
        for source in self._sources:
            if source.source.weight <= 1:
                yield from self._of(source)

    def _of(self, source: SourceFiles) -> Iterator[Document]:
        repeats, reader = repeats_of(source, self._seed), DocumentReader(source, self._chat)
        found = taken = 0
        read = 0.0
        for turn in range(repeats.rounds):
            found = 0
            for file in source.files:
                for row in FORMATS[source.source.form].rows(source, file, 0):
                    read += row.size
                    content = reader.content(row, file, self.skipped if not turn else None)
                    if not content.text:
                        continue
                    if repeats.of(found) > turn:
                        yield Document(content, file, row.number, read)
                        taken, read = taken + 1, 0.0
                    found += 1
        if not taken:
            if found:
                raise UserError(
                    f"{source.key}: weight = {source.source.weight:g} takes none of its {found} documents: raise it"
                )
            raise UserError(NO_TEXT.format(source.key, source.source.path))


class DocumentReader:
    """The way from the rows of a source to what its documents say."""

    def __init__(self, source: SourceFiles, chat: Chat | None = None) -> None:
        """Take what the source says of its rows; `chat` writes down the messages of a source that has such."""
        self._source, self._format = source, FORMATS[source.source.form]
        self._contents = ContentReader(source.source, chat)

    def content(self, row: Row | Fault, file: Path, skipped: Skipped | None = None, at: int = 0) -> Content:
        """Return what a row's document says; without text where the row is empty, or passed over.

        Args:
            skipped: where rows that are passed over are counted.
            at: byte of the file from which on it was read, for errors where the row's number is not known.

        Raises:
            UserError: the row cannot be read, and the source does not pass over such.
        """
        found = row if isinstance(row, Fault) else self.filled(row)
        if isinstance(found, Content):
            return found
        place = f"{file}{self._place(row.number, at)} {found.why}"
        if self._source.source.on_error == "stop":
            advice = "" if self._source.source.form == "text" else f": mend it, {SKIP}"
            raise UserError(f"{self._source.key}: {place}{advice}")
        if skipped is not None:
            skipped.add(found.rows, place)
        return Content("")

    def filled(self, row: Row) -> Content | Fault:
        """Return what a row's document says, or what is wrong with it."""
        try:
            return self._contents.of(row.values)
        except Unfillable as error:
            return Fault(row.number, str(error), row.size)

    def _place(self, number: int, at: int) -> str:
        unit = self._format.unit
        if not unit:
            return ""
        if number:
            return f", {unit} {number},"
        return f", a {unit} after byte {at}," if at else ","


def _manual() -> tuple[str, ...]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            'data.text: "cpython" needs the module pydoc_data, which this Python lacks: name text files instead'
        ) from None
    return tuple(topics[key] for key in sorted(topics) if topics[key])
