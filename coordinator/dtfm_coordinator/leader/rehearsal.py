"""Rehearsal of a first plan: one that was made, and its links measured, while the last nodes were waited for. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dtfm_coordinator.membership.members import Member
from dtfm_protocol.job.amendment import Settings
from dtfm_protocol.plan.plan import Plan


@dataclass(frozen=True)
class Rehearsal:
    """One rehearsal, from beginning to end."""

    plan: Plan
    settings: Settings
    """Values with which its steps would be computed."""
    sessions: Mapping[str, str]
    """Those for whom it was made, by peer id, and the run of each one's program: another run may offer less."""

    @classmethod
    def of(cls, plan: Plan, settings: Settings, members: Collection[Member]) -> "Rehearsal":
        """Return the rehearsal of a plan that was made for `members`."""
        return cls(plan, settings, {member.peer: member.session for member in members})

    def plan_for(self, members: Collection[Member], settings: Settings) -> Plan | None:
        """Return its plan, under which all others of `members` stand by; None where one of its peers is not there, or
        was started again since, or steps have other values."""
        there = {member.peer: member.session for member in members}
        if settings != self.settings or any(there.get(peer) != self.sessions[peer] for peer in self.plan.peers):
            return None
        return self.plan.model_copy(update={"idle": tuple(peer for peer in there if peer not in self.plan.peers)})
