"""The coordinator's checkpoints: whole once every stage and every replica has handed in, and only then."""

import asyncio
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.records.checkpoint_collector import KEPT, CheckpointCollector, mark_of
from dtfm_coordinator.records.state_votes import Pairs
from dtfm_protocol.checkpoint.shard import decode_tensor
from dtfm_protocol.checkpoint.transfers import Receipt
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.amendment import Amendment, Values
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.wire.stream import StreamClosed, read_message, write_message
from tests.coordinator.handed_in_shares import JOB, OWNER, PLAN, A, B, Swarm, X, Y, share_of, state, vote_of
from tests.harness.membership import SWARM


@given(order=st.permutations([A, B, X, Y]))
@settings(max_examples=24, deadline=None)
def test_a_checkpoint_is_kept_when_the_last_share_is_here_whatever_the_order(
    order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def run() -> None:
        swarm = Swarm(tmp_path_factory.mktemp("archive"))
        await swarm.give(*order[:-1])
        assert swarm.store.steps() == []
        assert swarm.kept == []
        await swarm.give(order[-1])
        assert swarm.store.steps() == [50]
        assert len(swarm.kept) == 1

    asyncio.run(run())


async def test_the_manifest_says_what_is_kept_of_whom(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X, Y)
    manifest = swarm.archive.newest()
    assert manifest == swarm.kept[0]
    assert (manifest.job, manifest.step, manifest.plan_version, manifest.eval_loss) == ("tiny", 50, 3, 1.5)
    assert manifest.config == JOB.config
    assert [(file.name, file.layers) for file in manifest.files] == [
        ("stage-0.safetensors", (0, 2)),
        ("stage-1.safetensors", (2, 4)),
    ]
    assert [set(replicas) for replicas in manifest.replicas] == [{A, B}, {X, Y}]
    assert all(len(set(replicas.values())) == 1 for replicas in manifest.replicas)


async def test_a_checkpoint_is_given_to_those_who_resume_from_it(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X, Y)
    mark = mark_of(swarm.kept[0])
    assert mark == Mark(step=50, plan=3)
    # The second one has just started, and has read nothing yet.
    for archive in (swarm.archive, CheckpointCollector(swarm.store, JOB, SWARM)):
        entries = await archive.catalogue(mark)
        wanted = {key: value for stage in range(2) for key, value in state(50, stage).items()}
        assert entries.keys() == wanted.keys()
        for key, value in wanted.items():
            size = entries[key].bytes
            pieces = [await archive.read(mark, key, offset, min(16, size - offset)) for offset in range(0, size, 16)]
            assert torch.equal(decode_tensor(entries[key], b"".join(piece or b"" for piece in pieces)), value)
        assert await archive.read(mark, "weight/none", 0, 1) is None


async def test_the_last_checkpoint_comes_from_a_plan_that_has_no_step_left_to_train(tmp_path: Path) -> None:
    """The one before has made its state, and ended before all had handed it in: else the run would never end."""
    last = Mark(step=JOB.training.steps, plan=3)
    plan = PLAN.model_copy(update={"version": 4, "resume": Resume(mark=last)})
    swarm = Swarm(tmp_path, plan)
    for peer in (A, B, X, Y):
        votes = (vote_of(peer, last.step, PLAN),)
        await swarm.give(peer, step=last.step, plan=plan, votes=votes)
    assert [mark_of(manifest) for manifest in swarm.kept] == [last]
    assert not (await swarm.hand_in(A, *share_of(A, last.step, plan=plan, votes=votes))).taken


async def test_only_the_state_that_was_asked_for_is_given(tmp_path: Path) -> None:
    """A step may have been run again under another plan: that is another state, whatever its step."""
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X, Y)
    for mark in (Mark(step=49, plan=3), Mark(step=51, plan=3), Mark(step=50, plan=2), Mark(step=50, plan=4)):
        assert await swarm.archive.catalogue(mark) == {}
    assert await swarm.archive.read(Mark(step=49, plan=3), "weight/layer.0", 0, 1) is None


async def test_a_checkpoint_that_was_damaged_is_not_given(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X, Y)
    file = tmp_path / "step-00000050" / "stage-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert await CheckpointCollector(swarm.store, JOB, SWARM).catalogue(Mark(step=50, plan=3)) == {}
    file.unlink()
    assert await swarm.archive.read(Mark(step=50, plan=3), "weight/layer.1", 0, 1) is None


