"""What decides about plans in what coordinators have said: the newest call and the newest plan, as plain values."""

from typing import NamedTuple, Self


class HeardCall(NamedTuple):
    """An `Epoch`, and the coordinator that it is of."""

    called: int = 0
    gently: bool = False
    parked: bool = False
    in_force: int = 0
    started: int = 0
    by: str = ""


class HeardPlan(NamedTuple):
    """A plan, as far as it decides who follows it."""

    version: int
    author: str
    trains: bool
    """Whether this node serves a stage of it; else it is a spare."""


class Heard(NamedTuple):
    """The newest call and the newest plan that a node has heard of."""

    call: HeardCall = HeardCall()
    plan: HeardPlan | None = None

    def with_call(self, call: HeardCall) -> Self:
        """What is known after `call`; an older one is another coordinator's, who is not the last."""
        return self._replace(call=call) if call.called >= self.call.called else self

    def with_plan(self, plan: HeardPlan) -> Self:
        """What is known after `plan`; of two of one version the one that counts is by whoever called last."""
        return self._replace(plan=plan) if self._order(plan) > self._order(self.plan) else self

    def _order(self, plan: HeardPlan | None) -> tuple[int, bool]:
        return (plan.version, plan.author == self.call.by) if plan is not None else (0, False)
