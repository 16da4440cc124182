"""The outcomes of algorithms: a plan or a failure for each seed, and their summaries."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dtfm_coordinator.allocator.foundations.shapes import shape_words
from dtfm_coordinator.allocator.simulator.peer_time import TimeShares
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan

COLUMNS = (
    "algorithm", "seed", "cost", "total", "data_parallel", "pipeline", "compute", "optimizer", "layout", "schedule",
    "idle", "compute_share", "communication_share", "waiting_share", "evaluations", "seconds",
    "evaluations_per_second", "failure",
)  # fmt: skip
"""Columns of the CSV file."""

Run = Callable[[str, int, int | None], Plan]
"""A function that makes a plan by an algorithm and a seed, within so many evaluations or, if None, within the budget;
it raises `UserError` where it finds none."""
SharesOf = Callable[[Plan], TimeShares | None]
"""A function that says what the peers' time goes into in a step of a plan; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one algorithm with one seed."""

    algorithm: str
    seed: int
    plan: Plan | None
    failure: str = ""
    """The reason why there is no plan, in one line."""
    shares: TimeShares | None = None
    """What the peers' time goes into; None where that is not known."""

    @property
    def total(self) -> float:
        """Seconds by the cost model; infinite where there is no plan."""
        return math.inf if self.plan is None or self.plan.cost is None else self.plan.cost.total

    @property
    def layout(self) -> str:
        """Stages x peers of a stage, all of them where they are unlike: "3 x 2+1+1"; "" where there is no plan."""
        if self.plan is None:
            return ""
        counts = [len(self.plan.replicas(stage)) for stage in range(len(self.plan.stages))]
        return " x ".join(map(str, shape_words(counts)))

    def row(self) -> dict[str, object]:
        """Return the values of `COLUMNS`; empty text for what there is not."""
        values: dict[str, object] = dict.fromkeys(COLUMNS, "")
        values |= {"algorithm": self.algorithm, "seed": self.seed, "failure": self.failure}
        if self.plan is None or self.plan.cost is None:
            return values
        cost = self.plan.cost
        values |= {"cost": cost.kind, "total": cost.total, "data_parallel": cost.data_parallel}
        values |= {"pipeline": cost.pipeline, "evaluations": self.plan.evaluations, "seconds": self.plan.seconds}
        values |= {name: given for name in ("compute", "optimizer") if (given := getattr(cost, name)) is not None}
        values |= {"layout": self.layout, "idle": len(self.plan.idle)}
        if cost.kind == "makespan":  # the paper's cost knows no schedule
            values["schedule"] = self.plan.schedule
        if self.shares is not None:
            values |= {f"{name}_share": share for name, share in self.shares._asdict().items()}
        if self.plan.evaluations and self.plan.seconds:
            values["evaluations_per_second"] = self.plan.evaluations / self.plan.seconds
        return values


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of one algorithm over its seeds, in seconds. Runs that failed count in `failures` alone."""

    algorithm: str
    runs: int
    failures: int
    failure: str
    """The reason for which the first failed run had no plan; "" where none failed."""
    best: Outcome | None
    """The outcome with the fewest seconds; None where every run failed."""
    mean: float
    """Mean seconds by the cost model; infinite where every run failed."""
    deviation: float
    """Standard deviation of those seconds, of a sample; 0 of a single run."""
    least: float
    most: float
    rate: float
    """Evaluations a second."""
    seconds: float
    """Mean seconds that a run took."""


def outcomes(
    algorithms: Iterable[str],
    seeds: Sequence[int],
    run: Run,
    shares_of: SharesOf = lambda plan: None,
    done: Callable[[], object] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Run each algorithm with each seed; one that finds no plan is an outcome, too.

    Args:
        done: a function that is called after each run.
        stop: whether to end with the runs that are done; the one under way is left out, as its search was not whole.

    Raises:
        UserError: no algorithm finds any plan; it says what the first one said.
    """
    found: list[Outcome] = []
    for algorithm in algorithms:
        for seed in seeds:
            try:
                plan = run(algorithm, seed, None)
                outcome = Outcome(algorithm, seed, plan, shares=None if stop() else shares_of(plan))
            except UserError as error:
                outcome = Outcome(algorithm, seed, None, " ".join(str(error).split()))
            if stop():
                return found
            found.append(outcome)
            done()
    if found and all(outcome.plan is None for outcome in found):
        raise UserError(found[0].failure)
    return found


def summaries(found: Sequence[Outcome]) -> list[Summary]:
    """Summarise each algorithm, in the order in which they ran."""
    return [
        _summary(algorithm, [outcome for outcome in found if outcome.algorithm == algorithm])
        for algorithm in dict.fromkeys(outcome.algorithm for outcome in found)
    ]


def _summary(algorithm: str, found: Sequence[Outcome]) -> Summary:
    placed = [outcome for outcome in found if math.isfinite(outcome.total)]
    rows, totals = [outcome.row() for outcome in placed], [outcome.total for outcome in placed]

    def mean(column: str) -> float:
        given = [value for row in rows if isinstance(value := row[column], int | float)]
        return fmean(given) if given else math.nan

    return Summary(
        algorithm=algorithm,
        runs=len(found),
        failures=len(found) - len(totals),
        failure=next((outcome.failure for outcome in found if outcome.failure), ""),
        best=min(placed, key=lambda outcome: outcome.total, default=None),
        mean=fmean(totals) if totals else math.inf,
        deviation=stdev(totals) if len(totals) > 1 else 0.0,
        least=min(totals, default=math.inf),
        most=max(totals, default=math.inf),
        rate=mean("evaluations") / mean("seconds") if mean("seconds") > 0 else math.nan,
        seconds=mean("seconds"),
    )


def as_csv(found: Sequence[Outcome]) -> str:
    """Format a header, and a row for each outcome, as CSV."""
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(outcome.row() for outcome in found)
    return written.getvalue()
