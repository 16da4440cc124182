"""Which plan a node follows, what it promises, and when it may go."""

import pytest

from dtfm_node.control.latest_plan import Heard, HeardCall, HeardPlan
from dtfm_node.runner.follower import (
    AnswerCall,
    BeginPlan,
    DeclinePlan,
    DropFormer,
    EndPlan,
    Finish,
    Follower,
    FollowerAction,
    FollowerEvent,
    JobOver,
    LeaveAsked,
    NoRoom,
    Pause,
    PauseAsked,
    PauseOver,
    Pledge,
    PromiseWritten,
    ServingEnded,
    StopServing,
    TakePlan,
)


def call(
    called: int, in_force: int = 0, started: int = 0, by: str = "C", *, gently: bool = False, parked: bool = False
) -> HeardCall:
    return HeardCall(called, gently, parked, in_force, started, by)


def plan(version: int, author: str = "C", *, trains: bool = True) -> HeardPlan:
    return HeardPlan(version, author, trains)


def after(follower: Follower, *events: FollowerEvent) -> tuple[Follower, tuple[FollowerAction, ...]]:
    """Where the follower is after all of these, and what it asked for at the last of them."""
    actions: tuple[FollowerAction, ...] = ()
    for event in events:
        follower, actions = follower.on(event)
    return follower, actions


def asked(follower: Follower, *events: FollowerEvent) -> tuple[FollowerAction, ...]:
    return after(follower, *events)[1]


@pytest.mark.parametrize(
    ("pledge", "author", "heard", "shown"),
    [
        (Pledge(3, "C", 2), "C", call(3, in_force=2), False),
        (Pledge(3, "C", 2), "X", call(3, in_force=2), True),  # of another coordinator
        (Pledge(3, "C", 2), "C", call(3, in_force=1), True),  # whose disk was put back, or that gave the plan up
        (Pledge(3, "C", 2), "C", HeardCall(), True),  # of which nothing was heard yet
        (Pledge(2, "C", 2), "C", call(2, in_force=1), False),  # nobody calls for a plan after it
    ],
)
def test_the_plan_taken_last_is_shown_to_a_coordinator_that_may_not_know_of_it(
    pledge: Pledge, author: str, heard: HeardCall, shown: bool
) -> None:
    assert pledge.shows_taken(author, heard) == shown


SERVES_2 = Follower(Pledge(2, "C", 2), heard=Heard(call(2, 2, 2), plan(2)), served=plan(2), work="serving")
"""Plan 2 has begun, and this node trains in it."""
SPARE_IN_2 = SERVES_2._replace(
    heard=Heard(call(2, 2, 2), plan(2, trains=False)), served=plan(2, trains=False), work="none", dropped=True
)
STOPPED_AT_3 = Follower(Pledge(2, "C", 2), heard=Heard(call(3, 2, 2), plan(2)), served=plan(2))
"""Plan 2 is to end, and this node's work under it has ended; it is about to promise."""


# -- from a call to the next plan -------------------------------------------------------------------------------------


def test_a_fresh_node_promises_takes_a_plan_and_begins_it_once_it_is_in_force() -> None:
    follower, actions = after(Follower(), Heard(call(1)))
    assert actions == (AnswerCall(Pledge(1, "C", 0)),)
    follower, actions = after(follower, PromiseWritten())
    assert (follower.pledge, actions) == (Pledge(1, "C", 0), ())
    follower, actions = after(follower, Heard(call(1), plan(1)))
    assert actions == (TakePlan(Pledge(1, "C", 1)),)
    follower, actions = after(follower, PromiseWritten())
    assert (follower.pledge, actions) == (Pledge(1, "C", 1), ())
    follower, actions = after(follower, Heard(call(1, in_force=1), plan(1)))
    assert (follower.served, actions) == (plan(1), (BeginPlan(),))


