"""Template of a document: text with the names of columns in braces, which a row fills in (pure)."""

from collections.abc import Mapping
from string import Formatter
from typing import Any

_HOW = 'name columns as in "{question} {answer}", and write {{ and }} for braces'
_KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
"""What values are, in words."""


class Unfillable(Exception):
    """The report that a row cannot fill a template in, in a few words."""


def template_parts(template: str) -> tuple[tuple[str, str | None], ...]:
    """Return what a template like "{question}\\n{answer}" is put together from: texts, each with the column that comes
    after it; None: none does.

    Raises:
        ValueError: a brace stands alone, there is no name or more than a name between two, or no column at all.
    """
    try:
        parts = tuple(Formatter().parse(template))
    except ValueError:
        raise ValueError(f"template: {template!r} has a brace that stands alone: {_HOW}") from None
    if any(name == "" or spec or conversion for _, name, spec, conversion in parts):
        raise ValueError(f"template: {template!r} has more or less than a name in braces: {_HOW}")
    if all(name is None for _, name, _, _ in parts):
        raise ValueError(f"template: {template!r} names no column: {_HOW}")
    return tuple((literal, name) for literal, name, _, _ in parts)


class DocumentTemplate:
    """The way from a row to its document: one column's text as it is, or a template that several fill in."""

    def __init__(self, column: str | None, template: str | None) -> None:
        """Take the one that is given; without either, the column "text".

        Raises:
            ValueError: the template is none.
        """
        self._parts = template_parts(template) if template is not None else (("", column or "text"),)
        self._is_column = template is None
        self.columns = tuple(dict.fromkeys(name for _, name in self._parts if name is not None))
        """Names of the columns that it needs, each once."""

    def fill(self, row: Mapping[str, Any]) -> str:
        """Return the document that a row makes. In a template, numbers are written as Python writes them.

        Raises:
            Unfillable: the row lacks a column, or has something else there.
        """
        return "".join(literal + ("" if name is None else self._text(row, name)) for literal, name in self._parts)

    def _text(self, row: Mapping[str, Any], name: str) -> str:
        if name not in row:
            there = ", ".join(list(map(str, row))[:8])
            raise Unfillable(f'has no "{name}"' + (f", only {there}" if there else ""))
        value = row[name]
        if isinstance(value, str):
            return value
        if not self._is_column and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        what = "empty (null)" if value is None else _KINDS.get(type(value), "of another kind")
        raise Unfillable(f'has no text in "{name}", which is {what}')
