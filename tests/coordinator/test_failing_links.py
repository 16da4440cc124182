"""Which links fail while frames are on their way, and what is made of their other directions."""

import numpy as np
import pytest

from dtfm_coordinator.links.link_degradation import (
    FIRST_PAUSE,
    FRESH_SECONDS,
    LEAST_GBPS,
    MUCH_SLOWER,
    SECONDS,
    WARM_SECONDS,
    WARM_STEPS,
    Pair,
    both_ways,
)
from dtfm_protocol.discovery.records import Limits
from dtfm_protocol.view.link_matrix import parsed
from tests.coordinator.watched_links import AB, BA, NONE, World

NOBODY_KNOWS = dict[str, Limits]().get
"""What lines carry."""


def under_way(world: World, plan: int = 1, **gbps: float) -> None:
    """Senders tell how fast frames go, by the names of both ends."""
    told: dict[str, dict[str, float]] = {}
    for name, rate in gbps.items():
        told.setdefault(name[0], {})[name[1]] = rate
    for sender, rates in told.items():
        world.watch.sending(sender, plan, rates)


def failing(world: World) -> set[Pair]:
    return set(world.watch.failing(lambda *pair: world.known.get(pair), NOBODY_KNOWS))


def test_a_link_fails_as_soon_as_frames_under_way_are_much_slower_than_was_measured() -> None:
    world = World(ab=1.0)
    under_way(world, ab=1.0 / MUCH_SLOWER)
    assert failing(world) == set()
    under_way(world, ab=0.99 / MUCH_SLOWER)
    found = world.watch.failing(lambda *pair: world.known.get(pair), NOBODY_KNOWS)
    assert found == {AB: 0.99 / MUCH_SLOWER}
    world.now += FRESH_SECONDS + 0.1
    assert failing(world) == set()


def other_ways(world: World, failing: dict[Pair, float]) -> dict[Pair, float]:
    """What the other directions of links that fail are taken to carry."""
    found = both_ways(failing, lambda *pair: world.known.get(pair))
    assert failing.items() <= found.items()
    return {pair: gbps for pair, gbps in found.items() if pair not in failing}


def test_a_link_that_fails_is_taken_to_have_lost_as_much_the_other_way() -> None:
    world = World(ab=1.0, ba=3.0, ca=2.0)
    assert other_ways(world, {AB: 0.1}) == pytest.approx({BA: 0.3})
    assert other_ways(world, {AB: 0.1, BA: 0.6}) == {}
    assert other_ways(world, {("c", "a"): 0.1}) == {}, "the other way was not measured"
    assert other_ways(world, {}) == {}


def test_no_rate_is_too_low_for_a_view() -> None:
    world = World(ab=100.0, ba=1.0)
    assert other_ways(world, {AB: LEAST_GBPS}) == {BA: LEAST_GBPS}
    parsed(np.array([[0.0, LEAST_GBPS], [LEAST_GBPS, 0.0]]))


def test_what_a_sender_says_no_more_is_over() -> None:
    world = World(ab=1.0)
    under_way(world, ab=0.1)
    world.watch.sending("a", 1, {})
    assert failing(world) == set()


def test_links_that_share_an_end_may_each_be_slower() -> None:
    world = World(ab=1.0, ac=1.0, db=1.0)
    under_way(world, ab=0.2, ac=0.2)
    assert failing(world) == set()
    under_way(world, ab=0.1, ac=0.2)
    assert failing(world) == {AB}
    under_way(world, ab=0.2, db=0.2)
    assert failing(world) == set()


@pytest.mark.parametrize(
    ("limits", "rate", "fails"),
    [
        (None, 0.08, True),  # each of three may have a third
        (None, 0.09, False),
        (Limits(), 0.13, True),  # the line was seen to carry 1.6
        (Limits(), 0.14, False),
        (Limits(up_gbps=1.5, down_gbps=6.0), 0.12, True),  # half a Gbit/s each
        (Limits(up_gbps=1.5, down_gbps=6.0), 0.13, False),
        (Limits(up_gbps=0.1, down_gbps=0.1), 0.08, True),  # whatever it says, it carries one of them
    ],
)
def test_what_a_line_carries_says_whether_links_share_it(limits: Limits | None, rate: float, fails: bool) -> None:
    world = World(ab=1.0, ac=1.0, ad=1.0, ba=1.0, ca=1.0, da=1.0)
    under_way(world, ab=rate, ac=0.5, ad=0.5)
    assert (AB in world.watch.failing(lambda *pair: world.known.get(pair), {"a": limits}.get)) is fails
    world.watch.sending("a", 1, {})
    turned = limits and Limits(up_gbps=limits.down_gbps, down_gbps=limits.up_gbps)
    under_way(world, ba=rate, ca=0.5, da=0.5)
    assert (BA in world.watch.failing(lambda *pair: world.known.get(pair), {"a": turned}.get)) is fails


@pytest.mark.parametrize(("limits", "fails"), [(Limits(), False), (Limits(up_gbps=20.0), True)])
def test_of_a_fast_line_without_a_limit_none_was_looked_for(limits: Limits, fails: bool) -> None:
    world = World(ab=10.0, ac=10.0, ad=10.0)
    under_way(world, ab=1.0, ac=9.0, ad=9.0)
    assert bool(world.watch.failing(lambda *pair: world.known.get(pair), {"a": limits}.get)) is fails


