"""New durations are followed where they have drifted for a while, and where that makes a shorter step; nowhere else."""

import random

import pytest

from dtfm_node.engine.drifted_pace import DRIFT, GAIN, SMOOTHED_STEPS, STEPS_APART, DriftedPace
from dtfm_node.engine.orders_in_force import OrdersInForce
from dtfm_protocol.plan.ballot import MOST_NEW_DURATIONS, Commit, NewDurations, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_orders import step_microseconds
from dtfm_protocol.plan.signed_commit import COMMIT_LIMIT, SignedCommit
from tests.harness.named_peers import SWARM, identity_of
from tests.protocol.test_schedule import grid, paced, plan_of

ROUTES = [("a", "x"), ("a", "x"), ("a", "y"), ("a", "x")] * 3


def plan(**columns: list[int]) -> Plan:
    """One peer that feeds two, of which the first has three times as much to do."""
    figures = {"forward": [1000] * 3, "backward": [2000] * 3, "ahead_delay": [500] * 2, "back_delay": [500] * 2}
    return paced(plan_of(ROUTES, "1f1b"), **(figures | columns)).model_copy(update={"follows_durations": True})


def votes(**factors: float) -> dict[str, Vote]:
    """What peers say whose actions take so many times what the plan says."""
    found = {}
    for peer in ("a", "x", "y"):
        factor = factors.get(peer, 1.0)
        found[peer] = Vote(durations=(round(1000 * factor), round(2000 * factor)))
    return found


def heard(pace: DriftedPace, steps: int, **factors: float) -> list[NewDurations]:
    return [pace.on(votes(**factors)) for _ in range(steps)]


SLOW_Y: NewDurations = ((2, (3000, 6000)),)


def test_what_has_drifted_for_long_enough_is_followed_once() -> None:
    pace = DriftedPace(plan())
    assert heard(pace, SMOOTHED_STEPS, y=3.0) == [()] * (SMOOTHED_STEPS - 1) + [SLOW_Y]
    assert heard(pace, 5 * STEPS_APART, y=3.0) == [()] * 5 * STEPS_APART
    assert [new for new in heard(pace, 3 * STEPS_APART, y=1.0) if new] == [((2, (1000, 2000)),)]


def test_a_few_odd_steps_are_noise() -> None:
    pace = DriftedPace(plan())
    for _ in range(20):
        assert not any(heard(pace, 2, y=5.0))
        assert not any(heard(pace, 3))


def test_small_drifts_are_not_followed_whatever_they_would_save() -> None:
    fragile = plan(forward=[1000, 1000, 1900], backward=[2000, 2000, 3800])
    own = OrdersInForce.of(fragile)
    after = own.after(((2, (2090, 4180)),))
    assert step_microseconds(after.paced, after.orders) < (1 - GAIN) * step_microseconds(after.paced, own.orders)
    assert not any(heard(DriftedPace(fragile), 3 * STEPS_APART, y=2.09))
    assert any(heard(DriftedPace(fragile), 3 * STEPS_APART, y=1.9 * DRIFT + 0.1))


def test_a_drift_of_all_alike_is_not_followed() -> None:
    """It changes nothing where links are free, and here, where they are not, for the worse."""
    for still in (plan(), plan(ahead_delay=[0, 0], back_delay=[0, 0])):
        assert not any(heard(DriftedPace(still), 3 * STEPS_APART, a=4.0, x=4.0, y=4.0))


def test_orders_that_are_no_better_are_not_followed() -> None:
    """Greedy orders of the true durations may be worse than others."""
    kept = followed = 0
    draw = random.Random(1)
    for _ in range(60):
        routes = [(f"a{draw.randrange(2)}", f"m{draw.randrange(2)}", f"x{draw.randrange(2)}") for _ in range(16)]
        free = plan_of(routes, "1f1b")
        peers, pairs = len(free.peers), len(free.pairs)
        delays = {name: [draw.randrange(4000) for _ in range(pairs)] for name in ("ahead_delay", "back_delay")}
        drawn = paced(free, forward=[1000] * peers, backward=[2000] * peers, **delays)
        drawn = drawn.model_copy(update={"follows_durations": True})
        times = [draw.choice([1, 1, 3]) for _ in range(peers)]
        said = {peer: Vote(durations=(1000 * t, 2000 * t)) for peer, t in zip(free.peers, times, strict=True)}
        pace = DriftedPace(drawn)
        told = [pace.on(said) for _ in range(SMOOTHED_STEPS)][-1]
        own = OrdersInForce.of(drawn)
        after = own.after(tuple((place, (1000 * t, 2000 * t)) for place, t in enumerate(times)))
        before, now = (step_microseconds(after.paced, one.orders) for one in (own, after))
        assert bool(told) == (now <= (1 - GAIN) * before)
        kept, followed = kept + (now > before), followed + bool(told)
    assert kept > 5, "some orders are worse"
    assert followed > 5


def test_a_look_that_finds_nothing_is_not_repeated_at_every_step() -> None:
    pace = DriftedPace(plan())
    heard(pace, SMOOTHED_STEPS, a=4.0, x=4.0, y=4.0)
    assert not any(heard(pace, STEPS_APART - 1, y=3.0))
    assert heard(pace, 1, y=3.0) == [SLOW_Y]


def test_who_says_nothing_counts_as_before() -> None:
    """An accelerator's peers do not measure; a step of which nothing is learned takes no compute."""
    pace = DriftedPace(plan())
    said = [pace.on({"a": Vote(), "x": Vote(), "y": votes(y=3.0)["y"]}) for _ in range(SMOOTHED_STEPS)]
    assert said[-1] == SLOW_Y
    assert not any(pace.on({"a": Vote(), "x": Vote(), "y": Vote()}) for _ in range(3 * STEPS_APART))


def test_of_many_peers_those_that_have_drifted_most_are_followed() -> None:
    width = 2 * MOST_NEW_DURATIONS
    free = grid(2, width, 4, "1f1b")
    peers, pairs = len(free.peers), len(free.pairs)
    far = paced(free, forward=[1000] * peers, backward=[2000] * peers, back_delay=[5000] * pairs)
    pace = DriftedPace(far.model_copy(update={"follows_durations": True}))
    said = {peer: Vote(durations=(10 * (100 + place), 2000)) for place, peer in enumerate(free.peers)}
    for _ in range(SMOOTHED_STEPS):
        for peer, vote in said.items():
            pace._steps[peer].append(vote.durations)
    assert [place for place, _ in pace._drifted()] == [*range(peers - 1, peers - 1 - MOST_NEW_DURATIONS, -1)]


def test_the_longest_commit_with_durations_can_be_kept() -> None:
    durations = tuple((19_999 - place, (3_600_000_000,) * 3) for place in range(MOST_NEW_DURATIONS))
    numbers = {"loss": -1.2345678901234567e19, "grad_norm": 1.2345678901234567e-19, "seconds": 1.2345678901234567e-8}
    commit = Commit(
        **numbers, bytes_sent=(1 << 63) - 1, kept=False, votes="f" * 64, before="f" * 64, durations=durations
    )
    made = SignedCommit.made(identity_of("a"), SWARM, 1, 3, commit)
    assert len(made.text) <= COMMIT_LIMIT
    assert made.opened(identity_of("a").peer_id, SWARM) == commit


@pytest.mark.parametrize("message", [Vote(), Commit()])
def test_durations_are_left_out_where_there_are_none(message: Vote | Commit) -> None:
    assert "durations" not in message.model_dump_json()
