"""What a terminal has shown, and when, as frames of a recording. Pure."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from docs.recording.screen import Line, Screen


class Piece(NamedTuple):
    """What was shown at once."""

    at: float
    """Seconds since the recording began."""
    data: str


class Frame(NamedTuple):
    """A picture of the screen."""

    seconds: float
    """How long it stays."""
    lines: tuple[Line, ...]


def frames(
    pieces: Iterable[Piece], screen: Screen, *, most_wait: float = 1.2, shortest: float = 0.08, last: float = 6.0
) -> list[Frame]:
    """Return the frames of a recording.

    Args:
        pieces: all that was shown, in order.
        screen: an empty screen.
        most_wait: seconds to which longer waits are cut.
        shortest: seconds within which what changes is one frame.
        last: seconds for which the last one stays.
    """
    shown = list(_states(pieces, screen, shortest))
    if not shown:
        return []
    found = [Frame(min(most_wait, after - at), lines) for (at, lines), (after, _) in pairwise(shown)]
    return [*found, Frame(last, shown[-1][1])]


def _states(pieces: Iterable[Piece], screen: Screen, shortest: float) -> Iterator[tuple[float, tuple[Line, ...]]]:
    """Yield each state of the screen that lasted, and when it came."""
    came, shown = 0.0, screen.lines()
    for piece in pieces:
        if piece.at - came >= shortest and screen.lines() != shown:
            shown = screen.lines()
            yield came, shown
            came = piece.at
        elif screen.lines() == shown:
            came = piece.at
        screen.write(piece.data)
    if screen.lines() != shown:
        yield came, screen.lines()
