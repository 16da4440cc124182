"""Degradation of links: which to measure anew, as training finds them slower, or they were slow a while ago. Pure.

A link that flaps must not move the plan to and fro: one that was found slow is measured again after a pause, which
doubles each time, and one that is well then must be so at the next look, too. And where a machine is busy with
something else, its frames come late though its line is as it was.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dtfm_coordinator.links.line_estimate import FAST_GBPS
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.view.link_matrix import LEAST

Pair = tuple[str, str]
"""Link from a sender to a receiver, by their peer ids."""
Rates = Callable[[str, str], float | None]
"""Gbit/s of the link from one peer to another as it was measured; None: it was not."""
Lines = Callable[[str], Limits | None]
"""What a peer's line carries in all, measured or estimated; None: nobody knows."""

SLOWER = 2.0
"""Ratio of a link's measured rate to that of its fastest frames, from which it is measured again."""
STEPS = 2
"""Fewest steps in a row in which a link must be that slow."""
MUCH_SLOWER = 4.0
"""Ratio from which one such step is enough."""
SECONDS = 10.0
"""Seconds for which it must be slow in any case, without a fast frame: steps may be short, and a machine busy for a
moment."""
WARM_STEPS = 2
"""Number of a plan's first steps in which no link counts as slow: connections are new, and send slowly at first."""
WARM_SECONDS = 10.0
"""Seconds of a plan after which frames under way count all the same, once a step of it is over: steps may be long."""
FRESH_SECONDS = 3.0
"""Age of the newest report by which a link counts as slow while frames are under way: some of a peer's reports."""
APART_SECONDS = 0.25
"""Seconds between two reports that are kept apart: so many are kept at most, however often a peer reports."""
LEAST_GBPS = 4 * LEAST
"""Least Gbit/s that a link which fails is taken to carry, as in reports (`Measured`)."""
NO_LIMIT = 1.6
"""Multiple of a link's rate that a line without a limit was seen to carry at least, or lines like it were: two links at
once, each at no less than four fifths of what it carries alone."""
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds after which a link that was found slow is measured again: the first time, and at most."""


@dataclass
class _Slow:
    """Link that was found slow; `due` is when it is measured again, `pause` the seconds of waiting for that."""

    was: float
    """Gbit/s that it carried before."""
    due: float
    pause: float
    is_on_trial: bool = False
    """Whether it was well at the last look, for the first time since."""

    @classmethod
    def after(cls, old: "_Slow | None", before: float, found: float, now: float) -> "_Slow | None":
        """Return what is remembered of a link of `old` once a look has found it at so many Gbit/s; None: nothing.

        A look before it is due, as that of its other direction is, makes no pause longer, and ends no trial.
        """
        if old is None:
            return cls(before, now + FIRST_PAUSE, FIRST_PAUSE) if found * SLOWER < before else None
        is_early = now < old.due < math.inf
        if found * SLOWER < old.was:
            pause = min(LONGEST_PAUSE, 2 * old.pause)
            return old if is_early and not old.is_on_trial else cls(old.was, now + pause, pause)
        if 0 < before * SLOWER < old.was and (is_early or not old.is_on_trial):
            due = old.due if old.is_on_trial else now + FIRST_PAUSE
            return cls(old.was, due, old.pause, is_on_trial=True)
        # It is well again. Should it become slow once more, the next pause is longer.
        return cls(found, math.inf, old.pause) if old.pause < LONGEST_PAUSE else None


class LinkDegradation:
    """Rates of links as training sees them under the plan in force, and memory of those that were slow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plan = 0
        self._began = 0.0
        """Clock's seconds of the first report under the plan."""
        self._steps: tuple[int, int] | None = None
        """First and newest step of which anyone has reported under the plan; None: there is none yet."""
        self._seen: dict[Pair, deque[tuple[float, float]]] = defaultdict(deque)
        """Clock's seconds, and Gbit/s, of each link's newest steps."""
        self._step: dict[str, int] = {}
        self._sending: dict[Pair, tuple[float, float]] = {}
        """Clock's seconds, and Gbit/s as senders' kernels time them, of links on which frames are under way."""
        self._excused: dict[Pair, float] = {}
        """Clock's seconds until which what is told of links with frames under way counts for nothing."""
        self._in_vain = Counter[Pair]()
        """Number of times that links were looked into in vain under the plan."""
        self._checked: dict[Pair, float] = {}
        """Gbit/s of training's frames when a link was last measured again: only a slower rate is news."""
        self._slow: dict[Pair, _Slow] = {}

    def reported(self, receiver: str, plan: int, step: int, gbps: Mapping[str, float]) -> None:
        """Take the Gbit/s at which frames have come to `receiver` in step `step` under plan `plan`, by sender."""
        if plan > self._plan:
            self._follow(plan)
        if plan < self._plan or self._step.get(receiver) == step:
            return
        self._step[receiver] = step
        self._steps = (min(self._steps[0], step), max(self._steps[1], step)) if self._steps else (step, step)
        now = self._clock()
        for pair in [pair for pair in self._seen if pair[1] == receiver and pair[0] not in gbps]:
            del self._seen[pair]  # its frames were through too fast to tell more
        for sender, rate in gbps.items():
            seen = self._seen[sender, receiver]
            if seen and now - seen[-1][0] < APART_SECONDS:
                seen[-1] = seen[-1][0], max(seen[-1][1], rate)
                continue
            seen.append((now, rate))
            while len(seen) > STEPS and seen[0][0] <= now - SECONDS:
                seen.popleft()

    def _follow(self, plan: int) -> None:
        """Forget what was seen under the plan before."""
        self._plan, self._began, self._steps = plan, self._clock(), None
        for seen in (self._seen, self._sending, self._excused, self._in_vain, self._checked, self._step):
            seen.clear()

    @property
    def _is_warm(self) -> bool:
        """Whether the plan's first steps are over."""
        return self._steps is not None and self._steps[1] - self._steps[0] >= WARM_STEPS

    @property
    def _is_under_way(self) -> bool:
        """Whether the plan has gone on for long enough for frames under way to count. All of its connections have been
        used by the end of its first step, and no peer fetches state any more."""
        return self._is_warm or (self._steps is not None and self._clock() >= self._began + WARM_SECONDS)

    def sending(self, sender: str, plan: int, gbps: Mapping[str, float]) -> None:
        """Take the Gbit/s at which frames are going from `sender` under plan `plan`, by receiver."""
        if plan < self._plan:
            return
        if plan > self._plan:
            self._follow(plan)
        self._sending = {pair: rate for pair, rate in self._sending.items() if pair[0] != sender}
        now = self._clock()
        self._sending |= {(sender, receiver): (now, rate) for receiver, rate in gbps.items()}

    def failing(self, known: Rates, line: Lines) -> dict[Pair, float]:
        """Return the links on which frames under way are much slower than was measured, with their Gbit/s now.

        Those that share an end's line have a share of it. One that was found slow before is none of them: it may flap,
        and is looked at when its pause is over.
        """
        return self._slower(known, line, MUCH_SLOWER)

    def still_failing(self, failing: Mapping[Pair, float], known: Rates, line: Lines) -> dict[Pair, float]:
        """Return those of links that were `failing` a moment ago which do still, and their other directions that do,
        with their Gbit/s now. So does one on which nothing is under way while its other direction is slow: it has the
        rate that it had.

        Twice as slow is enough: how many share a line changes from moment to moment.
        """
        slow, busy = self._slower(known, line, SLOWER), self._busy
        found = {}
        for pair, gbps in failing.items():
            back = pair[::-1]
            if pair in slow or (pair not in busy and back in slow):
                found[pair] = slow.get(pair, gbps)
                found |= {back: slow[back]} if back in slow else {}
        return found

    def _slower(self, known: Rates, line: Lines, times: float) -> dict[Pair, float]:
        """Return the links on which frames under way are so many times slower than their share of what was measured."""
        if not self._is_under_way:
            return {}
        busy = self._busy
        senders, receivers = Counter(one for one, _ in busy), Counter(other for _, other in busy)
        found = {}
        for (one, other), rate in busy.items():
            measured = known(one, other)
            if measured is None or not self.is_well((one, other)):
                continue
            sent = _share(measured, senders[one], line(one), "up_gbps")
            received = _share(measured, receivers[other], line(other), "down_gbps")
            if rate * times < min(sent, received):
                found[one, other] = rate
        return found

    @property
    def _busy(self) -> dict[Pair, float]:
        """Gbit/s of links on which frames are under way."""
        since = self._clock() - FRESH_SECONDS
        return {pair: rate for pair, (at, rate) in self._sending.items() if at >= since}

    def is_well(self, pair: Pair) -> bool:
        """Whether a link was well whenever it was looked at, both ways, and was not looked into in vain of late."""
        ways, now = {pair, pair[::-1]}, self._clock()
        return not (ways & self._slow.keys() or any(self._excused.get(way, 0.0) > now for way in ways))

    def excuse(self, pairs: Collection[Pair]) -> None:
        """Take no notice of links for some seconds, though frames under way are slow: that was looked into in vain.
        Where nothing is under way on them now, so that they are not known to be well, only for a few; but for longer
        each time, for a sender may say anything."""
        told = {*self._busy, *(pair[::-1] for pair in self._busy)}
        for pair in pairs:
            seconds = SECONDS if pair in told else FRESH_SECONDS
            self._excuse(pair, min(FIRST_PAUSE, seconds * 2 ** self._in_vain[pair]))
            self._in_vain[pair] += 1

    def _excuse(self, pair: Pair, seconds: float) -> None:
        self._excused[pair] = self._clock() + seconds

    def suspects(self, known: Rates, slowdown: Callable[[str], float] = lambda peer: 1.0) -> frozenset[Pair]:
        """Return the links that should be measured anew.

        Args:
            slowdown: returns how many times as long as usual a peer computes: frames take it as much longer.
        """
        found = {pair for pair, slow in self._slow.items() if self._clock() >= slow.due}
        for pair, seen in self._seen.items():
            measured = known(*pair)
            if not seen or measured is None or not self._is_warm or self._clock() < self._began + SECONDS:
                continue
            bound = min(measured, self._checked.get(pair, measured)) / max(map(slowdown, pair))
            fastest = self._fastest(seen, 1), self._fastest(seen, STEPS)
            if fastest[0] * MUCH_SLOWER < bound or (len(seen) >= STEPS and fastest[1] * SLOWER < bound):
                found.add(pair)
        return frozenset(found)

    @property
    def carried(self) -> dict[Pair, float]:
        """Gbit/s at which frames have come over each link in the newest steps: it carries that at least."""
        return {pair: self._fastest(seen, 1) for pair, seen in self._seen.items() if seen}

    def _fastest(self, seen: Collection[tuple[float, float]], steps: int) -> float:
        """Return the highest rate of the newest steps: of so many, and of all in the last `SECONDS`."""
        since, first = self._clock() - SECONDS, len(seen) - steps
        return max(rate for number, (at, rate) in enumerate(seen) if number >= first or at > since)

    def looked(self, pairs: Iterable[Pair], before: Mapping[Pair, float], now: Mapping[Pair, float]) -> list[Pair]:
        """Take the Gbit/s of links that were measured anew, before and now; a link that is missing in `now` cannot
        talk. Return those that were slow and are well for the first time: as they may flap, they are to count as slow
        until the next look. Not one that could not talk at all: there may be no other way."""
        on_trial = []
        for pair in pairs:
            if pair in self._sending:
                self._excuse(pair, FIRST_PAUSE)
            if self._seen[pair]:
                self._checked[pair] = max(rate for _, rate in self._seen[pair])
            slow = _Slow.after(self._slow.pop(pair, None), before.get(pair, 0.0), now.get(pair, 0.0), self._clock())
            if slow is not None:
                self._slow[pair] = slow
                on_trial += [pair] if slow.is_on_trial else []
        return on_trial


def _share(gbps: float, links: int, line: Limits | None, way: Literal["up_gbps", "down_gbps"]) -> float:
    """Return the Gbit/s that a link of so many Gbit/s has at least while so many links of a peer are busy. A line that
    nobody has measured is taken to carry the rate of this one, and so is one without a limit where the link is fast: a
    limit was not looked for."""
    limit = gbps if line is None else getattr(line, way) or (NO_LIMIT * gbps if gbps < FAST_GBPS else gbps)
    return min(gbps, max(gbps, limit) / links)


def both_ways(failing: Mapping[Pair, float], known: Rates) -> dict[Pair, float]:
    """Return links that fail with their other directions, each with its Gbit/s now: those that do not fail themselves
    are taken to have lost as much.

    What takes a link's rate may well take it both ways: state is not to be moved over it before that is known. What
    frames have told of the other way may be from before the fault.
    """
    found = dict(failing)
    for pair, gbps in failing.items():
        before, then = known(*pair), known(*pair[::-1])
        if before and then is not None and pair[::-1] not in failing:
            found[pair[::-1]] = min(then, max(LEAST_GBPS, then * gbps / before))
    return found