def test_a_node_that_hears_all_at_once_does_one_thing_after_the_other() -> None:
    follower, actions = after(Follower(), Heard(call(1, in_force=1), plan(1)))
    assert actions == (AnswerCall(Pledge(1, "C", 0)),)
    follower, actions = after(follower, PromiseWritten())
    assert actions == (TakePlan(Pledge(1, "C", 1)),)
    assert asked(follower, PromiseWritten()) == (BeginPlan(),)


def test_a_call_stops_the_work_before_it_is_answered() -> None:
    follower, actions = after(SERVES_2, Heard(call(3, 2, 2), plan(2)))
    assert actions == (StopServing(),)
    assert asked(follower, Heard(call(3, 2, 2), plan(3))) == (), "it has not stopped yet"
    assert asked(follower, ServingEnded()) == (AnswerCall(Pledge(3, "C", 2)),)


def test_while_a_promise_is_being_written_nothing_else_is_begun() -> None:
    writing, _ = after(STOPPED_AT_3, ServingEnded())
    follower, actions = after(writing, Heard(call(4, 2, 2, "X"), plan(3)))
    assert actions == ()
    follower, actions = after(follower, PromiseWritten())
    assert (follower.pledge, actions) == (Pledge(3, "C", 2), (AnswerCall(Pledge(4, "X", 2)),))


def test_a_promise_without_room_on_the_disk_binds_nobody_and_is_due_again() -> None:
    follower, actions = after(STOPPED_AT_3, ServingEnded(), NoRoom())
    assert (follower.pledge, actions) == (Pledge(2, "C", 2), ())
    assert asked(follower, follower.heard) == (AnswerCall(Pledge(3, "C", 2)),)


def test_a_plan_without_room_on_the_disk_is_not_taken_and_is_due_again() -> None:
    promised = Follower(Pledge(3, "C", 2), heard=Heard(call(3, 2, 2)), served=plan(2))
    heard = Heard(call(3, 3, 2), plan(3))
    follower, actions = after(promised, heard, NoRoom())
    assert (follower.pledge, actions) == (Pledge(3, "C", 2), ())
    assert asked(follower, heard) == (TakePlan(Pledge(3, "C", 3)),)


def test_a_plan_that_was_taken_is_not_begun_while_a_call_for_a_later_one_waits_for_room() -> None:
    taken = Follower(Pledge(2, "C", 2), heard=Heard(call(2, 1), plan(2)))
    assert asked(taken, Heard(call(3, 2), plan(2)), NoRoom()) == ()


def test_a_plan_that_comes_into_force_after_a_later_promise_is_never_begun() -> None:
    """Plan 2 comes into force, and is ended; the node hears both at once."""
    follower, actions = after(Follower(), Heard(call(2, 1), plan(2)), PromiseWritten(), PromiseWritten())
    assert (follower.pledge, actions) == (Pledge(2, "C", 2), ())
    ended = Heard(call(3, 2), plan(2))
    follower, actions = after(follower, ended, PromiseWritten())
    assert (follower.pledge, actions) == (Pledge(3, "C", 2), ())
    assert asked(follower, ended) == ()


def test_a_plan_is_taken_only_when_the_work_under_the_last_one_has_ended() -> None:
    heard = Heard(call(2, 2, 2), plan(3))
    assert asked(SERVES_2, heard) == ()
    assert asked(SERVES_2, heard, ServingEnded()) == (TakePlan(Pledge(3, "C", 3)),)


def test_a_plan_of_another_coordinator_than_the_promised_one_is_not_taken() -> None:
    promised = Follower(Pledge(3, "C", 2), heard=Heard(call(3, 2)))
    assert asked(promised, Heard(call(3, 2), plan(3, "X"))) == ()


def test_work_that_ended_by_itself_is_not_begun_again_under_the_same_plan() -> None:
    assert asked(SERVES_2, ServingEnded()) == ()
    assert asked(SERVES_2, ServingEnded(), SERVES_2.heard) == ()


def test_hearing_the_same_again_asks_for_nothing() -> None:
    for follower in (SERVES_2, SPARE_IN_2, Follower()):
        assert asked(follower, follower.heard) == ()


