"""State of the swarm as a coordinator knows it; tasks that wait for something in it are woken when it changes."""

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from dtfm_coordinator.links.link_degradation import LinkDegradation
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.membership.change_signal import ChangeSignal
from dtfm_coordinator.membership.divergence import Divergence
from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.membership.stragglers import Stragglers
from dtfm_coordinator.plan_change.recovery import safe_mark
from dtfm_coordinator.records.event_log import PlanEvent, append
from dtfm_coordinator.records.state_vote_file import StateVoteFile
from dtfm_coordinator.records.state_votes import ReplicasOf, certified, replicas_under, without_disputed
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.peer_state import Mark, PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.process.clock import MonotonicClock


class SwarmState(ChangeSignal):
    """State of the swarm: who is there, how they are connected, and under which plan they train."""

    def __init__(self, folder: Path, layers: int, clock: MonotonicClock | None = None, swarm: str = "") -> None:
        """Nobody was heard of yet.

        Args:
            folder: where the history is written.
            layers: of the model.
            clock: by which members fall silent, and waits end.
            swarm: its id, which is part of what peers sign.
        """
        super().__init__(clock)
        self._folder, self._layers = folder, layers
        self.members, self.links, self.pace = Members(self.clock.now), LinkTable(), Stragglers()
        self.link_watch, self.divergence = LinkDegradation(self.clock.now), Divergence()
        self.plan: Plan | None = None
        """Plan in force; None before the first."""
        self.kept = Mark()
        """Mark of the newest whole checkpoint of this coordinator."""
        self.safe = Mark()
        """Newest state that one peer's loss cannot take away, as `is_safer` found it last."""
        self._votes = StateVoteFile(folder, swarm)
        self.event: PlanEvent | None = None
        """Event to be written down when the plan has begun; None: it was."""

    @property
    def standings(self) -> dict[str, PeerState]:
        """State and promise of each peer whose reports come, by peer id."""
        return {member.peer: member.report.standing for member in self.members.heard() if member.report}

    def trains(self, peer: str) -> bool:
        """Whether a peer reports that it trains under the plan in force."""
        member, plan = self.members.get(peer), self.plan
        report = member.report if member is not None else None
        return bool(plan and report and report.plan_version == plan.version and report.state == "training")

    def all_train(self, plan: Plan) -> bool:
        """Whether all peers of the plan in force train under it."""
        return all(map(self.trains, plan.peers))

    def is_safer(self) -> bool:
        """Whether the newest state that one peer's loss cannot take away is newer than when this was last asked."""
        safe = safe_mark(self.undisputed(self.standings), [self.kept], self._layers)
        newer, self.safe = safe.order > self.safe.order, max(self.safe, safe, key=lambda mark: mark.order)
        return newer

    def voted(self, votes: Iterable[StateVote]) -> None:
        """Take votes on states, whoever brings them."""
        self._votes.hear(votes, self._replicas_of)

    @property
    def _replicas_of(self) -> ReplicasOf:
        return replicas_under(self.plan)

    def undisputed(self, standings: Mapping[str, PeerState]) -> dict[str, PeerState]:
        """Return what peers hold without the states whose replicas have signed different ones."""
        return without_disputed(standings, self._votes.votes, self._replicas_of, self._votes.say)

    def certified(self, mark: Mark, here: Collection[str]) -> tuple[StateDigest, ...]:
        """Return the digests of the parts of the state `mark` on which all their replicas agree, but for those that are
        gone.

        Args:
            here: peers that answer.
        """
        return certified(mark, self._votes.votes, self._replicas_of, here, self._votes.say)

    def begun(self, plan: Plan) -> None:
        """Write the event of `plan` down, once, now that all its peers hold its state."""
        if self.event is None or self.event.plan != plan.version:
            return
        reports = [member.report for peer in plan.peers if (member := self.members.get(peer)) and member.report]
        moved = sum(report.fetched_bytes for report in reports)
        append(self._folder, self.event.model_copy(update={"started_at": time.time(), "moved_bytes": moved}))
        self.event = None
