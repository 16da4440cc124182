"""Disputes of replicas over the state that they have led to, and what becomes of the plan under which they train. Pure.

Replicas get the same sums and make the same of them: where two sign different states, one of them lies or its machine
has failed. Nobody can tell which, so the plan is over, the run goes back to a state that all agree on, and the two are
kept apart like any others that have fallen out (`Accusations`). Where no plan can do without the two together they
would come to the same again and again: then the run ends, and says why.
"""

from dtfm_coordinator.faults.accusations import Quarrel
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.identity.keys import short

REPEATS = 3
"""Plans that two peers must have ended by a dispute for the run to end."""


class StateDisputes:
    """Disputes of one run that its coordinator knows of."""

    def __init__(self) -> None:
        self._plans: dict[Quarrel, frozenset[int]] = {}
        """Versions of the plans that each two peers have ended."""
        self._newest = (0, "")
        """Version of the newest plan that was ended so, and what is to be said of it."""

    def heard(self, pair: Quarrel, plan: int, said: str, *, are_apart: bool = True) -> None:
        """Take a dispute of `pair` over a state that plan `plan` has made, the one in force.

        Args:
            are_apart: whether the next plans keep the two apart where they can; else it does not count towards the end
                of the run, as a plan without the two together was not looked for.
        """
        if self._newest[0] != plan:
            self._newest = (plan, said)
        if not are_apart:
            return
        self._plans[pair] = self._plans.pop(pair, frozenset()) | {plan}
        if len(self._plans) > SEEN_LIMIT:
            del self._plans[next(iter(self._plans))]

    def excuse(self, plan: int) -> None:
        """Count the disputes under plan `plan` no more towards the end of the run: a third peer has made them. The plan
        is over all the same."""
        self._plans = {pair: rest for pair, plans in self._plans.items() if (rest := plans - {plan})}

    def under(self, plan: int) -> str:
        """Return why the plan of this version is over, in one line; "" if no dispute has ended it."""
        return self._newest[1] if self._newest[0] == plan else ""

    @property
    def verdict(self) -> str:
        """Why the run cannot go on, in one line; "" if it can."""
        for pair, plans in self._plans.items():
            if len(plans) >= REPEATS:
                names = " and ".join(sorted(map(short, pair)))
                return (
                    f"{names} signed different states under {len(plans)} plans, and no plan does without the two "
                    "together: one of them lies, or its machine is broken; ban it, or add peers"
                )
        return ""
