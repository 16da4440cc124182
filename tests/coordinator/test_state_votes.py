"""What replicas sign of a state certifies it, or shows that they contradict each other; nobody can be framed."""

from pathlib import Path

import pytest

from dtfm_coordinator.records.state_vote_file import NAME, StateVoteFile
from dtfm_coordinator.records.state_votes import (
    PARTS_A_PEER,
    StateVotes,
    certified,
    votes_in,
    without_disputed,
)
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.mark import Mark, StateDigest
from dtfm_protocol.plan.peer_state import Holding, PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote
from tests.harness.membership import OTHER_SWARM
from tests.harness.named_peers import SWARM, id_of, vote_on

A, B, C, X = (id_of(name) for name in "abcx")
FRONT, BACK = (0, 2), (2, 4)
PLAN = Plan(version=3, stages=(FRONT, BACK), routes=((A, X), (B, X), (C, X)))
MARK = Mark(step=10, plan=3)
REPLICAS_OF = PLAN.chain.replicas_of
ONE, TWO = "1" * 64, "2" * 64


def front(name: str, digest: str = ONE, mark: Mark = MARK) -> StateVote:
    return vote_on(name, mark, FRONT, digest)


def heard(*votes: StateVote) -> StateVotes:
    found = StateVotes()
    for vote in votes:
        hear(found, vote)
    return found


def hear(votes: StateVotes, vote: StateVote) -> bool:
    """Have a vote taken if it is wanted; whether it was."""
    wanted = votes.wants(vote, REPLICAS_OF)
    if wanted:
        votes.hear(vote)
    return wanted


def verdict(votes: StateVotes, *here: str) -> tuple[str, bool]:
    found = votes.verdict(MARK, FRONT, (A, B, C), here)
    return found.digest, found.disputed


def test_what_all_replicas_have_signed_is_certified() -> None:
    assert verdict(heard(front("a"), front("b"), front("c")), A, B, C) == (ONE, False)
    assert verdict(heard(), A, B, C) == ("", False)


def test_the_newest_step_is_known_of_which_another_than_the_arbiter_has_hashed_the_state() -> None:
    later = Mark(step=20, plan=3)
    votes = heard(front("a"), front("b"), front("a", mark=later))
    assert votes.newest_step(PLAN.chain) == 10, "a is the arbiter"
    assert hear(votes, front("c", mark=later))
    assert votes.newest_step(PLAN.chain) == 20
    assert votes.newest_step(Plan(version=4, stages=(FRONT, BACK), routes=((A, X),)).chain) == 0
    assert votes.newest_step(Chain()) == 0


def test_a_replica_that_is_here_and_has_not_signed_may_yet_contradict_the_others() -> None:
    votes = heard(front("a"), front("b"))
    assert verdict(votes, A, B, C) == ("", False)
    assert verdict(votes, C) == ("", False)


def test_without_a_replica_that_is_gone_the_others_word_counts_and_that_is_said() -> None:
    found = heard(front("a"), front("b")).verdict(MARK, FRONT, (A, B, C), (A, B))
    assert found.digest == ONE
    assert found.said == f"{short(C)} left without a vote on layers 0 to 2 of {MARK}: the others' votes count"


def test_replicas_that_differ_are_named_and_certify_nothing() -> None:
    found = heard(front("a"), front("b", TWO), front("c")).verdict(MARK, FRONT, (A, B, C), (A, B, C))
    assert (found.digest, found.disputed) == ("", True)
    assert all(f"{short(peer)}: {digest[:8]}" in found.said for peer, digest in ((A, ONE), (B, TWO), (C, ONE)))
    assert "no copy of it is used" in found.said


