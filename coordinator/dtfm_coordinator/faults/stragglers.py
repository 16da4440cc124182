"""Stragglers: peers that have become slow since their plan began, beside the others. Pure.

A machine that others use, too, is slow for seconds again and again: a peer is judged by what it takes over a while, for
all but a quarter of its steps, against what it took when its plan began, and less what has slowed all peers down
together.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from statistics import median
from typing import NamedTuple

from dtfm_protocol.plan.plan import Plan

STEPS = 3
"""Fewest steps whose median seconds count."""
SECONDS = 15.0
"""Seconds over which steps are taken together, where they are many: what passes within three quarters of that is no
cause for anything."""
APART_SECONDS = 0.25
"""Seconds between two reports of a peer that both count: so many are kept at most, however often it reports."""
LOOK_SECONDS = 1.0
"""Seconds after which peers are judged anew: a report of each comes about so often."""
SLOW = 2.0
"""Factor by which a peer's compute must have become slower than when its plan began, while the others' has not, to be
slow."""
SLOWEST = 1000.0
"""Largest factor that counts: a peer that is even slower is as good as out of the plan, and sums of such numbers stay
finite."""
STILL_SLOW = 1.5
"""Factor below which a peer that was slow counts as slow no more."""


class _Took(NamedTuple):
    at: float
    """Clock's seconds when the step was reported."""
    busy: float
    """Seconds of compute."""


class _Peer:
    """What one peer has taken for steps under one plan."""

    def __init__(self) -> None:
        self._last: deque[_Took] = deque()
        self.first = 0.0
        """Median seconds of a step when the plan began; 0: too few are known."""
        self.now = 0.0
        """Median seconds of a step of late; 0: too few are known."""
        self.at_least = 0.0
        """Seconds that all but a quarter of them took at least."""

    def took(self, at: float, busy: float) -> None:
        last = self._last
        if last and at - last[-1].at < APART_SECONDS:
            return
        last.append(_Took(at, busy))
        while len(last) > STEPS and last[1].at <= at - SECONDS:
            last.popleft()
        if len(last) >= STEPS and last[0].at <= at - SECONDS:
            seconds = sorted(one.busy for one in last)
            self.now, self.at_least = median(seconds), seconds[max(1, len(seconds) // 4)]
            self.first = self.first or self.now


class Stragglers:
    """Seconds of compute that each peer of a plan takes a step, and which peers they show to be slow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._plan = 0
        self._work: Mapping[str, int] = {}
        self._peers: dict[str, _Peer] = defaultdict(_Peer)
        self._step: dict[str, int] = {}
        self._carried: dict[str, float] = {}
        """Factor by which each peer was slow when the plan was made: those figures are not measured anew under it."""
        self._usual: dict[str, float] = {}
        """Seconds that each peer took for a unit of its work when a plan began under which it was not slow."""
        self._judged: dict[str, float] = {}
        self._slow: frozenset[str] = frozenset()
        self._due = 0.0
        """Clock's seconds when peers are to be judged anew."""
        self._since = clock()
        """Clock's seconds when it was last found that other peers are slow than before."""

    def reported(self, peer: str, plan: Plan, step: int, busy: float) -> None:
        """Take the seconds of compute, `busy`, that a peer has taken for `step` under `plan`."""
        if plan.version > self._plan:
            self._begin(plan)
        if plan.version < self._plan or busy <= 0 or self._step.get(peer) == step:
            return
        self._step[peer] = step
        known, was_known = self._peers[peer], self._peers[peer].first
        known.took(self._clock(), busy)
        if known.first and not was_known:
            self._compare_with_usual(peer, known.first / self._work.get(peer, 1))

    def forget(self, peer: str) -> None:
        """A peer was started anew, and has measured itself: what was known of it is outdated."""
        for known in (self._peers, self._step, self._carried, self._usual, self._judged):
            known.pop(peer, None)
        self._slow -= {peer}

    def factors(self) -> dict[str, float]:
        """Return how many times slower than its profile says each slow peer is; the others are left out."""
        self._judge()
        return dict(self._judged)

    def slowdown(self, peer: str) -> float:
        """Return how many times as long as when its plan began a peer computes of late, whatever the others do; at
        least 1."""
        known = self._peers.get(peer)
        return max(1.0, known.now / known.first) if known is not None and known.first else 1.0

    def slow(self) -> frozenset[str]:
        """Return the peers that have become slow under this plan."""
        self._judge()
        return self._slow

    def well(self) -> frozenset[str]:
        """Return the peers for whose slowness the plan was made, and that are as fast as before again."""
        self._judge()
        return frozenset(self._carried.keys() - self._judged.keys())

    def steady_seconds(self) -> float:
        """Return the seconds for which the slow peers are the same, as far as is known."""
        return self._clock() - self._since + SECONDS / 2

    def _begin(self, plan: Plan) -> None:
        self._due = 0.0
        self._judge()
        self._plan, self._work, self._carried = plan.version, work_of(plan), self._judged
        self._peers.clear()
        self._step.clear()
        self._slow, self._due, self._since = frozenset(), 0.0, self._clock()

    def _compare_with_usual(self, peer: str, seconds: float) -> None:
        """Note the seconds that a peer takes for a unit of its work as its plan begins: one that was slow before may be
        as fast as ever by now."""
        if peer not in self._carried:
            self._usual[peer] = seconds
        elif seconds < STILL_SLOW * self._usual.get(peer, 0.0):
            del self._carried[peer]

    def _judge(self) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._due = now + LOOK_SECONDS
        raw = {peer: min(SLOWEST, one.now / one.first) for peer, one in self._peers.items() if one.first}
        common, found = _common(raw.values()), dict(self._carried)
        for peer, factor in raw.items():
            before, one = found.pop(peer, 1.0), self._peers[peer]
            is_slow = one.at_least / one.first >= SLOW * common
            if is_slow or (before * factor / common >= STILL_SLOW and before > 1.0):
                found[peer] = min(SLOWEST, before * factor / common)
        slow = frozenset(
            peer for peer, one in self._peers.items() if one.first and one.at_least / one.first >= SLOW * common
        )
        if (slow, found.keys()) != (self._slow, self._judged.keys()):
            self._since = now
        self._judged, self._slow = found, slow


def _common(factors: Collection[float]) -> float:
    """Return the factor by which peers have become slower together, of those that each shows; 1: none is seen.

    A machine that runs several peers may slow them all down, and that is no peer's fault.
    """
    if len(factors) < 2:
        return 1.0
    return max(1.0, median(factors) if len(factors) > 2 else min(factors))


def work_of(plan: Plan) -> dict[str, int]:
    """Return the work of each peer of `plan`: layers, times the micro-batches that go through them."""
    micro_batches = Counter((peer, stage) for route in plan.routes for stage, peer in enumerate(route))
    return {
        peer: count * (plan.stages[stage][1] - plan.stages[stage][0]) for (peer, stage), count in micro_batches.items()
    }
