"""Budget of a search: the time and the evaluations after which it ends."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

PLACEMENT_SECONDS = 1e-5
"""At most about what it takes to see that a placement of a small swarm is no better."""
DEFAULT_SEARCH_SECONDS = 1.2
CUT_SHORT = "; the search was cut short"
"""End of a plan's reason where the search was stopped before its limits were reached."""


@dataclass(slots=True)
class Budget:
    """Limits of a search: both are optional, and the first to be reached ends it."""

    seconds: float | None
    evaluations: int | None
    clock: Callable[[], float] = time.monotonic
    stop: Callable[[], bool] = lambda: False
    """Whether the search is to end now with what it has, whatever the limits allow."""
    until: float = 1.0
    """Share of both limits at which the search under way ends, so that others follow it; more than 1: it is one besides
    those that the limits are for."""
    cores: int = 1
    """Number of cores on which the search may go on side by side."""
    spent_evaluations: int = 0
    _start: float = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.seconds is None and self.evaluations is None:
            self.seconds = DEFAULT_SEARCH_SECONDS
        self._start = self.clock()

    def elapsed(self) -> float:
        """Return the seconds since the budget was made."""
        return self.clock() - self._start

    def allows(self, placements: int) -> bool:
        """Whether `placements` placements could be looked at one by one."""
        if self.evaluations is not None and self.spent_evaluations + placements > self.evaluations:
            return False
        return self.seconds is None or placements * PLACEMENT_SECONDS <= self.seconds

    def spend(self, placements: int) -> None:
        """Count placements that were looked at; a look at none counts too, so that a search of nothing ends."""
        with self._lock:
            self.spent_evaluations += max(1, placements)

    def share_used(self) -> float:
        """Return the share of the nearer limit, of all of it, that is used up; more than 1: the search is one besides
        those that the limits are for."""
        parts = [0.0]
        if self.evaluations is not None:
            parts.append(self.spent_evaluations / self.evaluations)
        if self.seconds is not None:
            parts.append(self.elapsed() / self.seconds if self.seconds > 0 else 1.0)
        return max(parts)

    def used(self) -> float:
        """Return the share of the nearer limit, for now, that is used up."""
        return max(1.0 if self.stop() else 0.0, self.share_used() / self.until)

    def left(self, most: int) -> int:
        """Return the number of placements that may still be looked at for now, `most` at most."""
        return most if self.evaluations is None else max(0, min(most, self.part(self.until) - self.spent_evaluations))

    def foreseen(self) -> int:
        """Return about how many placements will still be looked at for now, by what the limits have let through so far;
        a huge number where nothing has been looked at."""
        used = self.used()
        if self.spent_evaluations == 0 or used <= 0:
            return self.left(1 << 60)
        return self.left(int(self.spent_evaluations * max(0.0, 1 - used) / used))

    def part(self, share: float) -> int:
        """Return a share of the placements that may be looked at in all; a huge number where only time counts."""
        return 1 << 60 if self.evaluations is None else int(share * self.evaluations)

    def spent(self) -> bool:
        """Whether the search under way is to stop."""
        if self.stop():
            return True
        if self.evaluations is not None and self.spent_evaluations >= self.part(self.until):
            return True
        return self.seconds is not None and self.elapsed() >= self.until * self.seconds
