"""Watch over the plan in force: what would make another plan better, or end this one."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dtfm_coordinator.leader.planner import Planner
from dtfm_coordinator.links.link_degradation import Pair
from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS

TRUSTED_SECONDS = 60.0
"""At least so soon a move must pay back to which only a changed link gives cause; later, where no plan has changed for
longer."""
Passing = Literal["", "links", "pace"]
"""What alone gives cause to a change, and may soon be as it was: links, or how fast peers compute; "": something else
does, or nothing."""


class Failed(UserError):
    """Error: the run cannot go on, whatever the swarm does."""


@dataclass(frozen=True)
class Change:
    """Reason for which a new plan is due, and how it is to follow."""

    why: str
    gently: bool = False
    """Whether all is well under the plan in force, so that it may end with a step."""
    layout: Plan | None = None
    """Layout of the new plan, where that is known."""
    amends: bool = False
    """Whether the job changes, so that another plan is due even where its layout is the same."""
    passing: Passing = ""
    """What the only reason is, if that may soon be gone again."""
    keeps: bool = False
    """Whether the run is to stand still, and the plan is made only for the state to be handed in under it."""


class Situation(NamedTuple):
    """Situation of the swarm that might make another plan better; peers by id."""

    came: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    """Peer ids of those that want to leave, or to pause."""
    slow: frozenset[str] = frozenset()
    """Peer ids of those that have become slow."""
    well: frozenset[str] = frozenset()
    """Peer ids of those that are slow no more."""

    def differs_in_pace_alone(self, other: "Situation") -> bool:
        """Whether only how fast peers compute differs from another situation."""
        return self != other and self[:2] == other[:2]


CALM = Situation()


def reason_to_compare(
    now: Situation, considered: Situation, suspects: Iterable[Pair], *, trusted: bool, unknown: Iterable[str]
) -> str:
    """Return why another plan might be better, if that was not looked into yet; "" if there is no reason.

    Args:
        considered: situation for which the plan in force was last compared.
        suspects: links that may have changed.
        trusted: whether what had changed has stayed as it is for long enough to be compared again.
        unknown: peers that may have unknown links: these are measured while all is well, for when they are needed,
            everyone waits.
    """
    links = {*suspects}
    if named := sorted(pair for pair in links if pair < pair[::-1] or pair[::-1] not in links):
        return f"{', '.join(' -> '.join(map(short, pair)) for pair in named)} may have changed"
    if now == considered and trusted:
        who = [f"{', '.join(map(short, sorted(now.slow)))} stays slow"] if now.slow else []
        return "; ".join(who) or "what has changed has stayed as it is since"
    if now == considered or not any(now):
        new = ", ".join(map(short, unknown))
        return f"{new} may have links that nobody knows" if new else ""
    words = zip(now, ("came", "wants to leave or to pause", "has become slow", "is slow no more"), strict=True)
    return "; ".join(f"{', '.join(map(short, sorted(who)))} {word}" for who, word in words if who)


class PlanWatch:
    """Watch over the plan in force: compares it with what the swarm has become."""

    def __init__(self, state: SwarmState, planner: Planner, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._planner, self._clock = state, planner, clock
        self._considered = CALM
        """Situation for which the plan in force was last compared."""
        self._since = clock()
        """Clock's seconds when the plan in force came, or this coordinator."""
        self._again_at = math.inf
        """Clock's seconds when what has changed may be trusted for longer, so that another plan may pay back."""
        self._again_of: Passing = ""
        """What that is."""
        self._fruitless = 0
        """Number of plans in a row that broke before their first step."""

    def follows(self) -> None:
        """Forget what was compared with the plan before, as a new one is in force."""
        self._considered = CALM
        self._since, self._again_at = self._clock(), math.inf

    def forget(self) -> None:
        """Forget what was last compared, as the comparison was given up."""
        self._considered = CALM

    def horizon(self, change: Change) -> float | None:
        """Return the seconds within which another plan must pay back; None: the job's own horizon.

        Links that have changed may do so again: they are trusted for as long as all has stayed as it was. How fast
        peers compute changes more often, as other programs come and go on their machines: that is trusted for as long
        as it has lasted.
        """
        self._again_at, self._again_of = math.inf, change.passing
        if change.passing == "pace":
            return self._state.pace.steady_seconds()
        return max(TRUSTED_SECONDS, self._clock() - self._since) if change.passing == "links" else None

    def again_after(self, seconds: float) -> None:
        """Compare again when `seconds` have passed: nothing better was found that pays back so soon."""
        self._again_at = self._clock() + seconds

    def suspects(self) -> frozenset[Pair]:
        """Return the links that may have changed, between peers that are here."""
        if self._planner.is_forced:
            return frozenset()
        present = {member.peer for member in self._state.members.ready()}
        pairs = self._state.link_watch.suspects(self._state.links.gbps, self._state.pace.slowdown)
        return frozenset(pair for pair in pairs if present.issuperset(pair))

    def is_doubted(self) -> bool:
        """Whether any link that carries tensors under the plan in force may have become slow, and was well so far."""
        return any(map(self._state.link_watch.is_well, self._of_plan(self.suspects())))

    def failing(self) -> dict[Pair, float]:
        """Return the links that fail under frames on their way, between peers that are here, with their Gbit/s now."""
        links = self._state.links
        found = self._state.link_watch.failing(links.gbps, links.limits.known)
        return {pair: found[pair] for pair in self._of_plan(found)}

    def still_failing(self, failing: Mapping[Pair, float]) -> dict[Pair, float]:
        """Return what is left of links that were `failing` a moment ago, as `LinkDegradation.still_failing`."""
        links = self._state.links
        found = self._state.link_watch.still_failing(failing, links.gbps, links.limits.known)
        return {pair: found[pair] for pair in self._of_plan(found)}

    def _of_plan(self, pairs: Collection[Pair]) -> list[Pair]:
        """Return those of `pairs` that another plan might do without: between peers that are here, and carrying tensors
        under the one in force. Where only votes go, these may wait behind something else, and tell no rate."""
        if not pairs or self._planner.is_forced or self._state.plan is None:
            return []
        present = {member.peer for member in self._state.members.ready()}
        used = pairs_of(self._state.plan, tied=self._planner.is_tied)
        return [pair for pair in pairs if present.issuperset(pair) and frozenset(pair) in used]

    def wish(self, plan: Plan) -> str:
        """Return why another plan might be better than `plan`, if that was not looked into yet; "" if there is no
        reason."""
        if self._planner.is_changed:
            return "the owner wants another layout"
        return reason_to_compare(
            self._situation(plan),
            self._considered,
            self.suspects() | self.failing().keys(),
            trusted=self._clock() >= self._again_at,
            unknown=self._unknown(),
        )

    def _unknown(self) -> list[str]:
        """Return the settled peers that may have unknown links, both among themselves and with all that are ready: who
        is ready and not settled is no reason to measure, but may be whom a settled one was measured with."""
        links, settled = self._state.links, self._state.members.settled()
        ready = [member.peer for member in self._state.members.ready()]
        own, all_of_them = ({*links.untried(some), *links.limits.unasked(some)} for some in (settled, ready))
        return [peer for peer in settled if peer in own & all_of_them]

    def look_into(self, plan: Plan) -> Change:
        """Return the change to compare with `plan`, which counts as looked into from now on."""
        wish, before, self._considered = self.wish(plan), self._considered, self._situation(plan)
        again = self._again_of if self._clock() >= self._again_at else ""
        passing: Passing = ""
        if self._considered.differs_in_pace_alone(before):
            passing = "pace"
        elif self._considered == before:
            passing = "links" if self.suspects() or self.failing() else again
        return Change(wish, gently=True, passing=passing)

    def broken(self, plan: Plan) -> str:
        """Return why `plan` cannot go on; "" if it can.

        Raises:
            Failed: no other plan could, either.
        """
        if verdict := self._state.divergence.verdict:
            raise Failed(f"training diverged: {verdict}")
        if verdict := self._state.disputes.verdict:
            raise Failed(verdict)
        if dispute := self._state.disputes.under(plan.version):
            return dispute
        if owing := self._state.owed.under(plan.version):
            return owing
        broken = self._state.members.broken(plan.peers, plan.version)
        if broken is not None and broken.report is not None:
            what = "stalled" if broken.report.state == "stalled" else "alone says that training diverged"
            return f"{short(broken.peer)} {what} ({broken.report.text})"
        if paused := self._state.members.paused(plan.peers):
            return f"{', '.join(map(short, paused))} paused"
        missing = self._state.members.missing(plan.peers)
        return f"{', '.join(map(short, missing))} left" if missing else ""

    def is_said_to_diverge(self, plan: Plan) -> bool:
        """Whether anybody says under `plan` that training has diverged, or that is believed."""
        words = self._state.divergence
        return bool(words.verdict) or words.is_said_under(plan.version)

    async def why_broken(self, plan: Plan) -> str:
        """Return what `broken` does; where one peer says that training has diverged, the others have a moment to say
        so, too.

        Raises:
            Failed: no other plan could go on, either.
        """
        words = self._state.divergence
        if words.is_said_under(plan.version):
            await self._state.wait(lambda: bool(words.verdict), TIMEOUTS.report_silence)
        return self.broken(plan)

    def forget_lost(self, plan: Plan) -> None:
        """Forget the links of the peers that the one names as lost that cannot go on under `plan`: whether peers reach
        them is measured anew, once they are back."""
        broken = self._state.members.broken(plan.peers, plan.version)
        for lost in broken.report.lost if broken is not None and broken.report is not None else ():
            self._state.links.forget(lost)

    def pause(self, plan: Plan, reached: int) -> float:
        """Return the seconds to wait before the next plan, after `plan` broke when step `reached` had been recorded.

        After a plan that achieved nothing, the next one may fail in the same way: they are not tried in a rush.
        """
        self._fruitless = self._fruitless + 1 if reached <= plan.resume.mark.step else 0
        return min(TIMEOUTS.broken_plan_pause, 0.5 * 2.0 ** (self._fruitless - 1)) if self._fruitless else 0.0

    def _situation(self, plan: Plan) -> Situation:
        members, leaving = self._state.members, frozenset(self._state.members.leaving(plan.peers))
        if self._planner.is_forced:
            return Situation(leaving=leaving)
        came = frozenset(members.newcomers({*plan.peers, *plan.idle}))
        return Situation(came, leaving, self._state.pace.slow(), self._state.pace.well())
