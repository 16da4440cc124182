"""What a peer binds itself to: never to less than before, and for one version to one coordinator."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.runner.follower import Pledge
from dtfm_protocol.plan.peer_state import Mark

BOUND = Pledge(5, "c", 4)


@pytest.mark.parametrize(
    ("version", "by", "answer"),
    [
        (6, "c", Pledge(6, "c", 4)),
        (6, "d", Pledge(6, "d", 4)),
        (9, "d", Pledge(9, "d", 4)),
        (5, "c", None),  # it has that promise already
        (5, "d", None),  # another one has it
        (4, "c", None),
        (0, "", None),
    ],
)
def test_a_call_is_answered_where_it_is_newer_than_what_was_promised(
    version: int, by: str, answer: Pledge | None
) -> None:
    assert BOUND.called(version, by) == answer


@pytest.mark.parametrize(
    ("version", "by", "answer"),
    [
        (5, "c", Pledge(5, "c", 5)),
        (5, "d", None),  # the version was promised to another one
        (4, "c", None),  # taken already, and promised away
        (3, "c", None),
        (6, "c", Pledge(6, "c", 6)),  # whose call was not heard
        (6, "d", Pledge(6, "d", 6)),
    ],
)
def test_a_plan_is_taken_from_whom_its_version_was_promised_to(version: int, by: str, answer: Pledge | None) -> None:
    assert BOUND.offered(version, by) == answer


def test_a_plan_that_was_taken_is_not_taken_again() -> None:
    taken = BOUND.offered(5, "c")
    assert taken is not None
    assert taken.offered(5, "c") is None


def test_a_fresh_peer_takes_any_plan_but_one_that_never_was_published() -> None:
    assert Pledge().offered(1, "c") == Pledge(1, "c", 1)
    assert Pledge().offered(0, "c") is None


events = st.lists(
    st.tuples(st.sampled_from(["called", "offered"]), st.integers(0, 6), st.sampled_from("cd")), max_size=30
)


@settings(deadline=None)
@given(events=events)
def test_whatever_two_coordinators_say_a_promise_is_never_taken_back(events: list[tuple[str, int, str]]) -> None:
    promise, taken = Pledge(), dict[int, str]()
    called: dict[int, str] = {}
    for kind, version, by in events:
        before = promise
        promise = (before.called(version, by) if kind == "called" else before.offered(version, by)) or before
        assert promise.version >= before.version
        assert promise.accepted >= before.accepted
        assert promise.accepted <= promise.version
        if promise.version == before.version:
            assert before.version == 0 or promise.to == before.to
        if promise.accepted != before.accepted:
            assert kind == "offered"
            assert promise.accepted not in taken
            taken[promise.accepted] = by
            assert called.get(promise.accepted, by) == by
        if promise.version != before.version:
            called[promise.version] = promise.to


@settings(deadline=None)
@given(events=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=60))
def test_of_two_coordinators_that_offer_the_same_version_one_gets_most_of_three_peers(
    events: list[tuple[int, int]],
) -> None:
    """Whatever order calls and plans come in: each event is the next message of one coordinator to one peer."""
    peers = [Pledge() for _ in range(3)]
    took: dict[tuple[int, str], set[int]] = {}
    for number, (peer, version) in enumerate(events):
        by = "cd"[number % 2]
        peers[peer] = peers[peer].called(version, by) or peers[peer]
        offered = peers[peer].offered(version, by)
        if offered is not None:
            peers[peer] = offered
            took.setdefault((version, by), set()).add(peer)
    for version in range(1, 5):
        assert sum(len(took.get((version, by), ())) >= 2 for by in "cd") <= 1


def test_a_later_plan_makes_the_same_step_another_state() -> None:
    assert Mark(step=3, plan=2) != Mark(step=3, plan=1)
    ordered = [Mark(), Mark(step=3, plan=1), Mark(step=3, plan=2), Mark(step=4, plan=1)]
    assert sorted([ordered[2], ordered[3], ordered[0], ordered[1]], key=lambda mark: mark.order) == ordered
    assert str(Mark(step=3, plan=2)) == "step 3 (plan 2)"
