"""Output for the person at the machine: a live line in a terminal, plain lines in a pipe, a status file for other
programs."""

import asyncio
import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dtfm_node.control.plain_words import READY, WorkShare, doing, sent, standing, swarm_does
from dtfm_protocol.bounds import printable
from dtfm_protocol.control.messages import Phase, Report
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.job.step_words import PACE_STEPS, step_in_words
from dtfm_protocol.process.console import console
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.state_dir import write_atomically

LINE_SECONDS = 1.0
"""Steps that follow each other faster share a line of the log."""
BAR_CELLS = 30


class Display:
    """Display of a node's progress, in plain words; with debug lines on, in the planner's, too. Use it as a context
    manager."""

    def __init__(self, form: Literal["plain", "json"]) -> None:
        self._live: Live | None = None
        if form == "plain" and sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=False)
        self._state, self._text, self._obstacle = "joining", "", ""
        self._phase: Phase | None = None
        self._share: WorkShare | None = None
        self._told = {"node": "", "swarm": ""}
        """What was last said of this node, and of the swarm."""
        self._row: StepMetrics | None = None
        self._steps = 0
        self.sent_bytes: Callable[[], int] = int
        """Function that returns how many bytes this node has sent to others."""
        self.coordinator_version = ""
        """Version of the coordinator's program; "": not known."""
        self.contribution = ""
        """What this node has contributed, as the coordinator has signed it, in a sentence; "": nothing yet."""
        self.option = ""
        """What commands about this node need behind their name to find its folder."""
        self.allowed = ""
        """What the person at the machine allows, in words; "": no limits."""
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS)
        self._last_line = 0.0

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
            direct_log()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            direct_log()

    def _tell(self, text: str, fields: dict[str, Any]) -> None:
        """Log a line with `fields` for JSON logs, unless the live lines show the same."""
        if self._live is None:
            log.info("%s", text, extra={"fields": fields})
        self._draw()

    def _tell_change(self, of: str, text: str, fields: dict[str, Any]) -> None:
        """Log what is said of the node or the swarm, if it is not what was said of it last."""
        if text != self._told[of]:
            self._told[of] = text
            self._tell(text, fields)

    def note(self, text: str) -> None:
        """Log `text` as a line of its own."""
        log.info("%s", text)

    def state(self, state: str, text: str) -> None:
        """Show the node's new state (`state`, in a word) and what it does (`text`); nothing if neither has changed."""
        if (state, text) == (self._state, self._text):
            return
        self._state, self._text = state, text
        if state == "idle" and self._share is None:
            self._obstacle = "" if text == READY else text
        log.debug("%s: %s", state, text)
        self._tell_change("node", self._doing(), {"state": state})

    def share(self, share: WorkShare) -> None:
        """Take the part of the work that a new plan gives to this node; the state that follows shows it."""
        self._share = share

    def phase(self, phase: Phase) -> None:
        """Show the swarm's new phase, if it has changed."""
        if self._phase is not None and (phase.name, phase.text) == (self._phase.name, self._phase.text):
            return
        had_paused = self._phase is not None and self._phase.paused
        self._phase = phase
        log.debug("swarm: %s", phase.text)
        if phase.paused or had_paused:
            self._tell_change("node", self._doing(), {"state": self._state})
        self._tell_change("swarm", f"The swarm: {swarm_does(phase)}", {"phase": phase.name})

    def step(self, row: StepMetrics, steps: int) -> None:
        """Show a committed step, of `steps` that the job has."""
        if self._row is not None and row.plan_version != self._row.plan_version:
            self._seconds.clear()  # under another plan steps take another time
        self._row, self._steps = row, steps
        self._seconds.append(row.seconds)
        self._draw()
        if time.monotonic() - self._last_line >= LINE_SECONDS or row.step == steps or row.eval_loss is not None:
            self._last_line = time.monotonic()
            told = f"{step_in_words(row, steps, self._seconds)} {sent(self.sent_bytes())}".strip()
            self._tell(told, row.model_dump(mode="json"))

    def save(self, path: Path, report: Report, timeouts: dict[str, dict[str, float]]) -> None:
        """Write the status file that `dtfm-node status` reads; `timeouts` as `Exchange.patience` has them, in seconds
        by peer."""
        values = report.model_dump(mode="json", exclude={"rows"})
        phase = self._phase.text if self._phase is not None else ""
        values |= {"at": time.time(), "swarm": phase, "steps": self._steps, "tasks": len(asyncio.all_tasks())}
        values |= {"timeouts": timeouts, "sent_bytes": self.sent_bytes(), "words": self._words()}
        values |= {"version": product_version(), "coordinator_version": self.coordinator_version}
        values["allowed"] = self.allowed
        values["last"] = self._row.model_dump(mode="json") if self._row else None
        write_atomically(path, json.dumps(values, indent=1))

    def _doing(self) -> str:
        halted = self._phase is not None and self._phase.paused
        obstacle = self._obstacle or standing(self._phase)
        return doing(self._state, self._text, self._share, obstacle, halted=halted, option=self.option)

    def _words(self) -> list[str]:
        """Return all that there is to say now, in sentences."""
        told = [self._doing()]
        if self._phase is not None and (self._row is None or self._phase.name != "training"):
            told.append(f"The swarm: {swarm_does(self._phase)}")
        if self._row is not None:
            told.append(step_in_words(self._row, self._steps, self._seconds))
        return [printable(words) for words in (*told, sent(self.sent_bytes()), self.contribution) if words]

    def _draw(self) -> None:
        if self._live is None:
            return
        table = Table.grid(padding=(0, 2))
        table.add_row(Text("your machine", style="dim"), Text(self._doing()))
        if self._state == "finished":  # this stays on the terminal: how far the training was is no news any more
            self._live.update(table)
            return
        if self._phase is not None:
            table.add_row(Text("the swarm", style="dim"), Text(swarm_does(self._phase)))
        if self._row is not None:
            part = self._row.step / max(1, self._steps)
            done = int(BAR_CELLS * part)
            bar = f"{'█' * done}{'░' * (BAR_CELLS - done)} {100 * part:.0f} %"
            table.add_row(Text("progress", style="dim"), Text(bar))
            table.add_row("", Text(step_in_words(self._row, self._steps, self._seconds)))
        if traffic := sent(self.sent_bytes()):
            table.add_row(Text("network", style="dim"), Text(traffic))
        self._live.update(table)


def direct_log() -> None:
    """Have log lines written above live lines, or plainly again after them: rich exchanges `sys.stderr`."""
    for handler in log.handlers:
        if type(handler) is logging.StreamHandler:  # not one of its kind that writes to a file
            handler.setStream(sys.stderr)


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
