"""Promises of peers, as plain values for `PlanChange`."""

import hashlib
from collections.abc import Callable, Collection, Sequence

from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.plan_change.plan_change_events import Stand
from dtfm_protocol.bounds import MOST_UINT32, SEEN_LIMIT
from dtfm_protocol.plan.peer_state import PeerState
from dtfm_protocol.plan.plan import Plan

MOST_AHEAD = 1000
"""Plans that another coordinator may have called for while this one heard nothing, as far as one peer is believed."""


def believable(promised: Sequence[int], known: int, *, decisive: bool = True) -> int:
    """Return the version beyond which a call is to go, so that those can answer it who have promised these versions.

    A single peer could end all plans by a promise of the greatest version that there is. So one is believed that is no
    more than `MOST_AHEAD` beyond what is known, or that most of them are beyond: without those there is no plan anyway.

    Args:
        decisive: whether these peers decide on the next plan; else there may be any number of them.
    """
    most = sorted(promised)[(len(promised) - 1) // 2] if promised and decisive else 0
    near = max((version for version in promised if version <= known + MOST_AHEAD), default=0)
    return min(max(most, near), MOST_UINT32 - 1)


class PeerStands:
    """Promises and states that peers report; signatures of the plans that they show are checked once."""

    def __init__(self, members: Members, is_genuine: Callable[[Plan], bool]) -> None:
        self._members, self._is_genuine = members, is_genuine
        self._checked: dict[bytes, bool] = {}
        """Whether the signature of each plan that was shown is genuine, by the plan's SHA-256."""

    def forget(self) -> None:
        """Forget which plans were shown."""
        self._checked.clear()

    def newest_promise(self, known: int, electors: Collection[str], spares: Collection[str] = ()) -> int:
        """Return the greatest version that connected peers have promised to any coordinator, as far as that is
        believed (`believable`).

        Args:
            known: the greatest version that this coordinator knows of.
            electors: peers that decide on the next plan; none: anybody may.
            spares: peers that decide nothing, but could not be part of a plan that is older than their promise.
        """
        promised = {one.peer: one.report.standing.promise.version for one in self._members.online() if one.report}
        deciding = [version for peer, version in promised.items() if not electors or peer in electors]
        beside = [version for peer, version in promised.items() if peer in spares]
        return max(believable(deciding, known, decisive=bool(electors)), believable(beside, known, decisive=False))

    def promised(self, version: int, to: str) -> dict[str, PeerState]:
        """Return the state of each peer whose reports come, and that has promised just this version to just this
        coordinator."""
        standings = {member.peer: member.report.standing for member in self._members.heard() if member.report}
        return {peer: at for peer, at in standings.items() if (at.promise.version, at.promise.to) == (version, to)}

    def read(self, *, at_work: Collection[str] = ()) -> tuple[Stand, ...]:
        """Return the promise of each peer whose reports come, and of each that pauses: those say little, and answer.

        Args:
            at_work: peers that say nothing here while they pause: the plan that is offered cannot begin without them.
        """
        found = []
        paused = [member for member in self._members.online() if member.is_paused and member.peer not in at_work]
        for member in (*self._members.heard(), *paused):
            if member.report is not None:
                promise = member.report.standing.promise
                found.append(Stand(member.peer, promise.version, promise.to, promise.accepted))
        return tuple(found)

    def is_genuine(self, plan: Plan) -> bool:
        """Return whether a plan that a peer shows is a coordinator's."""
        digest = hashlib.sha256(plan.model_dump_json().encode()).digest()
        if digest not in self._checked:
            while len(self._checked) >= SEEN_LIMIT:
                del self._checked[next(iter(self._checked))]
            self._checked[digest] = self._is_genuine(plan)
        return self._checked[digest]