def still_failing(world: World, *pairs: Pair) -> dict[Pair, float]:
    told = dict.fromkeys(pairs, 0.05)
    return world.watch.still_failing(told, lambda *pair: world.known.get(pair), NOBODY_KNOWS)


def test_a_link_that_fails_does_so_until_it_is_well() -> None:
    """However many come to share its line, and whichever way its frames go meanwhile."""
    world = World(ab=1.0, ac=1.0, ad=1.0, ba=1.0, cd=1.0)
    under_way(world, ab=0.1)
    assert failing(world) == {AB}
    under_way(world, ab=0.1, ac=0.3, ad=0.3)
    assert failing(world) == set()
    assert still_failing(world, AB) == {AB: 0.1}
    world.watch.sending("a", 1, {})
    under_way(world, ba=0.1, cd=0.1)
    assert still_failing(world, AB) == {AB: 0.05, BA: 0.1}
    assert still_failing(world, AB, ("c", "d")) == {AB: 0.05, BA: 0.1, ("c", "d"): 0.1}
    under_way(world, ab=0.5)
    assert still_failing(world, AB) == {}, "it is well, however slow the other way is"
    world.watch.sending("b", 1, {})
    assert still_failing(world, AB, ("c", "d")) == {("c", "d"): 0.1}


def test_a_link_that_was_found_slow_before_does_not_fail_at_once_again() -> None:
    """It may flap: it is looked at when its pause is over."""
    world = World(ab=1.0, ba=1.0)
    under_way(world, ab=0.1)
    world.looked(0.1)
    world.now += FIRST_PAUSE
    world.looked(1.0)
    world.now += 10 * FIRST_PAUSE
    under_way(world, ab=0.1, ba=0.1)
    assert failing(world) == set()


def test_a_link_that_was_looked_into_in_vain_is_excused_for_a_while() -> None:
    world = World(ab=1.0)
    under_way(world, ab=0.1)
    world.watch.excuse([AB])
    for _ in range(int(SECONDS)):
        under_way(world, ab=0.1)
        assert failing(world) == set()
        world.now += 1.0
    under_way(world, ab=0.1)
    assert failing(world) == {AB}


def test_a_link_on_which_nothing_is_under_way_is_excused_until_something_may_be() -> None:
    world = World(ab=1.0)
    under_way(world, ab=0.1)
    world.watch.sending("a", 1, {})
    world.watch.excuse([AB])
    under_way(world, ab=0.1)
    assert failing(world) == set()
    world.now += FRESH_SECONDS
    under_way(world, ab=0.1)
    assert failing(world) == {AB}


def test_who_is_looked_into_in_vain_again_and_again_is_excused_for_longer_each_time() -> None:
    """Any sender may say that a link is slow, and then say nothing."""
    world, looks = World(ab=1.0), 0
    for _ in range(600):
        under_way(world, ab=0.1)
        if failing(world):
            world.watch.sending("a", 1, {})
            world.watch.excuse([AB])
            looks += 1
        world.now += 1.0
    assert 600 / FIRST_PAUSE <= looks <= 600 / FIRST_PAUSE + 5
    world.warm(2)
    under_way(world, plan=2, ab=0.1)
    assert failing(world) == {AB}, "under another plan it may be another matter"


def test_frames_under_an_earlier_plan_say_nothing_and_a_new_plan_forgets_them() -> None:
    world = World(ab=1.0)
    world.warm(2)
    under_way(world, plan=2, ab=0.1)
    under_way(world, plan=1, ba=0.1)
    assert failing(world) == {AB}
    under_way(world, plan=3)
    world.watch.sending("c", 3, {})
    world.warm(3)
    assert failing(world) == set()


def test_no_link_fails_or_is_suspected_in_a_plans_first_steps() -> None:
    """Connections are new, and send slowly at first."""
    world = World(ab=1.0)
    for step in range(10, 10 + WARM_STEPS):
        world.now += WARM_SECONDS / 3
        world.watch.reported("b", 2, step, {"a": 0.1})
        under_way(world, plan=2, ab=0.1)
        assert world.suspects() == NONE
        assert failing(world) == set()
    world.now += SECONDS
    world.watch.reported("b", 2, 10 + WARM_STEPS, {"a": 0.1})
    under_way(world, plan=2, ab=0.1)
    assert world.suspects() == {AB}
    assert failing(world) == {AB}


def test_where_steps_are_long_a_link_fails_in_the_second_one_and_is_not_suspected_for_the_first() -> None:
    world = World(ab=1.0)
    under_way(world, plan=2, ab=0.1)
    world.now += 10 * WARM_SECONDS
    under_way(world, plan=2, ab=0.1)
    assert failing(world) == set(), "state may still be on its way"
    world.watch.reported("b", 2, 10, {"a": 0.1})
    under_way(world, plan=2, ab=0.1)
    assert failing(world) == {AB}
    assert world.suspects() == NONE
    world.watch.reported("b", 3, 11, {"a": 0.1})
    world.now += 0.9 * WARM_SECONDS
    under_way(world, plan=3, ab=0.1)
    assert failing(world) == set(), "a plan's seconds begin anew"
    world.now += 0.2 * WARM_SECONDS
    assert failing(world) == {AB}
