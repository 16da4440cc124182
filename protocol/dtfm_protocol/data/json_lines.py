"""JSON lines: files with an object of JSON on each line, read a line at a time."""

import json
from pathlib import Path
from typing import Any, BinaryIO

from dtfm_protocol.data.rows import Cut, Fault, Row, Rows
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import bytes_in_words

CUT_BYTES = 4 << 20
"""Bytes of a part of a file that is read by itself: some seconds of work at most, which are lost where it is broken
off."""
LONGEST_LINE = 64 << 20
"""Bytes of the longest line that is read: a file without line ends must not fill the memory."""


def cut_of_lines(source: SourceFiles, file: Path, cut: Cut) -> Rows:
    """Read the lines of a cut.

    Raises:
        UserError: the file is out of reach.
    """
    return json_lines(source, file, cut.begin, end=cut.end)


def cut_lines(source: SourceFiles, file: Path) -> list[Cut]:
    """Cut a file into runs of lines that begin within `CUT_BYTES`."""
    total, size = source.bytes_of(file), CUT_BYTES
    return [Cut(begin, min(begin + size, total), min(size, total - begin)) for begin in range(0, total, size)]


def json_lines(
    source: SourceFiles, file: Path, at: int = 0, longest: int = LONGEST_LINE, *, end: int | None = None
) -> Rows:
    """Read the objects of a file; empty lines are passed over, and counted.

    Args:
        at: the byte from which on lines that begin there are read; their numbers are then not known.
        end: the byte before which the last of them begins, then they are counted from the first one read; None: all
            that come.
        longest: bytes of the longest line that is read.

    Raises:
        UserError: the file is out of reach.
    """
    try:
        is_counted = not at or end is not None
        with file.open("rb") as stream:
            if at:
                stream.seek(at - 1)
                at += _pass_over(stream, longest) - 1
            number = size = 0
            while (end is None or at < end) and (line := stream.readline(longest + 1)):
                number += 1
                size += len(line)
                at += len(line)
                if len(line) > longest:
                    why = f"is longer than {bytes_in_words(longest)}: write one object a line"
                    rest = 0 if line.endswith(b"\n") else _pass_over(stream, longest)
                    at += rest
                    yield Fault(number if is_counted else 0, why, size + rest)
                elif line.strip():
                    found = _read(line.removeprefix(b"\xef\xbb\xbf") if at == len(line) else line)
                    where = number if is_counted else 0
                    yield Fault(where, found, size) if isinstance(found, str) else Row(where, found, size)
                else:
                    continue
                size = 0
            return number
    except OSError as error:
        raise UserError(f"{source.key}: cannot read {file}: {error.strerror}") from None


def _pass_over(stream: BinaryIO, at_once: int) -> int:
    """Read to the next end of a line; return the bytes that were passed over."""
    passed = 0
    while line := stream.readline(at_once):
        passed += len(line)
        if line.endswith(b"\n"):
            break
    return passed


def _read(line: bytes) -> dict[str, Any] | str:
    """Return the object on a line, or what is wrong with it."""
    try:
        found = json.loads(line.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {error.start} of it)"
    except json.JSONDecodeError as error:
        return f"is not JSON ({error.msg}, character {error.colno})"
    except (ValueError, RecursionError):
        return "is JSON beyond reading (a number too long, or nested too deeply)"
    return found if isinstance(found, dict) else "is no object of JSON"
