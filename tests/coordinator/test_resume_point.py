"""From which state a new plan goes on, and when it may be made: from where peers stand, and from nothing else."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.plan_change.judged_holdings import Copy
from dtfm_coordinator.plan_change.plan_electors import has_quorum
from dtfm_coordinator.plan_change.resume_point import resume_from, safe_mark, shadows_of, source_of
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark, PeerState
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.plan.signed_commit import SignedCommit

LAYERS = 4
FRONT, BACK, WHOLE = (0, 2), (2, 4), (0, 4)
OWNER = "owner"


def at(step: int, plan: int = 1) -> Mark:
    return Mark(step=step, plan=plan)


def live(
    mark: Mark, layers: LayerRange, *disk: Holding, prepared: Mark | None = None, norm: float | None = None
) -> PeerState:
    commit = final(mark, norm)
    return PeerState(holdings=(Holding(mark=mark, layers=layers, live=True, commit=commit, prepared=prepared), *disk))


def disk(mark: Mark, layers: LayerRange, norm: float | None = None) -> Holding:
    return Holding(mark=mark, layers=layers, commit=final(mark, norm))


def final(mark: Mark, norm: float | None) -> SignedCommit | None:
    """The commit of a state, by the arbiter whoever that is: signatures are not looked at here."""
    if norm is None:
        return None
    text = Commit(grad_norm=norm).model_dump_json()
    return SignedCommit(plan=mark.plan, step=mark.step, text=text, signature="0" * 128)


def copies(standings: dict[str, PeerState]) -> list[Copy]:
    """All that peers hold, as if it were all believed."""
    found = []
    for peer, standing in standings.items():
        for one in standing.holdings:
            found.append(Copy(peer, one.mark, one.layers, one.live, one.commit))
            if one.prepared is not None:
                found.append(Copy(peer, one.prepared, one.layers, live=True, is_prepared=True))
    return found


def resumed(standings: dict[str, PeerState], *kept: Mark) -> Resume:
    return resume_from(copies(standings), {OWNER: kept}, LAYERS, Chain())


def sources(resume: Resume) -> dict[str, tuple[LayerRange, ...]]:
    return {source.peer: source.layers for source in resume.sources}


def test_the_newest_state_of_which_every_layer_is_there_is_gone_on_from() -> None:
    found = resumed({"a": live(at(7), FRONT), "b": live(at(7), FRONT), "x": live(at(7), BACK)})
    assert found.mark == at(7)
    assert sources(found) == {"a": (FRONT,), "b": (FRONT,), "x": (BACK,)}


def test_a_step_that_one_peer_has_applied_was_final_and_the_others_apply_what_they_hold() -> None:
    found = resumed({"a": live(at(7), FRONT, prepared=at(8), norm=0.25), "x": live(at(8), BACK, norm=3.0)})
    assert (found.mark, found.commit) == (at(8), final(at(8), 3.0))
    assert sources(found) == {"a": (FRONT,), "x": (BACK,)}


def test_a_step_that_nobody_has_applied_is_run_again() -> None:
    """Though all hold its gradients: whether it became final, nobody can say."""
    found = resumed({"a": live(at(7), FRONT, prepared=at(8)), "x": live(at(7), BACK, prepared=at(8), norm=2.0)})
    assert found.mark == at(7)


def test_a_step_whose_gradients_nobody_holds_for_some_layer_is_run_again() -> None:
    found = resumed({"a": live(at(7), FRONT), "x": live(at(8), BACK, disk(at(7), BACK), norm=3.0)})
    assert (found.mark, sources(found)) == (at(7), {"a": (FRONT,), "x": (BACK,)})


def test_the_commit_goes_along_for_who_lags_behind_the_next_plan() -> None:
    assert resumed({"a": live(at(7), WHOLE, norm=0.5)}).commit == final(at(7), 0.5)


def test_a_commit_that_lies_beside_a_snapshot_lets_others_apply_what_they_hold() -> None:
    """Who had applied it has died since, and left it on a disk."""
    shadow = PeerState(holdings=(disk(at(8), BACK, norm=3.0),))
    found = resumed({"a": live(at(7), FRONT, prepared=at(8), norm=0.25), "z": shadow})
    assert (found.mark, found.commit) == (at(8), final(at(8), 3.0))
    assert sources(found) == {"a": (FRONT,), "z": (BACK,)}


def test_each_state_that_a_peer_holds_may_become_another_one() -> None:
    """One under the last plan, and one under the plan before, of which nobody had heard that it was final."""
    both = PeerState(
        holdings=(
            Holding(mark=at(7), layers=FRONT, live=True, prepared=at(8, plan=2)),
            Holding(mark=at(7), layers=BACK, live=True, prepared=at(8)),
        )
    )
    front = live(at(8), FRONT, norm=2.0)
    assert sources(resumed({"a": both, "b": front})) == {"a": (BACK,), "b": (FRONT,)}
    assert resumed({"a": both}).mark == at(7)


def test_a_step_run_again_under_a_later_plan_is_another_state() -> None:
    standings = {"a": live(at(7, plan=1), FRONT), "x": live(at(7, plan=2), BACK)}
    assert resumed(standings, at(5)).mark == at(5)
    assert resumed(standings | {"b": live(at(7, plan=2), FRONT)}).mark == at(7, plan=2)


def test_where_a_stage_is_gone_snapshots_are_gone_back_to() -> None:
    shadow = PeerState(holdings=(disk(at(5), BACK), disk(at(4), BACK)))
    found = resumed({"a": live(at(7), FRONT, disk(at(5), FRONT)), "z": shadow}, at(3))
    assert (found.mark, found.commit) == (at(5), None)
    assert sources(found) == {"a": (FRONT,), "z": (BACK,)}


def test_where_snapshots_lack_a_layer_the_checkpoint_is_gone_back_to() -> None:
    found = resumed({"a": live(at(7), FRONT, disk(at(5), FRONT))}, at(2), at(3))
    assert (found.mark, sources(found)) == (at(3), {OWNER: (WHOLE,)})


def test_what_peers_still_have_of_the_checkpoint_they_give_beside_the_coordinator() -> None:
    found = resumed({"a": live(at(7), FRONT, disk(at(3), FRONT))}, at(3))
    assert sources(found) == {"a": (FRONT,), OWNER: (WHOLE,)}


def test_where_nothing_is_left_training_starts_anew() -> None:
    assert resumed({"a": live(at(7), FRONT)}) == Resume()
    assert resumed({}) == Resume()


def test_layers_that_moved_between_plans_join_up_from_what_there_is() -> None:
    found = resumed({"a": live(at(7), (0, 3)), "b": live(at(7), (1, 2)), "x": live(at(7), (2, 4))})
    assert found.mark == at(7)
    assert resumed({"a": live(at(7), (0, 1)), "b": live(at(7), (2, 4))}) == Resume()


def test_who_has_a_part_twice_is_named_once() -> None:
    found = resumed({"a": live(at(7), WHOLE, disk(at(7), WHOLE), disk(at(7), FRONT))})
    assert sources(found) == {"a": (WHOLE, FRONT)}


marks = st.builds(Mark, step=st.integers(1, 4), plan=st.integers(1, 2))
norms = st.none() | st.floats(0, 9)
spans = st.sampled_from([(low, high) for low, high in itertools.combinations(range(LAYERS + 1), 2)])
files = st.builds(disk, marks, spans, norms)
states = st.builds(
    lambda mark, span, norm, to: live(mark, span, prepared=to, norm=norm).holdings[0],
    marks,
    spans,
    norms,
    st.none() | marks,
)
standings = st.builds(PeerState, holdings=st.lists(files | states, max_size=4).map(tuple))


def cover(spans: list[LayerRange]) -> bool:
    return {layer for low, high in spans for layer in range(low, high)} == set(range(LAYERS))


peers = st.dictionaries(st.sampled_from("abcdefgh"), standings, max_size=6)


@given(peers=peers, kept=st.lists(marks, max_size=2))
@settings(max_examples=300, deadline=None)
def test_what_is_gone_on_from_its_sources_have_and_nothing_newer_is_there(
    peers: dict[str, PeerState], kept: list[Mark]
) -> None:
    found = resumed(peers, *kept)
    if found != Resume():
        assert cover([span for source in found.sources for span in source.layers])
    assert len(sources(found)) == len(found.sources)
    for peer, layers in sources(found).items():
        for span in layers:
            if peer == OWNER:
                assert found.mark in kept
                continue
            standing = peers[peer]
            held = [holding for holding in standing.holdings if holding.layers == span]
            has = any(holding.mark == found.mark for holding in held)
            makes = any(holding.live and holding.prepared == found.mark for holding in held)
            assert has or (makes and found.commit is not None)
    for mark in {holding.mark for standing in peers.values() for holding in standing.holdings} | set(kept):
        if mark.order > found.mark.order:
            of_it = [h.layers for standing in peers.values() for h in standing.holdings if h.mark == mark]
            assert mark not in kept
            assert not cover(of_it)


@given(peers=peers, kept=st.lists(marks, max_size=2), gone=st.sampled_from("abcdefgh"))
@settings(max_examples=200, deadline=None)
def test_who_is_gone_can_only_take_away(peers: dict[str, PeerState], kept: list[Mark], gone: str) -> None:
    rest = {peer: standing for peer, standing in peers.items() if peer != gone}
    assert resumed(rest, *kept).mark.order <= resumed(peers, *kept).mark.order


@given(peers=peers, kept=st.lists(marks, max_size=2), gone=st.sampled_from("abcdefgh"))
@settings(max_examples=200, deadline=None)
def test_what_is_safe_outlives_the_loss_of_any_one_peer(
    peers: dict[str, PeerState], kept: list[Mark], gone: str
) -> None:
    """Of which only the disks are looked at: all processes may have ended."""
    rest = {
        peer: PeerState(holdings=tuple(holding for holding in standing.holdings if not holding.live))
        for peer, standing in peers.items()
        if peer != gone
    }
    safe = safe_of(peers, *kept)
    assert safe.order <= resumed(rest, *kept).mark.order
    left = [holding.layers for standing in rest.values() for holding in standing.holdings if holding.mark == safe]
    assert safe == Mark() or safe in kept or cover(left)


def safe_of(standings: dict[str, PeerState], *kept: Mark, **of: int) -> Mark:
    return safe_mark(copies(standings), kept, LAYERS, **of)


def test_a_state_is_safe_on_two_disks_or_on_the_coordinators() -> None:
    one = {"a": live(at(7), WHOLE, disk(at(5), WHOLE))}
    assert safe_of(one, at(3)) == at(3)
    assert safe_of(one, at(3), at(6)) == at(6)
    assert safe_of(one | {"b": PeerState(holdings=(disk(at(5), FRONT),))}) == Mark()
    both = one | {"b": PeerState(holdings=(disk(at(5), FRONT),)), "c": PeerState(holdings=(disk(at(5), BACK),))}
    assert safe_of(both, at(3)) == at(5)
    assert safe_of(one, copies=1) == at(5)


def test_what_lies_twice_on_one_disk_lies_on_one() -> None:
    assert safe_of({"a": PeerState(holdings=(disk(at(5), WHOLE), disk(at(5), WHOLE)))}) == Mark()


def test_what_only_memory_holds_is_not_safe() -> None:
    assert safe_of({"a": live(at(7), WHOLE), "b": live(at(7), WHOLE)}) == Mark()


def test_where_a_state_comes_from_is_said_in_a_word() -> None:
    cases = {
        "start": ({}, ()),
        "replicas": ({"a": live(at(7), FRONT, prepared=at(8)), "x": live(at(8), BACK, norm=1.0)}, (at(3),)),
        "snapshots": ({"a": live(at(7), FRONT, disk(at(5), FRONT)), "z": PeerState(holdings=(disk(at(5), BACK),))}, ()),
        "checkpoint": ({"a": live(at(7), FRONT, disk(at(3), FRONT))}, (at(3),)),
    }
    for word, (where, kept) in cases.items():
        assert source_of(resumed(where, *kept), copies(where)) == word


PLAN = Plan(version=3, stages=(FRONT, BACK), routes=(("a", "x"), ("b", "y"), ("d", "x")), idle=("z",), author="c")
"""Of six electors: its five peers and its author. The spare decides nothing."""


@pytest.mark.parametrize(
    ("promised", "ended", "alone", "enough"),
    [
        ("abxy", "", False, True),
        ("abxyzc", "", False, True),
        ("abx", "", False, False),  # exactly half, and its author is not among them
        ("abc", "", False, True),  # exactly half with its author
        ("ab", "", False, False),
        ("", "", False, False),
        ("adcq", "", False, True),  # a stranger's promise does not count, three of six with the author do
        ("azc", "", False, False),  # nor does a spare's
        ("abqrs", "", False, False),
        ("", "abxyz", True, True),  # where nobody else can have their promises, those who have ended count
        ("", "abxyz", False, False),  # else they may have promised to another coordinator before
        ("c", "ab", True, True),
        ("c", "ab", False, False),
        ("z", "ab", True, False),  # half without its author
        ("abxy", "abxy", True, True),
        ("ad", "ad", True, False),  # nobody counts twice
    ],
)
def test_most_of_those_who_decide_must_have_promised(promised: str, ended: str, alone: bool, enough: bool) -> None:
    assert has_quorum(PLAN, promised, ended, alone=alone) is enough


@pytest.mark.parametrize("alone", [False, True])
def test_one_who_trains_must_have_stopped_however_many_others_have_promised(alone: bool) -> None:
    """Else the old plan could go on beside the new one: those who promised have no part in its steps."""
    plan = Plan(version=3, stages=(WHOLE,), routes=(("a",),), idle=("v", "w", "z"), author="c")
    assert not has_quorum(plan, "vwzc", "", alone=alone)
    assert has_quorum(plan, "ac", "", alone=alone)
    assert has_quorum(plan, "vwzc", "a", alone=alone)


def test_spares_that_say_nothing_hold_up_no_plan() -> None:
    plan = Plan(version=3, stages=(WHOLE,), routes=(("a",), ("b",)), idle=tuple("0123456789"), author="c")
    assert has_quorum(plan, "ac", "", alone=False)
    assert not has_quorum(plan, "a0123456789", "", alone=False), "nor do they speed one up"


members = st.sets(st.sampled_from("abxyzcqr"))


@settings(deadline=None)
@given(one=members, other=members, ended=members)
def test_two_coordinators_cannot_both_have_enough_of_the_same_peers_promises(
    one: set[str], other: set[str], ended: set[str]
) -> None:
    assert not (has_quorum(PLAN, one, ended, alone=False) and has_quorum(PLAN, other - one, ended, alone=False))


@settings(deadline=None)
@given(promised=members, more=members, ended=members, alone=st.booleans())
def test_a_further_promise_takes_nothing_away(promised: set[str], more: set[str], ended: set[str], alone: bool) -> None:
    if has_quorum(PLAN, promised, ended, alone=alone):
        assert has_quorum(PLAN, promised | more, ended, alone=alone)


def test_stages_with_one_peer_have_a_shadow_and_the_others_none() -> None:
    uneven = Plan(stages=(FRONT, BACK), routes=(("a", "x"), ("a", "y")), idle=("z",))
    assert shadows_of(uneven) == ("z", None)
    assert shadows_of(uneven.model_copy(update={"idle": ()})) == ("x", None)
    assert shadows_of(PLAN) == ()


def test_copies_are_spread_over_those_who_can_keep_them() -> None:
    chain = Plan(stages=((0, 1), (1, 2), (2, 3), (3, 4)), routes=(("a", "b", "c", "d"),))
    assert shadows_of(chain.model_copy(update={"idle": ("y", "z")})) == ("y", "z", "y", "z")
    found = shadows_of(chain)
    assert all(shadow is not None and chain.stage_of(shadow) != stage for stage, shadow in enumerate(found))
    assert len(set(found)) > 1


def test_a_peer_that_is_alone_has_nobody_to_keep_its_copies() -> None:
    assert shadows_of(Plan(stages=(WHOLE,), routes=(("a",),))) == ()
    assert shadows_of(Plan(stages=(WHOLE,), routes=(("a",),), idle=("z",))) == ("z",)


def test_the_source_of_a_stage_may_be_the_peer_that_resumes_it() -> None:
    """It adopts what it has; a plan names all who have a part, and leaves the choice to those who fetch."""
    assert resumed({"a": live(at(7), WHOLE)}).sources == (Source(peer="a", layers=(WHOLE,)),)
