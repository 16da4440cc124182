"""Progress of training: the newest step that is applied, and for how long the one after it has been under way.

Peers say which step they have applied; one that names a step to come would keep this from ever moving on. So their word
counts as far as the commits that they show go, and that of the arbiter, who signs those, only where it trains alone.
"""

from collections.abc import Callable, Iterable

from dtfm_protocol.plan.peer_state import Holding
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SignedCommit


class StepProgress:
    """Memory of the newest step that was proven to be applied."""

    def __init__(self, now: Callable[[], float], is_signed: Callable[[SignedCommit, str], bool]) -> None:
        """No step was applied yet.

        Args:
            now: returns the time, in seconds.
            is_signed: tells whether a commit is one that this peer, as the arbiter, has signed for this swarm.
        """
        self._now, self._is_signed = now, is_signed
        self._newest, self._since = (0, 0), now()
        """Plan, and step under it, that was proven last, and when."""

    def reached(self, peer: str, plan: Plan, step: int, holdings: Iterable[Holding]) -> None:
        """Note that a peer that trains under `plan` says that it has applied `step`, and shows what it holds."""
        arbiter = plan.peers[0]
        if (plan.version, step) <= self._newest or (peer == arbiter and len(plan.peers) > 1):
            return
        resumed = plan.resume.mark.step  # which is final by the plan itself
        commits = (one.commit for one in holdings if one.commit is not None and one.commit.plan == plan.version)
        newer = (one for one in commits if (one.plan, one.step) > self._newest)
        proven = max((one.step for one in newer if self._is_signed(one, arbiter)), default=resumed)
        if (found := (plan.version, min(step, proven))) > self._newest:
            self._newest, self._since = found, self._now()

    def seconds(self) -> float:
        """Return the seconds for which the step under way has been, at least."""
        return self._now() - self._since
