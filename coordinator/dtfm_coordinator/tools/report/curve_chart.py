"""Chart of curves over steps, as SVG that takes its colours from the page around it. Pure."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 40
MOST_POINTS = 600
"""Points of a curve that are drawn; of more, runs are drawn as their mean."""
TICKS = 6
USUAL, ABOVE, ROOM = 0.98, 3.0, 1.5
"""Part of the first curve's values that a cut chart is made for; a chart is cut where a value is so many times as high
as all of these, at so many times their highest."""

Point = tuple[float, float]


class Curve(NamedTuple):
    """A curve of a chart: its name, its CSS class, and its points by step."""

    name: str
    style: str
    points: Sequence[Point]
    dotted: bool = False
    """Whether each point is marked, as there are few."""


def chart(title: str, unit: str, curves: Iterable[Curve], marks: Iterable[float] = (), *, cuts: bool = False) -> str:
    """Return a chart of `curves` over steps.

    Args:
        title: what is shown, for those who cannot see it.
        unit: of the values, written beside them.
        marks: steps at which something has changed; drawn as thin lines.
        cuts: whether values far above the usual ones are marked at the chart's top, and flatten no others.
    """
    drawn = [curve._replace(points=thinned(curve.points)) for curve in curves if curve.points]
    if not drawn:
        return '<p class="none">Nothing to draw yet.</p>'
    steps = [step for curve in drawn for step, _ in curve.points]
    most = max(value for curve in drawn for _, value in curve.points)
    top = ceiling([value for _, value in drawn[0].points], most) if cuts else most
    values = [min(top, value) for curve in drawn for _, value in curve.points]
    across, up = ticks(min(steps), max(steps), whole=True), ticks(min(values), max(values))
    low, high = min(*values, *up), max(*values, *up)
    if low == high:
        low, high = low - 1, high + 1
    first, last = min(steps), max(max(steps), min(steps) + 1)

    def at(point: Point) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (point[0] - first) / (last - first)
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - point[1]) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for value in up:
        x, y = at((first, value)).split(",")
        parts.append(f'<line class="grid" x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for step in across:
        x, y = at((step, low)).split(",")
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number(step)}</text>')
    for step in marks:
        if first <= step <= last:
            x, y = at((step, low)).split(",")
            parts.append(f'<line class="mark" x1="{x}" y1="{TOP}" x2="{x}" y2="{y}"/>')
    for curve in drawn:
        places = [at((step, min(top, value))) for step, value in curve.points]
        parts.append(f'<polyline class="{escape(curve.style)}" points="{" ".join(places)}"/>')
        if curve.dotted or len(places) == 1:
            dots = (place.split(",") for place in places)
            parts += [f'<circle class="{escape(curve.style)}" cx="{x}" cy="{y}" r="3"/>' for x, y in dots]
        for point in runs_above(curve.points, top):
            x, y = at(point).split(",")
            parts.append(f'<path class="{escape(curve.style)}" d="M{x} {y}l5 8h-10z"/>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">step</text></svg>')
    keys = "".join(f'<span class="{escape(one.style)}"></span>{escape(one.name)} ' for one in drawn)
    said = f"\N{BLACK UP-POINTING TRIANGLE} above the chart: up to {number(most)} " if most > top else ""
    return f"<figure><figcaption>{keys}<em>{said}{escape(unit)}</em></figcaption>{''.join(parts)}</figure>"


def ceiling(usual: Sequence[float], most: float) -> float:
    """Return the value at which a chart is cut: `most`, the highest of all, where none is far above the usual ones."""
    high = sorted(usual)[int(USUAL * (len(usual) - 1))]
    return ROOM * high if most > ABOVE * high > 0 else most


def runs_above(points: Sequence[Point], top: float) -> list[Point]:
    """Return the middle of each run of points above `top`, at `top`."""
    found = []
    for is_above, run in groupby(points, key=lambda point: point[1] > top):
        if is_above:
            steps = [step for step, _ in run]
            found.append((steps[len(steps) // 2], top))
    return found


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` points: where there are more, each the mean of those that follow each other."""
    each = math.ceil(len(points) / most)
    runs = [points[begin : begin + each] for begin in range(0, len(points), max(1, each))]
    return [(run[-1][0], math.fsum(value for _, value in run) / len(run)) for run in runs]


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return round numbers from `low` to `high`, `TICKS` of them or fewer; whole ones only where that is wanted."""
    span = (high - low) or max(abs(high), 1.0)
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    each = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    each = max(1.0, each) if whole else each
    first = math.ceil(low / each - 1e-9)
    return [count * each for count in range(first, math.floor(high / each + 1e-9) + 1)] or [low]


def number(value: float) -> str:
    """Return a number in few digits, with commas between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
