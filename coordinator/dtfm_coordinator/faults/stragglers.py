"""Stragglers: peers that have become slow since their plan began, beside the others. Pure."""

from collections import defaultdict, deque
from statistics import median

WINDOW = 3
"""Number of newest steps whose median seconds count."""
SLOW = 2.0
"""Factor by which a peer's compute must have become slower than when its plan began, while the others' has not, to be
slow."""
SLOWEST = 1000.0
"""Largest factor that counts: a peer that is even slower is as good as out of the plan, and sums of such numbers stay
finite."""
STILL_SLOW = 1.5
"""Factor below which a peer that was slow counts as slow no more."""


class Stragglers:
    """Seconds of compute that each peer of a plan takes a step, and which peers they show to be slow."""

    def __init__(self) -> None:
        self._plan = 0
        self._first: dict[str, list[float]] = defaultdict(list)
        self._last: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._step: dict[str, int] = {}
        self._factors: dict[str, float] = {}
        """Factor by which each peer was slow when the plan was made: those figures are not measured anew under it."""

    def reported(self, peer: str, plan: int, step: int, busy: float) -> None:
        """Take the seconds of compute, `busy`, that a peer has taken for `step` under `plan`."""
        if plan > self._plan:
            self._factors = self.factors()
            self._plan = plan
            self._first.clear()
            self._last.clear()
            self._step.clear()
        if plan < self._plan or busy <= 0 or self._step.get(peer) == step:
            return
        self._step[peer] = step
        if len(self._first[peer]) < WINDOW:
            self._first[peer].append(busy)
        self._last[peer].append(busy)

    def factors(self) -> dict[str, float]:
        """Return how many times slower than its profile says each slow peer is; the others are left out."""
        raw = {
            peer: min(SLOWEST, median(last) / median(self._first[peer]))
            for peer, last in self._last.items()
            if len(last) == WINDOW
        }
        # A machine that runs several peers may slow them all down, and that is no peer's fault.
        common = max(1.0, median(raw.values())) if len(raw) > 2 else 1.0
        found = dict(self._factors)
        for peer, factor in raw.items():
            before = found.pop(peer, 1.0)
            now = min(SLOWEST, before * factor / common)
            if now >= (SLOW if before == 1.0 else STILL_SLOW):
                found[peer] = now
        return found

    def slow(self) -> frozenset[str]:
        """Return the peers that have become slow under this plan."""
        now, before = self.factors(), self._factors
        return frozenset(peer for peer, factor in now.items() if factor >= SLOW * before.get(peer, 1.0))
