"""Orders of new durations can be run on any routes, and keep no more in memory than the plan's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.orders_in_force import OrdersInForce, in_memory
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import NewDurations
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Action, most_in_flight, most_waiting, orders
from tests.protocol.test_schedule import grid, kinds_of, paced, paced_plans, replay


@st.composite
def drifts(draw: st.DrawFn) -> tuple[Plan, list[NewDurations]]:
    """A plan with a pace, and durations as some commits bring them one after the other."""
    plan = draw(paced_plans()).model_copy(update={"follows_durations": True})
    times = st.tuples(*[st.integers(1, draw(st.sampled_from([3, 500])))] * len(kinds_of(plan)))
    one = st.tuples(st.integers(0, len(plan.peers) - 1), times)
    return plan, [tuple(new) for new in draw(st.lists(st.lists(one, min_size=1, max_size=4), min_size=1, max_size=3))]


@given(drift=drifts())
@settings(max_examples=300, deadline=None)
def test_whatever_durations_come_all_peers_make_the_same_orders_that_can_be_run(
    drift: tuple[Plan, list[NewDurations]],
) -> None:
    """Each of the steps from the plan to the last commit; a peer that refuses one refuses it as all do."""
    plan, commits = drift
    one = other = OrdersInForce.of(plan)
    own = orders(plan)
    for new in commits:
        try:
            one = one.after(new)
        except Refused:
            with pytest.raises(Refused):
                other.after(new)
            return
        other = other.after(new)
        assert one.orders == other.orders
        assert len(replay(plan, one.orders)) == len(kinds_of(plan)) * len(plan.routes) * len(plan.stages)
        for peer in plan.peers:
            assert most_in_flight(one.orders[peer]) <= most_in_flight(own[peer])
            assert most_waiting(one.orders[peer]) <= most_waiting(own[peer])


def following(**columns: object) -> Plan:
    return paced(grid(2, 2, 6, "zero-bubble"), **columns).model_copy(update={"follows_durations": True})


def test_durations_of_some_leave_the_others_as_they_are() -> None:
    first = OrdersInForce.of(following(forward=[5, 6, 7, 8]))
    after = first.after(((1, (60, 61, 62)), (3, (80, 81, 82)))).after(((1, (600, 601, 602)),))
    pacing, own = after.paced.pacing, first.plan.pacing
    assert pacing is not None
    assert own is not None
    assert (pacing.forward, pacing.backward, pacing.weight) == (
        (5, 600, 7, 80), (own.backward[0], 601, own.backward[2], 81), (own.weight[0], 602, own.weight[2], 82)
    )  # fmt: skip
    assert after.plan is first.plan
    assert (pacing.in_flight, pacing.kept, pacing.ahead) == (own.in_flight, own.kept, own.ahead)


@pytest.mark.parametrize("new", [((4, (1, 1, 1)),), ((0, (1, 1)),), ((0, ()),), ((0, (1, 1, 1)), (1, (1,)))])
def test_durations_of_nobody_or_of_other_actions_are_refused(new: NewDurations) -> None:
    with pytest.raises(Refused, match="durations of peer"):
        OrdersInForce.of(following()).after(new)


def test_a_plan_that_follows_none_refuses_durations() -> None:
    for plan in (grid(2, 2, 6, "1f1b").model_copy(update={"follows_durations": True}), paced(grid(2, 2, 6, "1f1b"))):
        with pytest.raises(Refused, match="does not follow"):
            OrdersInForce.of(plan).after(((0, (1, 1)),))


def test_weights_that_would_wait_for_too_long_come_before_the_next_backward() -> None:
    order = [Action(kind, batch) for kind in ("forward", "backward", "weight") for batch in range(4)]
    made = in_memory(order, 2)
    assert [f"{one.kind[0]}{one.micro_batch}" for one in made] == [
        "f0", "f1", "f2", "f3", "b0", "b1", "w0", "b2", "w1", "b3", "w2", "w3",
    ]  # fmt: skip
    assert in_memory(order, 4) == tuple(order)
    assert in_memory([one for one in order if one.kind != "weight"], 0) == tuple(order[:8])
