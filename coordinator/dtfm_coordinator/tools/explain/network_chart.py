"""Drawing of the network: nodes, links by their speed, and the plan's pipelines over them."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke

from dtfm_coordinator.tools.explain.label_places import LabelPlace, LabelPlaces
from dtfm_coordinator.tools.explain.node_positions import places
from dtfm_coordinator.tools.formatting import named
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.link_matrix import Matrix
from dtfm_protocol.view.view import GBIT, View

ALL_LINKS = 40
"""Number of nodes up to which every link is drawn, thinly."""
MOST_NODES = 1000
"""Number of nodes that are drawn: beyond, only some of the idle ones are."""
MOST_LINKS = 60
"""Number of links that are drawn wide: the busiest."""
NAMED_NODES = 24
"""Number of nodes up to which each has its name beside it."""
NAMED_REGIONS = 24
MOST_PIPELINES = 10
SPEEDS = LinearSegmentedColormap.from_list("speeds", colormaps["plasma"](np.linspace(0.0, 0.85, 64)))
"""Colours of links: slow is dark, fast is bright, and nothing is too pale for paper."""
INK = "#333333"
MARGIN_INCHES = 0.45
"""Inches from the drawing to the colour bar, and from that to the pipelines' legend."""


def draw_network(
    figure: Figure,
    box: tuple[float, float, float, float],
    plan: Plan,
    view: View,
    message_bytes: float,
    traffic: Mapping[tuple[str, str], float],
) -> None:
    """Draw the network, the links and the plan's pipelines.

    Args:
        box: left, bottom, width and height, as shares of the figure.
        message_bytes: size of the message whose seconds are the distance of two nodes.
        traffic: traffic of the links that matter, as a share of the busiest one's.
    """
    view = _drawn(plan, view)
    alpha, beta, rows = view.alpha(), view.beta(), {peer: row for row, peer in enumerate(view.ids)}
    with np.errstate(divide="ignore"):
        points, by_region = places(alpha + message_bytes / beta, tuple(node.region for node in view.nodes))
    axes = figure.add_axes(box)
    low, high = float(points[:, 1].min()), float(points[:, 1].max())
    axes.set(xlim=(-0.1, 1.1), ylim=(low - 0.1, max(high, low + 0.3) + 0.12), xticks=[], yticks=[])
    axes.set_aspect("equal")
    axes.apply_aspect()
    axes.spines[:].set_visible(False)
    _draw_links(figure, axes, points, beta / GBIT, {(rows[a], rows[b]): share for (a, b), share in traffic.items()})
    diameter = float(np.clip(0.9 * _nearest(points) * axes.bbox.width / figure.dpi * 72 / 1.2, 5.0, 22.0))
    _draw_pipelines(figure, axes, plan, points, rows, diameter)
    _draw_nodes(axes, plan, view, points, diameter)
    scale = 72 / figure.dpi
    inside = axes.bbox.x0 * scale, axes.bbox.y0 * scale, axes.bbox.x1 * scale, axes.bbox.y1 * scale
    labels = LabelPlaces(axes.transData.transform(points) * scale, diameter, inside)
    if len(points) <= NAMED_NODES:
        for row, node in enumerate(view.nodes):
            text = named(node.id) if by_region or node.region is None else f"{named(node.id)}\n{node.region}"
            _say(axes, points, text, labels.place(text, 7, [row], above=False), fontsize=7, color=INK)
    if by_region or len(points) > NAMED_NODES:
        _name_regions(axes, view, points, labels)


def _drawn(plan: Plan, view: View) -> View:
    """Return the view; of a very large one only the plan's peers and some of the idle."""
    if len(view.nodes) <= MOST_NODES:
        return view
    working = set(plan.peers)
    idle = [peer for peer in view.ids if peer not in working][: max(0, MOST_NODES - len(working))]
    return view.part([*plan.peers, *idle])


def _nearest(points: Matrix) -> float:
    """Return the least distance of two nodes."""
    between = np.sqrt(((points[:, None, :] - points[None, :, :]) ** 2).sum(axis=2))
    return float(between[~np.eye(len(points), dtype=bool)].min(initial=1.0))


