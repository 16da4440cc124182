"""The tables of a comparison, for people: what each algorithm found, and where a step of its best plan goes."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dtfm_lab.compare.algorithm_outcomes import Outcome, Summary, summaries

LONGEST_LAYOUT = 24
"""Characters of a layout, beyond which its stages are told by the fewest and the most peers of one."""


def show(out: Console, found: Sequence[Outcome]) -> None:
    """Print the tables, and a line for each algorithm that failed somewhere."""
    rows = summaries(found)
    out.print(_seconds_table(rows, min((outcome.total for outcome in found), default=math.inf)))
    placed = [row.best for row in rows if row.best is not None]
    if placed:
        out.print(_plan_table(placed))
    for row in rows:
        if row.failures:
            out.print(f"{row.algorithm}, {row.failures} of {row.runs} runs: {row.failure}", soft_wrap=True)


def _seconds_table(rows: Sequence[Summary], best: float) -> Table:
    """Return the table of seconds over all seeds."""
    table = Table("algorithm", title="a step's seconds, over the seeds", title_justify="left")
    for name in ("mean s", "± s", "least - most s", "mean / best", "evaluations/s", "search s"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.best is None:
            table.add_row(row.algorithm, "no placement", *[""] * 5)
            continue
        ratio = f"{row.mean / best:.3f}" if best > 0 else ""
        rate = "" if math.isnan(row.rate) else f"{row.rate:.0f}"
        table.add_row(
            row.algorithm + (f" ({row.failures} of {row.runs} failed)" if row.failures else ""),
            figures(row.mean), figures(row.deviation), f"{figures(row.least)} - {figures(row.most)}", ratio,
            rate, figures(row.seconds),
        )  # fmt: skip
    return table


def _plan_table(placed: Sequence[Outcome]) -> Table:
    """Return the table of each algorithm's best plan, whose time is the peers' where that is known."""
    by_step = any(outcome.shares is not None for outcome in placed)
    title = "the best plan of each" + (", and what its peers' time goes into" if by_step else "")
    table = Table("algorithm", "stages x peers", title=title, title_justify="left")
    table.add_column("idle", justify="right")
    if by_step:
        table.add_column("schedule")
    for name in ("computes", "messages", "waits") if by_step else ("data parallel s", "pipeline s"):
        table.add_column(name, justify="right")
    for outcome in placed:
        plan = outcome.plan
        assert plan is not None
        assert plan.cost is not None
        cells = [outcome.algorithm, layout_words(outcome), str(len(plan.idle))]
        if not by_step:
            cells += [figures(plan.cost.data_parallel), figures(plan.cost.pipeline)]
        else:
            shares = outcome.shares
            cells += [plan.schedule, *(("",) * 3 if shares is None else (f"{100 * share:.0f} %" for share in shares))]
        table.add_row(*cells)
    return table


def layout_words(outcome: Outcome) -> str:
    """Return an outcome's layout; one of many unlike stages by the fewest and the most peers of a stage."""
    if outcome.plan is None or len(outcome.layout) <= LONGEST_LAYOUT:
        return outcome.layout
    counts = [len(outcome.plan.replicas(stage)) for stage in range(len(outcome.plan.stages))]
    return f"{len(counts)} x {min(counts)} to {max(counts)}"


def figures(value: float) -> str:
    """Format a number to four figures, without an exponent."""
    if 0 < value < 1e-3:
        return f"{value:.6f}"
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
