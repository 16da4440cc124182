"""State of the swarm as a coordinator knows it; tasks that wait for something in it are woken when it changes."""

import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from dtfm_coordinator.faults.divergence import Divergence
from dtfm_coordinator.faults.owed_shares import OwedShares
from dtfm_coordinator.faults.state_disputes import StateDisputes
from dtfm_coordinator.faults.stragglers import Stragglers
from dtfm_coordinator.faults.unlike_commits import are_unlike
from dtfm_coordinator.links.link_degradation import LinkDegradation
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.membership.change_signal import ChangeSignal
from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.plan_change.commit_signatures import is_signed, proven_step
from dtfm_coordinator.plan_change.judged_holdings import AHEAD, Copy, judge
from dtfm_coordinator.plan_change.refused_claims import RefusedClaims
from dtfm_coordinator.plan_change.resume_point import safe_mark
from dtfm_coordinator.records.accusation_file import KeptAccusations
from dtfm_coordinator.records.event_log import PlanEvent, append
from dtfm_coordinator.records.state_vote_file import StateVoteFile
from dtfm_coordinator.records.state_votes import Pairs, Part, certified, without_disputed
from dtfm_coordinator.swarm.step_progress import StepProgress
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.peer_state import Mark, PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version


class SwarmState(ChangeSignal):
    """State of the swarm: who is there, how they are connected, and under which plan they train."""

    def __init__(
        self,
        folder: Path,
        layers: int,
        clock: MonotonicClock | None = None,
        swarm: str = "",
        owed: OwedShares | None = None,
    ) -> None:
        """Nobody was heard of yet.

        Args:
            folder: where the history is written, and accusations lie.
            layers: of the model.
            clock: by which members fall silent, and waits end.
            swarm: its id, which is part of what peers sign.
            owed: shares of checkpoints that peers owe; None: they owe none.
        """
        super().__init__(clock)
        self._folder, self._layers = folder, layers
        self.members, self.links = Members(self.clock.now, product_version()), LinkTable()
        self.pace = Stragglers(self.clock.now)
        self.link_watch, self.divergence = LinkDegradation(self.clock.now), Divergence()
        self.accusations, self.disputes, self.owed = KeptAccusations(folder), StateDisputes(), owed or OwedShares()
        self.plan: Plan | None = None
        """Plan in force; None before the first."""
        self.kept = Mark()
        """Mark of the newest whole checkpoint of this coordinator."""
        self.safe = Mark()
        """Newest state that one peer's loss cannot take away, as `is_safer` found it last."""
        self._votes = StateVoteFile(folder, swarm)
        self.refused = RefusedClaims()
        self._swarm, self._is_signed = swarm, partial(is_signed, swarm)
        self._serving: tuple[Plan | None, frozenset[str]] = (None, frozenset())
        """Plan in force as `serving` saw it last, and its peers."""
        self._chain: tuple[Plan | None, Chain] = (None, Chain())
        """Plan in force as `judged` saw it last, and its chain."""
        self.progress = StepProgress(self.clock.now, self._is_signed)
        self.event: PlanEvent | None = None
        """Event to be written down when the plan has begun; None: it was."""

    @property
    def doubted(self) -> frozenset[str]:
        """Peers without whom the next plan does better: nobody confirms what they say, or they hand nothing in."""
        return self.divergence.doubted | self.accusations.left_out | self.owed.left_out

    @property
    def standings(self) -> dict[str, PeerState]:
        """State and promise of each peer whose reports come, by peer id."""
        return {member.peer: member.report.standing for member in self.members.heard() if member.report}

    @property
    def serving(self) -> frozenset[str]:
        """Peers of the plan in force; none before the first."""
        if self._serving[0] is not self.plan:
            self._serving = (self.plan, frozenset(self.plan.peers) if self.plan is not None else frozenset())
        return self._serving[1]

    def trains(self, peer: str) -> bool:
        """Whether a peer reports that it trains under the plan in force."""
        member, plan = self.members.get(peer), self.plan
        report = member.report if member is not None else None
        return bool(plan and report and report.plan_version == plan.version and report.state == "training")

    def all_train(self, plan: Plan) -> bool:
        """Whether all peers of the plan in force train under it."""
        return all(map(self.trains, self.serving if plan is self.plan else plan.peers))

    def judged(self, standings: Mapping[str, PeerState], chain: Chain, *, under_way: bool = False) -> tuple[Copy, ...]:
        """Return what of peers' holdings counts; what does not is noted.

        Args:
            standings: state of each peer, by peer id.
            chain: that of the newest plan that the next one follows.
            under_way: whether the peers train on, and report one after the other: then the arbiter may be ahead.
        """
        proofs = (member.report.voted for member in self.members.heard() if member.report)
        voted = max(self._votes.votes.newest_step(chain), proven_step(self._swarm, chain, proofs))
        found = judge(standings, chain, self._is_signed, voted)
        self.refused.note(one for one in found.refused if one.why != AHEAD or not under_way)
        return found.copies

    def is_safer(self) -> bool:
        """Whether the newest state that one peer's loss cannot take away is newer than when this was last asked."""
        chain = self._chain_in_force()
        copies = self.judged(self.undisputed(self.standings, chain), chain, under_way=True)
        safe = safe_mark(copies, [self.kept], self._layers)
        newer, self.safe = safe.order > self.safe.order, max(self.safe, safe, key=lambda mark: mark.order)
        return newer

    def _chain_in_force(self) -> Chain:
        if self._chain[0] is not self.plan:
            self._chain = (self.plan, self.plan.chain if self.plan is not None else Chain())
        return self._chain[1]

    def voted(self, votes: Iterable[StateVote]) -> None:
        """Take votes on states, whoever brings them."""
        news = self._votes.hear(votes, self._chain_in_force().replicas_of)
        self._hold_together(vote.subject for vote in news)

    def recall_disputes(self) -> None:
        """Find the disputes under the plan in force that an earlier process of this coordinator has heard of."""
        self._hold_together(part for part in self._votes.votes.parts if self.plan and part[0].plan == self.plan.version)

    def _hold_together(self, parts: Iterable[Part]) -> None:
        """Hold together what replicas have signed of parts of states, and note who has lied, or has fallen out."""
        replicas_of = self._chain_in_force().replicas_of
        for mark, layers in dict.fromkeys(parts):
            verdict = self._votes.votes.verdict(mark, layers, replicas_of(mark, layers), ())
            for liar in verdict.liars:
                self.leave_out(liar, f"{short(liar)} signed two states of layers {layers[0]} to {layers[1]} of {mark}")
            if verdict.pairs:
                self._differ(verdict.pairs, mark.plan, verdict.said)

    def differ(self, pairs: Pairs, said: str) -> None:
        """Note that replicas hand in different states under the plan in force: `pairs` of them do."""
        if self.plan is not None:
            self._differ(pairs, self.plan.version, said)
            self.notify()

    def _differ(self, pairs: Pairs, plan: int, said: str) -> None:
        """Note that replicas differ in a state that `plan` has made: that ends it if it is in force."""
        if self.plan is None:
            return
        self._votes.say(said)
        # The first that was not known counts: of two that no plan can part, the one that differs from a third is found.
        new = (pair for pair in pairs if self.accusations.differed(frozenset(pair), self.plan.version))
        if pair := next(new, None):
            self._tell_quarrel(*pair, "it has signed another state")
        if plan == self.plan.version:
            quarrel = frozenset(pair or pairs[0])
            self.disputes.heard(quarrel, plan, said, are_apart=quarrel in self.accusations.apart)

    def look_at_shares(self) -> None:
        """Look whose shares of a checkpoint are late under the plan in force: that ends it where the next one can do
        better, and is said."""
        if said := self.owed.judge():
            log.warning("%s", said)
        for giver, other, step in self.owed.contradictions():
            if self.plan is not None and self.accusations.differed(frozenset((giver, other)), self.plan.version):
                self._tell_quarrel(giver, other, f"it says that it has not come to step {step}")
                self.owed.end(f"{short(other)} has not come to step {step}, which {short(giver)} has handed in")

    def look_at_arbiter(self) -> None:
        """Look, where a dispute has ended the plan in force, whether its arbiter has signed unlike commits: then it has
        led honest replicas to unlike states, and nothing is held against these."""
        plan = self.plan
        if plan is None or not self.disputes.under(plan.version):
            return
        arbiter = plan.chain.plans[-1].arbiter
        shown = {holding.commit for standing in self.standings.values() for holding in standing.holdings}
        if are_unlike(one for one in shown if one and one.plan == plan.version and self._is_signed(one, arbiter)):
            self.accusations.excuse(plan.version)
            self.disputes.excuse(plan.version)
            self.leave_out(arbiter, f"{short(arbiter)} signed unlike commits as the arbiter of plan {plan.version}")

    def fell_out(self, accuser: str, accused: str, plan: int, text: str) -> None:
        """Note that a peer of the plan in force has fallen out with another, and say so: nobody is left out unseen."""
        if self.accusations.reported(accuser, accused, plan):
            self._tell_quarrel(accuser, accused, text)

    def _tell_quarrel(self, accuser: str, accused: str, text: str) -> None:
        log.warning("%s accuses %s (%s)", short(accuser), short(accused), text)
        for one in sorted({accuser, accused} & self.accusations.left_out):
            log.warning(
                "%s has fallen out with two peers: the work is divided without it where that is possible", short(one)
            )

    def leave_out(self, peer: str, why: str) -> None:
        """Go on without a peer that has provably lied: under no plan until it comes back in another session, and then
        under none that can do without it. That is said once, however often it lies."""
        if self.accusations.proven(peer):
            log.warning("%s: going on without it; `dtfm-coordinator ban %s` keeps it out for good", why, peer)
        self.members.kick(peer)
        self.notify()

    def undisputed(self, standings: Mapping[str, PeerState], chain: Chain) -> dict[str, PeerState]:
        """Return what peers hold without the states whose replicas have signed different ones."""
        return without_disputed(standings, self._votes.votes, chain.replicas_of, self._votes.say)

    def certified(self, mark: Mark, chain: Chain, here: Collection[str]) -> tuple[StateDigest, ...]:
        """Return the digests of the parts of the state `mark` on which all their replicas agree, but for those that are
        gone.

        Args:
            chain: that of the newest plan that the next one follows.
            here: peers that answer.
        """
        return certified(mark, self._votes.votes, chain.replicas_of, here, self._votes.say)

    def begun(self, plan: Plan) -> None:
        """Write the event of `plan` down, once, now that all its peers hold its state."""
        if self.event is None or self.event.plan != plan.version:
            return
        reports = [member.report for peer in plan.peers if (member := self.members.get(peer)) and member.report]
        moved = sum(report.fetched_bytes for report in reports)
        append(self._folder, self.event.model_copy(update={"started_at": time.time(), "moved_bytes": moved}))
        self.event = None
