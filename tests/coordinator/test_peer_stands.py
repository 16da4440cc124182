"""How far peers are believed about what they have promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.plan_change.peer_stands import MOST_AHEAD, PeerStands, believable
from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.control.messages import Report
from dtfm_protocol.plan.peer_state import PeerState, Promise

versions = st.integers(0, MOST_UINT32)


@pytest.mark.parametrize(
    ("promised", "known", "found"),
    [
        ([], 5, 0),
        ([0, 0, 0], 5, 0),
        ([6, 0, 0], 5, 6),  # another coordinator has called one peer
        ([MOST_UINT32, 6, 6], 5, 6),
        ([MOST_UINT32, 0, 0], 5, 0),
        ([5 + MOST_AHEAD, 0, 0], 5, 5 + MOST_AHEAD),
        ([6 + MOST_AHEAD, 0, 0], 5, 0),
        ([9000, 9000, 0], 5, 9000),  # most have promised that: without them there is no plan
        ([9001, 9000, 0, 0], 5, 0),
        ([MOST_UINT32] * 3, 5, MOST_UINT32 - 1),
    ],
)
def test_one_peers_promise_is_believed_so_far_and_most_peers_are(promised: list[int], known: int, found: int) -> None:
    assert believable(promised, known) == found


@given(honest=st.lists(st.integers(0, 100), min_size=1, max_size=9), lies=st.lists(versions, max_size=8))
def test_fewer_liars_than_others_move_no_version_far_and_hide_no_promise(honest: list[int], lies: list[int]) -> None:
    lies = lies[: len(honest) - 1]
    found = believable([*honest, *lies], 50)
    assert max(honest) <= found <= 50 + MOST_AHEAD


def test_only_those_are_asked_who_have_a_say() -> None:
    members = Members()
    for peer, version in (("a", 3), ("b", 4), *((f"stranger {number}", MOST_UINT32) for number in range(9))):
        standing = PeerState(promise=Promise(version=version, to="c"))
        members.reported(peer, Report(session="s", state="idle", standing=standing))
    stands = PeerStands(members, lambda _: True)
    assert stands.newest_promise(3, ("a", "b", "c")) == 4
    assert stands.newest_promise(3, ()) == 4, "of any number of strangers none is believed far"


def test_spares_have_no_say_but_a_plan_is_one_that_they_can_take() -> None:
    members = Members()
    for peer, version in (("a", 3), ("b", 4), ("y", 7), *((f"liar {number}", MOST_UINT32) for number in range(9))):
        standing = PeerState(promise=Promise(version=version, to="c"))
        members.reported(peer, Report(session="s", state="idle", standing=standing))
    stands = PeerStands(members, lambda _: True)
    assert stands.newest_promise(3, ("a", "b", "c"), ("y", *(f"liar {number}" for number in range(9)))) == 7


def test_who_pauses_decides_on_plans_for_others_and_is_there_for_none_of_its_own() -> None:
    members = Members()
    standing = PeerState(promise=Promise(version=3, to="c", accepted=3))
    members.reported("a", Report(session="s", state="idle", standing=standing))
    members.reported("b", Report(session="s", state="paused", standing=standing))
    stands = PeerStands(members, lambda _: True)
    assert {stand.peer for stand in stands.read()} == {"a", "b"}
    assert {stand.peer for stand in stands.read(at_work=("a", "b"))} == {"a"}
    assert set(stands.promised(3, "c")) == {"a"}, "what it holds cannot be fetched now"
