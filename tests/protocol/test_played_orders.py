"""A step of given orders takes what the greedy run took that made them; of others, what can be reckoned by hand."""

from hypothesis import given, settings

from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_orders import step_microseconds
from dtfm_protocol.plan.schedule import Action, _PlayedStep, orders
from tests.protocol.test_schedule import grid, paced, paced_plans, plan_of


class Timed(_PlayedStep):
    """The run that makes orders, with the time at which it ends."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.end = 0
        self.raised = False

    def _foresee(self, time: int, name: str, action: Action, arrives: bool) -> None:
        self.end = max(self.end, time)
        super()._foresee(time, name, action, arrives)

    def run(self) -> dict[str, tuple[Action, ...]]:
        limits = {name: peer.limit for name, peer in self._peers.items()}
        made = super().run()
        self.raised = limits != {name: peer.limit for name, peer in self._peers.items()}
        return made


@given(plan=paced_plans())
@settings(max_examples=200, deadline=None)
def test_orders_take_what_the_run_took_that_made_them(plan: Plan) -> None:
    timed = Timed(plan)
    took = step_microseconds(plan, timed.run())
    assert took <= timed.end, "it may have stood still until a limit was raised"
    assert timed.raised or took == timed.end


def acts(words: str) -> tuple[Action, ...]:
    kinds = {"F": "forward", "B": "backward", "W": "weight"}
    return tuple(Action(kinds[word[0]], int(word[1:])) for word in words.split())  # type: ignore[arg-type]


def test_messages_wait_for_each_other_and_are_on_their_way_for_a_while() -> None:
    plan = paced(
        grid(2, 1, 2, "1f1b"), forward=[1, 2], backward=[3, 4], ahead=[5], ahead_delay=[7], back=[11], back_delay=[13]
    )
    made = {"p0.0": acts("F0 F1 B0 B1"), "p1.0": acts("F0 B0 F1 B1")}
    # The second message ahead waits until the first is through, at 6: it arrives at 18. Of those back the second is
    # ready at 25 and waits until 30.
    assert step_microseconds(plan, made) == max(1 + 5 + 7 + 2 + 4 + 11 + 13 + 3, 30 + 11 + 13) + 3


def test_an_order_that_waits_for_a_slow_peer_takes_longer_than_one_that_does_not() -> None:
    """One peer sends to a fast and to a slow one; its backwards come from both."""
    routes = [("a", "fast"), ("a", "slow")]
    plan = paced(plan_of(routes, "1f1b"), forward=[1, 1, 10], backward=[4, 1, 10], in_flight=[2, 1, 1], kept=[2, 1, 1])
    one = dict(orders(plan)) | {"a": acts("F1 F0 B0 B1")}
    other = one | {"a": acts("F0 F1 B1 B0")}
    assert step_microseconds(plan, one) == 1 + 10 + 10 + 4
    assert step_microseconds(plan, other) == 2 + 10 + 10 + 4 + 4


def test_gradients_of_weights_wait_for_nobody() -> None:
    plan = paced(grid(2, 1, 1, "zero-bubble"), forward=[1, 1], backward=[2, 2], weight=[100, 50])
    assert step_microseconds(plan, {"p0.0": acts("F0 B0 W0"), "p1.0": acts("F0 B0 W0")}) == 1 + 1 + 2 + 2 + 100
