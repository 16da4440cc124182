"""Figure of a plan: on the left the network, on the right the step over time, or the paper's cost."""

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dtfm_coordinator.allocator.simulator.simulated_timeline import Simulation
from dtfm_coordinator.allocator.workload import Workload
from dtfm_coordinator.tools.explain import paper_report
from dtfm_coordinator.tools.explain.critical_path import Part
from dtfm_coordinator.tools.explain.network_chart import draw_network
from dtfm_coordinator.tools.explain.paper_chart import draw_costs
from dtfm_coordinator.tools.explain.paper_findings import PaperFindings
from dtfm_coordinator.tools.explain.schedule_chart import draw_schedule, lanes
from dtfm_coordinator.tools.explain.step_findings import StepFindings
from dtfm_coordinator.tools.explain.step_report import parts
from dtfm_coordinator.tools.formatting import seconds
from dtfm_coordinator.tools.trace.measured_step import MeasuredStep
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.view.view import View

DOTS_AN_INCH = 130


def step_figure(
    plan: Plan,
    view: View,
    work: Workload,
    played: Simulation,
    found: StepFindings,
    measured: MeasuredStep | None = None,
) -> Figure:
    """Return a figure of the network, and of the step over time; below it, to the same scale, as it was `measured`."""
    shown = lanes(plan, found.path)
    title = parts(found.cost)
    if len(shown) < len(plan.peers):
        title += f" ({len(shown)} of {len(plan.peers)} peers shown: those on the critical path, and a sample)"
    most = max((link.busy for link in found.links), default=0.0)
    traffic = {(link.sender, link.receiver): link.busy / most if most > 0 else 0.0 for link in found.links}
    steps: list[tuple[str, Simulation | MeasuredStep, Sequence[Part], float]]
    steps = [(f"predicted: {seconds(found.cost.total)}", played, found.path, found.cost.total)]
    if measured is not None:
        said = f"measured: {seconds(measured.total)}, step {measured.number}"
        steps.append((said, measured, (), measured.total))
    figure = _figure(title, height=min(14.0, max(7.5, 2.5 + 0.29 * len(shown) * len(steps))))
    _network(figure, plan, view, sum(work.demand.message_bytes(plan.wire)) / 2, traffic)
    end = max(total for *_, total in steps)
    for number, (said, step, path, _) in enumerate(steps):
        axes = _beside(figure, 0.5, number, len(steps))
        draw_schedule(axes, plan, step, path, shown, end)
        if len(steps) > 1:
            axes.set_xlabel(f"seconds ({said})")
    return figure


def paper_figure(
    plan: Plan, view: View, activation_bytes: float, gradient_bytes: float, found: PaperFindings
) -> Figure:
    """Return a figure of the network, and of the paper's cost."""
    figure = _figure(paper_report.headline(found), height=7.5)
    pairs = [pair for stage in range(len(plan.stages)) for pair in permutations(plan.replicas(stage), 2)]
    size = {pair: gradient_bytes / len(plan.pipelines) for pair in pairs}
    for route in plan.pipelines:
        for here, there in pairwise(route):
            size[here, there] = size[there, here] = activation_bytes
    rows, beta = {peer: row for row, peer in enumerate(view.ids)}, view.beta()
    busy = {(a, b): amount / float(beta[rows[a], rows[b]]) for (a, b), amount in size.items()}
    most = max(busy.values(), default=0.0)
    _network(
        figure, plan, view, activation_bytes, {pair: taken / most if most > 0 else 0.0 for pair, taken in busy.items()}
    )
    draw_costs(_beside(figure, 0.52), found)
    return figure


def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its suffix; the same figure gives the same bytes.

    Raises:
        UserError: the file cannot be written.
    """
    drawn = io.BytesIO()
    undated: dict[str, None] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with rc_context({"svg.hashsalt": "dtfm"}):
        figure.savefig(drawn, format=path.suffix[1:], dpi=DOTS_AN_INCH, metadata=undated)
    write_atomically(path, drawn.getvalue())


def _figure(title: str, height: float) -> Figure:
    figure = Figure(figsize=(19.0, height))
    figure.suptitle(title, fontsize=12, y=1 - 0.2 / height)
    return figure


def _beside(figure: Figure, left: float, number: int = 0, of: int = 1) -> Axes:
    """Add axes in the right half, from `left` as a share of the width: those with this number, from the top, of so many
    of the same height."""
    inch = 1 / figure.get_figheight()
    each = (1 - 0.45 * inch) / of
    return figure.add_axes((left, 0.6 * inch + (of - 1 - number) * each, 0.965 - left, each - inch))


def _network(
    figure: Figure, plan: Plan, view: View, message_bytes: float, traffic: Mapping[tuple[str, str], float]
) -> None:
    inch = 1 / figure.get_figheight()
    draw_network(figure, (0.01, 1.75 * inch, 0.42, 1 - 2.25 * inch), plan, view, message_bytes, traffic)
