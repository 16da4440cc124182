"""What peers say that they hold counts as far as signed plans and commits bear it out; each lie is named."""

import logging
from pathlib import Path

import pytest

from dtfm_coordinator.plan_change.commit_signatures import is_signed
from dtfm_coordinator.plan_change.judged_holdings import AHEAD, Copy, Judged, Refusal, judge
from dtfm_coordinator.plan_change.refused_claims import RefusedClaims
from dtfm_coordinator.plan_change.resume_point import resume_from, safe_mark
from dtfm_node.engine.signed_ballots import SignedBallots
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark, PeerState
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.voted_step import VotedStep
from tests.coordinator.peers import Peers
from tests.harness.named_peers import id_of, signer_of, vote_on
from tests.protocol.test_lineage import at, plan_after

SWARM, LAYERS = "swarm", 4
FRONT, BACK, WHOLE = (0, 2), (2, 4), (0, 4)
IDENTITIES = {name: Identity.generate() for name in "abxyz"}
A, B, X, Y, Z = (IDENTITIES[name].peer_id for name in "abxyz")
FIRST = plan_after(None, 1, Mark(), (A, X), (B, X))
SECOND = plan_after(FIRST, 2, at(5, 1), (Y, X), shadows=(Z, None))
"""The newest plan; its arbiter is y."""


def final(mark: Mark, by: str, norm: float = 0.5, swarm: str = SWARM) -> SignedCommit:
    signer = next(one for one in IDENTITIES.values() if one.peer_id == by)
    return SignedCommit.made(signer, swarm, mark.plan, mark.step, Commit(grad_norm=norm))


def live(mark: Mark, layers: LayerRange, commit: SignedCommit | None = None, prepared: Mark | None = None) -> Holding:
    return Holding(mark=mark, layers=layers, live=True, commit=commit, prepared=prepared)


def disk(mark: Mark, layers: LayerRange, commit: SignedCommit | None = None) -> Holding:
    return Holding(mark=mark, layers=layers, commit=commit)


def signed(commit: SignedCommit, arbiter: str) -> bool:
    return is_signed(SWARM, commit, arbiter)


def judged(plan: Plan, voted: int = 0, **held: Holding) -> Judged:
    standings = {IDENTITIES[name].peer_id: PeerState(holdings=(one,)) for name, one in held.items()}
    return judge(standings, plan.chain, signed, voted)


def resumed(plan: Plan, **held: Holding) -> Resume:
    return resume_from(judged(plan, **held).copies, {}, LAYERS, plan.chain)


def test_the_newest_plans_states_count_with_a_commit_that_its_arbiter_signed() -> None:
    commit = final(at(7, 2), Y)
    found = judged(SECOND, y=live(at(7, 2), FRONT, commit), x=disk(at(7, 2), BACK, commit))
    assert found == Judged((Copy(Y, at(7, 2), FRONT, live=True, commit=commit), Copy(X, at(7, 2), BACK, commit=commit)))


LIES: dict[str, tuple[Holding, str]] = {
    "a newer state, of which nobody knows": (live(at(10_000, 2), WHOLE), "layers 0 to 4, which no plan gave it"),
    "one of its own stage": (live(at(10_000, 2), BACK), "no commit"),
    "with a commit that it signed itself": (live(at(9, 2), BACK, final(at(9, 2), X)), "has not signed"),
    "with a commit of another step": (live(at(9, 2), BACK, final(at(8, 2), Y)), "has not signed"),
    "with a commit of another swarm": (live(at(9, 2), BACK, final(at(9, 2), Y, swarm="other")), "has not signed"),
    "of another plan": (live(at(9, 2), BACK, final(at(9, 1), A)), "has not signed"),
    "with other peers' layers": (live(at(9, 2), WHOLE, final(at(9, 2), Y)), "which no plan gave it"),
    "of an old plan, with its arbiter's word": (live(at(500, 1), BACK, final(at(500, 1), A)), "does not lie along"),
    "the step after the old plan's end": (live(at(6, 1), BACK, final(at(6, 1), A)), "does not lie along"),
    "of a plan that never was": (live(at(9, 3), BACK, final(at(9, 3), Y)), "does not lie along"),
    "of step 0 of a plan": (live(at(0, 1), BACK), "does not lie along"),
    "a norm that is not the arbiter's, for an old state": (
        disk(at(4, 1), BACK, final(at(4, 1), X, norm=1e9)),
        "has not signed",
    ),
}


