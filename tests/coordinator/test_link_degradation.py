"""Which links are looked at: those that training finds slower, and those that were slow, after pauses that grow."""

import itertools

import pytest

from dtfm_coordinator.links.link_degradation import (
    APART_SECONDS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MUCH_SLOWER,
    SECONDS,
    SLOWER,
    STEPS,
)
from tests.coordinator.watched_links import AB, BA, NONE, World


def test_a_link_is_suspected_after_several_slow_steps_and_not_after_one() -> None:
    world = World(ab=1.0)
    assert world.suspects() == NONE
    for _ in range(STEPS - 1):
        world.steps(0.4)
        assert world.suspects() == NONE
    world.steps(0.4)
    assert world.suspects() == {AB}


def test_one_fast_frame_in_the_last_steps_clears_a_link() -> None:
    world = World(ab=1.0)
    world.steps(0.3, 0.3, 0.9)
    assert world.suspects() == NONE
    world.steps(*[0.3] * (STEPS - 1))
    assert world.suspects() == NONE
    world.steps(0.3)
    assert world.suspects() == {AB}


def test_frames_at_half_of_what_was_measured_are_fine() -> None:
    """They share their way with others."""
    world = World(ab=1.0)
    world.steps(*[1.0 / SLOWER] * 10)
    assert world.suspects() == NONE
    world.steps(*[0.99 / SLOWER] * STEPS)
    assert world.suspects() == {AB}


def test_one_step_is_enough_where_a_link_is_much_slower() -> None:
    world = World(ab=1.0)
    world.steps(1.0 / MUCH_SLOWER)
    assert world.suspects() == NONE
    world.steps(0.99 / MUCH_SLOWER)
    assert world.suspects() == {AB}
    world.steps(1.0)
    assert world.suspects() == NONE


def test_however_many_short_steps_are_slow_a_link_is_not_suspected_before_seconds_have_passed() -> None:
    world = World(ab=1.0)
    world.steps(*[1.0] * 50, every=0.2)
    since = world.now
    while not world.suspects():
        world.steps(0.01, every=0.2)
    assert SECONDS - APART_SECONDS <= world.now - since <= SECONDS + 0.5


def test_now_and_then_a_fast_frame_clears_a_link_of_short_steps() -> None:
    world = World(ab=1.0)
    for _ in range(20):
        world.steps(*[0.1] * 40, 0.9, every=0.2)
        assert world.suspects() == NONE


def test_frames_that_come_as_often_as_a_liar_likes_are_kept_in_bounds() -> None:
    world = World(ab=1.0)
    world.steps(*[0.3] * 5000, every=0.001)
    assert len(world.watch._seen[AB]) <= SECONDS / APART_SECONDS + 2


def test_a_link_of_a_peer_that_computes_more_slowly_is_judged_by_as_much_less() -> None:
    """Who is busy with something else sends and takes frames late."""
    world = World(ab=1.0)
    world.steps(*[0.2] * STEPS)
    assert world.suspects() == {AB}
    assert world.suspects(a=3.0) == world.suspects(b=3.0) == NONE
    assert world.suspects(a=2.0) == {AB}
    world.steps(*[0.01] * STEPS)
    assert world.suspects(a=3.0) == {AB}


def test_links_are_told_apart_by_direction() -> None:
    world = World(ab=1.0, ba=1.0, cb=1.0)
    for step in range(1, STEPS + 1):
        world.now += SECONDS
        world.watch.reported("b", 1, step, {"a": 0.1, "c": 1.0})
        world.watch.reported("a", 1, step, {"b": 1.0})
    assert world.suspects() == {AB}


def test_a_link_that_was_not_measured_is_not_suspected() -> None:
    world = World()
    world.steps(*[0.001] * 5)
    assert world.suspects() == NONE
    world.known[AB] = 0.0  # it was tried in vain, and yet frames come
    assert world.suspects() == NONE


def test_a_step_that_is_reported_again_counts_once() -> None:
    """Reports come every second, steps more slowly."""
    world = World(ab=1.0)
    for _ in range(5):
        world.now += SECONDS
        world.watch.reported("b", 1, 1, {"a": 0.3})
    assert world.suspects() == NONE


def test_a_new_plan_forgets_what_frames_told_under_the_last() -> None:
    world = World(ab=1.0)
    world.steps(*[0.3] * STEPS)
    world.warm(2)
    assert world.suspects() == NONE
    world.steps(*[0.3] * (STEPS - 1), plan=2)
    assert world.suspects() == NONE
    world.steps(0.1, plan=2)
    assert world.suspects() == {AB}


