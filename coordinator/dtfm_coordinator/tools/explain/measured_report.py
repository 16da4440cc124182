"""Report of a measured step beside the simulated one, as lines and a table for people."""

from rich.console import Console
from rich.table import Table

from dtfm_coordinator.allocator.simulator.simulated_timeline import Simulation
from dtfm_coordinator.tools.formatting import named, seconds
from dtfm_coordinator.tools.trace.aligned_traces import AlignedTraces
from dtfm_coordinator.tools.trace.measured_step import MeasuredStep, PeerSeconds
from dtfm_protocol.plan.plan import Plan

COARSE = 0.05
"""Share of the step up to which clocks may differ before a warning says that what lies between peers is not known."""


def measured_lines(predicted: float, measured: MeasuredStep, uncertainty: float) -> list[str]:
    """Return what was measured beside `predicted` seconds, in lines.

    Args:
        uncertainty: seconds by which two peers' clocks may differ.
    """
    others = measured.others
    among = (
        "the only whole step of this plan in the traces"
        if len(others) == 1
        else f"of {len(others)} whole steps of {seconds(min(others))} to {seconds(max(others))}"
    )
    lines = [
        f"measured: {seconds(measured.total)}, {measured.total / predicted:.2f} times what is predicted (step "
        f"{measured.number}, {among}; from the first forward to the last update)"
    ]
    if measured.to_next is not None:
        lines.append(f"from step to step: {seconds(measured.to_next)}, from this one's first forward to the next one's")
    if uncertainty > COARSE * measured.total:
        lines.append(
            f"warning: two nodes' clocks may be {seconds(uncertainty)} apart, {100 * uncertainty / measured.total:.0f} "
            "% of this step: what one node does is right, but not whether that was before or after another's"
        )
    return lines


def measured_table(plan: Plan, played: Simulation, measured: MeasuredStep) -> Table:
    """Return a table of each peer's seconds, predicted and measured."""
    table = Table(
        "stage", "peer", "", "computes", "waits for input", "all-reduce, commit", "optimizer",
        title="predicted and measured", title_justify="left",
    )  # fmt: skip
    steps: tuple[tuple[str, Simulation | MeasuredStep], ...] = (("predicted", played), ("measured", measured))
    for peer in plan.peers:
        stage = plan.stage_of(peer)
        assert stage is not None, "the plan's own peers serve"
        for what, step in steps:
            one = PeerSeconds.of(step.compute, peer, step.committed)
            first = what == "predicted"
            table.add_row(
                str(stage + 1) if first else "", named(peer) if first else "", what, seconds(one.compute),
                seconds(one.waits), seconds(one.reduction), seconds(one.optimizer) if one.optimizer else "unknown",
            )  # fmt: skip
        table.add_section()
    return table


def show_measured(out: Console, plan: Plan, played: Simulation, measured: MeasuredStep, traces: AlignedTraces) -> None:
    """Print what was measured, beside what was simulated, to `out`."""
    lines = measured_lines(played.cost.total, measured, traces.uncertainty())
    out.print(lines[0], style="bold", soft_wrap=True)
    for line in lines[1:]:
        out.print(line, soft_wrap=True)
    for line in traces.clocks_in_words():
        out.print(line, soft_wrap=True)
    out.print(measured_table(plan, played, measured))
