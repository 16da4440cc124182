"""Findings as text: grouped, a line each, and at the end the things to do."""

import sys

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dtfm_node.doctor.findings import Finding, Verdict, counted, things_to_do, worst

_MARKS = {Verdict.good: ("ok", "green"), Verdict.warn: ("warn", "yellow"), Verdict.bad: ("BAD", "bold red")}
PIPE_COLUMNS = 1000
"""Width in characters where there is no terminal: wide enough that each finding is one line."""


def show(findings: list[Finding]) -> None:
    """Print all findings and the things to do to standard output."""
    if sys.stdout.isatty():
        _show(Console(highlight=False), findings)
        return
    console = Console(highlight=False, width=PIPE_COLUMNS)
    with console.capture() as captured:
        _show(console, findings)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _show(console: Console, findings: list[Finding]) -> None:
    """Print to `console`; what comes from the network is plain text here, never markup."""
    for group in dict.fromkeys(finding.group for finding in findings):
        console.print(Text(group, style="bold"))
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, min_width=4)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            if finding.group == group:
                mark, style = _MARKS[finding.verdict]
                table.add_row(Text(mark, style=style), Text(finding.name), Text(finding.seen))
        console.print(Padding(table, (0, 0, 0, 2)))
    _show_todo(console, findings)


def _show_todo(console: Console, findings: list[Finding]) -> None:
    """Print the things to do, as the last lines, which stay in view."""
    todo = things_to_do(findings)
    console.print()
    if not todo:
        console.print(Text("nothing to do: this machine can take part", style="bold green"))
        return
    able = "this machine cannot take part yet" if worst(findings) is Verdict.bad else "this machine can take part"
    console.print(Text(f"{able}; {counted(len(todo), 'thing')} to do:", style="bold"))
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True, min_width=4)
    table.add_column(overflow="fold")
    for number, (what, asking) in enumerate(todo.items(), 1):
        names = ", ".join(dict.fromkeys(finding.name for finding in asking))
        table.add_row(f"{number}.", Text(f"{names}: ", style=_MARKS[worst(asking)][1]) + Text(what))
    console.print(table)