def test_the_same_step_of_a_new_plan_counts() -> None:
    """A step is done again where a plan broke in it."""
    world = World(ab=1.0)
    world.watch.reported("b", 1, 7, {"a": 0.3})
    world.warm(2)
    for step in range(7, 7 + STEPS):
        assert world.suspects() == NONE
        world.now += SECONDS
        world.watch.reported("b", 2, step, {"a": 0.3})
    assert world.suspects() == {AB}


def test_reports_of_an_earlier_plan_count_for_nothing() -> None:
    world = World(ab=1.0)
    world.watch.reported("c", 2, 1, {})
    world.steps(*[0.1] * 5, plan=1)
    assert world.suspects() == NONE


def test_a_link_that_was_looked_at_is_suspected_again_only_when_it_is_slower_still() -> None:
    """It was as fast as ever when it was measured: something else slows its frames."""
    world = World(ab=1.0)
    world.steps(*[0.4] * STEPS)
    world.looked(1.0)
    assert world.suspects() == NONE
    world.steps(*[0.4] * 5)
    world.steps(*[0.4 / SLOWER] * 5)
    assert world.suspects() == NONE
    world.steps(*[0.39 / SLOWER] * STEPS)
    assert world.suspects() == {AB}


def test_under_a_new_plan_a_link_that_was_looked_at_is_judged_by_its_measure_again() -> None:
    world = World(ab=1.0)
    world.steps(*[0.4] * STEPS)
    world.looked(1.0)
    world.warm(2)
    world.steps(*[0.4] * STEPS, plan=2)
    assert world.suspects() == {AB}


def test_a_link_that_was_found_slow_is_not_suspected_for_being_as_it_was_found() -> None:
    world = World(ab=1.0)
    world.steps(*[0.3] * STEPS)
    world.looked(0.1)
    world.steps(*[0.1] * 5, every=SECONDS / 4)
    world.warm(2)
    world.steps(*[0.09] * 5, plan=2, every=SECONDS / 4)
    assert world.suspects() == NONE


def test_a_link_found_slow_is_looked_at_again_after_pauses_that_double_up_to_the_longest() -> None:
    world = World(ab=1.0)
    world.looked(0.1)
    pause = FIRST_PAUSE
    for _ in range(10):
        world.now += pause - 0.001
        assert world.suspects() == NONE
        world.now += 0.001
        assert world.suspects() == {AB}
        world.looked(0.1)
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE


def test_it_stays_due_until_it_was_looked_at() -> None:
    world = World(ab=1.0)
    world.looked(0.1)
    world.now += 10 * FIRST_PAUSE
    assert world.suspects() == world.suspects() == {AB}


@pytest.mark.parametrize("found", [0.0, 0.1, 0.49])
def test_a_link_that_cannot_talk_any_more_is_slow_as_is_one_at_less_than_half(found: float) -> None:
    world = World(ab=1.0)
    world.looked(found)
    world.now += FIRST_PAUSE
    assert world.suspects() == {AB}


@pytest.mark.parametrize("found", [0.5, 0.9, 1.0, 5.0])
def test_a_link_that_was_found_well_is_not_looked_at_again(found: float) -> None:
    world = World(ab=1.0)
    world.looked(found)
    world.now += 100 * LONGEST_PAUSE
    assert world.suspects() == NONE


def test_a_link_found_well_again_is_left_alone_once_it_was_so_at_the_next_look_too() -> None:
    world = World(ab=1.0)
    world.looked(0.1)
    world.now += FIRST_PAUSE
    world.looked(0.8)
    assert world.known[AB] == 0.1, "it may flap"
    world.now += FIRST_PAUSE - 0.001
    assert world.suspects() == NONE
    world.now += 0.001
    assert world.suspects() == {AB}
    world.looked(0.8)
    assert world.known[AB] == 0.8
    world.now += 100 * LONGEST_PAUSE
    assert world.suspects() == NONE


def test_a_link_that_is_slow_at_the_look_after_it_was_well_has_a_longer_pause() -> None:
    world = World(ab=1.0)
    world.looked(0.1)
    for found in (0.8, 0.1):
        world.now += FIRST_PAUSE
        world.looked(found)
        assert world.known[AB] == 0.1
    world.now += 2 * FIRST_PAUSE - 0.001
    assert world.suspects() == NONE
    world.now += 0.001
    assert world.suspects() == {AB}