# -- a gentle end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parked", [False, True])
def test_a_gentle_call_ends_the_plan_with_a_step_and_is_answered_then(parked: bool) -> None:
    heard = Heard(call(3, 2, 2, gently=True, parked=parked), plan(2))
    follower, actions = after(SERVES_2, heard)
    assert actions == (EndPlan(kept=parked),)
    assert asked(follower, heard) == (), "once is enough"
    assert asked(follower, ServingEnded()) == (AnswerCall(Pledge(3, "C", 2)),)


def test_a_plan_that_ends_with_a_step_may_still_be_asked_for_a_checkpoint() -> None:
    gently = Heard(call(3, 2, 2, gently=True), plan(2))
    assert asked(SERVES_2, gently, Heard(gently.call._replace(parked=True), plan(2))) == (EndPlan(kept=True),)


def test_a_plan_that_was_to_end_with_a_step_is_stopped_when_the_call_loses_patience() -> None:
    follower, _ = after(SERVES_2, Heard(call(3, 2, 2, gently=True), plan(2)))
    assert asked(follower, Heard(call(3, 2, 2), plan(2))) == (StopServing(),)


def test_the_next_plan_does_not_inherit_the_end_of_the_last_one() -> None:
    follower, _ = after(SERVES_2, Heard(call(3, 2, 2, gently=True), plan(2)), ServingEnded(), PromiseWritten())
    follower, actions = after(follower, Heard(call(3, 3, 2), plan(3)), PromiseWritten())
    assert (follower.work, follower.ending, actions) == ("serving", None, (BeginPlan(),))
    assert asked(follower, Heard(call(4, 3, 3, gently=True), plan(3))) == (EndPlan(kept=False),)


def test_a_node_without_work_answers_a_gentle_call_at_once() -> None:
    heard = Heard(call(3, 2, 2, gently=True), plan(2, trains=False))
    assert asked(SPARE_IN_2, heard) == (AnswerCall(Pledge(3, "C", 2)),)


# -- a node that started anew -----------------------------------------------------------------------------------------


def test_a_node_that_started_anew_declines_the_plan_that_it_took_before() -> None:
    follower = Follower.restarted(Pledge(2, "C", 2))
    heard = Heard(call(2, 2, 2), plan(2))
    follower, actions = after(follower, heard)
    assert (actions, follower.work) == ((DeclinePlan("started anew"),), "none")
    assert asked(follower, heard) == (), "it says so once"


def test_a_node_that_started_anew_is_a_spare_of_the_plan_that_it_took_before() -> None:
    heard = Heard(call(2, 2), plan(2, trains=False))
    assert asked(Follower.restarted(Pledge(2, "C", 2)), heard) == (BeginPlan(),)


def test_a_node_that_started_anew_keeps_its_promise_and_serves_the_next_plan() -> None:
    follower = Follower.restarted(Pledge(3, "C", 2))
    assert asked(follower, Heard(call(3, 2, 2), plan(2))) == (), "promised away"
    follower, actions = after(follower, Heard(call(3, 3, 2), plan(3)))
    assert actions == (TakePlan(Pledge(3, "C", 3)),)
    assert asked(follower, PromiseWritten()) == (BeginPlan(),)


# -- what a spare lets go ---------------------------------------------------------------------------------------------


def test_a_spare_lets_go_of_what_it_trained_once_the_others_have_begun() -> None:
    follower = Follower(Pledge(3, "C", 3), heard=Heard(call(3, 2, 2), plan(3, trains=False)), served=plan(2))
    follower, actions = after(follower, Heard(call(3, 3, 2), plan(3, trains=False)))
    assert actions == (BeginPlan(),), "they may need it yet"
    begun = Heard(call(3, 3, 3), plan(3, trains=False))
    assert asked(follower, begun) == (DropFormer(),)
    assert asked(follower, begun, begun) == (), "once is enough"


