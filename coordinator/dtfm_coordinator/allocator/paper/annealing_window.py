"""Temperatures between which annealing pays: above, nearly everything melts, and below, hardly a change is made.

Where a placement freezes, one annealing from a random placement finds out, for either cost: by the share of the changes
that it makes in each band of temperatures. Where none ever does, because many changes make no difference, they are
parts of the cost.
"""

from typing import NamedTuple, Self

import numpy as np

from dtfm_coordinator.allocator.foundations.links import Matrix

HOT = 0.15
"""Temperature that melts a placement, as a part of its cost, times the number of stages: a change is one boundary's."""
COLD = 2e-4
"""Temperature at which any placement is frozen, as a part of its cost."""
KEPT = 0.5
"""Temperature to which a placement is heated to be improved, as a part of `HOT`, where it is not known when it
freezes."""
BANDS = 12
"""Bands of temperatures in which the changes are counted."""
MELTED, FROZEN = 0.04, 0.0015
"""Shares of the changes that are made where a placement melts and where it is frozen."""
WARMER = 1.4
"""Times the temperature at which it is frozen, to which a placement is heated to be improved and not lost."""
EXACT = 0.25
"""Share of the annealings that go by the exact cost, where it is known when placements freeze by the smooth one."""
FOLLOWED = 1.1
"""Times by which that temperature follows what later annealings find: better placements are frozen at higher ones."""


class Window(NamedTuple):
    """Temperatures of annealings, seconds."""

    hot: float
    """The first one of a random placement's."""
    warm: float
    """The first one of a placement's that is to be improved and not lost."""
    cold: float
    """The last one."""

    @classmethod
    def of_cost(cls, cost: float, stages: int, replicas: int) -> Self:
        """Return those that suit most networks, as parts of the cost of a good placement, seconds."""
        # Of few replicas each is more of its boundary, and a change more of the cost.
        hot = cost * HOT / stages * max(1.0, (8 / replicas) ** 1.5)
        return cls(hot, KEPT * hot, cost * COLD)

    @classmethod
    def around(cls, melts: float, freezes: float) -> Self:
        """Return those between where placements melt and where they freeze."""
        cold = min(freezes, melts / 2)
        return cls(melts, WARMER * cold, cold)

    def seen(self, made: Matrix) -> Self | None:
        """Return those between which an annealing from `hot` to `cold` froze; None where it did not.

        Args:
            made: share of the changes that were made in each band, shape (BANDS,); not a number where none was tried.
        """
        shares = np.minimum.accumulate(made[np.isfinite(made)])
        if not shares.size or shares[-1] > FROZEN:
            return None
        places = (np.arange(shares.size) + 0.5) / BANDS
        temperatures = np.log(self.hot) + places * np.log(self.cold / self.hot)
        wanted, had = np.log([MELTED, FROZEN]), np.log(np.maximum(shares, 1e-9))
        melts, freezes = np.exp(np.interp(wanted, had[::-1], temperatures[::-1])).tolist()
        return self.around(melts, freezes)

    def followed(self, *, is_frozen: bool) -> Self:
        """Return those that end a little hotter where this one's last is too cold, else a little colder."""
        return self.around(self.hot, self.cold * (FOLLOWED if is_frozen else 1 / FOLLOWED))


class Windows:
    """Temperatures of annealings by the exact cost and by the smooth one, as far as placements were seen to freeze."""

    def __init__(self, stages: int, replicas: int) -> None:
        self._stages, self._replicas = stages, replicas
        self._seen = dict[bool, Window]()
        """By the smooth cost (True), and by the exact one (False)."""

    def __bool__(self) -> bool:
        """Whether placements were seen to freeze."""
        return bool(self._seen)

    def of(self, is_smooth: bool, cost: float) -> Window:
        """Return those for one of the two costs, where a good placement costs so many seconds."""
        return self._seen.get(is_smooth) or Window.of_cost(cost, self._stages, self._replicas)

    def is_smooth(self, rng: np.random.Generator) -> bool:
        """Draw by which cost to anneal: the smooth one only where placements were seen to freeze by it."""
        return True in self._seen and bool(rng.random() >= EXACT)

    def see(self, is_smooth: bool, window: Window, made: Matrix) -> bool:
        """Learn from an annealing, as `Window.seen`; return whether it froze."""
        seen = window.seen(made)
        if seen is not None:
            self._seen[is_smooth] = seen
        return seen is not None

    def follow(self, is_smooth: bool, made: float | np.float64) -> None:
        """Learn from the share of the changes that an annealing made at its last temperatures."""
        if is_smooth in self._seen:
            self._seen[is_smooth] = self._seen[is_smooth].followed(is_frozen=bool(made <= FROZEN))