@pytest.mark.parametrize(("claim", "why"), LIES.values(), ids=LIES)
def test_what_a_liar_claims_is_not_gone_on_from_and_it_is_named(claim: Holding, why: str) -> None:
    commit = final(at(7, 2), Y)
    found = judged(SECOND, 7, y=live(at(7, 2), FRONT, commit), x=claim, z=disk(at(7, 2), FRONT, commit))
    assert {copy.peer for copy in found.copies} == {Y, Z}
    ((peer, mark, reason),) = found.refused
    assert (peer, mark) == (X, claim.mark)
    assert why in reason


def test_a_stranger_that_claims_everything_has_nothing_and_computes_nothing() -> None:
    """The attack that replaced the whole model: all layers of a newer state, from who is no peer of any plan."""
    everything = live(at(10_000, 2), WHOLE, final(at(10_000, 2), Z))
    commit = final(at(7, 2), Y)
    found = resumed(SECOND, z=everything, y=live(at(7, 2), FRONT, commit), x=live(at(7, 2), BACK, commit))
    assert found.mark == at(7, 2)
    assert {source.peer for source in found.sources} == {X, Y}
    assert found.commit == commit


def test_colluding_peers_of_an_old_plan_do_not_bring_back_what_they_trained_privately() -> None:
    """All of them, its arbiter too, with genuine commits of steps that they made after the plan had ended."""
    private = final(at(900, 1), A)
    commit = final(at(7, 2), Y)
    held = {"a": live(at(900, 1), FRONT, private), "b": live(at(900, 1), FRONT, private)}
    standings = {IDENTITIES[name].peer_id: PeerState(holdings=(one,)) for name, one in held.items()}
    standings[X] = PeerState(holdings=(live(at(900, 1), BACK, private), disk(at(7, 2), BACK, commit)))
    standings[Y] = PeerState(holdings=(live(at(7, 2), FRONT, commit),))
    found = judge(standings, SECOND.chain, signed)
    assert {refusal.peer for refusal in found.refused} == {A, B, X}
    assert resume_from(found.copies, {}, LAYERS, SECOND.chain).mark == at(7, 2)


def test_an_arbiter_that_holds_the_whole_model_is_believed_up_to_the_step_to_which_another_has_come() -> None:
    one_stage = plan_after(SECOND, 3, at(7, 2), (Y,), (X,))
    told = {step: live(at(step, 3), WHOLE, final(at(step, 3), Y)) for step in (8, 9, 500)}
    waits = live(at(8, 3), WHOLE, final(at(8, 3), Y), prepared=at(9, 3))
    assert resumed(one_stage, y=told[9], x=waits).mark == at(9, 3), "x holds the gradients of that step, and has voted"
    found = judged(one_stage, y=told[500], x=waits, z=disk(at(500, 3), WHOLE, final(at(500, 3), Y)))
    assert {copy.mark for copy in found.copies if not copy.is_prepared} == {at(8, 3)}
    assert {refusal.why for refusal in found.refused if refusal.peer == Y} == {AHEAD}
    assert judged(one_stage, y=told[9]).copies == (), "x is gone, and nothing proves that it had voted"
    assert [copy.mark for copy in judged(one_stage, 9, y=told[9]).copies] == [at(9, 3)], "x is gone; its vote is not"
    assert judged(one_stage, 9, y=told[500]).copies == ()
    alone = plan_after(SECOND, 3, at(7, 2), (Y,))
    assert [copy.mark for copy in judged(alone, y=told[500]).copies] == [at(500, 3)], "its word is all that there is"


def test_states_of_closed_plans_need_no_commit_up_to_their_end() -> None:
    found = resumed(SECOND, b=disk(at(4, 1), FRONT), x=disk(at(4, 1), BACK))
    assert (found.mark, found.commit) == (at(4, 1), None)


