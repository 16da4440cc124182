"""Degradation of links: which to measure anew, as training finds them slower, or they were slow a while ago. Pure.

A link that flaps must not move the plan to and fro: one that was found slow is measured again after a pause, which
doubles each time.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Pair = tuple[str, str]
"""Link from a sender to a receiver, by their peer ids."""

SLOWER = 2.0
"""Ratio of a link's measured rate to that of its fastest frames, from which it is measured again."""
STEPS = 2
"""Number of steps in a row in which a link must be that slow."""
MUCH_SLOWER = 4.0
"""Ratio from which one such step is enough."""
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds after which a link that was found slow is measured again: the first time, and at most."""


@dataclass
class _Slow:
    """Link that was found slow; `due` is when it is measured again, `pause` the seconds of waiting for that."""

    was: float
    """Gbit/s that it carried before."""
    due: float
    pause: float


class LinkDegradation:
    """Rates of links as training sees them under the plan in force, and memory of those that were slow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plan = 0
        self._seen: dict[Pair, deque[float]] = defaultdict(lambda: deque(maxlen=STEPS))
        self._step: dict[str, int] = {}
        self._checked: dict[Pair, float] = {}
        """Gbit/s of training's frames when a link was last measured again: only a slower rate is news."""
        self._slow: dict[Pair, _Slow] = {}

    def reported(self, receiver: str, plan: int, step: int, gbps: Mapping[str, float]) -> None:
        """Take the Gbit/s at which frames have come to `receiver` in step `step` under plan `plan`, by sender."""
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
        """Return the links that should be measured anew.

        Args:
            known: returns the Gbit/s of a link as it was measured; None: it was not.
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
        """Take the Gbit/s of links that were measured anew, before and now; a link that is missing in `now` cannot
        talk."""
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
