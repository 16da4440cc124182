"""Population of a search over layouts: the best layout of each row of peer counts. Threads may share it."""

import threading
from collections.abc import Callable, Iterable

import numpy as np

from dtfm_coordinator.allocator.search.layout import Layout

PARENTS = 8
"""Rows of counts that have children."""

Counts = tuple[int, ...]


class LayoutPopulation:
    """Population, and how it has become better."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        """Keep nothing yet; `elapsed` returns the seconds since the search began."""
        self._elapsed, self._lock = elapsed, threading.Lock()
        self._best_of: dict[Counts, tuple[float, Layout]] = {}
        """The best objective and layout of each row of peer counts."""
        self._annealed_depths = set[int]()
        self.history: list[tuple[float, float]] = []
        """(seconds, objective) of each layout that was the best so far."""

    def __bool__(self) -> bool:
        return bool(self._best_of)

    def keep(self, objective: float, layout: Layout) -> None:
        """Keep a layout if it is the best of its counts."""
        if not np.isfinite(objective):
            return
        with self._lock:
            best = min((kept[0] for kept in self._best_of.values()), default=np.inf)
            known = self._best_of.get(layout.counts)
            if known is None or objective < known[0]:
                self._best_of[layout.counts] = (objective, layout)
            if objective < best:
                self.history.append((self._elapsed(), objective))

    def keep_all(self, found: Iterable[tuple[float, Layout]]) -> None:
        """Keep each of these as it is found, with its objective, if it is the best of its counts."""
        for objective, layout in found:
            self.keep(objective, layout)

    def ranked(self) -> list[tuple[float, Layout]]:
        """Return what was kept, best first."""
        with self._lock:
            kept = list(self._best_of.values())
        return sorted(kept, key=lambda one: one[0])

    def parents(self) -> list[Layout]:
        """Return the best layout of each number of stages, best first."""
        best: dict[int, Layout] = {}
        for _, layout in self.ranked():
            best.setdefault(len(layout.counts), layout)
        return list(best.values())[:PARENTS]

    def fresh(self) -> Layout | None:
        """Return the best layout of a number of stages of which this has returned none yet; None: there is none."""
        parents = self.parents()
        with self._lock:
            layout = next((one for one in parents if len(one.counts) not in self._annealed_depths), None)
            if layout is not None:
                self._annealed_depths.add(len(layout.counts))
        return layout
