"""Rows of a source's files: what each holds, or what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, a line of JSON, or a whole file of text."""

    number: int
    """Place in its file, from 1; 0 where rows were passed over unread, so that it is not known."""
    values: Mapping[str, Any]
    """What it holds, by column."""
    size: float
    """Bytes of the file that it takes."""


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
