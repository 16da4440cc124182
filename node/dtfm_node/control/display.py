"""Output for the person at the machine: a live line in a terminal, plain lines in a pipe, a status file for other
programs."""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dtfm_protocol.bounds import printable
from dtfm_protocol.control.messages import Phase, Report
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.process.console import console
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

LINE_SECONDS = 1.0
"""Steps that follow each other faster share a line of the log."""


class Display:
    """Display of a node's progress. Use it as a context manager."""

    def __init__(self, form: Literal["plain", "json"]) -> None:
        self._live: Live | None = None
        if form == "plain" and sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=False)
        self._state, self._text, self._phase = "joining", "", ""
        self._row: StepMetrics | None = None
        self._steps = 0
        self._last_line = 0.0

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
            self._direct_log()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._direct_log()

    @staticmethod
    def _direct_log() -> None:
        """Have log lines written above the live lines, or plainly again after them: rich exchanges `sys.stderr`."""
        for handler in log.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr)

    def _tell(self, text: str, fields: dict[str, Any]) -> None:
        """Log a line with `fields` for JSON logs, unless the live lines show the same."""
        if self._live is None:
            log.info("%s", text, extra={"fields": fields})
        self._draw()

    def note(self, text: str) -> None:
        """Log `text` as a line of its own."""
        log.info("%s", text)

    def state(self, state: str, text: str) -> None:
        """Show the node's new state (`state`, in a word) and what it does (`text`); nothing if neither has changed."""
        if (state, text) == (self._state, self._text):
            return
        self._state, self._text = state, text
        self._tell(f"{state}: {text}", {"state": state})

    def phase(self, phase: Phase) -> None:
        """Show the swarm's new phase, if it has changed."""
        if phase.text != self._phase:
            self._phase = phase.text
            self._tell(f"swarm: {phase.text}", {"phase": phase.name})

    def step(self, row: StepMetrics, steps: int) -> None:
        """Show a committed step, of `steps` that the job has."""
        self._row, self._steps = row, steps
        self._draw()
        if time.monotonic() - self._last_line >= LINE_SECONDS or row.step == steps or row.eval_loss is not None:
            self._last_line = time.monotonic()
            self._tell(row.line(steps), row.model_dump(mode="json"))

    def save(self, path: Path, report: Report, timeouts: dict[str, dict[str, float]]) -> None:
        """Write the status file that `dtfm-node status` reads; `timeouts` as `Exchange.patience` has them, in seconds
        by peer."""
        values = report.model_dump(mode="json", exclude={"rows"})
        values |= {"at": time.time(), "swarm": self._phase, "steps": self._steps, "tasks": len(asyncio.all_tasks())}
        values["timeouts"] = timeouts
        values["last"] = self._row.model_dump(mode="json") if self._row else None

        write_atomically(path, json.dumps(values, indent=1))

    def _draw(self) -> None:
        if self._live is None:
            return
        table = Table.grid(padding=(0, 2))
        table.add_row(Text("this node", style="dim"), Text(f"{self._state}: {self._text}"))
        if self._phase:
            table.add_row(Text("swarm", style="dim"), Text(self._phase))
        if self._row is not None:
            done = int(30 * self._row.step / max(1, self._steps))
            table.add_row(
                Text("training", style="dim"), Text("█" * done + "░" * (30 - done) + "  " + self._row.line(self._steps))
            )
        self._live.update(table)


def show_timeouts(timeouts: dict[str, dict[str, float]]) -> None:
    """Print how many seconds this node waits for each peer, and from which measurements that follows."""
    table = Table(
        "peer", "pulses come every", "there and back", "silent: gone after", "longest action", "stuck after",
        title="patience",
    )  # fmt: skip
    for peer, one in timeouts.items():
        gap = f"{one['gap']:.2f} +- {one['deviation']:.2f} s"
        table.add_row(
            short(printable(peer)), gap, f"{one['round_trip'] * 1e3:.0f} ms", f"{one['silence_limit']:.1f} s",
            f"{one['longest_action']:.2f} s",            f"{one['action_limit']:.0f} s",
        )  # fmt: skip
    console().print(table)
