"""Pipeline schedules: complete, free of deadlock on any routes, the textbook's on an equal grid; and their check."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_pace import Pacing
from dtfm_protocol.plan.schedule import (
    Action,
    actions_of,
    most_between,
    most_in_flight,
    orders,
    plain_in_flight,
)
from dtfm_protocol.plan.schedule_check import Unrunnable, check
from dtfm_protocol.schema import needs_of
from tests.protocol.unit_speed_schedule import UnitSpeedSchedule

SCHEDULES = ["1f1b", "gpipe", "zero-bubble"]


def kinds_of(plan: Plan) -> tuple[str, ...]:
    return ("forward", "backward", "weight") if plan.schedule == "zero-bubble" else ("forward", "backward")


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


def replay(plan: Plan, made: Mapping[str, Sequence[Action]] | None = None) -> list[tuple[str, Action]]:
    """Run every peer's list in its own order, an action as soon as its input is there; all that could be run.

    Independent of how the lists were made: peers take turns at random-like order, and only the routes say what an
    action needs.
    """
    lists = {peer: list((made or orders(plan))[peer]) for peer in plan.peers}
    done: set[tuple[str, str, int]] = set()
    run: list[tuple[str, Action]] = []

    def can_run(peer: str, action: Action) -> bool:
        route = plan.routes[action.micro_batch]
        stage = route.index(peer)
        if action.kind == "forward":
            return stage == 0 or ("forward", route[stage - 1], action.micro_batch) in done
        if action.kind == "weight":
            return ("backward", peer, action.micro_batch) in done
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


def paced(plan: Plan, **columns: object) -> Plan:
    """The plan with the pace of free links and equally fast stages, but for `columns`."""
    split, shares = plan.schedule == "zero-bubble", plan.shares()
    peers, pairs = len(plan.peers), len(plan.pairs)
    stage_of = {peer: stage for stage in range(len(plan.stages)) for peer in plan.replicas(stage)}
    limits = [plain_in_flight(plan, stage_of[peer], shares, peer) for peer in plan.peers]
    pacing = {
        "forward": [1] * peers,
        "backward": [1 if split else 2] * peers,
        "weight": [1] * peers if split else [],
        "in_flight": [flying for flying, _ in limits],
        "kept": [kept for _, kept in limits],
        **dict.fromkeys(("ahead", "ahead_delay", "back", "back_delay"), [0] * pairs),
    }
    return Plan.model_validate(plan.model_dump(mode="json") | {"pacing": pacing | columns})


@st.composite
def paced_plans(draw: st.DrawFn) -> Plan:
    """Random plans at a random pace: durations from one to hundreds, links from free to slower than all compute."""
    plan = draw(plans().filter(lambda plan: plan.schedule != "gpipe"))
    peers, pairs = len(plan.peers), len(plan.pairs)

    def column(count: int, least: int, most: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))

    slow = draw(st.sampled_from([1, 3, 500]))
    flying = column(peers, 1, draw(st.sampled_from([1, 4, 20])))
    columns: dict[str, list[int]] = {
        "forward": column(peers, 1, slow),
        "backward": column(peers, 1, 2 * slow),
        "weight": column(peers, 1, slow) if plan.schedule == "zero-bubble" else [],
        "in_flight": flying,
        "kept": [one + draw(st.integers(0, 3)) for one in flying],
    }
    for name in ("ahead", "ahead_delay", "back", "back_delay"):
        columns[name] = column(pairs, 0, draw(st.sampled_from([0, 2, 1000])))
    return paced(plan, **columns)


@given(plan=plans())
@settings(max_examples=200, deadline=None)
def test_without_a_pace_orders_are_those_of_unit_speed_over_free_links(plan: Plan) -> None:
    wanted = UnitSpeedSchedule(plan).run()
    assert orders(plan) == wanted
    if plan.schedule != "gpipe":
        assert orders(paced(plan)) == wanted


@given(plan=paced_plans())
@settings(max_examples=200, deadline=None)
def test_no_pace_deadlocks(plan: Plan) -> None:
    assert len(replay(plan)) == len(kinds_of(plan)) * len(plan.routes) * len(plan.stages)
    check(plan, orders(plan), {peer: most_in_flight(actions_of(plan, peer)) for peer in plan.peers})


@given(plan=paced_plans())
@settings(max_examples=100, deadline=None)
def test_a_pace_that_is_a_thousand_times_slower_gives_the_same_orders(plan: Plan) -> None:
    assert plan.pacing is not None
    times = {
        name: [1000 * value for value in getattr(plan.pacing, name)]
        for name in ("forward", "backward", "weight", "ahead", "ahead_delay", "back", "back_delay")
    }
    slower = plan.model_copy(update={"pacing": Pacing.model_validate(plan.pacing.model_dump() | times)})
    assert orders(slower) == orders(plan)


@given(depth=st.integers(2, 5), more=st.integers(0, 12), rounds=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_long_delay_fills_what_may_be_in_flight_and_no_more(depth: int, more: int, rounds: int) -> None:
    plan = grid(depth, 1, rounds, "1f1b")
    flying = [depth - stage + more for stage in range(depth)]
    far = paced(plan, in_flight=flying, kept=flying, back_delay=[10**6] * (depth - 1))
    for stage in range(depth - 1):
        assert most_between(actions_of(far, f"p{stage}.0")) == min(rounds, *flying[: stage + 1])
    assert most_between(actions_of(far, f"p{depth - 1}.0")) <= flying[-1]


def test_a_message_waits_for_the_link_and_orders_follow_what_comes_first() -> None:
    """One sender, two micro-batches: the gradient of the first comes before the second."""
    plan = paced(grid(2, 1, 2, "1f1b"), ahead=[50], in_flight=[2, 2], kept=[2, 2])
    assert letters(actions_of(plan, "p1.0")) == "F0 B0 F1 B1"
    assert letters(actions_of(plan, "p0.0")) == "F0 F1 B0 B1"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"forward": [0, 1]}, "pacing.forward.0: should be at least 1 (got 0)"),
        ({"backward": [1, 10**12]}, "pacing.backward.1: should be at most 3600000000"),
        ({"in_flight": [0, 1]}, "pacing.in_flight.0"),
        ({"in_flight": [70_000, 1], "kept": [70_000, 1]}, "pacing.in_flight.0"),
        ({"in_flight": [3, 1], "kept": [2, 1]}, "pacing: kept: 2 micro-batches where 3 are in flight"),
        ({"back": [-1]}, "pacing.back.0"),
        ({"ahead_delay": []}, "pacing: ahead_delay: 0 numbers for 1 pairs of peers"),
        ({"kept": [9]}, "pacing: kept: 1 numbers for 2 peers"),
        ({"weight": [1, 1]}, "pacing: weight belongs to zero-bubble"),
        ({"forward": [1.5, 1]}, "pacing.forward.0"),
    ],
)
def test_a_pace_that_cannot_be_is_refused_in_one_line(columns: dict[str, object], words: str) -> None:
    whole = paced(grid(2, 1, 4, "1f1b")).model_dump(mode="json")
    with pytest.raises(UserError) as refused:
        Plan.read(whole | {"pacing": whole["pacing"] | columns}, "the plan")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_pace_of_other_peers_or_of_gpipe_is_refused() -> None:
    whole = paced(grid(2, 1, 4, "1f1b")).model_dump(mode="json")
    other = grid(3, 1, 4, "1f1b").model_dump(mode="json")
    for wrong, words in ((other, "of 2 peers, for 3"), (whole | {"schedule": "gpipe"}, "gpipe")):
        with pytest.raises(UserError, match=words):
            Plan.read(wrong | {"pacing": whole["pacing"]}, "the plan")


def test_who_does_not_know_of_paces_refuses_such_a_plan_and_reads_others() -> None:
    plain = grid(2, 1, 4, "1f1b")
    assert "pacing" not in plain.model_dump(mode="json")
    assert needs_of(plain) == ()
    assert needs_of(paced(plain)) == ("pacing",)


def test_who_does_not_know_of_durations_that_drift_refuses_a_plan_that_follows_them() -> None:
    plan = paced(grid(2, 1, 4, "1f1b"))
    assert "follows_durations" not in plan.model_dump(mode="json")
    assert needs_of(plan.model_copy(update={"follows_durations": True})) == ("pacing", "follows_durations")


@given(plan=plans())
@settings(max_examples=150, deadline=None)
def test_each_peer_runs_each_part_of_each_of_its_micro_batches_once_and_in_order(plan: Plan) -> None:
    for peer in plan.peers:
        actions, kinds = actions_of(plan, peer), kinds_of(plan)
        assert Counter(actions) == Counter(Action(kind, i) for kind in kinds for i in plan.micro_batches(peer))  # type: ignore[arg-type]
        for index in plan.micro_batches(peer):
            assert [action.kind for action in actions if action.micro_batch == index] == list(kinds)


@given(plan=plans())
@settings(max_examples=150, deadline=None)
def test_no_routes_deadlock(plan: Plan) -> None:
    assert len(replay(plan)) == len(kinds_of(plan)) * len(plan.routes) * len(plan.stages)
    check(plan, orders(plan), {peer: most_in_flight(actions_of(plan, peer)) for peer in plan.peers})


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


@given(depth=st.integers(1, 6), width=st.integers(1, 3), rounds=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_1f1b_holds_no_more_micro_batches_than_stages_are_left(depth: int, width: int, rounds: int) -> None:
    plan = grid(depth, width, rounds, "1f1b")
    for stage in range(depth):
        assert most_in_flight(actions_of(plan, f"p{stage}.0")) == min(depth - stage, rounds)


@given(depth=st.integers(1, 6), width=st.integers(1, 3), rounds=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_zero_bubble_keeps_no_more_than_1f1bs_first_stage(depth: int, width: int, rounds: int) -> None:
    plan = grid(depth, width, rounds, "zero-bubble")
    for peer in plan.peers:
        assert most_in_flight(actions_of(plan, peer)) <= depth


@given(plan=plans())
@settings(max_examples=60, deadline=None)
def test_weights_come_in_the_order_of_their_backwards(plan: Plan) -> None:
    plan = plan.model_copy(update={"schedule": "zero-bubble"})
    for peer in plan.peers:
        actions = actions_of(plan, peer)
        backwards, weights = ([a.micro_batch for a in actions if a.kind == kind] for kind in ("backward", "weight"))
        assert backwards == weights


def test_zero_bubble_fills_with_weights_what_1f1b_waits() -> None:
    plan = grid(2, 1, 4, "zero-bubble")
    assert letters(actions_of(plan, "p0.0")).split()[:4] == ["F0", "F1", "B0", "W0"]
    assert letters(actions_of(plan, "p1.0")).split()[:4] == ["F0", "B0", "F1", "B1"]


def test_activations_are_kept_until_the_last_part_of_the_backward() -> None:
    split = [Action("forward", 0), Action("backward", 0), Action("forward", 1), Action("weight", 0)]
    assert most_in_flight(split) == 2
    assert most_in_flight(split[:3]) == 1
    assert most_in_flight([]) == 0


def test_1f1b_on_a_fast_peer_before_two_slow_ones_keeps_both_busy() -> None:
    """One first-stage peer feeds two last-stage peers: it runs ahead far enough for each to have one to work on."""
    plan = plan_of([("a", "x"), ("a", "y")] * 4, "1f1b")
    first = letters(actions_of(plan, "a")).split()
    assert {action[0] for action in first[:2]} == {"F"}
    assert 2 <= most_in_flight(actions_of(plan, "a")) <= 3
    for peer in "xy":
        assert most_in_flight(actions_of(plan, peer)) == 1


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@given(plan=plans())
@settings(max_examples=60, deadline=None)
def test_no_schedule_holds_more_than_gpipe(schedule: str, plan: Plan) -> None:
    plan = plan.model_copy(update={"schedule": schedule})
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


# The check


PAIR = plan_of([("a", "x"), ("a", "x")], "1f1b")


def order(text: str) -> tuple[Action, ...]:
    """`F0 B0 ...`."""
    kinds = {"F": "forward", "B": "backward", "W": "weight"}
    return tuple(Action(kinds[part[0]], int(part[1:])) for part in text.split())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "x"),
    [
        ("F0 F1 B0 B1", "F0 B0 F1 B1"),
        ("F0 F1 B1 B0", "F0 F1 B1 B0"),
        ("F1 B1 F0 B0", "F1 B1 F0 B0"),
        ("F0 F1 B0 B1", "F1 F0 B1 B0"),
        ("F0 F1 B0 B1", "F1 B1 F0 B0"),
        ("F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W1 W0"),
        ("F0 F1 B0 B1", "F0 B0 F1 B1 W0 W1"),
    ],
)
def test_orders_that_can_run_pass(a: str, x: str) -> None:
    check(PAIR, {"a": order(a), "x": order(x)})


@pytest.mark.parametrize(
    ("a", "x", "said"),
    [
        ("F0 B0 F1 B1", "F0 F1 B0 B1", "2 peers wait for each other: a for the input of its backward of micro-batch 0"),
        ("F0 B0 F1 B1", "F1 B1 F0 B0", "2 peers wait for each other"),
        ("F1 B1 F0 B0", "F0 B0 W0 F1 B1 W1", "2 peers wait for each other: a for the input of its backward"),
        ("F0 F1 B0", "F0 B0 F1 B1", "a has 3 actions, 4 different ones belong"),
        ("F0 F1 B0 B0", "F0 B0 F1 B1", "a has 4 actions, 4 different ones belong"),
        ("F0 F1 F1 B0 B1", "F0 B0 F1 B1", "a has 5 actions, 4 different ones belong"),
        ("F0 F1 B0 B2", "F0 B0 F1 B1", "a leaves out a part of micro-batch 1"),
        ("F0 F1 B0 B1", "F0 B0 F1 B1 W0", "x has 5 actions, 6 different ones belong"),
        ("", "F0 B0 F1 B1", "a has 0 actions, 4 different ones belong"),
        ("F0 B1 F1 B0", "F0 B0 F1 B1", "a has the parts of micro-batch 1 out of order"),
        ("F0 F1 B0 B1", "F0 W0 B0 F1 B1 W1", "x has the parts of micro-batch 0 out of order"),
    ],
)
def test_orders_that_cannot_run_are_told_why(a: str, x: str, said: str) -> None:
    with pytest.raises(Unrunnable, match=said):
        check(PAIR, {"a": order(a), "x": order(x)})


def test_a_peer_without_an_order_is_told() -> None:
    with pytest.raises(Unrunnable, match="x has 0 actions"):
        check(PAIR, {"a": order("F0 F1 B0 B1")})


@pytest.mark.parametrize(
    ("a", "held"), [("F0 F1 B0 B1", 2), ("F0 B0 F1 B1", 1), ("F0 B0 F1 B1 W0 W1", 2), ("F0 B0 W0 F1 B1 W1", 1)]
)
def test_orders_beyond_memory_are_refused(a: str, held: int) -> None:
    one = plan_of([("a",), ("a",)], "zero-bubble")
    check(one, {"a": order(a)}, {"a": held})
    with pytest.raises(Unrunnable, match=f"a would keep {held} micro-batches in flight and has memory for {held - 1}"):
        check(one, {"a": order(a)}, {"a": held - 1})


@given(plan=plans(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_the_check_agrees_with_running_the_orders(plan: Plan, data: st.DataObject) -> None:
    """Two neighbouring actions of one peer exchanged: sometimes that can still run."""
    made = {peer: list(actions) for peer, actions in orders(plan).items()}
    peer = data.draw(st.sampled_from(plan.peers))
    place = data.draw(st.integers(0, len(made[peer]) - 2))
    made[peer][place : place + 2] = reversed(made[peer][place : place + 2])
    runs = len(replay(plan, made)) == sum(map(len, made.values()))
    try:
        check(plan, made)
    except Unrunnable:
        assert not runs
    else:
        assert runs
