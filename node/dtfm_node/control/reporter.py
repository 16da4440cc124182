"""Report of this node to the coordinator: its state, its progress, and the metrics rows that are not confirmed yet.

A node that pauses says so, and then only that it is still there.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dtfm_node.control.display import Display
from dtfm_node.control.plain_words import WorkShare
from dtfm_protocol.control.messages import REPORT, ProbeResult, Report
from dtfm_protocol.control.mqtt import ControlPlane
from dtfm_protocol.discovery.records import MOST_NEIGHBOURS
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.view.link_matrix import LEAST, MOST

ROWS_A_REPORT = 100
MOST_RESULTS = 32
"""Results of measurements that wait to be sent: more than come while one report is on its way."""


class Reporter:
    """Sender of this node's report: at once when its state changes, else every second."""

    def __init__(self, session: str, status_file: Path, display: Display) -> None:
        self._report = Report(session=session, state="measuring")
        self._status_file, self._display = status_file, display
        self._rows: dict[int, StepMetrics] = {}
        self._due = asyncio.Event()
        self._results: deque[ProbeResult] = deque(maxlen=MOST_RESULTS)
        """What was measured and has not been sent, the oldest first."""
        self._paused = ""
        """Why this node pauses, in words for people; "": it does not."""
        self.traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Function that returns the bytes that this node has sent to others and received from them so far."""
        self.sent_gbps: Callable[[], dict[str, float]] = dict
        """Function that returns the Gbit/s at which frames go now, by peer id, to those to which the way is busy."""
        self.timeouts: Callable[[], dict[str, dict[str, float]]] = dict
        """Function that returns by peer id how patient this node is with each peer, in seconds for the status file."""

    def say(self, state: Any, text: str, **values: Any) -> None:
        """Change the state, and send the report now; `values` are further fields of it."""
        self.note(state=state, text=text, **values)
        if not self._paused:
            self._display.state(state, text)
        self._due.set()

    def pause(self, why: str) -> None:
        """Report from now on that this node pauses, and seldom; what else is said meanwhile is said after that."""
        self._paused = why
        self._display.state("paused", why)
        self._due.set()

    def end_pause(self) -> None:
        """Report again what this node does; nothing if it does not pause."""
        if not self._paused:
            return
        self._paused = ""
        self._display.state(self._report.state, self._report.text)
        self._due.set()

    def note(self, **values: Any) -> None:
        """Change fields of the report, which the next report sends."""
        self._report = self._report.model_copy(update=values)

    def measured(self, result: ProbeResult) -> None:
        """Send what was measured with the next report, or the one after that where another result has yet to be sent:
        two may come at once."""
        self._results.append(result)
        self.note(probed=self._results[0])
        self._due.set()

    def given(self, share: WorkShare) -> None:
        """Take the part of the work that a plan gives to this node, for the person at the machine."""
        self._display.share(share)

    def committed(self, row: StepMetrics, steps: int) -> None:
        """Add the row of a committed step; it is sent with each report until the coordinator has recorded it."""
        self._rows[row.step] = row
        self.note(step=row.step)
        self._display.step(row, steps)

    def remember(self, rows: Iterable[StepMetrics]) -> None:
        """Add the rows that an earlier process of this daemon had not seen confirmed."""
        self._rows = {row.step: row for row in rows} | self._rows

    def hurry(self) -> None:
        """Send the report now."""
        self._due.set()

    def forget(self, *, recorded: int = 0, after: int | None = None) -> None:
        """Drop the rows up to step `recorded`, and, where the swarm goes back to step `after`, those of later steps."""
        self._rows = {
            step: row for step, row in self._rows.items() if step > recorded and (after is None or step <= after)
        }

    def unconfirmed(self) -> tuple[StepMetrics, ...]:
        """Return the rows that the coordinator has not recorded, as far as this node knows, by step."""
        return tuple(self._rows[step] for step in sorted(self._rows))

    async def send(self, control: ControlPlane) -> None:
        """Send the report once, and write the status file."""
        result = self._results[0] if self._results else None
        await control.publish(REPORT, self._now().model_copy(update={"rows": self.unconfirmed()[:ROWS_A_REPORT]}))
        if result is not None and self._results and self._results[0] is result:
            self._results.popleft()
            if self._results:
                self.note(probed=self._results[0])
                self._due.set()
        self.save()

    def _now(self) -> Report:
        """Return the report, without rows, as it is said now."""
        sent, received = self.traffic()
        paused = {"state": "paused", "text": self._paused} if self._paused else {}
        return self._report.model_copy(
            update={"sent_bytes": sent, "received_bytes": received, **paused, **self._rates()}
        )

    def _rates(self) -> dict[str, Any]:
        """Return what is told of links on which frames are under way."""
        bounded = sorted(self.sent_gbps().items())[:MOST_NEIGHBOURS]
        return {"sent_gbps": {peer: min(MOST, max(4 * LEAST, gbps)) for peer, gbps in bounded}}

    def save(self) -> None:
        """Write the status file."""
        try:
            self._display.save(self._status_file, self._now(), self.timeouts())
        except UserError as error:
            log.warning("%s", error)

    async def run(self, control: ControlPlane) -> None:
        """Send the report again and again until cancelled."""
        while True:
            self._due.clear()
            await self.send(control)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUTS.report_paused if self._paused else TIMEOUTS.report):
                    await self._due.wait()
