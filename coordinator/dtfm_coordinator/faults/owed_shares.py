"""Shares of checkpoints that peers of the plan in force owe the coordinator, and whom the next plans do without. Pure.

A checkpoint is whole once all peers of a plan have handed in: one that never does stops every checkpoint, the last one
too, and so the end of the run. It may lie, or its disk may be full: nobody can tell, so it is no proven liar. Once it
owes for too long its plan is over, and the next ones do without it where they can, until it has handed in again. One a
plan: where many owe, the fault may be this coordinator's own line, and that must not cost them all their place.

Each owes only what it says itself that it has come to, so that nobody is made to owe a step that is far off by who
hands that in. Where one hands in a step to which another says for as long that it has not come, they contradict each
other: a step is over for all peers of a plan, or for none.

In the middle of a run a peer may miss one checkpoint: one without room on its disk, or whose share of it is outdated
before the coordinator answers, goes on to the next. It owes from the second one on.
"""

import heapq
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts

SLOWEST = 64 << 10
"""Bytes a second at which the file of a share comes in at least, on average, for its giver not to be late."""


@dataclass
class _Debt:
    """Share that a peer has not handed in, though another one has, and it says that it has come to that step."""

    step: int
    since: float
    """Clock's seconds since when it owes."""
    may_miss: bool
    """Whether it may leave it at that, and hand in the next one."""
    received: int = 0
    """Bytes that have come of it since, in however many attempts."""


class OwedShares:
    """Shares that are owed under the plan in force, and who has owed for too long in this run."""

    def __init__(
        self,
        steps: int = 0,
        every: int = 0,
        clock: Callable[[], float] = time.monotonic,
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        """Nobody owes anything before `begin`.

        Args:
            steps: number of the job's last step, which is handed in whatever `every` is.
            every: number of steps between two checkpoints; 0: there are none before the last one.
            clock: gives the present in seconds.
            timeouts: tells how long a peer may owe.
        """
        self._clock, self._seconds = clock, timeouts.checkpoint_share
        self._steps = steps
        self._last_due: Callable[[int], int] = lambda step: (
            steps if step >= steps else step - step % every if every else 0
        )
        """Returns the newest step up to one that all hand in; 0: none."""
        self._plan, self._peers = 0, frozenset[str]()
        self._given: dict[str, tuple[int, float]] = {}
        """Newest step that each peer has handed in, and the clock's seconds when it did."""
        self._reached: dict[str, int] = {}
        """Newest step that is to be handed in to which each peer says that it has come."""
        self._debts: dict[str, _Debt] = {}
        self._left_out: dict[str, None] = {}
        self._ended = (0, "")
        """Version of the newest plan that was ended for what is owed, and what is to be said of it."""

    def follow(self, last_due: Callable[[int], int], steps: int) -> None:
        """Go by other rules, as the job was amended.

        Args:
            last_due: returns the newest step up to one that all hand in; 0: none.
            steps: number of the job's last step.
        """
        self._last_due, self._steps = last_due, steps

    def begin(self, plan: int, peers: Collection[str]) -> None:
        """Let all times start anew, for a new plan of this version."""
        self._plan, self._peers = plan, frozenset(peers)
        self._given, self._reached, self._debts = {}, {}, {}

    def reached(self, peer: str, plan: int, step: int) -> None:
        """Take the word of a peer that it has come to `step` under a plan."""
        if plan != self._plan or peer not in self._peers:
            return
        due = self._last_due(step)
        if due > self._reached.get(peer, -1):
            self._reached[peer] = due
            self._note_debt(peer)

    def given(self, peer: str, step: int) -> None:
        """Note that a peer has handed in its share of `step`: nothing is held against it any more."""
        if peer not in self._peers or not 0 < step == self._last_due(step) or step <= self._step_given(peer):
            return  # or it says the same again, or a share that is asked for before a peer leaves
        self._given[peer] = (step, self._clock())
        self._left_out.pop(peer, None)
        self._debts.pop(peer, None)
        for one in self._peers:
            self._note_debt(one)

    def came(self, peer: str, size: int, most: int) -> None:
        """Note that bytes of the file of a peer's share have come in.

        Args:
            most: bytes of the largest file that is taken: more than that buy no time.
        """
        if (debt := self._debts.get(peer)) is not None:
            debt.received = min(debt.received + size, most)

    def excuse(self) -> None:
        """Let all debts start anew: the coordinator itself has no room for what it is given."""
        now = self._clock()
        for debt in self._debts.values():
            debt.since = now

    def judge(self) -> str:
        """Take who has owed longest, if that is too long, for one without whom plans do better; return what is to be
        said of that, "" where nothing is.

        The plan is over then, unless that peer was to be left out already: it is there because no other plan was found.
        """
        late = [(debt.since, peer) for peer, debt in self._debts.items() if self._is_late(debt)]
        if not late or self.under(self._plan):
            return ""
        _, peer = min(late)
        step = self._debts.pop(peer).step
        what = f"{short(peer)} does not hand in its share of the checkpoint of step {step} (is its disk full?)"
        if peer in self._left_out:
            return f"{what}, and no plan does without it: look at that node, or add others"
        self._left_out[peer] = None
        if len(self._left_out) > SEEN_LIMIT:
            del self._left_out[next(iter(self._left_out))]
        self.end(what)
        return f"{what}: the work is divided without it where that is possible"

    def contradictions(self) -> Iterator[tuple[str, str, int]]:
        """Yield two peers and a step, where for too long the first has handed in what the second says that it has not
        come to."""
        if self.under(self._plan):
            return
        oldest = self._clock() - self._seconds
        slow = heapq.nsmallest(2, sorted(self._peers), key=lambda peer: self._reached.get(peer, -1))
        for giver, (step, since) in self._given.items():
            for other in slow:
                if since < oldest and other != giver and self._reached.get(other, -1) < step:
                    yield giver, other, step

    def end(self, why: str) -> None:
        """Have the plan in force be over."""
        self._ended = (self._plan, why)

    def under(self, plan: int) -> str:
        """Return why the plan of this version is over, in one line; "" if it is not for what is owed."""
        return self._ended[1] if self._ended[0] == plan else ""

    @property
    def left_out(self) -> frozenset[str]:
        """Peers that have no part in the next plans, where plans without them are possible."""
        return frozenset(self._left_out)

    def _step_given(self, peer: str) -> int:
        return self._given[peer][0] if peer in self._given else 0

    def _note_debt(self, peer: str) -> None:
        """Have a peer owe, from now on, the newest step that others have handed in, of those to which it has come."""
        mine, reached = self._step_given(peer), self._reached.get(peer, -1)
        newest = max((step for step, _ in self._given.values() if mine < step <= reached), default=0)
        before = self._debts.get(peer)
        if newest and (before is None or (before.may_miss and newest > before.step)):
            may_miss = before is None and newest < self._steps
            self._debts[peer] = _Debt(newest, self._clock(), may_miss)

    def _is_late(self, debt: _Debt) -> bool:
        patience = self._seconds + debt.received / SLOWEST
        return not debt.may_miss and self._clock() - debt.since > patience
