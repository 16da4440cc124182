"""State of the swarm as a coordinator knows it; tasks that wait for something in it are woken when it changes."""

import time
from pathlib import Path

from dtfm_coordinator.links.link_degradation import LinkDegradation
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.membership.accusations import Accusations
from dtfm_coordinator.membership.change_signal import ChangeSignal
from dtfm_coordinator.membership.divergence import Divergence
from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.membership.stragglers import Stragglers
from dtfm_coordinator.plan_change.recovery import safe_mark
from dtfm_coordinator.records.event_log import PlanEvent, append
from dtfm_protocol.plan.peer_state import Mark, PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.clock import MonotonicClock


class SwarmState(ChangeSignal):
    """State of the swarm: who is there, how they are connected, and under which plan they train."""

    def __init__(self, folder: Path, layers: int, clock: MonotonicClock | None = None) -> None:
        """Nobody was heard of yet.

        Args:
            folder: where the history is written.
            layers: of the model.
            clock: by which members fall silent, and waits end.
        """
        super().__init__(clock)
        self._folder, self._layers = folder, layers
        self.members, self.links, self.pace = Members(self.clock.now), LinkTable(), Stragglers()
        self.link_watch, self.divergence = LinkDegradation(self.clock.now), Divergence()
        self.accusations = Accusations()
        self.plan: Plan | None = None
        """Plan in force; None before the first."""
        self.kept = Mark()
        """Mark of the newest whole checkpoint of this coordinator."""
        self.safe = Mark()
        """Newest state that one peer's loss cannot take away, as `is_safer` found it last."""
        self.event: PlanEvent | None = None
        """Event to be written down when the plan has begun; None: it was."""

    @property
    def doubted(self) -> frozenset[str]:
        """Peers without whom the next plan does better: nobody confirms what they say."""
        return self.divergence.doubted | self.accusations.left_out

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
        safe = safe_mark(self.standings, [self.kept], self._layers)
        newer, self.safe = safe.order > self.safe.order, max(self.safe, safe, key=lambda mark: mark.order)
        return newer

    def begun(self, plan: Plan) -> None:
        """Write the event of `plan` down, once, now that all its peers hold its state."""
        if self.event is None or self.event.plan != plan.version:
            return
        reports = [member.report for peer in plan.peers if (member := self.members.get(peer)) and member.report]
        moved = sum(report.fetched_bytes for report in reports)
        append(self._folder, self.event.model_copy(update={"started_at": time.time(), "moved_bytes": moved}))
        self.event = None
