"""Chart of a step over time, simulated or measured: a lane for each peer, with its compute, and under it its sends."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dtfm_coordinator.allocator.simulator.simulated_timeline import SimulatedSpan, Simulation, Transfer
from dtfm_coordinator.tools.explain.critical_path import Part
from dtfm_coordinator.tools.formatting import named
from dtfm_coordinator.tools.trace.measured_step import MeasuredStep
from dtfm_protocol.plan.plan import Plan

MOST_LANES = 40
COLOURS = {
    "forward": "#7db8e8",
    "backward": "#f4b266",
    "weight": "#e8d06a",
    "optimizer": "#4caf70",
    "activation": "#1f5f9e",
    "gradient": "#b8620e",
    "all-reduce": "#8a4fb0",
    "tied all-reduce": "#c79be0",
}
LABELS = {
    "forward": "forward",
    "backward": "backward",
    "weight": "weights' gradients",
    "optimizer": "optimizer",
    "activation": "sends activations",
    "gradient": "sends gradients back",
    "all-reduce": "all-reduce",
    "tied all-reduce": "tied matrix",
}
COMPUTE = (-0.42, 0.52)
"""Top and height of compute within a lane of height 1; downwards is positive."""
THIN = {
    "activation": (0.13, 0.09),
    "gradient": (0.23, 0.09),
    "all-reduce": (0.33, 0.09),
    "tied all-reduce": (0.33, 0.09),
}
"""Top and height of what is sent within the lane: activations, gradients back and all-reduces on a line each."""
CRITICAL = "#c00000"


def lanes(plan: Plan, path: Sequence[Part]) -> tuple[str, ...]:
    """Return the peers that get a lane, by stage: all; or those of the critical path and an even sample of others."""
    peers = plan.peers
    if len(peers) <= MOST_LANES:
        return peers
    chosen = list(dict.fromkeys(peer for part in path for peer in part.place))[:MOST_LANES]
    others = [peer for peer in peers if peer not in set(chosen)]
    free = MOST_LANES - len(chosen)
    chosen += [others[number * len(others) // free] for number in range(free)]
    return tuple(peer for peer in peers if peer in set(chosen))


def draw_schedule(
    axes: Axes, plan: Plan, played: Simulation | MeasuredStep, path: Sequence[Part], shown: Iterable[str], end: float
) -> None:
    """Draw the step, simulated or measured; the figure's layout must be settled in width, because numbers are written
    where they fit.

    Args:
        path: the critical path; empty where none is known.
        shown: peers that get a lane.
        end: seconds at the right end.
    """
    row_of, middles = _rows(plan, shown)
    bottom = max(row_of.values()) + 0.7
    axes.set(xlim=(0, end), ylim=(bottom, -0.7), xlabel="seconds")
    points_high = axes.bbox.height / axes.figure.dpi * 72 / (bottom + 0.7)
    size = min(8.0, 0.62 * points_high)
    axes.set_yticks(list(row_of.values()))
    for label in axes.set_yticklabels([named(peer) for peer in row_of], fontsize=size):
        label.set_parse_math(False)
    for number, (stage, first, last) in enumerate(middles):
        axes.axhspan(first - 0.55, last + 0.55, color="#f2f2f2" if number % 2 == 0 else "#fafafa", zorder=0)
        axes.text(
            1.005, (first + last) / 2, f"stage {stage + 1}", transform=axes.get_yaxis_transform(), fontsize=8,
            va="center", rotation=270 if last > first else 0,
        )  # fmt: skip
    spans: dict[tuple[float, str], list[tuple[float, float]]] = defaultdict(list)
    for span in played.compute:
        if span.peer in row_of:
            spans[row_of[span.peer], span.kind].append((span.start, span.end - span.start))
    points_wide = axes.bbox.width / axes.figure.dpi * 72 / end if end > 0 else 0.0
    for (row, kind), bars in spans.items():
        # White edges part neighbouring micro-batches, but would hide bars that are hardly wider themselves.
        edge = 0.4 if min(width for _, width in bars) * points_wide > 3 else 0.0
        axes.broken_barh(
            bars, (row + COMPUTE[0], COMPUTE[1]), facecolor=COLOURS[kind], edgecolor="white", linewidth=edge, zorder=2
        )
    sends: dict[tuple[float, str], list[tuple[float, float]]] = defaultdict(list)
    ways: dict[tuple[float, str], list[tuple[float, float]]] = defaultdict(list)
    for transfer in played.transfers:
        if transfer.sender in row_of:
            key = (row_of[transfer.sender], transfer.kind)
            sends[key].append((transfer.start, transfer.end - transfer.start))
            ways[key].append((transfer.end, transfer.arrival - transfer.end))
    for drawn, opacity in ((sends, 1.0), (ways, 0.3)):
        for (row, kind), bars in drawn.items():
            top, height = THIN[kind]
            axes.broken_barh(bars, (row + top, height), facecolor=COLOURS[kind], alpha=opacity, linewidth=0, zorder=2)
    _number(axes, played.compute, row_of, points_wide, COMPUTE[1] * points_high)
    _outline(axes, path, row_of)
    kinds = [*dict.fromkeys(span.kind for span in played.compute), *dict.fromkeys(t.kind for t in played.transfers)]
    handles: list[Artist] = [Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in COLOURS if kind in kinds]
    axes.axvline(played.last_backward, color="#555555", linewidth=0.9, linestyle=":", zorder=1)
    axes.axvline(played.committed, color="#555555", linewidth=1.2, linestyle="--", zorder=1)
    handles.append(Line2D([], [], color="#555555", linestyle=":", label="last action"))
    handles.append(Line2D([], [], color="#555555", linestyle="--", label="commit"))
    if any(bar[1] > 0 for bars in ways.values() for bar in bars):
        handles.append(Patch(color="#bbbbbb", label="pale: on its way"))
    if path:
        handles.append(Patch(facecolor="none", edgecolor=CRITICAL, label="critical path"))
    axes.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(handles), fontsize=7.2, frameon=False,
        handlelength=1.2, columnspacing=0.8,
    )  # fmt: skip


def _rows(plan: Plan, shown: Iterable[str]) -> tuple[dict[str, float], list[tuple[int, float, float]]]:
    """Return the middle of each lane, with a gap between stages; and the number, first and last lane of each stage."""
    rows: dict[str, float] = {}
    blocks: list[tuple[int, float, float]] = []
    place = 0.0
    wanted = set(shown)
    for stage in range(len(plan.stages)):
        first = place
        for peer in plan.replicas(stage):
            if peer in wanted:
                rows[peer] = place
                place += 1.0
        if place > first:
            blocks.append((stage, first, place - 1.0))
            place += 0.2
    return rows, blocks


def _number(
    axes: Axes, spans: Sequence[SimulatedSpan], row_of: dict[str, float], points_wide: float, points_high: float
) -> None:
    """Write micro-batch numbers in those lanes whose bars are all wide and high enough for them."""
    numbered: dict[tuple[str, str], list[SimulatedSpan]] = defaultdict(list)
    for span in spans:
        if span.micro_batch is not None and span.peer in row_of:
            numbered[span.peer, span.kind].append(span)
    for (peer, _), bars in numbered.items():
        room = min((span.end - span.start) / len(str(span.micro_batch)) for span in bars) * points_wide / 0.85
        size = min(8.0, 0.8 * points_high, room)
        if size < 4.5:
            continue
        for span in bars:
            axes.text(
                (span.start + span.end) / 2, row_of[peer] + COMPUTE[0] + COMPUTE[1] / 2, str(span.micro_batch),
                ha="center", va="center_baseline", fontsize=size, zorder=4,
            )  # fmt: skip


def _outline(axes: Axes, path: Sequence[Part], row_of: dict[str, float]) -> None:
    """Frame the spans and messages that are on the critical path."""
    for part in path:
        if part.place[0] not in row_of or part.item is None:
            continue
        top, height = THIN[part.item.kind] if isinstance(part.item, Transfer) else COMPUTE
        axes.broken_barh(
            [(part.start, part.seconds)], (row_of[part.place[0]] + top, height), facecolor="none", edgecolor=CRITICAL,
            linewidth=0.9, zorder=3,
        )  # fmt: skip