def test_what_a_peer_has_loaded_for_a_plan_counts_before_that_has_made_a_step() -> None:
    found = resumed(SECOND, y=live(at(5, 1), FRONT), x=live(at(5, 1), BACK))
    assert found.mark == at(5, 1)


def test_gradients_are_applied_where_a_genuine_commit_says_that_their_step_was_final() -> None:
    lags = live(at(7, 2), FRONT, final(at(7, 2), Y), prepared=at(8, 2))
    found = resumed(SECOND, y=lags, x=live(at(8, 2), BACK, final(at(8, 2), Y)))
    assert (found.mark, found.commit) == (at(8, 2), final(at(8, 2), Y))
    alone = resumed(SECOND, y=lags, x=live(at(7, 2), BACK, final(at(7, 2), Y), prepared=at(8, 2)))
    assert alone.mark == at(7, 2), "whether it became final, nobody can say"
    made_up = live(at(8, 2), BACK, final(at(8, 2), X, norm=1e9))
    assert resumed(SECOND, y=lags, x=made_up) == Resume(), "its liar only takes away what it holds itself"


def test_gradients_of_layers_that_a_peer_did_not_train_under_that_plan_are_made_up() -> None:
    loaded = plan_after(SECOND, 3, at(7, 2), (X, Y))
    claim = live(at(7, 2), FRONT, prepared=at(8, 2))  # x has loaded the front for the third plan, and trained the back
    found = judged(loaded, x=claim)
    assert found.copies == (Copy(X, at(7, 2), FRONT, live=True),)


def test_an_arbiter_that_signs_two_commits_of_a_step_is_named_and_one_of_them_counts() -> None:
    one, other = final(at(8, 2), Y, norm=0.25), final(at(8, 2), Y, norm=4.0)
    standings = {
        Y: PeerState(holdings=(live(at(8, 2), FRONT, one),)),
        X: PeerState(holdings=(live(at(8, 2), BACK, one),)),
        Z: PeerState(holdings=(disk(at(8, 2), FRONT, other),)),
    }
    found = judge(standings, SECOND.chain, signed)
    assert {copy.peer for copy in found.copies} == {X, Y}
    assert found.refused == (Refusal(Y, at(8, 2), "as the arbiter it signed two commits of this step"),)
    after = plan_after(SECOND, 3, at(8, 2), (Y, X), resume=Resume(mark=at(8, 2), commit=other))
    later = judge(standings, after.chain, signed)
    assert {copy.peer for copy in later.copies} == {Z}, "a plan has gone on from the other one"
    assert [refusal.peer for refusal in later.refused] == [Y]


def test_without_a_plan_to_follow_nothing_that_peers_say_counts_and_the_checkpoint_does() -> None:
    copies = judge({X: PeerState(holdings=(live(at(7, 2), WHOLE, final(at(7, 2), Y)),))}, Chain(), signed).copies
    assert copies == ()
    assert resume_from(copies, {"c": [at(3, 1)]}, LAYERS, Chain()).mark == at(3, 1)


@pytest.mark.parametrize(
    ("kept", "counts"),
    [(at(4, 1), True), (at(5, 1), True), (at(6, 1), False), (at(7, 2), True), (at(9, 4), False)],
)
def test_a_coordinators_own_checkpoint_counts_where_it_lies_along_the_chain(kept: Mark, counts: bool) -> None:
    assert (resume_from((), {"c": [kept]}, LAYERS, SECOND.chain) != Resume()) is counts


def test_a_checkpoint_from_before_the_chain_is_not_given_up() -> None:
    plan = FIRST
    for version in range(2, 30):
        plan = plan_after(plan, version, at(version, version - 1), (A, X))
    assert resume_from((), {"c": [at(2, 1)]}, LAYERS, plan.chain).mark == at(2, 1)


def test_copies_that_do_not_count_make_no_state_safe() -> None:
    commit = final(at(7, 2), Y)
    found = judged(SECOND, y=disk(at(7, 2), FRONT, commit), z=disk(at(7, 2), FRONT, commit), x=disk(at(7, 2), BACK))
    assert safe_mark(found.copies, [], LAYERS) == Mark()
    lies = judged(SECOND, a=disk(at(9, 2), WHOLE), b=disk(at(9, 2), WHOLE))
    assert safe_mark(lies.copies, [at(3, 1)], LAYERS) == at(3, 1), "honest checkpoints would be pruned"


