"""History of a run's steps for people: totals, the newest steps, and curves of a bounded number of points."""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pydantic import ValidationError

from dtfm_coordinator.records.growing_file import GrowingFile
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.job.step_words import usual_seconds

RECENT = 32
"""Newest steps of which the usual seconds, and tokens a second, are told."""
LATELY = 8
"""Newest steps of which the median is the loss of late: one batch that is harder than others says nothing."""
POINTS = 1000
"""Points that a curve has at most; of more steps, as many follow each other as one point needs."""


class PlanWork(NamedTuple):
    """Work that was done under one plan, as far as it still counts."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first: int = 0
    """First of its steps."""
    last: int = 0
    """Last of its steps."""


class CurvePoint(NamedTuple):
    """Means over some steps that follow each other."""

    step: int
    """The last of them."""
    loss: float
    tokens_per_second: float
    seconds: float
    """Seconds of a step."""
    predicted_seconds: float | None
    """What plans said that a step would take; None where they said nothing."""


@dataclass
class _Bucket:
    """Sums over the steps of one point."""

    last: int = 0
    steps: int = 0
    loss: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    predicted: float = 0.0
    predictions: int = 0

    def add(self, other: "_Bucket") -> None:
        self.last = other.last
        self.steps += other.steps
        self.loss += other.loss
        self.tokens += other.tokens
        self.seconds += other.seconds
        self.predicted += other.predicted
        self.predictions += other.predictions

    @property
    def point(self) -> CurvePoint:
        return CurvePoint(
            self.last,
            self.loss / self.steps,
            self.tokens / max(self.seconds, 1e-9),
            self.seconds / self.steps,
            self.predicted / self.predictions if self.predictions else None,
        )


class StepHistory:
    """History of a run's steps, of bounded size however long the run is. Follow `metrics.jsonl` with `take_up`."""

    def __init__(self, path: Path, points: int = POINTS) -> None:
        """Read nothing before `take_up`.

        Args:
            path: the file of metrics.
            points: points that a curve has at most; an even number.
        """
        self._file, self._points = GrowingFile(path), points
        self._clear()

    def _clear(self) -> None:
        self.last: StepMetrics | None = None
        """The newest step; None: there is none."""
        self.recent: deque[StepMetrics] = deque(maxlen=RECENT)
        self._losses: deque[float] = deque(maxlen=LATELY)
        """Losses of the newest steps that had targets."""
        self.work: dict[int, PlanWork] = defaultdict(PlanWork)
        """Work by the version of the plan."""
        self.tokens = 0
        """Tokens of all steps."""
        self.lowest: tuple[float, int] | None = None
        """Lowest loss of late so far, and the step at which that was; None: there are too few steps."""
        self.evaluated: StepMetrics | None = None
        """The newest step with an evaluation."""
        self.stride = 1
        """Steps of one point of the curve."""
        self._buckets = list[_Bucket]()
        self._evaluation_stride, self._evaluations = 1, list[tuple[int, float]]()
        self._evaluations_seen = 0
        self._is_torn = False

    def take_up(self) -> bool:
        """Read what was written since the last time; return whether anything has changed."""
        is_new, lines = self._file.look()
        if is_new:
            self._clear()
        self.take(_rows(lines))
        return is_new or bool(lines)

    def take(self, rows: Iterable[StepMetrics | None]) -> None:
        """Take further rows; after one that is none (None), or out of order, nothing counts until the file is mended,
        as for whoever writes it."""
        for row in rows:
            if row is None or (self.last is not None and row.step <= self.last.step):
                self._is_torn = True
            if not self._is_torn and row is not None:
                self._take(row)

    def _take(self, row: StepMetrics) -> None:
        self.last = row
        self.recent.append(row)
        if row.tokens:
            self._losses.append(row.loss)
        lately = self.lately
        if lately is not None and (self.lowest is None or lately < self.lowest[0]):
            self.lowest = lately, row.step
        before = self.work[row.plan_version]
        self.work[row.plan_version] = PlanWork(
            before.steps + 1,
            before.tokens + row.tokens,
            before.seconds + row.seconds,
            before.first or row.step,
            row.step,
        )
        self.tokens += row.tokens
        predicted = row.predicted_seconds
        bucket = _Bucket(
            row.step, 1, self.loss or 0.0, row.tokens, row.seconds, predicted or 0.0, int(predicted is not None)
        )
        if self._buckets and self._buckets[-1].steps < self.stride:
            self._buckets[-1].add(bucket)
        else:
            self._buckets.append(bucket)
        if len(self._buckets) > self._points:
            self.stride *= 2
            for first, second in zip(self._buckets[::2], self._buckets[1::2], strict=False):
                first.add(second)
            self._buckets = self._buckets[::2]
        if row.eval_loss is not None:
            self._evaluate(row, row.eval_loss)

    def _evaluate(self, row: StepMetrics, loss: float) -> None:
        self.evaluated = row
        if self._evaluations_seen % self._evaluation_stride == 0:
            self._evaluations.append((row.step, loss))
        self._evaluations_seen += 1
        if len(self._evaluations) > self._points:
            self._evaluation_stride *= 2
            self._evaluations = self._evaluations[::2]

    @property
    def loss(self) -> float | None:
        """The loss of the newest step that had targets; None before the first."""
        return self._losses[-1] if self._losses else None

    @property
    def lately(self) -> float | None:
        """The loss of late; None where there are too few steps."""
        return median(self._losses) if len(self._losses) == LATELY else None

    @property
    def step_seconds(self) -> float | None:
        """The usual seconds of a step of late; None before the first."""
        return usual_seconds([row.seconds for row in self.recent]) if self.recent else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second of late; None before the first step."""
        seconds = sum(row.seconds for row in self.recent)
        return sum(row.tokens for row in self.recent) / max(seconds, 1e-9) if self.recent else None

    @property
    def curve(self) -> list[CurvePoint]:
        """Training's curve, from the first step to the last."""
        return [bucket.point for bucket in self._buckets]

    @property
    def evaluations(self) -> list[tuple[int, float]]:
        """Steps and losses of evaluations, with the newest one."""
        found = list(self._evaluations)
        if self.evaluated is not None and self.evaluated.eval_loss is not None and found[-1][0] != self.evaluated.step:
            found.append((self.evaluated.step, self.evaluated.eval_loss))
        return found


def _rows(lines: Iterable[bytes]) -> Iterable[StepMetrics | None]:
    for line in lines:
        try:
            yield StepMetrics.model_validate_json(line)
        except ValidationError:
            yield None
