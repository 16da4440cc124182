"""Sets for evaluation: any plan says of each what one process says, and nobody can say what is not there."""

from pathlib import Path
from typing import Any

import pytest

from dtfm_node.commands.solo import Solo
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.step_arbiter import Arbiter
from dtfm_protocol.bounds import MOST_INT64
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.evaluation_set import MOST_SETS
from dtfm_protocol.job.job_file import Evaluation
from dtfm_protocol.job.resolved_job import HeldOutSet, ResolvedJob
from dtfm_protocol.plan.ballot import Ballot, Commit, SetSums, Vote
from dtfm_protocol.plan.signed_commit import COMMIT_LIMIT
from dtfm_protocol.schema import needs_of
from tests.node.engine_reference import assert_same_training, result_of
from tests.node.engine_swarm import CPU, Result, Swarm, home, job_of, one_thread, plan_of
from tests.node.packed_jobs import LENGTH, packed_job

__all__ = ["home", "one_thread"]  # fixtures

LAST = 4
MICRO_BATCHES: tuple[dict[int, int], ...] = ({0: 10, 1: 6}, {2: 8})
"""Of two sets, the targets of each micro-batch."""
DUE: dict[str, tuple[int, ...]] = {"a": (), "x": (0, 2), "y": (1,)}


def with_sets(job: ResolvedJob, start: int) -> ResolvedJob:
    """The job with two sets at the end of its corpus, of 5 windows and of 3."""
    behind = 0 if job.corpus.samples is not None else 1
    sets = (
        HeldOutSet(name="near", start=start, windows=5),
        HeldOutSet(name="far", start=start + 5 * LENGTH + behind, windows=3),
    )
    job = job.model_copy(
        update={
            "corpus": job.corpus.model_copy(update={"held_out": sets}),
            "evaluation": Evaluation(every=2, sequences=5),
        }
    )
    return ResolvedJob.model_validate(job.model_dump())


def set_job(home: Path, kind: str) -> ResolvedJob:
    if kind == "packed":
        return with_sets(packed_job(home), 80 * LENGTH)
    return with_sets(job_of(home), 1301)


def alone(home: Path, job: ResolvedJob, name: str) -> Result:
    folder = home / f"sets-{name.replace(' ', '-')}"
    folder.mkdir()
    (folder / "tokens").symlink_to(home / "tokens")
    return result_of(Solo(job, folder, CPU), folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["packed", "stream"])
@pytest.mark.parametrize("name", ["2x2", "uneven shares", "crossed routes"])
async def test_any_plan_says_of_each_set_what_one_process_does(home: Path, kind: str, name: str) -> None:
    job = set_job(home, kind)
    wanted = alone(home, job, f"{kind}-{name}")
    found = await Swarm(home, job, plan_of(name)).run(last=job.training.steps)
    assert_same_training(found, wanted, 1e-5)
    for ours, theirs in zip(found.rows, wanted.rows, strict=True):
        assert [one.name for one in ours.sets] == (["near", "far"] if ours.step % 2 == 0 else [])
        for one, other in zip(ours.sets, theirs.sets, strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-5)
            assert one.perplexity == pytest.approx(other.perplexity, rel=1e-4)
            assert (one.accuracy, one.tokens) == (other.accuracy, other.tokens)
        if ours.sets:
            together = sum(one.loss * one.tokens for one in ours.sets) / sum(one.tokens for one in ours.sets)
            assert ours.eval_loss == pytest.approx(together, rel=1e-9)
    counted = [one.tokens for one in wanted.rows[1].sets]
    assert counted == [5 * LENGTH, 3 * LENGTH] if kind == "stream" else all(n < 5 * LENGTH for n in counted)
    assert any(one.accuracy for row in wanted.rows for one in row.sets)
    assert wanted.rows[1].sets[0].loss != wanted.rows[1].sets[1].loss


@pytest.mark.slow
async def test_sets_change_nothing_of_what_is_trained(home: Path) -> None:
    """The same windows are held out without names; each set's loss is that of its windows."""
    job = set_job(home, "packed")
    rows = alone(home, job, "with").rows
    assert rows[0].loss == alone(home, job.model_copy(update={"evaluation": Evaluation()}), "without").rows[0].loss


