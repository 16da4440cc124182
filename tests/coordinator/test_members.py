"""Who is in the swarm: presence, reports and records put together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.membership.members import MOST_MEMBERS, Members
from dtfm_protocol.control.messages import Presence, Report
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.view.view import LayerSeconds

PROFILE = Profile(
    device="cpu",
    flops={"fp32": 1e11},
    layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
    memory_bytes=1e9,
    addresses=("/ip4/192.0.2.1/tcp/1",),
    version="0.1.0",
    session="one",
)


def here(session: str = "one", name: str = "") -> Presence:
    return Presence(online=True, session=session, name=name)


def gone(session: str = "one") -> Presence:
    return Presence(online=False, session=session)


def report(session: str = "one", state: str = "idle", **fields: Any) -> Report:
    return Report.model_validate({"session": session, "state": state} | fields)


class Clock:
    """Time, as a test has it go by."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def online(members: Members) -> list[str]:
    return [member.peer for member in members.online()]


def ready(members: Members) -> list[str]:
    return [member.peer for member in members.ready()]


def test_who_tells_its_profile_as_it_comes_need_not_be_looked_up() -> None:
    members = Members()
    members.seen("a", here().model_copy(update={"profile": PROFILE}))
    members.reported("a", report())
    assert members.unlisted() == {}
    assert ready(members) == ["a"]


def test_a_profile_of_another_session_is_not_believed() -> None:
    members = Members()
    members.seen("a", here("two").model_copy(update={"profile": PROFILE}))
    members.reported("a", report("two"))
    assert members.unlisted() == {"a": "two"}
    assert ready(members) == []


def test_a_name_stays_while_its_machine_is_away_and_goes_when_it_comes_without() -> None:
    members = Members()
    members.seen("a", here(name="Ann's PC"))
    members.seen("a", gone())
    assert [member.name for member in [members.get("a")] if member] == ["Ann's PC"]
    members.seen("a", here("two"))
    assert [member.name for member in members.online()] == [""]


@pytest.mark.parametrize(("version", "fits"), [("0.2.0", True), ("", True), ("0.3.0", False), ("1.0.0", False)])
def test_a_member_whose_version_is_too_far_from_the_coordinators_is_given_no_work_and_nobody_waits_for_it(
    version: str, fits: bool
) -> None:
    members = Members(version="0.1.0")
    for peer, said in (("a", "0.1.0"), ("b", version)):
        members.seen(peer, here().model_copy(update={"version": said}))
        members.listed({peer: PROFILE})
        members.reported(peer, report())
    assert members.settled() == (["a", "b"] if fits else ["a"])
    members.reported("b", report(state="measuring"))
    assert members.settled() == ([] if fits else ["a"])
    assert ("of a version" in members.waiting_for(2)) is not fits


def test_the_version_of_a_member_that_did_not_say_it_is_the_one_that_it_has_published() -> None:
    members = Members()
    members.seen("a", here())
    members.listed({"a": PROFILE})
    members.seen("b", here().model_copy(update={"version": "0.2.0"}))
    members.listed({"b": PROFILE})
    assert [member.version for member in members.online()] == ["0.1.0", "0.2.0"]


def test_a_peer_is_there_from_its_hello_to_its_goodbye() -> None:
    members = Members()
    members.seen("a", here())
    assert online(members) == ["a"]
    members.seen("a", gone())
    assert online(members) == []
    assert members.missing(("a", "b")) == ["a", "b"]


def test_the_stale_last_will_of_an_old_session_does_not_end_the_new_one() -> None:
    """A daemon that was killed and started again is back before the broker misses its first life."""
    members = Members()
    members.seen("a", here("old"))
    members.seen("a", here("new"))
    members.reported("a", report("new"))
    members.seen("a", gone("old"))
    assert online(members) == ["a"]
    member = members.get("a")
    assert member is not None
    assert (member.session, member.report) == ("new", report("new"))
    members.seen("a", gone("new"))
    assert online(members) == []