async def test_replicas_that_differ_are_told_with_their_names_and_make_no_checkpoint(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    told: list[tuple[Pairs, str]] = []
    swarm.archive.when_disputed(lambda pairs, why: told.append((pairs, why)))
    await swarm.give(A, B, X)
    await swarm.give(Y, digest="f" * 64)
    (((pair,), fault),) = told
    assert set(pair) == {X, Y}
    assert "machines that compute the same layers hold different weights after step 50" in fault
    assert f"{short(Y)}: ffffffff" in fault
    assert f"{short(X)}: " in fault
    assert "\n" not in fault
    assert swarm.store.steps() == []
    assert swarm.kept == []


async def test_a_share_that_comes_twice_counts_once(tmp_path: Path) -> None:
    """A receipt may be lost on its way."""
    swarm = Swarm(tmp_path)
    await swarm.give(A, A, B, B, X)
    assert swarm.store.steps() == []
    await swarm.give(Y)
    assert swarm.store.steps() == [50]
    assert not (await swarm.hand_in(Y, *share_of(Y))).taken  # it is whole already
    assert len(swarm.kept) == 1


async def test_a_file_that_comes_again_and_breaks_off_takes_nothing_away(tmp_path: Path) -> None:
    """Shares are handed in again until the checkpoint is whole; one who never ends that would keep it from being so."""
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X)
    share, data = share_of(A)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    taking = asyncio.create_task(swarm.archive.take(at_owner))
    await write_message(ours, share)
    await ours.write(data[:-1])
    await read_message(ours, Receipt)
    await swarm.give(Y)
    assert swarm.store.steps() == [50]
    assert [mark_of(manifest).step for manifest in swarm.kept] == [50]
    await ours.close()
    with pytest.raises(StreamClosed):
        await taking


async def test_a_new_plan_drops_what_was_not_whole(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X)
    swarm.archive.expect(PLAN.model_copy(update={"version": 4}))
    assert list(tmp_path.iterdir()) == []
    assert not (await swarm.hand_in(Y, *share_of(Y))).taken
    assert swarm.store.steps() == []


async def test_a_hand_in_that_a_new_plan_overtakes_is_not_taken_and_breaks_nothing(tmp_path: Path) -> None:
    alone = Plan(version=3, stages=((0, 4),), routes=((A,),))
    swarm = Swarm(tmp_path, alone)
    share, data = share_of(A, plan=alone)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    taking = asyncio.create_task(swarm.archive.take(at_owner))
    await write_message(ours, share)
    await ours.write(data[:10])
    for _ in range(10):
        await asyncio.sleep(0)
    next_plan = alone.model_copy(update={"version": 4})
    swarm.archive.expect(next_plan)
    await ours.write(data[10:])
    await asyncio.wait([taking], timeout=5)
    assert taking.exception() is None or isinstance(taking.exception(), Refused)
    assert swarm.kept == []
    await swarm.give(A, plan=next_plan)
    assert swarm.store.steps() == [50]


async def test_a_newer_checkpoint_makes_an_unfinished_older_one_void_and_old_ones_go(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(A, step=10)
    for step in (20, 30, 40):
        await swarm.give(A, B, X, Y, step=step)
    assert swarm.store.steps() == [20, 30, 40][-KEPT:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000030", "step-00000040"]
    assert [manifest.step for manifest in swarm.kept] == [20, 30, 40]


async def test_shares_of_two_steps_may_come_mixed(tmp_path: Path) -> None:
    """A fast replica is a checkpoint ahead of a slow one."""
    swarm = Swarm(tmp_path)
    for step, peer in [(10, A), (10, X), (20, A), (10, B), (20, X), (20, B), (10, Y), (20, Y)]:
        await swarm.give(peer, step=step)
    assert [manifest.step for manifest in swarm.kept] == [10, 20]
    assert swarm.store.steps() == [10, 20]


async def test_the_metrics_that_come_with_a_share_are_told_before_the_checkpoint_is_kept(tmp_path: Path) -> None:
    """A checkpoint that is ahead of `metrics.jsonl` would leave a gap that no later row could close."""
    row = StepMetrics(
        step=50, loss=1.0, tokens=8, seconds=0.1, plan_version=3, learning_rate=1e-3, grad_norm=1.0,
        predicted_seconds=None,
    )  # fmt: skip
    swarm = Swarm(tmp_path)
    told: list[tuple[int, int]] = []
    swarm.archive.subscribe(lambda _: None, lambda rows: told.extend((each.step, len(swarm.kept)) for each in rows))
    await swarm.give(A, B, X, Y, rows=(row.model_dump(),))
    assert told == [(50, 0)] * 4
    assert len(swarm.kept) == 1


async def test_the_last_step_is_that_of_the_plan_and_what_is_owed_follows_its_amendments(tmp_path: Path) -> None:
    """More steps used to be refused as none of the job's."""
    longer = PLAN.model_copy(update={"amendments": (amendment(60, {"training.steps": 95, "checkpoint.every": 4}),)})
    swarm = Swarm(tmp_path, longer)
    assert (await swarm.hand_in(A, *share_of(A, JOB.training.steps + 5, plan=longer))).taken
    refused = await swarm.hand_in(A, *share_of(A, JOB.training.steps + 6, plan=longer))
    assert (refused.taken, refused.text) == (False, "the job has no such step")
    shorter = PLAN.model_copy(update={"version": 4, "amendments": (amendment(60, {"training.steps": 70}),)})
    swarm.archive.expect(shorter)
    refused = await swarm.hand_in(A, *share_of(A, 71, plan=shorter))
    assert (refused.taken, refused.text) == (False, "the job has no such step")


def amendment(from_step: int, values: Values) -> Amendment:
    return Amendment(number=1, from_step=from_step, values=values)
