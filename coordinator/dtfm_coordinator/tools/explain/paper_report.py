"""Report of the paper's cost of a plan, as tables and lines for people."""

from rich.console import Console
from rich.table import Table

from dtfm_coordinator.tools.explain.paper_findings import PaperFindings
from dtfm_coordinator.tools.explain.step_report import DIFFERENT
from dtfm_coordinator.tools.formatting import link_named, named, seconds


def headline(found: PaperFindings) -> str:
    """Return the total and its parts, in one line."""
    return (
        f"{found.total:.3f} s of communication a step by the paper's cost: data parallel {found.data_parallel:.3f} s "
        f"+ pipeline {found.pipeline:.3f} s"
    )


def bottleneck_line(found: PaperFindings) -> str:
    """Return the largest single part, in one line."""
    slowest = max(found.stages, key=lambda stage: stage.seconds)
    place = found.stages.index(slowest) + 1
    shares = [(slowest.seconds, f"the all-reduce of stage {place}, whose slowest member is {named(slowest.slowest)}")]
    for number, boundary in enumerate(found.boundaries, start=1):
        ways = ((boundary.forward, boundary.forward_pair), (boundary.backward, boundary.backward_pair))
        shares += [(taken, f"stages {number} and {number + 1} over {link_named(*pair)}") for taken, pair in ways]
    taken, what = max(shares)
    return f"bottleneck: {what}, {taken:.3f} s"


def show(out: Console, found: PaperFindings) -> None:
    """Print the findings to `out`."""
    out.print(headline(found), style="bold", soft_wrap=True)
    if found.planned is not None and abs(found.planned - found.total) > DIFFERENT * found.total:
        out.print(
            f"the plan itself states {found.planned:.3f} s: it was made for other sizes or another view",
            soft_wrap=True,
        )
    out.print(bottleneck_line(found), soft_wrap=True)
    stages = Table(
        "stage", "peers", "data parallel", "slowest member", "its slowest link", title="stages", title_justify="left"
    )
    for number, stage in enumerate(found.stages, start=1):
        stages.add_row(
            str(number),
            str(len(stage.peers)),
            seconds(stage.seconds),
            named(stage.slowest),
            "" if stage.link is None else link_named(*stage.link),
        )
    out.print(stages)
    if not found.boundaries:
        return
    table = Table(
        "stages", "forward", "slowest pair", "backward", "slowest pair", title="boundaries", title_justify="left"
    )
    for number, boundary in enumerate(found.boundaries, start=1):
        table.add_row(
            f"{number} - {number + 1}",
            seconds(boundary.forward),
            link_named(*boundary.forward_pair),
            seconds(boundary.backward),
            link_named(*boundary.backward_pair),
        )
    out.print(table)
