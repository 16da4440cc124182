"""The console on which commands print tables for people."""

from rich.console import Console

NARROWEST = 132
"""Columns that a table has at least, where it goes to a file or a pipe."""


def console(*, to_stderr: bool = False) -> Console:
    """Return the console on which tables are printed: names are not markup, and a pipe gets whole lines."""
    made = Console(highlight=False, markup=False, emoji=False, stderr=to_stderr)
    if not made.is_terminal:
        made.width = max(made.width, NARROWEST)
    return made
