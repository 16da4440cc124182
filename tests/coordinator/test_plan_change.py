"""The rules by which one plan follows another, by value; every interleaving of them is in `test_commit_model`."""

from typing import Any

import pytest

from dtfm_coordinator.plan_change.plan_change import MOST_PROMISES, PlanChange
from dtfm_coordinator.plan_change.plan_change_events import (
    Action,
    Announced,
    Begun,
    Call,
    ChangeEvent,
    DoorsFound,
    Durable,
    FindDoors,
    FindEnded,
    Held,
    Hold,
    Lack,
    Offer,
    Present,
    ProcessesEnded,
    Propose,
    Publish,
    Returned,
    Role,
    Seek,
    Stand,
    Stood,
    Wait,
    Write,
    Written,
)
from dtfm_coordinator.plan_change.plan_electors import Electorate
from dtfm_protocol.process.timeouts import TIMEOUTS

ME = "c"
BEFORE = Electorate(3, ME, ("a", "b"), ("a", "b", "x", ME))
AFTER = Electorate(4, ME, ("a", "n"), ("a", "n", ME))
OTHERS = Electorate(4, "another", ("m", "n"), ("m", "n", "o", "another"))


def fresh(alone: bool = True, without_quorum: bool = False, **durable: Any) -> PlanChange:
    return PlanChange.of(Role(ME, alone, without_quorum), Durable(**durable))


def led(**options: Any) -> PlanChange:
    """Plan 3 is in force."""
    machine, _ = fresh(**options).on(Returned(BEFORE))
    return machine


def after(machine: PlanChange, *events: ChangeEvent) -> PlanChange:
    """Once all this has happened, on a disk that has room."""
    for event in events:
        machine, actions = machine.on(event)
        for action in actions:
            if isinstance(action, Write):
                machine, _ = machine.on(Written(action.durable))
    return machine


def done(machine: PlanChange, event: ChangeEvent) -> tuple[Action, ...]:
    """What is to be done when something happens."""
    return machine.on(event)[1]


def promise(peer: str, version: int = 4, taken: Electorate | None = None) -> Stood:
    return Stood(peer, version, ME, taken)


def stand(peer: str, version: int = 4, to: str = ME, accepted: int = 0) -> Stand:
    return Stand(peer, version, to, accepted)


def offered(**options: Any) -> PlanChange:
    """Plan 4 is offered after plan 3; a and b have promised."""
    late = after(led(**options), Call(), Seek(), promise("a"), promise("b"))
    return after(late, Present((), time_is_up=True), Offer(AFTER))


TAKEN = tuple(stand(peer, accepted=4) for peer in ("a", "n", "b"))


# -- the call


def test_a_call_is_for_a_version_beyond_all_that_is_known_and_promised() -> None:
    assert after(fresh(), Call()).durable.epoch.called == 1
    assert after(fresh(), Call(), Call()).durable.epoch.called == 2
    assert after(led(), Call()).durable.epoch.called == 4
    assert after(led(), Call(beyond=9)).durable.epoch.called == 10
    assert after(fresh(epoch=Announced(called=5, in_force=7)), Call()).durable.epoch.called == 8


def test_a_call_is_said_only_when_it_is_on_the_disk() -> None:
    machine, actions = led().on(Call())
    assert actions == (Write(machine.durable),)
    assert done(machine, Written(machine.durable)) == (Publish(Announced(called=4)),)


def test_a_gentle_call_waits_until_all_who_train_and_are_heard_of_have_promised() -> None:
    machine, actions = led().on(Call(gently=True, patience=50.0))
    assert actions[1:] == (Wait(50.0),)
    machine = after(machine, Written(machine.durable), promise("a"))
    assert after(machine, Present((stand("a"), stand("b", 3)))).phase == "stopping"
    assert after(machine, Present((stand("a"), stand("x", 3)))).phase == "called"


def test_a_gentle_call_waits_for_the_step_under_way_and_then_no_more() -> None:
    machine = after(led(), Call(gently=True, parked=True))
    assert machine.durable.epoch == Announced(called=4, gently=True, parked=True)
    machine = after(machine, Present((stand("a", 3),), time_is_up=True))
    assert (machine.phase, machine.durable.epoch) == ("called", Announced(called=4, parked=True))


def test_before_the_first_plan_there_is_no_step_to_wait_for() -> None:
    assert after(fresh(), Call(gently=True)).phase == "called"


def test_nothing_is_called_for_while_a_plan_comes_into_force() -> None:
    holding = after(offered(), Present(TAKEN))
    with pytest.raises(ValueError, match="comes into force"):
        holding.on(Call())


