"""Rows of a source's files: what each holds, or what is wrong with it."""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, a line of JSON, or a whole file of text."""

    number: int
    """Place in its file, from 1; 0 where rows were passed over unread, so that it is not known."""
    values: Mapping[str, Any]
    """What it holds, by column."""
    size: float
    """Bytes of the file that it takes."""


class Cut(NamedTuple):
    """A part of a file that is read by itself: what `begin` and `end` count is its format's own matter."""

    begin: int
    end: int | None
    """None: all that is left."""
    bytes: float
    """Bytes of the file that it takes, about."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that cannot be read."""

    number: int
    """Place in its file, from 1; 0: not known."""
    why: str
    """What is wrong with it, in a few words."""
    size: float
    """Bytes of the file that it takes."""
    rows: int = 1
    """Number of rows that are lost with it."""
    is_end: bool = False
    """Whether nothing that comes after it in its file can be read."""


Rows = Generator[Row | Fault, None, int]
"""Rows of a file or of a part of it, in order, read a few at a time; it returns how many they were, the empty
ones among them."""


def counted(rows: Iterator[Row | Fault]) -> Rows:
    """Hand on rows, and return how many they were."""
    count = 0
    for row in rows:
        count = max(count, row.number)
        yield row
    return count
