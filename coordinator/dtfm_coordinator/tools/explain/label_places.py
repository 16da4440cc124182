"""Places of labels beside points, where they cover neither points nor each other, as far as there is room. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from dtfm_protocol.view.link_matrix import Matrix

WIDE, HIGH = 0.62, 1.25
"""Width of a character and height of a line over the size of their font, about."""
GAP = 2.0
"""Points between a point's edge and its label."""

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


class LabelPlace(NamedTuple):
    """Place of a label."""

    row: int
    """Number of the point beside which it stands."""
    offset: tuple[float, float]
    """From the point to the label's middle, in points."""


class LabelPlaces:
    """Places that are given to one label after the other."""

    def __init__(self, points: Matrix, diameter: float, inside: Box) -> None:
        """Take the points, shape (N, 2), their diameter, and the box in which labels are to stay; all in points."""
        self._points, self._radius, self._inside = points, diameter / 2, inside
        self._taken: list[Box] = [
            (x - self._radius, y - self._radius, x + self._radius, y + self._radius) for x, y in points.tolist()
        ]

    def place(self, text: str, fontsize: float, rows: Sequence[int], *, above: bool) -> LabelPlace:
        """Return the place of a label of one of the points `rows`: the first that is free, else what covers least.

        Args:
            above: whether above the point is tried before below it.
        """
        lines = text.split("\n")
        width, height = WIDE * fontsize * max(map(len, lines)), HIGH * fontsize * len(lines)
        up, aside = self._radius + GAP + height / 2, self._radius + GAP + width / 2
        ways = [(0.0, up), (0.0, -up)] if above else [(0.0, -up), (0.0, up)]
        ways += [(aside, 0.0), (-aside, 0.0)]
        best, best_box, least = LabelPlace(rows[0], ways[0]), None, float("inf")
        for row in rows:
            for across, over in ways:
                x, y = float(self._points[row, 0]) + across, float(self._points[row, 1]) + over
                box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                outside = width * height - _common(box, self._inside)
                covered = outside + sum(_common(box, other) for other in self._taken)
                if covered < least - 1e-9:
                    best, best_box, least = LabelPlace(row, (across, over)), box, covered
            if least <= 1e-6:
                break
        if best_box is not None:
            self._taken.append(best_box)
        return best


def _common(one: Box, other: Box) -> float:
    """Return the area that two boxes have in common."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)
