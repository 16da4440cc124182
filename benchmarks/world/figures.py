"""Figures of the emulated world, from the tables' values: pipelines on a map, predicted against measured, adaptation.

python -m benchmarks.world.figures benchmarks/results
"""

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from benchmarks.world.paced import World
from benchmarks.world.placements import at_random, papers
from benchmarks.world.result import world_of
from dtfm_coordinator.tools.explain.figure import write
from dtfm_protocol.plan.plan import Plan

# Degrees east and north; AWS's regions are named by state or city. Those close together are drawn somewhat apart.
PLACES = {
    "Oregon": (-120.5, 45.8),
    "Virginia": (-74.0, 37.0),
    "Ohio": (-88.0, 41.5),
    "Tokyo": (141.0, 36.0),
    "Seoul": (123.0, 39.5),
    "London": (0.0, 48.5),
    "Frankfurt": (16.0, 51.0),
    "Ireland": (-15.0, 54.0),
}
LAND, LINE, INK = "#e9ecef", "#c9d0d6", "#343a40"


def world_map(world: World, plans: dict[str, Plan], said: dict[str, str]) -> Figure:
    """The pipelines of plans on a map of the world, one map a plan; peers of one city side by side."""
    figure = Figure(figsize=(11.0, 2.85 * len(plans)), layout="constrained")
    rings = json.loads((Path(__file__).parent / "land.json").read_text(encoding="utf-8"))["rings"]
    for axes, (name, plan) in zip(np.atleast_1d(figure.subplots(len(plans), 1)), plans.items(), strict=True):
        for ring in rings:
            x, y = zip(*ring, strict=True)
            axes.fill(x, y, facecolor=LAND, edgecolor=LINE, linewidth=0.4, zorder=0)
        _pipelines(axes, world, plan)
        axes.set(xlim=(-138, 156), ylim=(18, 66), aspect=1.3, xticks=[], yticks=[])
        axes.set_title(f"{name}: {said[name]}", loc="left", fontsize=11, color=INK)
        for side in axes.spines.values():
            side.set_visible(False)
    return figure


def _pipelines(axes: Axes, world: World, plan: Plan) -> None:
    at: dict[str, tuple[float, float]] = {}
    seen: dict[str, int] = defaultdict(int)
    for node in world.view.nodes:
        assert node.region is not None
        x, y = PLACES[node.region]
        at[node.id] = (x + 3.4 * seen[node.region], y - 3.4 * seen[node.region])
        seen[node.region] += 1
    stage_of = {peer: stage for route in plan.routes for stage, peer in enumerate(route)}
    for number, route in enumerate(dict.fromkeys(plan.routes)):
        colour = colormaps["tab10"](number % 10)
        for here, there in pairwise(route):
            axes.annotate(
                "", at[there], at[here],
                arrowprops={
                    "arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 8, "shrinkB": 8,
                    "connectionstyle": f"arc3,rad={0.18 + 0.06 * number}", "alpha": 0.85,
                },
            )  # fmt: skip
    for peer, (x, y) in at.items():
        axes.scatter(x, y, s=120, color=INK if peer in stage_of else LINE, edgecolors="white", linewidths=1.0, zorder=4)
        text = str(stage_of[peer] + 1) if peer in stage_of else ""
        axes.text(x, y, text, ha="center", va="center", color="white", fontsize=8, zorder=5)
    for region in seen:
        x, y = PLACES[region]
        axes.text(x, y + 3.0, region, ha="center", fontsize=8.5, color=INK, zorder=6)


def predicted_against_measured(rows: list[dict[str, Any]]) -> Figure:
    """One point a placement; the line is where both are the same."""
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.subplots()
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    values = [row[name] for row in rows for name in ("measured", "predicted")]
    low, high = min(values) / 1.2, max(values) * 1.2
    line = np.array([low, high])
    axes.fill_between(line, line / 1.1, line * 1.1, color=LAND, label="within 10 %")
    axes.plot(line, line, color=INK, linewidth=1.0)
    for number, world in enumerate(worlds):
        own = [row for row in rows if row["world"] == world]
        colour = colormaps["tab10"](number)
        axes.scatter(
            [row["predicted"] for row in own], [row["measured"] for row in own], color=colour, label=world, zorder=3
        )
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50]))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
    axes.set(xlabel="predicted seconds a step", ylabel="measured seconds a step (paced peers)")
    axes.legend(frameon=False, fontsize=9)
    axes.grid(color=LAND, linewidth=0.6)
    return figure


def adaptation(values: dict[str, Any]) -> Figure:
    """Seconds of each step over time, with what happened."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes = figure.subplots()
    samples, expected = values["samples"], values["expected"]
    axes.plot([one["at"] for one in samples], [one["seconds"] for one in samples], "o-", color="#1f77b4", markersize=4)
    top = 1.25 * max([expected["undone"], *(one["seconds"] for one in samples)])
    axes.axvline(values["hit"], color="#d62728", linewidth=1.2)
    lost = f" {' - '.join(values['pair'])} loses 9/10"
    axes.text(values["hit"], 0.98 * top, lost, color="#d62728", va="top", fontsize=9)
    for at, _, _ in values["plans"]:
        if at > values["hit"]:
            axes.axvline(at, ymax=0.92, color="#2ca02c", linewidth=1.2)
            axes.text(at, 0.86 * top, " new plan", color="#2ca02c", va="top", fontsize=9)
    end = max(one["at"] for one in samples)
    for level, text, side in (
        (expected["undone"], "if nothing were done", "bottom"),
        (expected["best"], "best plan for the new world", "top"),
    ):
        axes.hlines(level, values["hit"], end, color=INK, linestyles="dotted", linewidth=1.0)
        axes.text(end, level, f"{text} (predicted)", ha="right", va=side, fontsize=8.5, color=INK)
    axes.set(xlabel="seconds", ylabel="seconds a step", ylim=(0, top))
    axes.grid(color=LAND, linewidth=0.6)
    return figure


def main() -> None:
    """Draw what there are values for."""
    folder = Path(sys.argv[1])
    figures: dict[str, Figure] = {}
    result = folder / "paper_result.json"
    if result.exists():
        values = json.loads(result.read_text(encoding="utf-8"))
        most = max(map(int, values))
        world = world_of(most)
        measured = {row["name"]: row["measured"] for row in values[str(most)]}
        plans = {"the paper's search": papers(world, 8), "random": at_random(world, 8, 1)}
        said = {name: f"{measured[name]:.1f} s a step, {most} paced peers in eight regions" for name in plans}
        said["random"] += " (median of three such)"
        figures["world_map"] = world_map(world, plans, said)
    if (folder / "prediction.json").exists():
        worlds = json.loads((folder / "prediction.json").read_text(encoding="utf-8")).values()
        rows = [row for world in worlds for row in world["rows"]]
        figures["prediction"] = predicted_against_measured(rows)
    if (folder / "adaptation.json").exists():
        values = json.loads((folder / "adaptation.json").read_text(encoding="utf-8"))
        figures["adaptation"] = adaptation(values["degrade"])
    for name, figure in figures.items():
        for suffix in (".svg", ".png"):
            write(figure, (folder / name).with_suffix(suffix))
        print(f"drew {name}")


if __name__ == "__main__":
    main()
