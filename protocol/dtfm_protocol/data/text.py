"""Text files: each a document, in UTF-8."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from dtfm_protocol.data.not_text import HEAD_BYTES, looks_like, other_beginning
from dtfm_protocol.data.rows import Cut, Fault, Row, Rows
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.errors import UserError

PIECE_BYTES = 1 << 16
"""Bytes of the piece of a file that a sample has of it."""


class NotText(Exception):
    """The report that bytes are no text, and what to do about it."""


def text_file(source: SourceFiles, file: Path, at: int = 0) -> Rows:
    """Read a text file as one row, whose column is "text"; line ends stay as they are.

    Args:
        at: the byte from which on it is read.

    Raises:
        UserError: the file is out of reach.
    """
    yield _row(source, file, _bytes_of(source, file, at), at, is_cut=False)
    return 1


def uncut(source: SourceFiles, file: Path) -> list[Cut]:
    """Cut nothing: a text file is one document, and of a stream each row comes after the one before."""
    return [Cut(0, None, source.bytes_of(file))]


def cut_of_text(source: SourceFiles, file: Path, _: Cut) -> Rows:
    """Read all of a text file."""
    return text_file(source, file)


def text_piece(source: SourceFiles, file: Path, at: int, size: int = PIECE_BYTES) -> Iterator[Row | Fault]:
    """Read up to `size` bytes of a text file from byte `at` on, without the parts of characters at both ends.

    Raises:
        UserError: the file is out of reach.
    """
    yield _row(source, file, _bytes_of(source, file, at, size), at, is_cut=True)


def decoded(data: bytes, at: int = 0, *, is_cut: bool = False) -> str:
    """Return what the bytes of a text file say.

    Args:
        data: bytes of the file from byte `at` on.
        is_cut: whether the last character of them may go on after them; then it is left out.

    Raises:
        NotText: they are not UTF-8, have a byte that is zero, or begin as another form does.
    """
    looks = "" if at or not (kind := looks_like(data)) else f", it looks like {kind}"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, not is_cut)
    except UnicodeDecodeError as error:
        raise NotText(f"is not UTF-8 (byte {at + error.start}){looks}: convert it or leave it out") from None
    if (zero := data.find(b"\0")) >= 0:
        raise NotText(f"is not text (byte {at + zero} is zero){looks}: leave it out")
    if looks:
        raise NotText(f"is not text{looks}: convert it or leave it out")
    return text


def _row(source: SourceFiles, file: Path, data: bytes, at: int, *, is_cut: bool) -> Row | Fault:
    begin = 0
    while at and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:  # a character that began before
        begin += 1
    # Who names a file in `sources` as text may mean lines of JSON as they are.
    if not at and source.key == "data.text" and (why := other_beginning(str(file), data[:HEAD_BYTES])):
        return Fault(0, why, len(data))
    try:
        return Row(1, {"text": decoded(data[begin:], at + begin, is_cut=is_cut)}, len(data))
    except NotText as error:
        return Fault(0, str(error), len(data))


def _bytes_of(source: SourceFiles, file: Path, at: int = 0, size: int = -1) -> bytes:
    """Return the bytes of a file from byte `at` on; at most `size`, if that is not negative."""
    try:
        with file.open("rb") as stream:
            stream.seek(at)
            return stream.read(size)
    except OSError as error:
        raise UserError(f"{source.key}: cannot read {file}: {error.strerror}") from None
