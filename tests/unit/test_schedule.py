"""Pipeline schedules: complete, free of deadlock on any routes, and the textbook's on an equal grid."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.plan import Plan
from dtfm_protocol.schedule import Action, actions_of, orders

SCHEDULES = ["1f1b", "gpipe"]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Random routes over random numbers of replicas: nothing is even."""
    depth = draw(st.integers(1, 5))
    peers = [[f"p{stage}.{number}" for number in range(draw(st.integers(1, 4)))] for stage in range(depth)]
    routes = draw(st.lists(st.tuples(*map(st.sampled_from, peers)), min_size=1, max_size=16))
    return plan_of(routes, draw(st.sampled_from(SCHEDULES)))


def plan_of(routes: list[tuple[str, ...]], schedule: str) -> Plan:
    stages = [(stage, stage + 1) for stage in range(len(routes[0]))]
    return Plan.model_validate({"stages": stages, "routes": routes, "schedule": schedule})


def grid(depth: int, width: int, rounds: int, schedule: str) -> Plan:
    pipelines = [tuple(f"p{stage}.{number}" for stage in range(depth)) for number in range(width)]
    return plan_of(pipelines * rounds, schedule)


def letters(actions: tuple[Action, ...]) -> str:
    """`F0 B0 ...`, the micro-batches numbered as the peer meets them."""
    numbers: dict[int, int] = {}
    return " ".join(
        f"{action.kind[0].upper()}{numbers.setdefault(action.micro_batch, len(numbers))}" for action in actions
    )


def replay(plan: Plan) -> list[tuple[str, Action]]:
    """Run every peer's list in its own order, an action as soon as its input is there; all that could be run.

    Independent of how the lists were made: peers take turns at random-like order, and only the routes say what an
    action needs.
    """
    lists = {peer: list(actions_of(plan, peer)) for peer in plan.peers}
    done: set[tuple[str, str, int]] = set()
    run: list[tuple[str, Action]] = []

    def can_run(peer: str, action: Action) -> bool:
        route = plan.routes[action.micro_batch]
        stage = route.index(peer)
        if action.kind == "forward":
            return stage == 0 or ("forward", route[stage - 1], action.micro_batch) in done
        if stage == len(route) - 1:
            return ("forward", peer, action.micro_batch) in done
        return ("backward", route[stage + 1], action.micro_batch) in done

    moved = True
    while moved:
        moved = False
        for peer in sorted(lists, reverse=len(run) % 2 == 0):
            if lists[peer] and can_run(peer, lists[peer][0]):
                action = lists[peer].pop(0)
                done.add((action.kind, peer, action.micro_batch))
                run.append((peer, action))
                moved = True
    return run


@given(plan=plans())
@settings(max_examples=150, deadline=None)
def test_each_peer_runs_each_of_its_micro_batches_forward_and_then_backward_once(plan: Plan) -> None:
    for peer in plan.peers:
        actions = actions_of(plan, peer)
        for kind in ("forward", "backward"):
            assert sorted(a.micro_batch for a in actions if a.kind == kind) == list(plan.micro_batches(peer))
        for index in plan.micro_batches(peer):
            assert actions.index(Action("forward", index)) < actions.index(Action("backward", index))


@given(plan=plans())
@settings(max_examples=150, deadline=None)
def test_no_routes_deadlock(plan: Plan) -> None:
    assert len(replay(plan)) == 2 * len(plan.routes) * len(plan.stages)


@given(plan=plans())
@settings(max_examples=60, deadline=None)
def test_gpipe_runs_all_forwards_before_any_backward(plan: Plan) -> None:
    plan = plan.model_copy(update={"schedule": "gpipe"})
    for peer in plan.peers:
        kinds = [action.kind for action in actions_of(plan, peer)]
        share = plan.shares()[peer]
        assert kinds == ["forward"] * share + ["backward"] * share


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rounds", [1, 2, 5, 8])
def test_1f1b_on_an_equal_grid_is_the_textbooks(depth: int, width: int, rounds: int) -> None:
    """PipeDream-flush (Narayanan et al., 2021): depth - 1 - stage warm-up forwards, then one forward, one backward."""
    plan = grid(depth, width, rounds, "1f1b")
    for stage in range(depth):
        warmup = min(depth - 1 - stage, rounds)
        book = [f"F{index}" for index in range(warmup)]
        for index in range(rounds - warmup):
            book += [f"F{warmup + index}", f"B{index}"]
        book += [f"B{index}" for index in range(rounds - warmup, rounds)]
        for number in range(width):
            assert letters(actions_of(plan, f"p{stage}.{number}")) == " ".join(book)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_gpipe_on_an_equal_grid_keeps_the_order_of_micro_batches(depth: int) -> None:
    plan = grid(depth, 2, 3, "gpipe")
    for peer in plan.peers:
        assert letters(actions_of(plan, peer)) == "F0 F1 F2 B0 B1 B2"


def most_in_flight(actions: tuple[Action, ...]) -> int:
    most = flying = 0
    for action in actions:
        flying += 1 if action.kind == "forward" else -1
        most = max(most, flying)
    return most


@given(depth=st.integers(1, 6), width=st.integers(1, 3), rounds=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_1f1b_holds_no_more_micro_batches_than_stages_are_left(depth: int, width: int, rounds: int) -> None:
    plan = grid(depth, width, rounds, "1f1b")
    for stage in range(depth):
        assert most_in_flight(actions_of(plan, f"p{stage}.0")) == min(depth - stage, rounds)


def test_1f1b_on_a_fast_peer_before_two_slow_ones_keeps_both_busy() -> None:
    """One first-stage peer feeds two last-stage peers: it runs ahead far enough for each to have one to work on."""
    plan = plan_of([("a", "x"), ("a", "y")] * 4, "1f1b")
    first = letters(actions_of(plan, "a")).split()
    assert {action[0] for action in first[:2]} == {"F"}
    assert 2 <= most_in_flight(actions_of(plan, "a")) <= 3
    for peer in "xy":
        assert most_in_flight(actions_of(plan, peer)) == 1


@given(plan=plans())
@settings(max_examples=60, deadline=None)
def test_1f1b_never_holds_more_than_gpipe(plan: Plan) -> None:
    plan = plan.model_copy(update={"schedule": "1f1b"})
    for peer in plan.peers:
        assert most_in_flight(actions_of(plan, peer)) <= plan.shares()[peer]


def test_a_peer_outside_the_plan_has_nothing_to_do() -> None:
    assert actions_of(grid(2, 1, 1, "1f1b"), "stranger") == ()


def test_the_orders_are_a_function_of_the_plan() -> None:
    routes = [("a", "x", "m"), ("b", "y", "m"), ("a", "y", "n"), ("b", "x", "n"), ("a", "x", "n")]
    first = dict(orders(plan_of(routes, "1f1b")))
    orders.cache_clear()
    assert orders(plan_of(routes, "1f1b")) == first
    assert Counter(len(actions) for actions in first.values()) == Counter({6: 3, 4: 3})
