"""Votes that come with shares of checkpoints: a file that is not what its giver has signed names its giver."""

from pathlib import Path

import pytest

from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_coordinator.records.state_votes import Pairs
from dtfm_protocol.checkpoint.shard import describe_shard, encode_shard
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.wire.stream import StreamClosed
from tests.coordinator.handed_in_shares import JOB, PLAN, A, B, Swarm, X, Y, share_of, state, vote_of
from tests.harness.membership import SWARM
from tests.harness.named_peers import vote_on


def false_file(step: int = 50, stage: int = 0) -> bytes:
    """A file of the right form, with other values than the replicas hold."""
    return encode_shard({key: value + 1e-3 for key, value in state(step, stage).items()})


async def test_a_false_file_under_the_honest_digest_names_its_giver_and_is_not_kept(tmp_path: Path) -> None:
    """All replicas vote for what they hold, and the first one hands in something else."""
    swarm = Swarm(tmp_path)
    accused: list[tuple[str, str]] = []
    swarm.archive.when_accused(lambda peer, why: accused.append((peer, why)))
    await swarm.give(B, X, Y)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, *share_of(A, data=false_file()))
    why = f"{short(A)} hands in a part of the model that is not what it has signed"
    assert accused == [(A, why)]
    assert swarm.refused == [why]
    assert (swarm.kept, swarm.store.steps()) == ([], [])
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_a_moment_that_was_changed_is_found_though_all_weights_are_right(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    accused: list[str] = []
    swarm.archive.when_accused(lambda peer, why: accused.append(peer))
    tensors = state(50, 0)
    tensors["exp_avg/layer.0"] = tensors["exp_avg/layer.0"] * 2
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, *share_of(A, data=encode_shard(tensors)))
    assert accused == [A]


async def test_a_false_file_that_its_giver_has_signed_contradicts_the_other_replicas(tmp_path: Path) -> None:
    """Then the votes differ: which replica lies nobody can tell, and no checkpoint is made of it."""
    swarm = Swarm(tmp_path)
    told: list[tuple[Pairs, str]] = []
    swarm.archive.when_disputed(lambda pairs, why: told.append((pairs, why)))
    data = false_file()
    _, entries = describe_shard("x.safetensors", data)
    vote = vote_of(A, digest=digest_of_state({key: entry.sha256 for key, entry in entries.items()}))
    assert (await swarm.hand_in(A, *share_of(A, data=data, votes=(vote,)))).taken
    await swarm.give(B, X, Y)
    (((pair,), fault),) = told
    assert set(pair) == {A, B}
    assert "machines that compute the same layers hold different states after step 50" in fault
    assert f"{short(A)}: {vote.digest[:8]}" in fault
    assert f"{short(B)}: " in fault
    assert (swarm.kept, swarm.store.steps()) == ([], [])


@pytest.mark.parametrize(
    "votes",
    [
        (),
        (vote_of(B),),
        (vote_of(A, step=40),),
        (vote_of(A, plan=PLAN.model_copy(update={"version": 2})),),
        (vote_of(A).model_copy(update={"digest": "f" * 64}),),
        (vote_of(B).model_copy(update={"peer": A}),),
        (vote_on("a", Mark(step=50, plan=3), (0, 2), "f" * 64, swarm="f" * 16),),
    ],
    ids=[
        "none",
        "another's",
        "of another step",
        "of another plan",
        "changed",
        "another's signature",
        "another swarm's",
    ],
)
async def test_a_share_without_its_givers_own_vote_is_refused(tmp_path: Path, votes: tuple[StateVote, ...]) -> None:
    swarm = Swarm(tmp_path)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, *share_of(A, votes=votes))
    assert len(swarm.refused) == 1
    assert not tmp_path.exists() or list(tmp_path.iterdir()) == []
    await swarm.give(A, B, X, Y)
    assert swarm.store.steps() == [50]


async def test_the_votes_that_come_with_shares_are_told(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    told: list[StateVote] = []
    swarm.archive.subscribe(lambda _: None, lambda _: None, told.extend)
    await swarm.give(A, B, X, Y)
    assert told == [vote_of(peer) for peer in (A, B, X, Y)]


async def test_a_checkpoint_tells_the_digests_that_its_replicas_signed(tmp_path: Path) -> None:
    """Who resumes from it compares all sources with that, after a restart of the coordinator too."""
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X, Y)
    wanted = [(vote.mark, vote.layers, vote.digest) for vote in (vote_of(A), vote_of(X))]
    again = CheckpointCollector(swarm.store, JOB, SWARM)
    again.newest()
    for archive in (swarm.archive, again):
        found = archive.certified(Mark(step=50, plan=3))
        assert [(one.mark, one.layers, one.digest) for one in found] == wanted
        assert archive.certified(Mark(step=50, plan=4)) == ()
