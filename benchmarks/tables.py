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


def values(path: Path | None) -> dict[str, Any]:
    """The values that lie beside a table (JSON, by key), if there are any."""
    beside = path.with_suffix(".json") if path is not None else None
    return json.loads(beside.read_text(encoding="utf-8")) if beside is not None and beside.exists() else {}


def values_with(path: Path | None, key: str, value: Any) -> dict[str, Any]:
    """The values beside a table (JSON, by key), with this one, which replaces an older one of its key.

    A table whose parts take long is made part by part, and some of them anew.
    """
    merged = dict(sorted({**values(path), key: value}.items(), key=lambda item: (len(item[0]), item[0])))
    if path is not None:
        path.with_suffix(".json").write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    return merged