def test_a_look_before_its_time_makes_no_pause_longer() -> None:
    world = World(ab=1.0)
    world.looked(0.1)
    world.now += FIRST_PAUSE / 2
    world.looked(0.1)
    world.now += FIRST_PAUSE / 2
    assert world.suspects() == {AB}
    world.looked(0.1)
    world.now += 2 * FIRST_PAUSE
    assert world.suspects() == {AB}


def test_a_look_before_its_time_decides_nothing() -> None:
    world = World(ab=1.0)
    world.looked(0.1)
    world.now += FIRST_PAUSE
    world.looked(0.8)
    world.now += FIRST_PAUSE / 2
    world.looked(0.9)
    assert world.known[AB] == 0.1
    world.now += FIRST_PAUSE / 2
    assert world.suspects() == {AB}
    world.looked(0.8)
    assert world.known[AB] == 0.8


def test_a_link_that_counts_as_well_already_is_not_put_on_trial() -> None:
    world = World(ab=1.0)
    world.looked(0.1)
    world.now += FIRST_PAUSE
    world.known[AB] = 0.9  # its end left and came back
    world.looked(0.7)
    assert world.known[AB] == 0.7
    assert world.suspects() == NONE


def test_a_link_that_could_not_talk_at_all_is_believed_at_once() -> None:
    world = World(ab=1.0)
    world.looked(0.0)
    world.now += FIRST_PAUSE
    world.looked(0.8)
    assert world.known[AB] == 0.8
    assert world.suspects() == NONE


def test_what_is_slow_is_judged_by_what_the_link_was_before_not_by_the_last_look() -> None:
    """0.2 is more than a half of 0.1, but still slow for what was 1."""
    world = World(ab=1.0)
    world.looked(0.1)
    world.now += FIRST_PAUSE
    world.looked(0.2)
    world.now += 2 * FIRST_PAUSE
    assert world.suspects() == {AB}


def test_a_link_that_becomes_slow_once_more_has_a_longer_pause_than_the_last_time() -> None:
    world = World(ab=1.0)
    pauses = []
    for _ in range(4):
        world.looked(0.1)
        begun = world.now
        while not world.suspects():
            world.now += 1.0
        pauses.append(world.now - begun)
        world.looked(1.0)
        world.now += 500.0
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]


def test_each_link_has_a_pause_of_its_own() -> None:
    world = World(ab=1.0, ba=1.0)
    world.looked(0.1)
    world.now += FIRST_PAUSE / 2
    world.looked(0.1, BA)
    world.now += FIRST_PAUSE / 2
    assert world.suspects() == {AB}
    world.now += FIRST_PAUSE / 2
    assert world.suspects() == {AB, BA}


def looks_of_a_flapping_link(*, period: float, step: float, seconds: float) -> tuple[list[float], int]:
    """A link that is well and slow by turns; when it was looked at, and how often the plan changed.

    Frames go over it while it is known to be well; a plan that knows it to be slow goes another way. A look that
    finds another rate makes another plan.
    """
    world, looks, plan = World(ab=1.0), [], 1
    end = world.now + seconds
    while world.now < end:
        world.now += step
        rate = 1.0 if world.now % period < period / 2 else 0.1
        if world.known[AB] > 0.5:
            world.steps(rate, plan=plan, every=0.0)
        if AB in world.suspects():
            looks.append(world.now)
            before = world.known[AB]
            world.looked(rate)
            plan += before != world.known[AB]
    return looks, plan


@pytest.mark.parametrize("step", [0.5, 1.0, 3.0, 4.7])
@pytest.mark.parametrize("period", [40.0, 30.0, 130.0])
def test_a_link_that_flaps_is_not_looked_at_more_often_than_pauses_allow(period: float, step: float) -> None:
    """An hour has room for six pauses, each with a look at its end, one that begins it, and one in vain between."""
    looks, plans = looks_of_a_flapping_link(period=period, step=step, seconds=3600.0)
    most = 0
    while FIRST_PAUSE * (2**most - 1) < 3600:
        most += 1
    assert 2 <= len(looks) <= 3 * most
    assert plans <= most + 2
    assert sum(later - earlier < 2.0 * step for earlier, later in itertools.pairwise(looks)) <= most


def test_steps_are_in_a_row_only_if_no_step_between_was_too_fast_to_tell() -> None:
    world = World(ab=1.0)
    world.steps(0.4)
    world.now += SECONDS
    world.watch.reported("b", 1, 100, {})
    world._step = 100
    world.steps(0.4)
    assert world.suspects() == NONE
    world.steps(0.4)
    assert world.suspects() == {AB}
