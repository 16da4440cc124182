"""A vote on a state is over all its tensors, and is its voter's alone."""

from typing import Any

import pytest
from pydantic import ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.model.tied_embeddings import kept_names, shared_names
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.peer_state import Holding
from dtfm_protocol.plan.state_vote import MOST_VOTES, StateVote, digest_of_state, vote_of
from tests.harness.membership import OTHER_SWARM, SWARM
from tests.harness.named_peers import id_of, vote_on
from tests.protocol.test_stage import CPU, LAYERS, config_of

MARK, FRONT, DIGEST = Mark(step=50, plan=3), (0, 2), "0" * 64
VOTE = vote_on("a", MARK, FRONT, DIGEST)


def test_a_digest_is_over_keys_and_hashes_whatever_their_order() -> None:
    hashes = {"weight/a": "1" * 64, "weight/b": "2" * 64, "exp_avg/a": "3" * 64}
    digest = digest_of_state(hashes)
    assert digest_of_state(dict(reversed(hashes.items()))) == digest
    changes: list[dict[str, str]] = [
        hashes | {"exp_avg/a": "4" * 64},
        {key: value for key, value in hashes.items() if key != "exp_avg/a"},
        hashes | {"exp_avg/b": "3" * 64},
        hashes | {"weight/a": "2" * 64, "weight/b": "1" * 64},
    ]
    assert len({digest, *map(digest_of_state, changes)}) == 5


def test_a_vote_is_genuine_in_its_swarm_and_survives_its_way() -> None:
    StateVote.model_validate_json(VOTE.model_dump_json()).check(SWARM)
    with pytest.raises(Refused):
        VOTE.check(OTHER_SWARM)


@pytest.mark.parametrize(
    "change",
    [
        {"peer": id_of("b")},
        {"peer": "nobody"},
        {"mark": Mark(step=51, plan=3)},
        {"mark": Mark(step=50, plan=4)},
        {"layers": (0, 3)},
        {"layers": (1, 2)},
        {"digest": "1" * 64},
        {"signature": "0" * 128},
    ],
)
def test_a_vote_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        VOTE.model_copy(update=change).check(SWARM)


def test_of_the_votes_that_came_the_givers_own_counts() -> None:
    votes = (vote_on("b", MARK, FRONT, DIGEST), vote_on("a", Mark(step=40, plan=3), FRONT, DIGEST), VOTE)
    assert vote_of(votes, id_of("a"), MARK, FRONT, SWARM) == VOTE
    for who, mark, layers in (("c", MARK, FRONT), ("a", Mark(step=60, plan=3), FRONT), ("a", MARK, (2, 4))):
        with pytest.raises(Refused, match="no vote of its own"):
            vote_of(votes, id_of(who), mark, layers, SWARM)


def test_a_message_brings_a_bounded_number_of_votes() -> None:
    with pytest.raises(ValidationError):
        Holding.model_validate({"mark": MARK, "layers": FRONT, "votes": [VOTE.model_dump()] * (MOST_VOTES + 1)})


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_what_stages_keep_is_the_whole_model_and_nothing_twice(tied: bool) -> None:
    config = config_of("llama", tie_word_embeddings=tied)
    parts = [kept_names(config, layers) for layers in ((0, 2), (2, LAYERS))]
    whole = frozenset(build_stage(config, 0, LAYERS, CPU).named_state())
    assert kept_names(config, (0, LAYERS)) == whole
    assert parts[0] | parts[1] == whole
    assert parts[0] & parts[1] == frozenset()
    assert bool(shared_names(config)) == tied
