"""Which links should be measured anew: training finds them slower than they were, or they were slow a while ago. Pure.

A link that flaps must not move the plan to and fro: who was found slow is looked at again after a pause, and the pause
doubles each time.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Pair = tuple[str, str]
"""Sender and receiver."""

SLOWER = 2.0
"""A link whose fastest frames come so many times slower than it was measured is looked at."""
STEPS = 2
"""In a row."""
MUCH_SLOWER = 4.0
"""Of so much, one step says enough."""
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds before a link that was found slow is looked at again."""


@dataclass
class _Slow:
    """A link that was found slow."""

    was: float
    """Gbit/s before."""
    due: float
    pause: float


class LinkDegradation:
    """What frames have told under the plan in force, and which links were slow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plan = 0
        self._seen: dict[Pair, deque[float]] = defaultdict(lambda: deque(maxlen=STEPS))
        self._step: dict[str, int] = {}
        self._checked: dict[Pair, float] = {}
        """How fast frames came when a link was last looked at: only what is slower than that is news."""
        self._slow: dict[Pair, _Slow] = {}

    def reported(self, receiver: str, plan: int, step: int, gbps: Mapping[str, float]) -> None:
        """Frames have come to `receiver` in a step under `plan`, by sender."""
        if plan > self._plan:
            self._plan = plan
            self._seen.clear()
            self._checked.clear()
            self._step.clear()
        if plan < self._plan or self._step.get(receiver) == step:
            return
        self._step[receiver] = step
        for sender, rate in gbps.items():
            self._seen[sender, receiver].append(rate)

    def suspects(self, known: Callable[[str, str], float | None]) -> frozenset[Pair]:
        """Links that should be measured anew.

        Args:
            known: Gbit/s of a link as it was measured.
        """
        found = {pair for pair, slow in self._slow.items() if self._clock() >= slow.due}
        for pair, seen in self._seen.items():
            measured = known(*pair)
            if not seen or measured is None:
                continue
            bound = min(measured, self._checked.get(pair, measured))
            if seen[-1] * MUCH_SLOWER < bound or (len(seen) == STEPS and max(seen) * SLOWER < bound):
                found.add(pair)
        return frozenset(found)

    def looked(self, pairs: Iterable[Pair], before: Mapping[Pair, float], now: Mapping[Pair, float]) -> None:
        """Links were measured anew: Gbit/s before and now; one that is missing now cannot talk."""
        for pair in pairs:
            if self._seen[pair]:
                self._checked[pair] = max(self._seen[pair])
            found, old = now.get(pair, 0.0), self._slow.pop(pair, None)
            was = old.was if old is not None else before.get(pair, 0.0)
            if found * SLOWER < was:
                pause = min(LONGEST_PAUSE, 2 * old.pause) if old is not None else FIRST_PAUSE
                self._slow[pair] = _Slow(was, self._clock() + pause, pause)
            elif old is not None and old.pause < LONGEST_PAUSE:
                # It is well again. Should it become slow once more, the next pause is longer.
                self._slow[pair] = _Slow(found, float("inf"), old.pause)
