"""Pace of one source of a fetch: what it owes, what it has given, and how fast. Pure."""

import math
from collections import deque
from collections.abc import Iterator

from dtfm_protocol.checkpoint.transfers import PIECE_LIMIT, WantPiece

AHEAD_BYTES = PIECE_LIMIT
"""Bytes that a source is asked for before it has answered, at most."""
AHEAD_SECONDS = 1.0
"""Seconds for which it has something to send at its pace, at most: what it owes, others cannot give meanwhile."""


class SourcePace:
    """Pace of one source; times are seconds of one clock."""

    def __init__(self) -> None:
        self.owed: deque[WantPiece] = deque()
        """Pieces that it was asked for and has not given, in the order in which it gives them."""
        self._since = 0.0
        """Time since which the first of them has been coming."""
        self._given, self._bytes, self._seconds = 0, 0, 0.0
        """Pieces and bytes that it has given, and the seconds for which it owed any."""

    def asked(self, piece: WantPiece, now: float) -> None:
        """Take note of a piece that the source is asked for."""
        if not self.owed:
            self._since = now
        self.owed.append(piece)

    def gave(self, now: float) -> WantPiece:
        """Return the piece that has come, which is the one that was asked for first."""
        piece = self.owed.popleft()
        self._given, self._bytes = self._given + 1, self._bytes + piece.size
        self._seconds, self._since = self._seconds + now - self._since, now
        return piece

    def takes_more(self) -> bool:
        """Whether it is to be asked for a piece more.

        Small pieces are asked for ahead of their turn: a state has hundreds of them, and each would cost a round trip.
        How many grows with those that came, twofold a round trip: one who gives nothing holds up a single one.
        """
        if not self.owed:
            return True
        most = min(AHEAD_BYTES, AHEAD_SECONDS * self._bytes / self._seconds) if self._seconds else AHEAD_BYTES
        return len(self.owed) <= self._given and sum(piece.size for piece in self.owed) < most

    def seconds_for(self, size: int) -> float:
        """Return how long it takes to give so many bytes; infinite where it has given nothing."""
        return size * self._seconds / self._bytes if self._bytes else math.inf

    def outlook(self, now: float) -> Iterator[tuple[WantPiece, float]]:
        """Yield what it owes, each with the seconds until it comes; where nothing has come for longer than was due, it
        may well take as long again."""
        waited, before = now - self._since, 0
        for piece in self.owed:
            before += piece.size
            due = self.seconds_for(before) - waited if self._bytes else 0.0
            yield piece, max(due, waited)
