"""The swarm's phase as a node has heard it, and whether it ends the swarm for this node. Pure.

A phase that ends the swarm is believed only of a coordinator that lives: one whose present run has answered this node's
challenge, which nobody could have recorded before. So neither a broker that keeps, nor a member that repeats, what an
earlier run of a coordinator once said makes a node go.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from dtfm_protocol.control.messages import Phase


class SwarmPhase(NamedTuple):
    """The newest phase, and which coordinators' runs have answered this node."""

    by: str = ""
    """Peer id of the coordinator that said the phase."""
    phase: Phase | None = None
    alive: Mapping[str, str] = MappingProxyType({})
    """The session of each coordinator that has answered this node last, by peer id."""

    def heard(self, by: str, phase: Phase) -> Self:
        """Return what is known after coordinator `by` has said `phase`."""
        return self._replace(by=by, phase=phase)

    def answered(self, by: str, session: str) -> Self:
        """Return what is known after coordinator `by` has answered this node's challenge in its `session`."""
        return self._replace(alive=MappingProxyType({**self.alive, by: session}))

    @property
    def is_doubtful(self) -> bool:
        """Whether the coordinator that said the phase has yet to show that it lives."""
        return self.phase is not None and self.alive.get(self.by) != self.phase.session

    def ending(self, called: int) -> Phase | None:
        """Return the phase if it ends the swarm, None if it does not.

        Args:
            called: version of the newest plan that any coordinator has called for: what was said in an earlier epoch
                ends nothing.
        """
        phase = self.phase
        if phase is None or phase.name not in {"done", "failed"} or self.is_doubtful or phase.called < called:
            return None
        return phase
