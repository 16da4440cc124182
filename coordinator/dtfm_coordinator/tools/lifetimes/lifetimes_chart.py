"""Chart of a run in virtual time: who was there and who trained, and how far the training was."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dtfm_coordinator.tools.formatting import amount, named
from dtfm_coordinator.tools.lifetimes.lived_run import Lived, Span

TRAINS, IDLE, STANDS = "#2f7fbf", "#d9d9d9", "#f4b266"
"""Colours of a machine that trains, that has no part in the plan, and of all while nothing trains."""
MOST_LANES = 80
"""Number of machines that have a lane."""
HOUR = 3600.0


def lifetimes_figure(lived: Lived, machines: tuple[str, ...], end: float, tokens_a_step: int) -> Figure:
    """Return a figure: a lane for each machine, above the curve of tokens done."""
    shown = machines[:MOST_LANES]
    unit, each = ("hours", HOUR) if end > 2 * HOUR else ("minutes", 60.0)
    lanes = 0.19 * len(shown) + 0.3
    figure = Figure(figsize=(13.0, lanes + 4.3))
    height = figure.get_figheight()
    upper = figure.add_axes((0.1, 1 - (lanes + 0.75) / height, 0.87, lanes / height))
    lower = figure.add_axes((0.1, 0.6 / height, 0.87, 2.5 / height), sharex=upper)
    _draw_lanes(upper, lived.spans, shown, each)
    if len(shown) < len(machines):
        upper.set_title(f"{len(shown)} of {len(machines)} machines", loc="left", fontsize=9)
    lower.plot(
        [at / each for at, _ in lived.progress], [steps * tokens_a_step for _, steps in lived.progress], color="#333333"
    )
    for span in lived.spans:
        if span.doing != "training":
            lower.axvspan(span.begin / each, span.end / each, color=STANDS, alpha=0.6, linewidth=0)
    lower.set(xlabel=unit, ylabel="tokens", xlim=(0, end / each))
    lower.set_ylim(bottom=0)
    lower.yaxis.set_major_formatter(lambda value, place: amount(value) if value > 0 else "0")
    lower.grid(color="#e5e5e5", linewidth=0.6)
    figure.legend(
        handles=[
            Patch(color=TRAINS, label="trains"),
            Patch(color=IDLE, label="there, without a part in the plan"),
            Patch(color=STANDS, label="there, while nothing trains"),
        ],
        loc="upper left", bbox_to_anchor=(0.1, 1 - 0.05 / height), ncols=3, frameon=False, fontsize=9,
    )  # fmt: skip
    return figure


def _draw_lanes(axes: Axes, spans: list[Span], machines: tuple[str, ...], each: float) -> None:
    """Draw what each machine does over time."""
    for row, machine in enumerate(machines):
        bars: dict[str, list[tuple[float, float]]] = {TRAINS: [], IDLE: [], STANDS: []}
        for span in spans:
            if machine in span.here:
                bars[_colour(span, machine)].append((span.begin / each, (span.end - span.begin) / each))
        for colour, stretches in bars.items():
            axes.broken_barh(stretches, (row - 0.4, 0.8), facecolor=colour, linewidth=0)
    axes.set_ylim(len(machines) - 0.4, -0.6)
    axes.set_yticks(range(len(machines)))
    for label in axes.set_yticklabels([named(machine) for machine in machines], fontsize=7):
        label.set_parse_math(False)
    axes.tick_params(labelbottom=False)


def _colour(span: Span, machine: str) -> str:
    if span.doing != "training":
        return STANDS
    return TRAINS if span.plan is not None and span.plan.stage_of(machine) is not None else IDLE