def test_a_signature_is_checked_once() -> None:
    commit = final(at(31, 2), Y)
    before = is_signed.cache_info().misses
    assert [is_signed(SWARM, commit, Y) for _ in range(5)] == [True] * 5
    assert is_signed.cache_info().misses == before + 1
    assert not is_signed(SWARM, commit, X)


def test_what_is_not_believed_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    claims = RefusedClaims()
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            claims.note([Refusal(X, at(step, 2), "no commit"), Refusal(Y, at(step, 2), "no commit")])
    assert claims.counts == {X: 3, Y: 3}
    assert len(caplog.messages) == 2
    claims.note(Refusal(f"peer-{number}", Mark(), "why") for number in range(2 * SEEN_LIMIT))
    assert len(claims.counts) == SEEN_LIMIT + 1
    assert claims.counts[""] == SEEN_LIMIT + 2


def test_no_line_names_an_honest_peer_for_what_it_held_before_the_run_went_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    claims = RefusedClaims()
    usual = judged(SECOND, x=live(at(9, 1), BACK)).refused
    assert [one.is_usual for one in usual] == [True]
    lie = judged(SECOND, a=live(at(7, 2), FRONT)).refused
    assert [one.is_usual for one in lie] == [False]
    with caplog.at_level(logging.DEBUG, logger="dtfm"):
        claims.note([*usual, *lie])
    assert [one.levelno for one in caplog.records] == [logging.DEBUG, logging.WARNING]
    assert claims.counts == {X: 1, A: 1}


@pytest.mark.parametrize("kind", ["proof", "hashed"])
async def test_a_coordinator_believes_an_arbiter_that_is_left_alone_as_far_as_votes_reach(
    kind: str, tmp_path: Path
) -> None:
    peers, swarm = Peers(tmp_path), ""
    a, b = (signer_of(name, swarm) for name in "ab")
    plan = Plan(version=3, stages=(WHOLE,), routes=((id_of("a"),), (id_of("b"),)))
    peers.state.plan = plan
    peers.listen(lambda peer, standing, taken: None, lambda plan: False)
    await peers.hello(id_of("a"))
    votes = [SignedBallots(one, 3).signed(Ballot.STEP, 9, Vote()) for one in (a, b)]
    hashed = (vote_on("b", at(9, 3), WHOLE, "1" * 64, swarm),)
    for voted, claimed, counts in ((9, 9, True), (9, 10, False), (10, 10, False)):
        commit = SignedCommit.made(a.identity, swarm, 3, claimed, Commit())
        holding = Holding(
            mark=at(claimed, 3), layers=WHOLE, live=True, commit=commit, votes=hashed if kind == "hashed" else ()
        )
        proof = VotedStep.of(3, 9, votes).model_copy(update={"step": voted}) if kind == "proof" else None
        await peers.report(id_of("a"), standing=PeerState(holdings=(holding,)), voted=proof)
        found = peers.state.judged(peers.state.standings, plan.chain)
        assert [copy.mark for copy in found] == [holding.mark] * counts, (voted, claimed)


async def test_an_arbiter_that_reports_a_step_before_the_others_do_is_not_said_to_be_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(tmp_path)
    plan = Plan(version=3, stages=((0, 2), (2, 4)), routes=((id_of("a"), id_of("x")),))
    peers.state.plan = plan
    peers.listen(lambda peer, standing, taken: None, lambda plan: False)
    for name, layers, step in (("a", FRONT, 9), ("x", BACK, 8)):
        await peers.hello(id_of(name))
        commit = SignedCommit.made(signer_of("a", "").identity, "", 3, step, Commit())
        holding = Holding(mark=at(step, 3), layers=layers, commit=commit)
        await peers.report(id_of(name), standing=PeerState(holdings=(holding,)))
    peers.state.is_safer()
    assert not peers.state.refused.counts
    assert not caplog.messages
    peers.state.judged(peers.state.standings, plan.chain)
    assert peers.state.refused.counts == {id_of("a"): 1}, "counted where a plan is to follow"
    assert not caplog.messages, "x may have been lost"