# -- promises


def test_a_promise_counts_when_it_is_on_the_disk() -> None:
    machine = after(led(), Call(), Seek())
    machine, actions = machine.on(promise("a"))
    assert (machine.phase, actions) == ("gathering", (Write(machine.durable),))
    assert after(machine, Written(machine.durable)).phase == "late"


def test_a_promise_to_another_or_of_an_older_call_is_not_written_down() -> None:
    machine = after(led(), Call(), promise("a"))
    for stood in (Stood("b", 4, "another"), Stood("b", 3, ME), promise("a")):
        assert machine.on(stood) == (machine, ())


def test_promises_of_an_earlier_call_do_not_count() -> None:
    machine = after(led(), Call(), promise("a"), promise("b"), Call())
    assert machine.durable.promised == frozenset()
    assert after(machine, Seek()).phase == "gathering"


def test_what_was_promised_and_called_for_is_taken_up_from_the_disk() -> None:
    machine = after(led(), Call(), promise("a"))
    back, actions = PlanChange.of(machine.role, machine.saved).on(Returned(BEFORE))
    assert (back.durable, back.before) == (machine.durable, BEFORE)
    assert actions == (Propose(3), Publish(Announced(called=4)))
    assert after(back, Call()).durable.epoch.called == 5


def test_an_older_word_from_the_disk_says_nothing_that_is_over() -> None:
    """Two calls, and the disk has only had room for the first."""
    first, _ = led().on(Call())
    second, _ = first.on(Call())
    between, actions = second.on(Written(first.durable))
    assert actions == (Publish(Announced(called=4)),)
    assert between.durable == second.durable
    assert done(between, Written(second.durable)) == (Publish(Announced(called=5)),)


# -- the quorum


def test_the_first_plan_waits_for_nobody_and_neither_does_one_without_quorum() -> None:
    assert after(fresh(), Call(), Seek()).phase == "agreed"
    machine = after(led(without_quorum=True), Call(), Seek())
    assert after(machine, Present((stand("a", 3),))).phase == "late"
    assert after(machine, Present((stand("a", 3),), time_is_up=True)).phase == "agreed"


def test_only_what_was_called_for_is_sought() -> None:
    with pytest.raises(ValueError, match="settled"):
        led().on(Seek())


def test_where_too_few_have_promised_it_is_looked_whose_process_has_ended_and_said_what_is_lacking() -> None:
    machine, actions = after(led(), Call()).on(Seek())
    assert actions == (FindEnded(3, ()),)
    machine, actions = machine.on(ProcessesEnded(3, frozenset()))
    assert actions == (Lack(3, 1, 4), Wait(TIMEOUTS.promise_look))
    assert done(machine, Present((), time_is_up=True)) == (FindEnded(3, ()),)
    assert done(machine, Present(())) == ()


def test_a_process_that_ended_counts_as_if_it_had_promised_where_one_coordinator_leads() -> None:
    machine = after(led(), Call(), Seek())
    assert after(machine, ProcessesEnded(3, frozenset({"a"}))).phase == "late"
    two = after(led(alone=False), Call(), Seek())
    assert after(two, ProcessesEnded(3, frozenset({"a", "b"}))).phase == "gathering"


def test_doors_tell_only_of_the_plan_that_they_were_seen_under() -> None:
    """Under the next one a process may have started anew."""
    doors = (("a", (("192.0.2.1", 1),)), ("stranger", (("192.0.2.2", 1),)))
    of_it = after(led(), DoorsFound(3, doors), Call())
    assert done(of_it, Seek()) == (FindEnded(3, doors[:1]),)
    of_another = after(led(), DoorsFound(2, doors), Call())
    assert done(of_another, Seek()) == (FindEnded(3, ()),)


def test_that_a_process_of_another_plan_has_ended_says_nothing() -> None:
    machine = after(led(), Call(), Seek())
    assert machine.on(ProcessesEnded(2, frozenset({"a", "b"}))) == (machine, ())


def test_late_promises_are_waited_for_a_little() -> None:
    machine = after(led(), Call(), Seek(), promise("a"))
    machine, _ = machine.on(promise("b"))
    assert done(after(led(), Call(), promise("a")), Seek()) == (Wait(TIMEOUTS.late_promise),)
    machine = after(machine, Written(machine.durable))
    assert after(machine, Present((stand("a"), stand("x", 3)))).phase == "agreed"  # x does not train
    waiting = after(led(), Call(), Seek(), promise("a"))
    assert after(waiting, Present((stand("a"), stand("b", 3)))).phase == "late"
    assert after(waiting, Present((stand("a"), stand("b", 3)), time_is_up=True)).phase == "agreed"


