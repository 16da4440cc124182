"""That all have voted on a step is proved by their signatures, whoever shows them."""

import pytest
from pydantic import ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote
from dtfm_protocol.plan.signed_commit import SignedCommit, statement
from dtfm_protocol.plan.voted_step import VOTES_LIMIT, VotedStep
from tests.harness.membership import SWARM
from tests.harness.named_peers import id_of, signer_of

PLAN, STEP = 3, 7
PEERS = (id_of("a"), id_of("b"))


def cast(
    name: str, plan: int = PLAN, step: int = STEP, swarm: str = SWARM, ballot: Ballot = Ballot.STEP, size: int = 5
) -> bytes:
    """A vote as frames carry it."""
    text = Vote(bytes_sent=size).model_dump_json().encode()
    return signer_of(name).sign(statement("vote", swarm, plan, ballot, step, text)) + text


def test_the_votes_of_all_prove_their_step_and_no_other() -> None:
    voted = VotedStep.of(PLAN, STEP, [cast("a"), memoryview(cast("b", size=9))])
    voted.check(SWARM, PEERS)
    assert VotedStep.model_validate_json(voted.model_dump_json()) == voted
    for later in (voted.model_copy(update={"step": STEP + 1}), voted.model_copy(update={"plan": PLAN + 1})):
        with pytest.raises(Refused):
            later.check(SWARM, PEERS)
    with pytest.raises(Refused):
        voted.check("another", PEERS)


@pytest.mark.parametrize(
    "votes",
    [
        [cast("a")],
        [cast("a"), cast("a")],
        [cast("b"), cast("a")],
        [cast("a"), cast("b"), cast("b")],
        [cast("a"), cast("b", step=STEP - 1)],
        [cast("a"), cast("b", plan=PLAN - 1)],
        [cast("a"), cast("b", ballot=Ballot.EVALUATION)],
        [cast("a"), cast("b", swarm="another")],
        [cast("a"), cast("c")],
    ],
    ids=[
        "one is missing",
        "the same twice",
        "another order",
        "one too many",
        "an older step",
        "an older plan",
        "an evaluation",
        "another swarm",
        "a stranger",
    ],
)
def test_anything_else_proves_nothing(votes: list[bytes]) -> None:
    with pytest.raises(Refused):
        VotedStep.of(PLAN, STEP, votes).check(SWARM, PEERS)


def test_a_commit_is_no_vote() -> None:
    commit = SignedCommit.made(signer_of("b").identity, SWARM, PLAN, STEP, Commit())
    voted = VotedStep.of(PLAN, STEP, [cast("a"), bytes.fromhex(commit.signature) + commit.text.encode()])
    with pytest.raises(Refused):
        voted.check(SWARM, PEERS)


@pytest.mark.parametrize("votes", [("ab",), ("g" * 192,), ("0" * 192,) * (VOTES_LIMIT + 1)])
def test_what_is_no_signature_or_more_than_there_may_be_is_not_read(votes: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        VotedStep(plan=PLAN, step=STEP, votes=votes)
