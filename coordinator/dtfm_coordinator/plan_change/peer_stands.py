"""Promises of peers, as plain values for `PlanChange`."""

from collections.abc import Callable

from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.plan_change.plan_change_events import Stand
from dtfm_coordinator.plan_change.recovery import Electorate
from dtfm_protocol.plan.peer_state import PeerState
from dtfm_protocol.plan.plan import Plan


class PeerStands:
    """Promises and states that peers report; signatures of the plans that they show are checked once."""

    def __init__(self, members: Members, is_genuine: Callable[[Plan], bool]) -> None:
        self._members, self._is_genuine = members, is_genuine
        self._checked: dict[str, bool] = {}

    def forget(self) -> None:
        """Forget which signatures were checked."""
        self._checked.clear()

    def newest_promise(self) -> int:
        """Return the greatest version that any connected peer has promised to any coordinator; 0: none has."""
        found = [member.report.standing.promise.version for member in self._members.online() if member.report]
        return max(found, default=0)

    def promised(self, version: int, to: str) -> dict[str, PeerState]:
        """Return the state of each peer whose reports come, and that has promised just this version to just this
        coordinator."""
        standings = {member.peer: member.report.standing for member in self._members.heard() if member.report}
        return {peer: at for peer, at in standings.items() if (at.promise.version, at.promise.to) == (version, to)}

    def read(self, *, plans: bool) -> tuple[Stand, ...]:
        """Return the promise of each peer whose reports come.

        Args:
            plans: whether the plans that they have taken from other coordinators are returned, too.
        """
        found = []
        for member in self._members.heard():
            if member.report is not None:
                promise, taken = member.report.standing.promise, member.report.taken if plans else None
                electorate = Electorate.of(taken) if taken is not None and self._is_known_genuine(taken) else None
                found.append(Stand(member.peer, promise.version, promise.to, promise.accepted, electorate))
        return tuple(found)

    def _is_known_genuine(self, plan: Plan) -> bool:
        text = plan.model_dump_json()
        if text not in self._checked:
            self._checked[text] = self._is_genuine(plan)
        return self._checked[text]
