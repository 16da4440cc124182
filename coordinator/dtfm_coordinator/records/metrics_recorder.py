"""Recorder of metrics: writes down each step once, as the peers that train report it."""

import logging
import time
from collections import deque
from collections.abc import Callable

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.job.step_words import PACE_STEPS, step_in_words
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log

LOST_STEPS = 5
"""Number of steps under a plan after which those before it, if no peer has reported them, count as lost."""
SHOW_SECONDS = ((60.0, 2.0), (1800.0, 30.0))
"""Until so many seconds after the first step that was shown, steps that follow each other faster than the second number
of seconds share a line of the log: whoever begins a run looks at it, and a log of weeks is to be read, too."""
LATER_SHOW_SECONDS = 300.0
"""The same from then on."""


def show_seconds(age: float) -> float:
    """Return the seconds between two lines of the log about steps.

    Args:
        age: seconds since the first line.
    """
    return next((each for until, each in SHOW_SECONDS if age < until), LATER_SHOW_SECONDS)


class MetricsRecorder:
    """Writer of `metrics.jsonl`: the rows on disk are those that lead to the state of the plan in force."""

    def __init__(
        self,
        rows: MetricsFile,
        plan: Callable[[], Plan | None],
        steps: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a recorder of a job.

        Args:
            rows: the file.
            plan: returns the plan in force, None before the first.
            steps: returns the number of the job's last step.
            clock: gives seconds, for the log.
        """
        self.rows = rows
        self._plan, self._steps, self._clock = plan, steps, clock
        self._lost_up_to = 0
        """Last step whose metrics count as lost: no peer may be left that knows them."""
        self._first_shown: float | None = None
        self._shown, self._shown_plan = 0.0, 0
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS)

    def record(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down those of `rows` that continue the history."""
        steps = self._steps()
        try:
            recorded = [
                row
                for row in rows
                if row.step <= steps
                and self._is_valid(row.plan_version, row.step)
                and self.rows.append(row, self._lost_up_to)
            ]
        except UserError as error:
            log.warning("%s: peers keep what they have measured until there is room", error)
            return
        if recorded:
            self._show(recorded)

    def record_for_good(self, rows: tuple[StepMetrics, ...]) -> None:
        """Write down the rows that lead to a checkpoint, past the operating system's buffers, as the checkpoint will
        be."""
        self.record(rows)
        self.rows.sync()

    def reached(self, plan: Plan, step: int) -> None:
        """Note that a peer has come to `step` under `plan`: rows from before the plan that are missing by now count as
        lost."""
        if step > plan.resume.mark.step + LOST_STEPS > self.rows.last + LOST_STEPS:
            # Training has gone on for a while, and nobody has brought the rows up to where this plan began.
            log.warning("The losses of steps %d to %d are lost.", self.rows.last + 1, plan.resume.mark.step)
            self._lost_up_to = plan.resume.mark.step

    def _is_valid(self, plan_version: int, step: int) -> bool:
        """Whether a row belongs to the steps that lead to the present state."""
        plan = self._plan()
        return plan is not None and (plan_version == plan.version or step <= plan.resume.mark.step)

    def _show(self, rows: list[StepMetrics]) -> None:
        """Log how training goes: now and then the newest step, and always the last one, the first of a plan, and every
        evaluation."""
        steps = self._steps()
        for row in rows:
            self._seconds.append(row.seconds)
            if row.eval_loss is not None or (row is rows[-1] and self._is_due(row, steps)):
                self._shown, self._shown_plan = self._clock(), row.plan_version
                if self._first_shown is None:
                    self._first_shown = self._shown
                log.info("%s", step_in_words(row, steps, self._seconds), extra={"fields": row.model_dump(mode="json")})

    def _is_due(self, row: StepMetrics, steps: int) -> bool:
        if self._first_shown is None or row.step == steps or row.plan_version != self._shown_plan:
            return True
        now = self._clock()
        age = 0.0 if log.isEnabledFor(logging.DEBUG) else now - self._first_shown
        return now - self._shown >= show_seconds(age)