def test_a_returning_peer_brings_no_report_of_its_former_life() -> None:
    members = Members()
    members.seen("a", here("old"))
    members.reported("a", report("old", "training", plan_version=3, step=7))
    members.seen("a", here("new"))
    member = members.get("a")
    assert member is not None
    assert member.report is None
    members.reported("a", report("old", "stalled", plan_version=3))
    assert member.report is None
    assert members.broken(("a",), 3) is None


def test_the_same_hello_again_changes_nothing() -> None:
    """After a reconnection a peer publishes it once more."""
    members = Members()
    members.seen("a", here())
    members.reported("a", report(step=3))
    members.seen("a", here())
    member = members.get("a")
    assert member is not None
    assert member.report == report(step=3)


def test_a_report_tells_that_a_peer_is_there() -> None:
    """It may be connected again before its hello is repeated, or the coordinator may have just started."""
    members = Members()
    members.reported("a", report())
    assert online(members) == ["a"]
    members.seen("a", gone())
    members.reported("a", report(step=1))
    assert online(members) == ["a"]


def test_work_goes_to_those_who_are_there_listed_and_have_measured() -> None:
    members = Members()
    members.listed(dict.fromkeys(["listed", "measuring", "idle", "gone", "silent"], PROFILE))
    for peer in ("measuring", "idle", "gone", "unlisted"):
        members.seen(peer, here())
        members.reported(peer, report(state="measuring" if peer == "measuring" else "idle"))
    members.seen("silent", here())
    members.seen("gone", gone())
    assert ready(members) == ["idle"]
    assert sorted(online(members)) == ["idle", "measuring", "silent", "unlisted"]


def test_a_peer_that_trains_is_ready_for_the_next_plan() -> None:
    members = Members()
    members.listed({"a": PROFILE})
    for state in ("idle", "starting", "training", "stalled", "diverged", "finished"):
        members.reported("a", report(state=state))
        assert ready(members) == ["a"]


@given(order=st.permutations(["a", "b", "c", "d"]), returning=st.sampled_from(["a", "b", "c", "d"]))
def test_peers_are_in_the_order_in_which_they_first_came(order: list[str], returning: str) -> None:
    members = Members()
    for peer in order:
        members.seen(peer, here())
    members.seen(returning, gone())
    members.seen(returning, here("again"))
    assert online(members) == order
    numbers = [member.order for member in members.online()]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 4


@pytest.mark.parametrize("state", ["stalled", "diverged"])
def test_a_peer_that_cannot_go_on_under_the_plan_in_force_is_found(state: str) -> None:
    members = Members()
    for peer in ("a", "b"):
        members.reported(peer, report(state="training", plan_version=3))
    assert members.broken(("a", "b"), 3) is None
    members.reported("b", report(state=state, plan_version=3))
    found = members.broken(("a", "b"), 3)
    assert found is not None
    assert found.peer == "b"
    assert members.broken(("a", "b"), 4) is None  # it speaks of the plan before
    assert members.broken(("a",), 3) is None  # it has no part in the plan
    assert members.broken(("never seen",), 3) is None


def test_those_who_are_missing_are_named_in_the_order_asked() -> None:
    members = Members()
    members.seen("b", here())
    assert members.missing(("c", "b", "a")) == ["c", "a"]
    assert members.missing(()) == []


def test_who_has_not_reported_for_a_while_is_given_no_work_and_is_not_gone() -> None:
    """A process that was stopped stays connected until the broker misses it."""
    clock = Clock()
    members = Members(clock)
    members.listed({"a": PROFILE, "b": PROFILE})
    members.reported("a", report())
    members.reported("b", report())
    clock.now += TIMEOUTS.report_silence - 0.1
    members.reported("b", report())
    assert ready(members) == ["a", "b"]
    clock.now += 0.2
    assert ready(members) == ["b"]
    assert [member.peer for member in members.heard()] == ["b"]
    assert online(members) == ["a", "b"]
    assert members.missing(("a",)) == []
    assert members.waiting_for(2) == "waiting for 1 more nodes (1 of 2 are ready; 1 not heard of for 4 s)"
    members.reported("a", report())
    assert ready(members) == ["a", "b"]


