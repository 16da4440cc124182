"""Chart of the paper's cost of a plan as bars: each stage's all-reduce, and each boundary forward and backward."""

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dtfm_coordinator.tools.explain.paper_findings import PaperFindings
from dtfm_coordinator.tools.explain.schedule_chart import COLOURS

ROUNDING = 1e-9
PALE = "#d9c7e5"
"""Colour of an all-reduce that hides behind the slowest one."""


def draw_costs(axes: Axes, found: PaperFindings) -> None:
    """Draw the cost; the parts that the step pays in full colour."""
    slowest = found.data_parallel
    labels, row = [], 0
    for number, stage in enumerate(found.stages, start=1):
        axes.barh(row, stage.seconds, color=PALE if stage.seconds < slowest * (1 - ROUNDING) else COLOURS["all-reduce"])
        labels.append(f"stage {number}")
        row += 1
    for number, boundary in enumerate(found.boundaries, start=1):
        axes.barh(row, boundary.forward, color=COLOURS["activation"])
        axes.barh(row, boundary.backward, left=boundary.forward, color=COLOURS["gradient"])
        labels.append(f"stages {number} - {number + 1}")
        row += 1
    axes.set_yticks(range(row), labels)
    axes.set(ylim=(row - 0.4, -0.6), xlabel="seconds")
    handles = [
        Patch(color=COLOURS["all-reduce"], label="data parallel: the slowest stage, paid once"),
        Patch(color=PALE, label="data parallel: hidden behind it"),
        Patch(color=COLOURS["activation"], label="forward"),
        Patch(color=COLOURS["gradient"], label="backward"),
    ]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=8, frameon=False)
