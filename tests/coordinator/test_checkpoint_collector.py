"""The coordinator's checkpoints: whole once every stage and every replica has handed in, and only then."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_coordinator.records.checkpoint_collector import DRAFTS_A_PEER, KEPT, CheckpointCollector, mark_of
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.shard import decode_tensor, describe_shard, encode_shard, tensor_entry
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, HandIn, Receipt, hand_in
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Model, Planning, Training
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.wire.stream import Stream, StreamClosed, write_message
from tests.harness.membership import SWARM
from tests.harness.named_peers import id_of, vote_on

OWNER = "owner"
NAMES = {id_of(name): name for name in "abxy"}
A, B, X, Y = NAMES
ROUTES = ((A, X), (B, Y))
PLAN = Plan(version=3, stages=((0, 2), (2, 4)), routes=ROUTES)
SMALL = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
JOB = ResolvedJob(
    name="tiny",
    config=resolve_config(Model.model_validate({"architecture": "llama", **SMALL}), vocab_size=17, sequence_length=8),
    corpus=Corpus(dtype="uint16", vocab_size=17, shards=(Shard(sha256="0" * 64, tokens=1000),)),
    training=Training(steps=90, global_batch=2, micro_batch=1, sequence_length=8, learning_rate=1e-3),
    evaluation=Evaluation(),
    plan=Planning(),
    checkpoint=Checkpointing(),
)


def state(step: int, stage: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + stage)
    return {f"{kind}/layer.{stage}": torch.randn(3, 5, generator=generator) for kind in ("weight", "exp_avg")}


def share_of(
    peer: str, step: int = 50, data: bytes | None = None, plan: Plan = PLAN, **change: Any
) -> tuple[HandIn, bytes]:
    """What `peer` hands in: each replica a digest, the first of each stage the file."""
    stage = plan.stage_of(peer) or 0
    if data is None:
        data = encode_shard(state(step, stage)) if plan.replicas(stage)[0] == peer else b""
    values = {
        "step": step,
        "plan_version": plan.version,
        "stage": stage,
        "digest": hashlib.sha256(f"{step} {stage}".encode()).hexdigest(),
        "eval_loss": 1.5,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest() if data else None,
        "votes": (vote_of(peer, step, plan),),
    }
    return HandIn.model_validate(values | change), data


def vote_of(peer: str, step: int = 50, plan: Plan = PLAN, digest: str | None = None) -> StateVote:
    """A peer's vote on its stage's part of the state, on what `state` draws unless a digest is given."""
    stage = plan.stage_of(peer) or 0
    hashes = {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in state(step, stage).items()}
    return vote_on(
        NAMES.get(peer, peer),
        Mark(step=step, plan=plan.version),
        plan.stages[stage],
        digest or digest_of_state(hashes),
    )


class Swarm:
    """An archive on a network, and what it said."""

    def __init__(self, folder: Path, plan: Plan | None = PLAN) -> None:
        self.store = CheckpointStore(folder)
        self.kept: list[Manifest] = []
        self.archive = CheckpointCollector(self.store, JOB, SWARM)
        self.archive.subscribe(self.kept.append, lambda _: None)
        self.refused: list[str] = []
        self._network = MemoryNetwork()
        if plan is not None:
            self.archive.expect(plan)

    async def take(self, stream: Stream) -> None:
        try:
            await self.archive.take(stream)
        except Refused as error:
            self.refused.append(str(error))
            raise

    async def hand_in(self, peer: str, share: HandIn, data: bytes) -> Receipt:
        await MemoryDataPlane(self._network, OWNER).serve(CHECKPOINT, self.take)
        return await asyncio.wait_for(hand_in(MemoryDataPlane(self._network, peer), OWNER, share, data), 30)

    async def give(self, *peers: str, **change: Any) -> None:
        """Hand in for each of `peers` what belongs to it."""
        for peer in peers:
            assert (await self.hand_in(peer, *share_of(peer, **change))).taken


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


async def test_replicas_that_differ_are_a_fault_that_names_them_and_no_checkpoint(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(A, B, X)
    await swarm.give(Y, digest="f" * 64)
    fault = swarm.archive.fault
    assert fault is not None
    assert "replicas of stage 1 hold different weights after step 50" in fault
    assert f"{short(Y)}: ffffffff" in fault
    assert f"{short(X)}: " in fault
    assert "\n" not in fault
    assert swarm.store.steps() == []
    assert swarm.kept == []


@pytest.mark.parametrize(
    ("peer", "change"),
    [
        ("stranger", {}),
        (A, {"stage": 1}),
        (Y, {"stage": 0}),
        (A, {"plan_version": 2}),
        (A, {"plan_version": 4}),
        (A, {"stage": 7}),
    ],
)
async def test_what_is_not_from_a_stage_of_the_plan_in_force_is_not_taken(
    tmp_path: Path, peer: str, change: dict[str, Any]
) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    share, data = share_of(peer)
    receipt = await swarm.hand_in(peer, share.model_copy(update=change), data)
    assert not receipt.taken
    assert "no such stage" in receipt.text
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_before_there_is_a_plan_nothing_is_taken(tmp_path: Path) -> None:
    """A coordinator that has just returned gives no answer, so that the peer keeps its share and tries again."""
    swarm = Swarm(tmp_path, plan=None)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, *share_of(A))
    swarm.archive.expect(PLAN)
    await swarm.give(A, B, X, Y)
    assert swarm.store.steps() == [50]


async def test_a_refusal_reaches_its_peer_also_when_the_file_is_large(tmp_path: Path) -> None:
    """Else a node offers the checkpoint of a plan that is over again and again, and waits for an answer for ever."""
    swarm = Swarm(tmp_path)
    share, data = share_of(A, data=bytes(5 << 20), plan_version=2)
    assert not (await swarm.hand_in(A, share, data)).taken


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, f"the file of stage 0 from {short(A)} has another hash"),
        ({"sha256": None}, f"the file of stage 0 from {short(A)} has another hash"),
        ({"size": 1 << 50}, f"{short(A)} offers {1 << 50} bytes for a stage"),
    ],
)
async def test_a_file_that_is_not_what_it_says_is_refused_and_leaves_nothing(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    share, data = share_of(A)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, share.model_copy(update=change), data)
    assert swarm.refused == [said]
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_a_file_that_breaks_off_is_not_counted_and_may_come_again(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    share, data = share_of(A)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    taking = asyncio.create_task(swarm.archive.take(at_owner))
    await write_message(ours, share)
    await ours.write(data[:-1])
    await ours.close()
    with pytest.raises(StreamClosed):
        await taking
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_what_is_no_safetensors_file_does_not_become_a_checkpoint(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, *share_of(A, data=b"no safetensors file"))
    assert "is not a safetensors file" in swarm.refused[0]
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_a_share_that_comes_twice_counts_once(tmp_path: Path) -> None:
    """A receipt may be lost on its way."""
    swarm = Swarm(tmp_path)
    await swarm.give(A, A, B, B, X)
    assert swarm.store.steps() == []
    await swarm.give(Y)
    assert swarm.store.steps() == [50]
    assert not (await swarm.hand_in(Y, *share_of(Y))).taken  # it is whole already
    assert len(swarm.kept) == 1


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


def on_disk(folder: Path) -> int:
    """Bytes of all that lies there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("steps", [range(1, 91), range(90, 0, -1)], ids=["upwards", "downwards"])
