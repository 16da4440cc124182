"""Labels stand beside their points, and cover neither points nor each other where there is room."""

import numpy as np

from dtfm_coordinator.tools.explain.label_places import GAP, HIGH, WIDE, LabelPlaces

INSIDE = (0.0, 0.0, 400.0, 400.0)


def boxes(points: list[tuple[float, float]], texts: list[str], size: float) -> list[tuple[float, float, float, float]]:
    labels = LabelPlaces(np.array(points), 20.0, INSIDE)
    found = []
    for row, text in enumerate(texts):
        place = labels.place(text, size, [row], above=True)
        x, y = points[row][0] + place.offset[0], points[row][1] + place.offset[1]
        width, height = WIDE * size * len(text), HIGH * size
        found.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    return found


def apart(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_a_label_stands_above_its_point_or_below_as_asked() -> None:
    labels = LabelPlaces(np.array([[200.0, 200.0]]), 20.0, INSIDE)
    assert labels.place("a", 8, [0], above=True).offset == (0.0, 10 + GAP + HIGH * 4)
    labels = LabelPlaces(np.array([[200.0, 200.0]]), 20.0, INSIDE)
    assert labels.place("a", 8, [0], above=False).offset == (0.0, -(10 + GAP + HIGH * 4))


def test_neither_points_nor_labels_are_covered() -> None:
    points = [(200.0, 200.0), (212.0, 224.0), (200.0, 176.0), (260.0, 200.0)]
    found = boxes(points, ["a name", "another one", "third", "x"], 8.0)
    circles = [(x - 10, y - 10, x + 10, y + 10) for x, y in points]
    for number, box in enumerate(found):
        assert all(apart(box, other) for other in found[:number])
        assert all(apart(box, circle) for circle in circles)


def test_of_several_points_one_with_room_is_taken_and_the_edge_is_kept() -> None:
    crowded = [(200.0, 396.0), (176.0, 385.0), (224.0, 385.0), (200.0, 372.0), (100.0, 100.0)]
    labels = LabelPlaces(np.array(crowded), 20.0, INSIDE)
    assert labels.place("region", 9, [0, 4], above=True).row == 4
    # Where there is no room at all it stands somewhere nevertheless.
    assert LabelPlaces(np.array(crowded), 20.0, (0.0, 0.0, 1.0, 1.0)).place("region", 9, [0], above=True).row == 0