def test_a_spare_that_comes_late_lets_go_at_once() -> None:
    follower = Follower(Pledge(3, "C", 3), served=plan(2))
    assert asked(follower, Heard(call(3, 3, 3), plan(3, trains=False))) == (BeginPlan(), DropFormer())


def test_who_trains_lets_go_of_nothing_here() -> None:
    follower = Follower(Pledge(3, "C", 3), served=plan(2))
    assert asked(follower, Heard(call(3, 3, 3), plan(3))) == (BeginPlan(),)


# -- leaving, and the end ---------------------------------------------------------------------------------------------

HOLDS, HOLDS_NOTHING, UNSETTLED = LeaveAsked(True, True), LeaveAsked(False, True), LeaveAsked(True, False)


def test_a_node_stays_until_it_is_asked_to_leave() -> None:
    assert Finish() not in asked(SPARE_IN_2, SPARE_IN_2.heard)


def test_a_node_that_holds_nothing_or_has_heard_of_no_plan_may_go_at_once() -> None:
    assert asked(SERVES_2, HOLDS_NOTHING) == (Finish(),)
    assert asked(Follower(), HOLDS) == (Finish(),)


def test_a_node_that_trains_goes_when_a_plan_without_it_has_begun() -> None:
    follower, actions = after(SERVES_2, HOLDS)
    assert actions == ()
    follower, actions = after(follower, Heard(call(3, 2, 2), plan(2)), ServingEnded(), PromiseWritten())
    without = plan(3, trains=False)
    follower, actions = after(follower, Heard(call(3, 3, 2), without), PromiseWritten(), ServingEnded())
    assert actions == ()
    assert asked(follower, Heard(call(3, 3, 3), without)) == (Finish(),)


def test_where_no_plan_can_follow_a_node_goes_when_its_checkpoint_is_handed_in() -> None:
    parked = Heard(call(3, 2, 2, gently=True, parked=True), plan(2))
    follower, actions = after(SERVES_2, UNSETTLED, parked, HOLDS)
    assert actions == (), "it still trains"
    follower, actions = after(follower, UNSETTLED, ServingEnded())
    assert actions == (AnswerCall(Pledge(3, "C", 2)),)
    follower, actions = after(follower, PromiseWritten())
    assert actions == ()
    assert asked(follower, HOLDS) == (Finish(),)


def test_a_leaving_node_that_is_stopped_by_a_call_answers_it_before_it_goes() -> None:
    parked = Heard(call(3, 2, 2, parked=True), plan(2))
    follower, actions = after(SERVES_2, HOLDS, parked)
    assert actions == (StopServing(),)
    assert asked(follower, ServingEnded()) == (AnswerCall(Pledge(3, "C", 2)),)


def test_when_the_job_is_done_whatever_is_under_way_is_over() -> None:
    for follower in (Follower(), SERVES_2, SPARE_IN_2, STOPPED_AT_3):
        assert asked(follower, JobOver()) == (Finish(),)


# -- what counts as heard ---------------------------------------------------------------------------------------------


def test_an_older_call_is_another_coordinators_and_does_not_count() -> None:
    heard = Heard(call(3, 2))
    assert heard.with_call(call(2, 2, by="X")) is heard
    assert heard.with_call(call(3, 3)).call == call(3, 3)
    assert heard.with_call(call(4, 2, by="X")).call == call(4, 2, by="X")


def test_of_two_plans_of_one_version_that_of_the_last_caller_counts() -> None:
    heard = Heard(call(3), plan(3, "X"))
    assert heard.with_plan(plan(3)).plan == plan(3)
    assert Heard(call(3), plan(3)).with_plan(plan(3, "X")).plan == plan(3)
    assert Heard(call(3), plan(3)).with_plan(plan(2)).plan == plan(3)
    assert Heard(call(3), plan(3)).with_plan(plan(4, "X")).plan == plan(4, "X")


def test_a_plan_that_never_was_published_counts_only_for_who_called() -> None:
    assert Heard().with_plan(plan(0, "X")).plan is None


