"""Tables of benchmarks: printed while one looks on, and kept with the command that made them."""

from collections.abc import Sequence
from pathlib import Path

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
