"""What would make another plan better than the one in force, or end it."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dtfm_coordinator.lead.planner import Planner
from dtfm_coordinator.membership.link_degradation import Pair
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.plan import Plan

TRUSTED_SECONDS = 60.0
"""At least so soon a move must pay back to which only a changed link gives cause; later, where no plan has changed for
longer."""

FRUITLESS_SECONDS = 30.0
"""Longest pause after plans that broke before their first step."""


class Failed(UserError):
    """The run cannot go on, whatever the swarm does."""


@dataclass(frozen=True)
class Change:
    """A new plan is due."""

    why: str
    gently: bool = False
    """Whether all is well under the one in force."""
    layout: Plan | None = None
    """What is to be served, where that is known."""
    links_only: bool = False
    """Whether nothing else gives cause than links that may have changed."""


class Situation(NamedTuple):
    """What might make another plan better."""

    came: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    """Who wants to leave."""
    slow: frozenset[str] = frozenset()
    """Who has become slow."""


CALM = Situation()


def reason_to_compare(
    now: Situation, considered: Situation, suspects: Iterable[Pair], *, trusted: bool, unknown: Iterable[str]
) -> str:
    """Why another plan might be better, if that was not looked into yet; empty if there is no reason.

    Args:
        considered: what the plan in force was last compared for.
        suspects: links that may be others than they were.
        trusted: whether links that had changed have stayed as they are for long enough to be compared again.
        unknown: who may have links that nobody knows: they are measured while all is well, for when they are needed,
            everyone waits.
    """
    if links := sorted(suspects):
        return f"{', '.join(' -> '.join(map(short, pair)) for pair in links)} may have changed"
    if now == considered and trusted:
        return "links have changed, and have stayed as they are since"
    if now == considered or not any(now):
        new = ", ".join(map(short, unknown))
        return f"{new} may have links that nobody knows" if new else ""
    words = zip(now, ("came", "wants to leave", "has become slow"), strict=True)
    return "; ".join(f"{', '.join(map(short, sorted(who)))} {word}" for who, word in words if who)


class PlanWatch:
    """The plan in force, compared with what the swarm has become."""

    def __init__(self, state: SwarmState, planner: Planner, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._planner, self._clock = state, planner, clock
        self._considered = CALM
        """What the plan in force was last compared for."""
        self._since = clock()
        """When the plan in force came, or this coordinator."""
        self._again_at = math.inf
        """When links that have changed may be trusted for longer, so that another plan may pay back."""
        self._fruitless = 0
        """Plans in a row that broke before their first step."""

    def follows(self) -> None:
        """A new plan is in force: what was compared with the one before was not with this one."""
        self._considered = CALM
        self._since, self._again_at = self._clock(), math.inf

    def forget(self) -> None:
        """What was to be looked into was not."""
        self._considered = CALM

    def horizon(self, change: Change) -> float | None:
        """Within how many seconds another plan must pay back; None: the job's own horizon.

        Links that have changed may do so again: they are trusted for as long as all has stayed as it was.
        """
        self._again_at = math.inf
        return max(TRUSTED_SECONDS, self._clock() - self._since) if change.links_only else None

    def again_after(self, seconds: float) -> None:
        """Nothing better was found that pays back so soon: compare again when as much time has passed."""
        self._again_at = self._clock() + seconds

    def suspects(self) -> frozenset[Pair]:
        """Links that may be others than they were."""
        if self._planner.is_forced:
            return frozenset()
        present = {member.peer for member in self._state.members.ready()}
        pairs = self._state.link_watch.suspects(self._state.links.gbps)
        return frozenset(pair for pair in pairs if present.issuperset(pair))

    def wish(self, plan: Plan) -> str:
        """Why another plan might be better than `plan`, if that was not looked into yet."""
        if self._planner.is_changed:
            return "the owner wants another layout"
        there, known = self._state.members.settled(), self._state.links
        return reason_to_compare(
            self._situation(plan),
            self._considered,
            self.suspects(),
            trusted=self._clock() >= self._again_at,
            unknown=known.untried(there) or known.limits.unasked(there),
        )

    def look_into(self, plan: Plan) -> Change:
        """The change to compare with `plan`: it counts as looked into from now on."""
        wish, before, self._considered = self.wish(plan), self._considered, self._situation(plan)
        links = self.suspects() or self._clock() >= self._again_at
        return Change(wish, gently=True, links_only=bool(links) and self._considered == before)

    def broken(self, plan: Plan) -> str:
        """Why `plan` cannot go on, if it cannot.

        Raises:
            Failed: no other plan could, either.
        """
        broken = self._state.members.broken(plan.peers, plan.version)
        if broken is not None and broken.report is not None:
            if broken.report.state == "diverged":
                raise Failed(f"training diverged: {broken.report.text}")
            return f"{short(broken.peer)} stalled ({broken.report.text})"
        missing = self._state.members.missing(plan.peers)
        return f"{', '.join(map(short, missing))} left" if missing else ""

    def pause(self, plan: Plan, reached: int) -> float:
        """Seconds to wait before the next plan, after `plan` broke when step `reached` had been recorded.

        After a plan that achieved nothing, the next one may fail in the same way: they are not tried in a rush.
        """
        self._fruitless = self._fruitless + 1 if reached <= plan.resume.mark.step else 0
        return min(FRUITLESS_SECONDS, 0.5 * 2.0 ** (self._fruitless - 1)) if self._fruitless else 0.0

    def _situation(self, plan: Plan) -> Situation:
        members, leaving = self._state.members, frozenset(self._state.members.leaving(plan.peers))
        if self._planner.is_forced:
            return Situation(leaving=leaving)
        came = frozenset(members.newcomers({*plan.peers, *plan.idle}))
        return Situation(came, leaving, self._state.pace.slow())
