"""Tables of benchmarks: printed while one looks on, and kept with the command that made them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(*headings, title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def markdown(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A heading and a table."""
    lines = [" | ".join(row) for row in (headings, ["---"] * len(headings), *rows)]
    return f"## {title}\n\n" + "".join(f"| {line} |\n" for line in lines)


def keep(path: Path | None, title: str, command: str, parts: Sequence[str]) -> None:
    """Write a results file, if there is a path."""
    if path is not None:
        path.write_text(f"# {title}\n\nCommand: `{command}`.\n\n" + "\n".join(parts), encoding="utf-8")


def values_with(path: Path | None, key: str, value: Any) -> dict[str, Any]:
    """The values beside a table (JSON, by key), with this one, which replaces an older one of its key.

    A table whose parts take long is made part by part, and some of them anew.
    """
    if path is None:
        return {key: value}
    beside = path.with_suffix(".json")
    values: dict[str, Any] = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    values = dict(sorted({**values, key: value}.items(), key=lambda item: (len(item[0]), item[0])))
    beside.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return values