def test_a_plan_of_another_coordinator_that_somebody_has_taken_must_be_followed_too() -> None:
    """It may be in force, and those who train under it may have nothing to do with the plan before."""
    machine = after(led(alone=False), Call(beyond=4), Seek(), promise("a", 5, OTHERS), promise("b", 5))
    machine = after(machine, Present((), time_is_up=True))
    assert (machine.phase, [base.plan for base in machine.bases]) == ("gathering", [BEFORE, OTHERS])
    machine = after(machine, *(promise(peer, 5) for peer in ("m", "n", "o")))
    assert after(machine, Present((), time_is_up=True)).phase == "agreed"


@pytest.mark.parametrize("change", [{"version": 3}, {"version": 5}])
def test_a_plan_that_is_older_or_newer_changes_nothing(change: dict[str, Any]) -> None:
    taken = OTHERS._replace(**change)
    machine = after(led(alone=False), Call(beyond=4), Seek(), promise("a", 5, taken), promise("b", 5))
    assert after(machine, Present((), time_is_up=True)).phase == "agreed"


def test_what_peers_have_taken_that_have_not_promised_is_not_gone_by() -> None:
    machine = after(led(alone=False), Call(beyond=4), Seek(), promise("a", 5), promise("b", 5))
    machine = after(machine, Stood("x", 4, "another", OTHERS), Stood("y", 5, "another", OTHERS))
    assert after(machine, Present((), time_is_up=True)).phase == "agreed"


def test_what_a_peer_showed_with_its_promise_is_on_the_disk_in_one_with_it() -> None:
    """It may be gone before anybody looks again."""
    machine, actions = after(led(alone=False), Call(beyond=4)).on(promise("a", 5, OTHERS))
    assert actions == (Write(machine.durable),)
    assert machine.durable.learnt == OTHERS
    back, _ = PlanChange.of(machine.role, machine.durable).on(Returned(BEFORE))
    back = after(back._replace(phase="called"), Seek(), promise("b", 5), Present((), time_is_up=True))
    assert [base.plan for base in back.bases] == [BEFORE, OTHERS]


# -- a disk that was put back to an earlier one

TRAINED = Electorate(3, ME, ("a", "b"), ("a", "b", ME))
LATER = Electorate(7, ME, ("m",), ("m", ME))
"""A plan that this coordinator has forgotten, or has given up."""


def put_back() -> PlanChange:
    return fresh(forgotten=9).on(Returned(TRAINED))[0]


def test_no_version_is_used_again_that_may_be_forgotten() -> None:
    assert after(put_back(), Call()).durable.epoch.called == 10


def test_who_has_forgotten_does_not_vote_on_what_follows_a_plan_of_then() -> None:
    machine = after(put_back(), Call(), Seek(), promise("a", 10))
    assert machine.phase == "gathering", "a and c are most of the three, but c may have voted otherwise before"
    assert after(machine, ProcessesEnded(3, frozenset({"b"}))).phase == "gathering"
    assert done(machine, ProcessesEnded(3, frozenset()))[0] == Lack(3, 1, 2)
    assert after(machine, promise("b", 10)).phase == "late"


def test_an_own_plan_that_may_be_forgotten_must_be_followed_and_one_given_up_need_not() -> None:
    forgot = after(put_back(), Call(), Seek(), promise("a", 10, LATER), promise("b", 10))
    assert [base.plan for base in after(forgot, Present((), time_is_up=True)).bases] == [TRAINED, LATER]
    knows = after(led(), Call(beyond=9), Seek(), promise("a", 10, LATER), promise("b", 10))
    assert after(knows, Present((), time_is_up=True)).phase == "agreed"


# -- the new plan


def test_one_plan_a_version_is_offered_and_only_once_it_was_agreed_on() -> None:
    agreed = after(led(without_quorum=True), Call(), Seek(), Present((), time_is_up=True))
    machine, actions = agreed.on(Offer(AFTER))
    assert actions == (Propose(4), Wait(TIMEOUTS.step_end))
    for wrong in (machine, led(), after(led(), Call(), Seek())):
        with pytest.raises(ValueError, match="may not be offered"):
            wrong.on(Offer(AFTER))
    with pytest.raises(ValueError, match="may not be offered"):
        agreed.on(Offer(AFTER._replace(version=5)))


