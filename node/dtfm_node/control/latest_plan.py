"""Plain values that decide which plan a node follows: the newest call and the newest plan of those that coordinators
have sent."""

from typing import NamedTuple, Self


class HeardCall(NamedTuple):
    """An `Epoch` message (a coordinator's call to end or begin a plan), with the peer id of the coordinator that sent
    it."""

    called: int = 0
    gently: bool = False
    parked: bool = False
    in_force: int = 0
    started: int = 0
    by: str = ""


class HeardPlan(NamedTuple):
    """Those fields of a plan that decide who follows it."""

    version: int
    author: str
    trains: bool
    """Whether this node serves a stage of the plan; else it is a spare."""


class Heard(NamedTuple):
    """The newest call and the newest plan that a node has heard of."""

    call: HeardCall = HeardCall()
    plan: HeardPlan | None = None

    def with_call(self, call: HeardCall) -> Self:
        """Return what is known after `call` came; an older call than the known one is of a former coordinator, and
        changes nothing."""
        return self._replace(call=call) if call.called >= self.call.called else self

    def with_plan(self, plan: HeardPlan) -> Self:
        """Return what is known after `plan` came: the higher version counts, and of one version the plan by whoever
        called last."""
        return self._replace(plan=plan) if self._order(plan) > self._order(self.plan) else self

    def _order(self, plan: HeardPlan | None) -> tuple[int, bool]:
        return (plan.version, plan.author == self.call.by) if plan is not None else (0, False)