def test_who_signs_two_states_is_named_alone_and_counts_for_neither() -> None:
    """It has proven by itself that it lies, so the honest ones go on."""
    for votes in (heard(front("a"), front("b"), front("b", TWO), front("c")), heard(front("b", TWO), front("b"))):
        found = votes.verdict(MARK, FRONT, (A, B, C), (B,))
        assert found.said.startswith(f"{short(B)} signed two states of layers 0 to 2")
        assert short(A) not in found.said
    assert verdict(heard(front("a"), front("b"), front("b", TWO), front("c")), A, B, C) == (ONE, False)
    lone = heard(vote_on("x", MARK, BACK, ONE), vote_on("x", MARK, BACK, TWO)).verdict(MARK, BACK, (X,), (X,))
    assert (lone.digest, lone.disputed) == ("", True)


def test_only_replicas_of_the_stage_that_made_a_part_are_heard() -> None:
    votes = StateVotes()
    for stranger in (
        vote_on("x", MARK, FRONT, TWO),
        vote_on("stranger", MARK, FRONT, TWO),
        vote_on("a", MARK, BACK, TWO),
        vote_on("a", MARK, (0, 3), TWO),
        vote_on("a", Mark(step=10, plan=4), FRONT, TWO),
    ):
        assert not hear(votes, stranger)
    assert list(votes) == []
    assert hear(votes, front("a"))
    assert not hear(votes, front("a"))


def test_a_peer_that_votes_without_end_pushes_out_its_own_votes_alone() -> None:
    votes = heard(front("a"), front("b"), front("c"))
    for step in range(11, 11 + 3 * PARTS_A_PEER):
        for digest in (ONE, TWO, "3" * 64):
            hear(votes, front("b", digest, Mark(step=step, plan=3)))
    assert sum(vote.peer == B for vote in votes) == 2 * PARTS_A_PEER
    assert front("a") in list(votes)
    assert front("b") not in list(votes)
    assert verdict(votes, A, B, C) == ("", False)


def test_who_brings_old_votes_again_has_no_newer_one_forgotten() -> None:
    """Else a liar whose honest replica has left certifies what that one has contradicted."""
    old = [front("a", ONE, Mark(step=step, plan=3)) for step in range(1, 10)]
    newer = [front("a", ONE, Mark(step=step, plan=3)) for step in range(10, 10 + PARTS_A_PEER)]
    votes = heard(*old, *newer)
    assert not any(hear(votes, vote) for vote in old)
    assert list(votes) == newer
    assert hear(votes, front("a", TWO, newer[0].mark))
    assert verdict(votes)[1]


def standing(*holdings: Holding) -> PeerState:
    return PeerState(holdings=holdings)


def test_copies_of_what_replicas_contradict_each_other_on_do_not_count() -> None:
    """Nor of layers of it that another plan has cut otherwise; what was before, and other stages, stay."""
    older = Mark(step=5, plan=3)
    keeps = [
        Holding(mark=MARK, layers=BACK),
        Holding(mark=older, layers=FRONT),
    ]
    standings = {
        A: standing(Holding(mark=MARK, layers=FRONT), *keeps),
        X: standing(Holding(mark=MARK, layers=(1, 3), live=True)),
    }
    said: list[str] = []
    assert without_disputed(standings, heard(front("a"), front("b")), REPLICAS_OF, said.append) == standings
    assert said == []
    found = without_disputed(standings, heard(front("a"), front("b", TWO)), REPLICAS_OF, said.append)
    assert found == {A: standing(*keeps), X: standing()}
    assert len(said) == 1


def test_what_a_plan_has_made_of_a_disputed_state_does_not_count_either() -> None:
    """Whoever has the false one has gone on from it; another plan went on from what all agree on."""
    later, newer = Mark(step=12, plan=3), Mark(step=12, plan=4)
    stays = (Holding(mark=later, layers=BACK), Holding(mark=newer, layers=FRONT))
    standings = {A: standing(Holding(mark=later, layers=FRONT, live=True), *stays)}
    votes = heard(front("a"), front("b", TWO))
    assert without_disputed(standings, votes, REPLICAS_OF, lambda _: None) == {A: standing(*stays)}


