"""States of the model that a node keeps in memory from one plan to the next: which stays, and until when."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from dtfm_protocol.plan.peer_state import Mark


class _Marked(Hashable, Protocol):
    @property
    def mark(self) -> Mark | None:
        """Which state of the swarm this is a part of; None while it is none."""


S = TypeVar("S", bound=_Marked)


class HeldStates(NamedTuple, Generic[S]):
    """States in memory. Between a plan and the first final step of the next one everything stays that the new plan goes
    on from: if that plan fails before it has begun, the one after it may have to go on from the same."""

    live: S | None = None
    """What the plan in force trains, or trained."""
    coming: S | None = None
    """What the next plan will train, while it is being loaded, and after that until all have loaded."""
    former: tuple[S, ...] = ()
    """What former plans trained, or were about to: all of the mark that the newest plan begins with."""

    @property
    def whole(self) -> tuple[S, ...]:
        """All that are parts of a state of the swarm, the live one first."""
        found = dict.fromkeys((self.live, self.coming, *self.former))
        return tuple(one for one in found if one is not None and one.mark is not None)

    def begin(self, coming: S | None, mark: Mark) -> Self:
        """Return them when a plan is taken up that begins with `mark`, for which `coming` is going to be loaded."""
        return self._with_former(self.coming, mark)._replace(coming=coming)

    def enter(self, state: S, mark: Mark) -> Self:
        """Return them when all peers hold `mark`, which the plan begins with: `state`, which was coming, is trained."""
        return self._with_former(self.live, mark)._replace(live=state, coming=None)

    def begun(self) -> Self:
        """Return them when a step of the plan is final: nobody goes on from what was before."""
        return self._replace(former=())

    def _with_former(self, state: S | None, mark: Mark) -> Self:
        former = dict.fromkeys((*self.former, state))
        # The initial state is drawn anew by whoever needs it.
        return self._replace(former=tuple(one for one in former if one is not None and one.mark == mark and mark.step))
