"""Lanes between two memories that are one, on which every copy is made as late as it may be."""

from collections.abc import Callable
from typing import Any

Copy = Callable[[], None]


class LateLanes:
    """Lanes that copy only when somebody waits: what depends on a copy that nobody waits for is found out."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Copy | None, Any]] = []
        """Copies that were asked for, in order, and for what each waits; None: it was made."""
        self._asked = 0
        self.moved = 0
        """Number of copies."""

    def bring(self, copy: Copy, after: Any) -> Any:
        """Note a copy, which waits for `after`."""
        self._waiting.append((copy, after))
        return len(self._waiting) - 1

    def take(self, copy: Copy, after: Any) -> Any:
        """Note a copy of what compute has just done."""
        assert after == ("asked", self._asked), "compute may still be at what is taken"
        return self.bring(copy, None)

    def asked(self) -> Any:
        """Return an event that has happened: compute is done when it returns."""
        self._asked += 1
        return ("asked", self._asked)

    def meet(self, event: Any) -> None:
        """Make a copy, after those for which it waits."""
        if event is None or isinstance(event, tuple):
            return
        copy, after = self._waiting[event]
        if copy is None:
            return
        self._waiting[event] = (None, None)
        self.meet(after)
        copy()
        self.moved += 1

    def finish(self) -> None:
        """Make those copies that nobody has waited for, the last ones first."""
        for event in reversed(range(len(self._waiting))):
            self.meet(event)
        self._waiting.clear()