def _draw_links(
    figure: Figure, axes: Axes, points: Matrix, gbps: Matrix, traffic: Mapping[tuple[int, int], float]
) -> None:
    """Draw pairs that matter as wide lines, the others as hairlines, in the colour of their slower direction."""
    count = len(points)
    shares: dict[tuple[int, int], float] = {}
    for (sender, receiver), share in traffic.items():
        pair = (min(sender, receiver), max(sender, receiver))
        shares[pair] = max(share, shares.get(pair, 0.0))
    busiest = sorted(shares, key=lambda pair: shares[pair])[-MOST_LINKS:]
    thin = [(a, b) for a in range(count) for b in range(a) if (b, a) not in busiest] if count <= ALL_LINKS else []
    slower = np.minimum(gbps, gbps.T)
    drawn = [pair for pair in (*thin, *busiest) if slower[pair] > 0]
    if not drawn:
        return
    speeds = np.array([slower[pair] for pair in drawn])
    low, high = float(speeds.min()), float(speeds.max())
    if high < 1.01 * low:
        low, high = low / 2, high * 2
    scale, is_busy = LogNorm(low, high), set(busiest)
    widest = 5.0 if len(busiest) <= 20 else 3.0
    lines = LineCollection(
        [points[list(pair)] for pair in drawn],
        colors=SPEEDS(scale(speeds)),
        linewidths=[1.0 + widest * shares[pair] if pair in is_busy else 0.35 for pair in drawn],
        alpha=[0.45 if pair in is_busy else 0.3 for pair in drawn],
        zorder=1,
        capstyle="round",
    )
    axes.add_collection(lines)
    which = "wider is busier" if len(busiest) == len(shares) else f"the {len(busiest)} busiest of {len(shares)}"
    box, inch = axes.get_position(), 1 / figure.get_figheight()
    bar = figure.colorbar(
        ScalarMappable(scale, SPEEDS),
        cax=figure.add_axes((box.x0 + 0.05, box.y0 - MARGIN_INCHES * inch, box.width - 0.1, 0.14 * inch)),
        orientation="horizontal",
    )
    bar.set_label(f"links, Gbit/s of the slower direction; {which}", fontsize=9)
    ticks = np.geomspace(low, high, 5).tolist()
    bar.set_ticks(ticks, labels=told_apart(ticks), fontsize=8)
    bar.minorticks_off()


def told_apart(values: list[float]) -> list[str]:
    """Return numbers with two figures, or with as many more, up to five, as they take to differ."""
    for figures in (2, 3, 4, 5):
        told = [f"{value:.{figures}g}" for value in values]
        if len(set(told)) == len(values):
            break
    return told


def _draw_pipelines(
    figure: Figure, axes: Axes, plan: Plan, points: Matrix, rows: Mapping[str, int], diameter: float
) -> None:
    """Draw the pipelines with most micro-batches as bowed arrows, each in its own colour."""
    if len(plan.stages) == 1:
        return  # a pipeline of one peer is a node, not a path
    share = {route: plan.routes.count(route) for route in plan.pipelines}
    ranked = sorted(share, key=lambda route: -share[route])
    shown, handles = ranked[:MOST_PIPELINES], []
    for number, route in enumerate(shown):
        colour = colormaps["tab10"](number % 10)
        bow = 0.12 + 0.2 * number / max(1, len(shown) - 1)
        for here, there in pairwise(route):
            arrow = FancyArrowPatch(
                points[rows[here]], points[rows[there]], connectionstyle=f"arc3,rad={bow:.3f}", arrowstyle="-|>",
                mutation_scale=9, shrinkA=diameter / 2, shrinkB=diameter / 2, color=colour, linewidth=1.5, zorder=2,
                path_effects=[withStroke(linewidth=3.0, foreground="white")],
            )  # fmt: skip
            axes.add_patch(arrow)
        handles.append(Line2D([], [], color=colour, label=f"{number + 1}: {share[route]} of {len(plan.routes)}"))
    box, few = axes.get_position(), "" if len(shown) == len(ranked) else f" ({len(shown)} of {len(ranked)} pipelines)"
    figure.legend(
        handles=handles,
        title=f"pipelines, and routes that follow them{few}",
        fontsize=8, title_fontsize=9, loc="upper center", ncols=min(5, len(handles)), frameon=False,
        bbox_to_anchor=((box.x0 + box.x1) / 2, box.y0 - 2.1 * MARGIN_INCHES / figure.get_figheight()),
    )  # fmt: skip


def _draw_nodes(axes: Axes, plan: Plan, view: View, points: Matrix, diameter: float) -> None:
    """Draw nodes with work filled, with the number of their stage, and idle ones hollow."""
    stage_of = {peer: stage for stage in range(len(plan.stages)) for peer in plan.replicas(stage)}
    for works, fill, edge in ((True, INK, "white"), (False, "white", INK)):
        those = points[[row for row, peer in enumerate(view.ids) if (peer in stage_of) == works]]
        axes.scatter(those[:, 0], those[:, 1], s=diameter**2, c=fill, edgecolors=edge, linewidths=1.0, zorder=3)
    if diameter >= 9:
        for row, peer in enumerate(view.ids):
            if peer in stage_of:
                axes.text(
                    float(points[row, 0]), float(points[row, 1]), str(stage_of[peer] + 1), color="white", ha="center",
                    va="center", fontsize=min(10.0, 0.55 * diameter), zorder=4,
                )  # fmt: skip


def _name_regions(axes: Axes, view: View, points: Matrix, labels: LabelPlaces) -> None:
    """Write each region's name beside one of its nodes, over the topmost where there is room."""
    regions = dict.fromkeys(node.region for node in view.nodes if node.region is not None)
    if len(regions) > NAMED_REGIONS:
        return  # hosts of a data centre, say: their names would cover it
    for region in regions:
        members = [row for row, node in enumerate(view.nodes) if node.region == region]
        members.sort(key=lambda row: -float(points[row, 1]))
        place = labels.place(region, 9, members, above=True)
        _say(axes, points, region, place, fontsize=9, weight="bold", color="black")


def _say(axes: Axes, points: Matrix, text: str, place: LabelPlace, **style: Any) -> None:
    spot = float(points[place.row, 0]), float(points[place.row, 1])
    axes.annotate(
        text, spot, xytext=place.offset, textcoords="offset points", ha="center", va="center", zorder=5,
        parse_math=False,
        bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}, **style,
    )  # fmt: skip