def test_who_has_not_reported_for_long_is_cut_off_though_its_connection_was_not_closed() -> None:
    clock = Clock()
    members = Members(clock)
    members.seen("new", here())
    members.reported("a", report())
    members.reported("b", report())
    clock.now += TIMEOUTS.cut_off - 0.1
    members.reported("b", report())
    assert members.missing(("a", "b", "new")) == []
    clock.now += 0.2
    assert members.missing(("a", "b", "new")) == ["a"]
    members.reported("a", report())
    assert members.missing(("a", "b", "new")) == []


def test_a_hello_alone_is_no_sign_of_life_later() -> None:
    clock = Clock()
    members = Members(clock)
    members.seen("a", here())
    assert members.heard() == []


def test_who_wants_to_leave_is_given_no_work_and_is_named_while_it_is_there() -> None:
    members = Members()
    members.listed({"a": PROFILE, "b": PROFILE})
    members.reported("a", report("one", "training", leaving=True))
    members.reported("b", report("one", "training"))
    assert ready(members) == ["b"]
    assert members.leaving(("b", "a", "never seen")) == ["a"]
    assert members.leaving(("b",)) == []
    members.seen("a", gone())
    assert members.leaving(("a", "b")) == []


def test_who_pauses_is_given_no_work_and_is_waited_for_by_nobody() -> None:
    clock = Clock()
    members = Members(clock)
    members.listed({"a": PROFILE, "b": PROFILE})
    for peer in ("a", "b"):
        members.seen(peer, here())
        members.reported(peer, report("one", "training"))
    members.reported("a", report("one", "paused", leaving=True))
    assert (ready(members), online(members)) == (["b"], ["a", "b"])
    assert (members.paused(), members.paused(("b",)), members.paused(("a", "b"))) == (["a"], [], ["a"])
    assert members.waiting_for(2) == "waiting for 1 more nodes (1 of 2 are ready; 1 paused)"
    assert members.settled() == ["b"]
    clock.now += 10 * TIMEOUTS.cut_off
    members.reported("b", report("one", "training"))
    assert members.paused() == ["a"], "it says little, and stays a member"
    members.reported("a", report("one", "idle"))
    assert members.newcomers({"b"}) == ["a"]


def test_who_begins_with_a_pause_is_a_member_that_is_neither_waited_for_nor_looked_up_before_it_works() -> None:
    members = Members()
    members.listed({"a": PROFILE})
    members.reported("a", report())
    members.seen("b", here())
    members.reported("b", report("one", "paused"))
    assert (online(members), members.paused(), members.unlisted()) == (["a", "b"], ["b"], {})
    assert (ready(members), members.settled()) == (["a"], ["a"])
    assert members.waiting_for(2) == "waiting for 1 more nodes (1 of 2 are ready; 1 paused)"
    members.reported("b", report("one", "idle"))
    assert members.unlisted() == {"b": "one"}, "now it has a profile"


def test_who_is_new_is_named_once_nobody_else_is_still_coming() -> None:
    """Volunteers arrive in bursts: one plan for all of them is enough."""
    members = Members()
    members.listed({"a": PROFILE, "b": PROFILE, "c": PROFILE})
    members.reported("a", report())
    assert members.newcomers({"a"}) == []
    members.reported("c", report())
    members.reported("b", report(state="measuring"))
    assert members.newcomers({"a"}) == []
    members.reported("b", report())
    assert members.newcomers({"a"}) == ["b", "c"]
    members.reported("d", report())  # which the DHT does not list yet
    assert members.newcomers({"a"}) == []
    members.listed({"d": PROFILE})
    assert members.newcomers({"a", "c"}) == ["b", "d"]