# -- a pause ----------------------------------------------------------------------------------------------------------

PAUSE, NOW, OVER = PauseAsked(True, True), PauseAsked(True, True, at_once=True), PauseOver()


def paused_under_3() -> Follower:
    """A node that has trained under plan 2, and pauses: plan 3 is without it."""
    without = plan(3, trains=False)
    follower, _ = after(SERVES_2, PAUSE, Heard(call(3, 2, 2), plan(2)), ServingEnded(), PromiseWritten())
    follower, actions = after(follower, Heard(call(3, 3, 2), without), PromiseWritten(), ServingEnded())
    assert actions == (), "others may need what it holds yet"
    follower, actions = after(follower, Heard(call(3, 3, 3), without), PAUSE)
    assert follower.paused
    return follower


def test_a_node_that_trains_pauses_when_a_plan_without_it_has_begun() -> None:
    without = plan(3, trains=False)
    follower, actions = after(SERVES_2, PAUSE)
    assert actions == ()
    follower, _ = after(follower, Heard(call(3, 2, 2), plan(2)), ServingEnded(), PromiseWritten())
    follower, _ = after(follower, Heard(call(3, 3, 2), without), PromiseWritten(), ServingEnded())
    assert asked(follower, Heard(call(3, 3, 3), without)) == (Pause(), DropFormer())


def test_where_no_plan_can_follow_a_node_pauses_when_its_checkpoint_is_handed_in() -> None:
    parked = Heard(call(3, 2, 2, gently=True, parked=True), plan(2))
    follower, actions = after(SERVES_2, PauseAsked(True, False), parked, ServingEnded(), PromiseWritten())
    assert actions == ()
    assert asked(follower, PAUSE) == (Pause(),)


def test_who_pauses_at_once_stops_and_waits_for_nobody() -> None:
    follower, actions = after(SERVES_2, NOW)
    assert actions == (StopServing(),)
    assert asked(follower, ServingEnded()) == (Pause(),)
    assert asked(SPARE_IN_2, NOW) == (Pause(),)


def test_who_stops_for_a_call_and_is_to_pause_does_both() -> None:
    actions = asked(SERVES_2, Heard(call(3, 2, 2), plan(2)), NOW, ServingEnded())
    assert actions == (Pause(), AnswerCall(Pledge(3, "C", 2)))


def test_a_node_that_pauses_answers_calls_and_takes_no_plan_in_which_it_would_train() -> None:
    follower = paused_under_3()
    follower, actions = after(follower, Heard(call(4, 3, 3), plan(3, trains=False)))
    assert actions == (AnswerCall(Pledge(4, "C", 3)),), "the others may need its word"
    follower, actions = after(follower, PromiseWritten(), Heard(call(4, 3, 3), plan(4)))
    assert actions == ()
    assert asked(follower, Heard(call(4, 4, 3), plan(4))) == ()


def test_a_node_that_goes_on_takes_the_next_plan() -> None:
    follower, actions = after(paused_under_3(), OVER)
    assert (actions, follower.paused) == ((), False)
    follower, actions = after(follower, Heard(call(4, 3, 3), plan(3, trains=False)), PromiseWritten())
    assert asked(follower, Heard(call(4, 3, 3), plan(4))) == (TakePlan(Pledge(4, "C", 4)),)


def test_a_node_that_goes_on_before_another_plan_has_come_is_no_part_of_the_one_that_it_stopped() -> None:
    follower, actions = after(SERVES_2, NOW, ServingEnded(), OVER)
    assert actions == (DeclinePlan("it has paused"),)
    assert asked(follower, follower.heard) == ()


def test_a_pause_that_is_called_off_before_it_comes_changes_nothing() -> None:
    follower, actions = after(SERVES_2, PAUSE, OVER)
    assert (follower, actions) == (SERVES_2, ())


def test_a_node_that_pauses_may_leave_at_once() -> None:
    assert asked(paused_under_3(), HOLDS) == (Finish(),)
