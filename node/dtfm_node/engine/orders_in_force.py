"""The orders of compute by which the peers of a plan run a step, and the pace of which they were made. Pure.

They are the plan's own at first. Where a commit brings new durations, all peers make them anew of these, alike. What a
peer keeps in memory is then no more than under the plan's own orders, by which it was found to fit.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import NewDurations
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Action, most_in_flight, most_waiting, orders
from dtfm_protocol.plan.schedule_check import Orders, Unrunnable, check


@dataclass(frozen=True)
class OrdersInForce:
    """Orders of one plan at one pace; `of` makes those with which it begins."""

    plan: Plan
    """Plan as it was published."""
    paced: Plan
    """The same with the pace in force."""
    orders: Orders
    """Actions of each peer in one step, in order."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the orders with which a plan begins.

        Raises:
            Unrunnable: they cannot be run.
        """
        made = orders(plan)
        check(plan, made)
        return cls(plan, plan, made)

    def after(self, durations: NewDurations) -> Self:
        """Return the orders after a commit with new durations.

        Raises:
            Refused: the plan has no such peers or durations, or what peers would keep at once is more than under the
                plan's own orders.
        """
        plan, pacing = self.plan, self.paced.pacing
        if not plan.follows_durations or pacing is None:
            raise Refused("new durations, which this plan does not follow")
        paced, own = self.paced.model_copy(update={"pacing": pacing.after(durations)}), orders(plan)
        made = {peer: in_memory(order, most_waiting(own[peer])) for peer, order in orders(paced).items()}
        try:
            check(paced, made, {peer: most_in_flight(order) for peer, order in own.items()})
        except Unrunnable as error:
            raise Refused(f"new durations, by which {error}") from None
        return type(self)(plan, paced, made)


def in_memory(order: Sequence[Action], waiting: int) -> tuple[Action, ...]:
    """Return an order in which no more than `waiting`, at least one, backwards are followed later by the gradients of
    their weights: those that would be one too many come before the next backward. Nobody waits for them."""
    late, early = deque[int](), set[int]()
    found: list[Action] = []
    for action in order:
        if action.kind == "weight":
            if action.micro_batch in early:
                continue
            late.remove(action.micro_batch)
        elif action.kind == "backward":
            if waiting and len(late) == waiting:
                early.add(late[0])
                found.append(Action("weight", late.popleft()))
            late.append(action.micro_batch)
        found.append(action)
    return tuple(found)