async def test_a_peer_that_hands_in_every_step_fills_no_disk_and_holds_nothing_up(tmp_path: Path, steps: range) -> None:
    swarm = Swarm(tmp_path)
    for step in steps:
        await swarm.hand_in(A, *share_of(A, step=step))
        assert len(list(tmp_path.iterdir())) <= DRAFTS_A_PEER
    assert on_disk(tmp_path) <= 2 * len(share_of(A)[1])
    await swarm.give(X, step=50)
    await swarm.give(B, step=50)
    await swarm.give(Y, step=50)
    assert swarm.kept == []  # it waits for whoever went on without it, as for anybody who is slow
    swarm.archive.expect(PLAN.model_copy(update={"version": 4}))
    assert list(tmp_path.iterdir()) == []


async def test_all_peers_that_hand_in_every_step_leave_no_more_than_each_its_own(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    for step in range(1, 91):
        for place, peer in enumerate((A, B, X)):
            await swarm.hand_in(peer, *share_of(peer, step=1 + (step + 30 * place) % 90))
    assert len(list(tmp_path.iterdir())) <= 3 * DRAFTS_A_PEER


async def test_what_a_peer_has_gone_past_counts_no_more_and_may_be_handed_in_by_the_others(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y, step=10)
    await swarm.give(A, step=20)
    await swarm.give(A, step=30)
    receipt = await swarm.hand_in(A, *share_of(A, step=10))
    assert (receipt.taken, receipt.text) == (False, "newer ones of this peer wait for the others")
    await swarm.give(B, X, Y, step=30)
    assert [manifest.step for manifest in swarm.kept] == [30]


@pytest.mark.parametrize(
    ("peer", "change", "why"),
    [
        (B, {"data": b"another file"}, "the file comes from the first replica of the stage"),
        (A, {"step": 91}, "the job has no such step"),
        (A, {"step": (1 << 32) - 1}, "the job has no such step"),
    ],
)
async def test_what_no_honest_peer_hands_in_is_not_written(
    tmp_path: Path, peer: str, change: dict[str, Any], why: str
) -> None:
    """A replica could write its own file over the one that the digests are of."""
    swarm = Swarm(tmp_path)
    receipt = await swarm.hand_in(peer, *share_of(peer, **change))
    assert (receipt.taken, receipt.text) == (False, why)
    assert not tmp_path.exists() or list(tmp_path.iterdir()) == []


async def test_a_peer_sends_one_file_at_a_time(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    share, data = share_of(A)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    taking = asyncio.create_task(swarm.archive.take(at_owner))
    await write_message(ours, share)
    await ours.write(data[:-1])
    for _ in range(10):
        await asyncio.sleep(0)
    receipt = await swarm.hand_in(A, *share_of(A, step=60))
    assert (receipt.taken, receipt.text) == (False, "another file of this peer is on its way")
    await ours.close()
    with pytest.raises(StreamClosed):
        await taking
    await swarm.give(A, B, X, Y)
    assert swarm.store.steps() == [50]


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
    why = f"{short(A)} hands in a file of stage 0 that is not what it has signed"
    assert accused == [(A, why)]
    assert swarm.refused == [why]
    assert (swarm.kept, swarm.store.steps(), swarm.archive.fault) == ([], [], None)
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
    data = false_file()
    _, entries = describe_shard("x.safetensors", data)
    vote = vote_of(A, digest=digest_of_state({key: entry.sha256 for key, entry in entries.items()}))
    assert (await swarm.hand_in(A, *share_of(A, data=data, votes=(vote,)))).taken
    await swarm.give(B, X, Y)
    fault = swarm.archive.fault
    assert fault is not None
    assert "the replicas of stage 0 hold different states after step 50" in fault
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
