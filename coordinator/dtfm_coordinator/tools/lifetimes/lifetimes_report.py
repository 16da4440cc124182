"""Report of a run in virtual time, as tables for people and as rows."""

import csv
import io

from rich.console import Console
from rich.table import Table

from dtfm_coordinator.allocator.foundations.shapes import shape_words
from dtfm_coordinator.tools.formatting import amount, duration, percent, seconds
from dtfm_coordinator.tools.lifetimes.lived_run import Lived, PlanBegun
from dtfm_protocol.plan.plan import Plan

MOST_PLANS = 30
"""Number of plans that are listed; the CSV file has all."""
COLUMNS = (
    "begun_s", "why", "machines", "stages", "peers", "idle", "schedule", "step_s", "change_s", "steps_thrown_away",
)  # fmt: skip
"""Columns of the CSV file."""


def show(out: Console, lived: Lived, end: float, tokens_a_step: int, always: float | None) -> None:
    """Print what came of a run of `end` seconds.

    Args:
        always: seconds of a step, were all machines there all the time; None where no plan is possible then.
    """
    tokens = lived.steps * tokens_a_step
    out.print(
        f"{amount(tokens)} tokens in {lived.steps:,} steps within {duration(end)}: {tokens / end:,.0f} a second",
        style="bold",
    )
    if always is not None:
        could = tokens_a_step / always
        out.print(
            f"with all machines all the time it were {could:,.0f} a second, at {seconds(always)} a step: this is "
            f"{percent(tokens / end, could)} of that",
            soft_wrap=True,
        )
    out.print(_time_table(lived, end))
    out.print(_plan_table(lived))


def as_csv(lived: Lived) -> str:
    """Format a header, and a row for each plan, as CSV."""
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for begun in lived.plans:
        plan = begun.plan
        writer.writerow(
            dict(
                zip(
                    COLUMNS,
                    (
                        begun.at, begun.why, begun.here, len(plan.stages), len(plan.peers),
                        begun.here - len(plan.peers), plan.schedule, _step(plan), begun.took, begun.thrown_away,
                    ),
                    strict=True,
                )
            )
        )  # fmt: skip
    return written.getvalue()


def _time_table(lived: Lived, end: float) -> Table:
    """Return the table of where the time and the machines' time went."""
    there = lived.working + lived.idle + lived.standing
    table = Table("time", "", "of it", "of the machines' time", "", title="where the time went", title_justify="left")
    for column in (1, 2, 4):
        table.columns[column].justify = "right"
    changes = f"{max(0, len(lived.plans) - 1)}; {lived.broken} because one went"
    rows = [
        ("steps that count", lived.trained, "in the plan, while it trains", lived.working),
        (f"steps cut short, or done again ({lived.thrown_away:,})", lived.lost, "idle meanwhile", lived.idle),
        (f"changes of plan ({changes})", lived.changing, "while nothing trains", lived.standing),
    ]
    for what, took, whose, machine_seconds in rows:
        table.add_row(what, duration(took), percent(took, end), whose, percent(machine_seconds, there))
    table.add_row("waiting for machines", duration(lived.waiting), percent(lived.waiting, end), "", "")
    return table


def _plan_table(lived: Lived) -> Table:
    """Return the table of the plans."""
    more = len(lived.plans) - MOST_PLANS
    table = Table(
        "after", "why", "machines", "stages x peers", "idle", "a step", "change took", "steps again",
        title="plans", title_justify="left", caption=f"and {more} more (--csv has all)" if more > 0 else None,
        caption_justify="left",
    )  # fmt: skip
    for begun in lived.plans[:MOST_PLANS]:
        table.add_row(
            duration(begun.at), begun.why, str(begun.here), layout_words(begun),
            str(begun.here - len(begun.plan.peers)), seconds(_step(begun.plan)), seconds(begun.took),
            str(begun.thrown_away) if begun.thrown_away else "",
        )  # fmt: skip
    return table


def layout_words(begun: PlanBegun) -> str:
    """Return the stages and their peers in short: "8 x 2", or "8 x 1 to 3" where they are unlike."""
    counts = [len(begun.plan.replicas(stage)) for stage in range(len(begun.plan.stages))]
    if len(set(counts)) == 1:
        return " x ".join(map(str, shape_words(counts)))
    return f"{len(counts)} x {min(counts)} to {max(counts)}"


def _step(plan: Plan) -> float:
    assert plan.cost is not None
    return plan.cost.total
