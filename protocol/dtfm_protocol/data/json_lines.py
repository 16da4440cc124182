"""JSON lines: files with an object of JSON on each line, read a line at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dtfm_protocol.data.rows import Fault, Row
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import bytes_in_words

LONGEST_LINE = 64 << 20
"""Bytes of the longest line that is read: a file without line ends must not fill the memory."""


def json_lines(source: SourceFiles, file: Path, at: int = 0, longest: int = LONGEST_LINE) -> Iterator[Row | Fault]:
    """Read the objects of a file; empty lines are passed over.

    Args:
        at: the byte from which on lines that begin there are read; their numbers are then not known.
        longest: bytes of the longest line that is read.

    Raises:
        UserError: the file is out of reach.
    """
    try:
        with file.open("rb") as stream:
            if at:
                stream.seek(at - 1)
                _pass_over(stream, longest)
            number = size = 0
            while line := stream.readline(longest + 1):
                number += 1
                size += len(line)
                if len(line) > longest:
                    why = f"is longer than {bytes_in_words(longest)}: write one object a line"
                    rest = 0 if line.endswith(b"\n") else _pass_over(stream, longest)
                    yield Fault(0 if at else number, why, size + rest)
                elif line.strip():
                    found = _read(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
                    where = 0 if at else number
                    yield Fault(where, found, size) if isinstance(found, str) else Row(where, found, size)
                else:
                    continue
                size = 0
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