def test_a_plan_is_on_the_disk_before_it_is_in_force_and_that_before_it_is_said() -> None:
    machine, actions = offered().on(Present(TAKEN))
    assert actions == (Hold(4),)
    assert machine.durable.epoch.in_force == 0
    machine, actions = machine.on(Held())
    assert actions == (Write(machine.durable),)
    assert (machine.phase, machine.durable.epoch.in_force) == ("holding", 4)
    machine, actions = machine.on(Written(machine.durable))
    assert actions == (Publish(Announced(called=4, in_force=4)),)
    assert (machine.phase, machine.before) == ("settled", AFTER)


@pytest.mark.parametrize("lacking", ["a", "n", "b"])
def test_all_its_peers_and_most_electors_of_the_plan_before_must_have_taken_it(lacking: str) -> None:
    """c, a and b are most of the four; without b, they are half of them, and c has made that plan."""
    there = tuple(one._replace(accepted=0) if one.peer == lacking else one for one in TAKEN)
    assert after(offered(), Present(there)).phase == ("holding" if lacking == "b" else "offered")
    stranger = BEFORE._replace(author="another", electors=("a", "b", "x", "another"))
    late = after(led(), Returned(stranger), Call(), Seek(), promise("a"), promise("b"), promise("x"))
    strict = after(late, Present((), time_is_up=True), Offer(AFTER))
    assert after(strict, Present(there)).phase == "offered"


def test_a_plan_that_was_taken_of_another_coordinator_is_not_this_one() -> None:
    there = tuple(one._replace(to="another") for one in TAKEN)
    assert after(offered(), Present(there)).phase == "offered"


@pytest.mark.parametrize(
    "present", [Present(TAKEN[:1]), Present(tuple(one._replace(accepted=0) for one in TAKEN), time_is_up=True)]
)
def test_a_plan_is_given_up_when_one_of_its_peers_is_gone_or_time_is_up(present: Present) -> None:
    machine = after(offered(), present)
    assert (machine.phase, machine.before, machine.offered) == ("settled", BEFORE, None)
    assert after(machine, Call()).durable.epoch.called == 5


# -- once it has begun


def test_that_a_plan_has_begun_is_said_once_and_its_doors_are_looked_for() -> None:
    machine, actions = led().on(Begun(BEFORE))
    assert actions == (Write(machine.durable), FindDoors(BEFORE))
    assert machine.durable.epoch.started == 3
    assert machine.on(Begun(BEFORE)) == (machine, ())


def test_what_is_called_and_promised_while_doors_are_looked_for_is_kept() -> None:
    """A plan may be followed by the next one within its first step."""
    doors = (("a", (("192.0.2.1", 1),)),)
    machine = after(led(), Begun(BEFORE), Call(), promise("a"), DoorsFound(3, doors))
    assert machine.saved == Durable(Announced(called=4, started=3), frozenset({("a", 4)}), doors, 3)


def test_doors_of_an_older_plan_do_not_replace_those_of_a_newer_one() -> None:
    machine = after(led(), DoorsFound(3, (("a", (("192.0.2.1", 1),)),)))
    assert machine.on(DoorsFound(2, ())) == (machine, ())


def test_a_promise_of_what_was_not_called_for_counts_for_no_call_to_come() -> None:
    """Else one word would be a promise for ever."""
    machine = fresh(epoch=Announced(called=3))
    for version in (4, 1 << 31):
        assert machine.on(promise("a", version)) == (machine, ())


def test_strangers_promises_fill_no_disk_and_an_electors_is_always_kept() -> None:
    machine = led(epoch=Announced(called=4))
    for number in range(MOST_PROMISES + 5):
        machine, _ = machine.on(promise(f"stranger {number}"))
    assert len(machine.durable.promised) == MOST_PROMISES
    assert machine.on(promise("one more")) == (machine, ())
    machine, actions = machine.on(promise("a"))
    assert actions
    assert ("a", 4) in machine.durable.promised


def test_a_coordinator_is_followed_once_most_of_those_who_decide_have_promised_it_the_next_plan() -> None:
    """And it is followed no more, as far as it knows, when it calls for another one."""
    machine = led(alone=False)
    assert not machine.is_followed, "that its last plan is in force may be long ago"
    called = after(machine, Call(), promise("x"))
    assert not called.is_followed, "half with itself, and no peer that trains has stopped"
    followed = after(called, promise("a"))
    assert followed.is_followed
    assert not after(followed, Call()).is_followed
    other = after(called, Stood("a", 4, "another"))
    assert not other.is_followed