def test_a_profile_of_an_earlier_session_has_no_more_use() -> None:
    members = Members()
    members.seen("a", here())
    members.listed({"a": PROFILE})
    members.reported("a", report())
    assert (ready(members), members.unlisted()) == (["a"], {})
    members.seen("a", here("two"))
    members.reported("a", report("two"))
    assert (ready(members), members.unlisted()) == ([], {"a": "two"})
    members.listed({"a": PROFILE.model_copy(update={"session": "two"})})
    assert (ready(members), members.unlisted()) == (["a"], {})


def test_whom_another_peer_has_lost_must_report_anew_to_be_given_work() -> None:
    clock = Clock()
    members = Members(clock)
    members.listed({"a": PROFILE, "b": PROFILE})
    members.reported("a", report())
    members.reported("b", report())
    clock.now += 1.0
    members.reported("b", report(lost=("a",)))
    assert ready(members) == ["b"]
    clock.now += 0.1
    members.reported("a", report())
    members.reported("b", report(lost=("a",)))  # the same word again
    assert ready(members) == ["a", "b"]


def test_any_number_of_peers_fills_no_memory_and_costs_nobody_who_is_there_a_place() -> None:
    members = Members()
    members.reported("a", report())
    for number in range(MOST_MEMBERS + 10):
        members.seen(f"stranger {number}", here())
        members.seen(f"stranger {number}", gone())
    assert members.get("a") is not None
    assert sum(members.get(f"stranger {number}") is not None for number in range(MOST_MEMBERS + 10)) < MOST_MEMBERS
    late = members.get(f"stranger {MOST_MEMBERS + 9}")
    assert late is not None
    assert late.order == MOST_MEMBERS + 10


def test_where_all_places_are_taken_nobody_else_is_let_in() -> None:
    members = Members()
    for number in range(MOST_MEMBERS):
        members.seen(str(number), here())
    members.seen("late", here())
    members.listed({"late": PROFILE})
    assert not members.reported("late", report())
    assert members.get("late") is None
    members.seen("0", gone("one"))
    assert members.reported("late", report())


def test_whom_a_peer_names_as_lost_is_not_remembered_for_that() -> None:
    members = Members()
    members.reported("a", report(lost=[f"made up {number}" for number in range(500)]))
    assert members.get("made up 1") is None


def test_a_peer_that_was_sent_away_is_gone_until_it_comes_back_in_another_session() -> None:
    members = Members()
    for peer in ("a", "b"):
        members.seen(peer, here())
        members.reported(peer, report())
        members.listed({peer: PROFILE})
    members.kick("a")
    members.kick("nobody")
    assert (online(members), ready(members)) == (["b"], ["b"])
    members.seen("a", here())
    members.reported("a", report())
    assert ready(members) == ["b"], "its reports go on until it hears that it was sent away"
    members.seen("a", here("two"))
    members.reported("a", report("two"))
    members.listed({"a": PROFILE.model_copy(update={"session": "two"})})
    assert ready(members) == ["a", "b"]


def test_who_never_gets_ready_keeps_nobody_out_for_long() -> None:
    clock = Clock()
    members = Members(clock)
    members.listed({"a": PROFILE, "b": PROFILE})
    members.reported("a", report())
    clock.now += 10 * TIMEOUTS.arrival
    members.reported("never", report(state="measuring"))
    for _ in range(int(TIMEOUTS.arrival)):
        for peer in "ab":
            members.reported(peer, report())
        members.reported("never", report(state="measuring"))
        assert members.newcomers({"a"}) == []
        clock.now += 1.0
    members.reported("b", report())
    members.reported("never", report(state="measuring"))
    assert members.newcomers({"a"}) == ["b"]