@pytest.mark.parametrize(
    ("digests", "pair"),
    [((ONE, ONE, ONE), None), ((ONE, TWO, ONE), "ba"), ((TWO, TWO, ONE), "ca"), ((ONE, TWO, "3" * 64), "ac")],
)
def test_of_those_who_differ_one_of_the_fewest_and_one_of_the_most_have_fallen_out(
    digests: tuple[str, ...], pair: str | None
) -> None:
    votes = heard(*(front(name, digest) for name, digest in zip("abc", digests, strict=True)))
    found = votes.verdict(MARK, FRONT, (A, B, C), (A, B, C)).pairs
    ids = dict(zip("abc", (A, B, C), strict=True))
    by = dict(zip((A, B, C), digests, strict=True))
    assert len(found) == (0 if pair is None else len(digests) + 1 - len(set(digests)))
    for first, second in found:
        assert by[first] != by[second]
        counts = [list(digests).count(by[peer]) for peer in (first, second)]
        assert counts == sorted(counts)
        if len(set(digests)) == 2:
            assert pair is not None
            assert first == ids[pair[0]]


def test_a_plan_is_told_what_is_certified_of_its_first_state() -> None:
    votes = heard(front("a"), front("b"), front("c"), vote_on("x", MARK, BACK, TWO))
    wanted = (
        StateDigest(mark=MARK, layers=FRONT, digest=ONE),
        StateDigest(mark=MARK, layers=BACK, digest=TWO),
    )
    assert certified(MARK, votes, REPLICAS_OF, PLAN.peers, lambda _: None) == wanted
    assert certified(Mark(step=9, plan=3), votes, REPLICAS_OF, PLAN.peers, lambda _: None) == ()
    assert certified(MARK, votes, Chain().replicas_of, PLAN.peers, lambda _: None) == ()


def test_votes_are_heard_with_whatever_holding_they_come() -> None:
    votes = (front("a"), front("b"))
    assert tuple(votes_in(standing(Holding(mark=MARK, layers=FRONT, votes=votes)))) == votes


def test_a_restart_of_the_coordinator_keeps_the_votes(tmp_path: Path) -> None:
    file = StateVoteFile(tmp_path, SWARM)
    votes = [front("a"), front("b"), front("b", TWO), vote_on("x", MARK, BACK, ONE)]
    file.hear(votes, REPLICAS_OF)
    file.hear(votes, REPLICAS_OF)
    with (tmp_path / NAME).open("ab") as torn:
        torn.write(b'{"mark": {"st')
    again = StateVoteFile(tmp_path, SWARM)
    assert set(again.votes) == set(votes)
    assert again.votes.verdict(MARK, FRONT, (A, B), (A, B)).said == file.votes.verdict(MARK, FRONT, (A, B), (A, B)).said
    again.hear([front("c")], REPLICAS_OF)
    assert set(StateVoteFile(tmp_path, SWARM).votes) == {*votes, front("c")}


def test_a_file_of_votes_that_are_forgotten_is_written_anew(tmp_path: Path) -> None:
    file = StateVoteFile(tmp_path, SWARM, most_lines=10)
    for step in range(1, 4 * PARTS_A_PEER):
        file.hear([front("a", ONE, Mark(step=step, plan=3))], REPLICAS_OF)
        assert len((tmp_path / NAME).read_bytes().splitlines()) <= 2 * PARTS_A_PEER
    assert set(StateVoteFile(tmp_path, SWARM).votes) == set(file.votes)


@pytest.mark.parametrize(
    "vote",
    [
        front("a").model_copy(update={"digest": TWO}),
        front("a").model_copy(update={"peer": B}),
        front("a").model_copy(update={"mark": Mark(step=11, plan=3)}),
        vote_on("a", MARK, FRONT, ONE, swarm=OTHER_SWARM),
    ],
    ids=["another digest", "in another's name", "of another step", "of another swarm"],
)
def test_nobody_can_vote_for_another(tmp_path: Path, vote: StateVote) -> None:
    """Whoever brings a vote: it counts by the voter's own signature."""
    file = StateVoteFile(tmp_path, SWARM)
    file.hear([vote], REPLICAS_OF)
    assert list(file.votes) == []
    assert not (tmp_path / NAME).exists()
