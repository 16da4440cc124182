"""Screen of several devices: a line for what each of them does."""

import json
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dtfm_protocol.bounds import printable


def words_of(folder: Path, since: float = 0.0) -> str:
    """Return what the node of a state folder does, as its status file says; "": it has said nothing.

    Args:
        folder: its state folder.
        since: Unix seconds before which a file is an earlier life's.
    """
    try:
        values = json.loads((folder / "status.json").read_bytes())
        if values["at"] < since:
            return ""
        return " ".join(printable(str(words)) for words in values["words"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def screen(lines: Mapping[str, str]) -> Table:
    """Return a table with a line for each device, by its name."""
    table = Table.grid(padding=(0, 2))
    for name, words in lines.items():
        table.add_row(Text(name, style="bold"), Text(words))
    return table