@pytest.mark.parametrize(
    ("votes", "why"),
    [
        ({"right": {}}, "counts that are not due"),
        ({"right": {0: 1, 1: 1}}, "counts that are not due"),
        ({"right": {0: 11, 2: 0}}, "more foretold tokens than there are"),
    ],
)
def test_a_vote_counts_just_its_own_micro_batches_and_no_more_than_their_targets(
    votes: dict[str, Any], why: str
) -> None:
    arbiter = Arbiter(DUE, ballot=Ballot.EVALUATION, sets=MICRO_BATCHES)
    with pytest.raises(Refused, match=why):
        arbiter.take("x", Vote(losses={0: 1.0, 2: 2.0}, **votes))
    assert arbiter.votes == {}


def test_without_sets_no_counts_are_due_and_none_are_written() -> None:
    with pytest.raises(Refused, match="counts that are not due"):
        Arbiter(DUE).take("y", Vote(losses={1: 1.0}, right={1: 1}))
    assert "right" not in Vote(losses={1: 1.0}).model_dump_json()
    assert "sets" not in Commit(loss=1.0).model_dump_json()


def test_a_commit_of_the_most_sets_fits_into_its_frame() -> None:
    sums = SetSums(loss=-1.2345678901234567e19, right=MOST_INT64)
    digest = "a" * 64
    numbers = {"grad_norm": 1.2345678901234567e19, "seconds": 1.2345678901234567e8, "bytes_sent": MOST_INT64}
    commit = Commit(loss=sums.loss, **numbers, sets=(sums,) * MOST_SETS, votes=digest, before=digest)
    assert len(commit.model_dump_json()) <= COMMIT_LIMIT


def test_a_commit_has_the_sums_of_each_set() -> None:
    arbiter = Arbiter(DUE, ballot=Ballot.EVALUATION, sets=MICRO_BATCHES)
    assert arbiter.take("x", Vote(losses={0: 1.0, 2: 2.0}, right={0: 10, 2: 3})) is None
    assert arbiter.take("a", Vote()) is None
    commit = arbiter.take("y", Vote(losses={1: 4.0}, right={1: 6}))
    assert commit == Commit(loss=7.0, sets=(SetSums(loss=5.0, right=16), SetSums(loss=2.0, right=3)))


@pytest.mark.slow
@pytest.mark.parametrize("sets", [(), (SetSums(loss=1.0, right=0),), (SetSums(loss=1.0, right=10**6),) * 2])
async def test_an_arbiter_that_says_of_sets_what_cannot_be_is_lost(
    home: Path, sets: tuple[SetSums, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, take = set_job(home, "stream"), Arbiter.take

    def lie(self: Arbiter, peer: str, vote: Vote) -> Commit | None:
        commit = take(self, peer, vote)
        return commit.model_copy(update={"sets": sets}) if commit is not None and commit.sets else commit

    monkeypatch.setattr(Arbiter, "take", lie)
    swarm = Swarm(home, job, plan_of("1x2"))
    with pytest.raises(BaseExceptionGroup) as caught:
        await swarm.run(last=LAST)
    found = caught.value.split(PeerLost)[0]
    assert found is not None


def test_a_job_with_sets_is_refused_by_who_does_not_know_them(home: Path) -> None:
    job = set_job(home, "stream")
    assert "corpus.held_out" in needs_of(job)
    assert "held_out" not in job_of(home).model_dump_json()


@pytest.mark.parametrize(
    "sets",
    [
        (HeldOutSet(name="a", start=1301, windows=5), HeldOutSet(name="a", start=1400, windows=1)),
        (HeldOutSet(name="a", start=1301, windows=5), HeldOutSet(name="b", start=1310, windows=1)),
        (HeldOutSet(name="a", start=1301, windows=13),),
        (HeldOutSet(name="a", start=0, windows=1),),
    ],
)
def test_sets_that_overlap_or_lie_outside_the_corpus_are_refused(home: Path, sets: tuple[HeldOutSet, ...]) -> None:
    job = job_of(home)
    job = job.model_copy(update={"corpus": job.corpus.model_copy(update={"held_out": sets})})
    with pytest.raises(ValueError, match=r"corpus\.held_out"):
        ResolvedJob.model_validate(job.model_dump())
