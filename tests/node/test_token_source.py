"""Tokens of a step: fetched by hash from whoever has them, before the step is computed."""

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dtfm_node.runner.token_source import TokenSource
from dtfm_node.state.disk_budget import DiskBudget
from dtfm_protocol.checkpoint.transfers import SHARDS, TransferReply, WantShard, fetch_shard, serve_shards
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.sample_shards import SampleWriter
from dtfm_protocol.data.token_shards import ShardFolder, write_shards
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning, Training
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream, read_message, write_message

OWNER = "owner"
PLAN = Plan(
    version=1,
    stages=((0, 1), (1, 2), (2, 3)),
    routes=(("a", "m", "x"), ("b", "m", "y"), ("a", "m", "x"), ("b", "m", "x")),
)


@pytest.fixture
def job(tmp_path: Path) -> ResolvedJob:
    """A corpus of 32 shards of 64 tokens, all in the owner's folder."""
    corpus = write_shards(
        tmp_path / OWNER, [np.random.default_rng(3).integers(0, 250, 2048)], vocab_size=257, shard_bytes=128
    )
    training = Training(steps=20, global_batch=4, micro_batch=1, sequence_length=16, learning_rate=1e-3)
    return ResolvedJob(
        name="j",
        config={},
        corpus=corpus,
        training=training,
        evaluation=Evaluation(every=5, sequences=4),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )


@pytest.fixture
def marked(job: ResolvedJob, tmp_path: Path) -> ResolvedJob:
    """The same with samples; the last 15 tokens are of no window, and left out."""
    writer = SampleWriter(tmp_path / OWNER, 16, 64)
    tokens = np.random.default_rng(3).integers(0, 250, 2033)
    corpus = write_shards(tmp_path / OWNER, [tokens], vocab_size=257, shard_bytes=128)
    writer.add(np.random.default_rng(4).integers(0, 4, 2033).astype(np.uint8))
    return job.model_copy(update={"corpus": corpus.model_copy(update={"samples": writer.samples()})})


class Members:
    """Peers with a folder of shards each, and who was asked for what."""

    def __init__(self, job: ResolvedJob, home: Path) -> None:
        self.network, self.job, self.home = MemoryNetwork(), job, home
        self.asked: Counter[str] = Counter()

    def folder(self, peer: str) -> ShardFolder:
        return ShardFolder(self.home / peer)

    def source(self, peer: str, limit: float = float("inf")) -> TokenSource:
        """A source on a disk of so many bytes."""
        folder, budget = self.folder(peer), DiskBudget(limit)
        budget.counts(lambda: sum(folder.sizes().values()))
        plane = MemoryDataPlane(self.network, peer)
        return TokenSource(plane, self.job, folder, OWNER, retry_seconds=0.01, budget=budget)

    async def serve(self, peer: str) -> None:
        folder = self.folder(peer)

        def find(sha256: str) -> bytes | None:
            self.asked[peer] += 1
            return folder.path(sha256).read_bytes() if folder.has(sha256) else None

        await MemoryDataPlane(self.network, peer).serve(SHARDS, lambda stream: serve_shards(stream, find))

    def held(self, peer: str) -> set[int]:
        return {index for index, shard in enumerate(self.job.corpus.shards) if self.folder(peer).has(shard.sha256)}


def wanted(job: ResolvedJob, peer: str, step: int) -> set[int]:
    batches = Batches(job.corpus, job.training, job.evaluation)
    return set(batches.shards_for(step, PLAN.micro_batches(peer))) | set(batches.evaluation_shards())


async def test_a_step_fetches_what_this_peers_micro_batches_read_and_no_more(job: ResolvedJob, tmp_path: Path) -> None:
    members = Members(job, tmp_path)
    await members.serve(OWNER)
    source = members.source("y")
    await source.ensure(PLAN, "y", 1)
    assert members.held("y") == wanted(job, "y", 1)
    assert len(members.held("y")) < len(job.corpus.shards)
    batches = Batches(job.corpus, job.training, job.evaluation)
    batches.micro_batch(1, 1, source.reader.read)
    for index in range(batches.evaluation_micro_batches):
        batches.evaluation_micro_batch(index, source.reader.read)
    asked = members.asked.total()
    await source.ensure(PLAN, "y", 1)
    assert members.asked.total() == asked


async def test_other_readers_are_asked_before_the_coordinator(job: ResolvedJob, tmp_path: Path) -> None:
    members = Members(job, tmp_path)
    await members.serve(OWNER)
    await members.source("x").ensure(PLAN, "x", 1)
    members.asked.clear()
    await members.serve("x")
    await members.source("a").ensure(PLAN, "a", 1)
    assert wanted(job, "a", 1) <= wanted(job, "x", 1)
    assert members.held("a") == wanted(job, "a", 1)
    assert members.asked[OWNER] == 0


async def test_a_peer_without_the_shard_or_with_another_in_its_place_is_passed_over(
    job: ResolvedJob, tmp_path: Path
) -> None:
    members = Members(job, tmp_path)
    await members.serve(OWNER)
    await members.serve("b")  # has none

    async def lie(stream: Stream) -> None:
        await write_message(stream, TransferReply(size=128))
        await stream.write(bytes(128))

    async def boast(stream: Stream) -> None:
        await write_message(stream, TransferReply(size=1 << 40))

    await MemoryDataPlane(members.network, "x").serve(SHARDS, lie)
    await MemoryDataPlane(members.network, "y").serve(SHARDS, boast)
    await members.source("a").ensure(PLAN, "a", 2)
    assert members.held("a") == wanted(job, "a", 2)
    assert members.asked["b"] > 0
    assert members.asked[OWNER] == len(wanted(job, "a", 2))


async def asked_by(job: ResolvedJob, tmp_path: Path, me: str) -> list[str]:
    """Whom `me` asks for the tokens of a step, in order, where everyone has all."""
    members, order = Members(job, tmp_path / f"of-{me}"), []
    owners = ShardFolder(tmp_path / OWNER)

    async def serve(peer: str) -> None:
        async def answer(stream: Stream) -> None:
            order.append(peer)
            await serve_shards(stream, lambda sha256: owners.path(sha256).read_bytes())

        await MemoryDataPlane(members.network, peer).serve(SHARDS, answer)

    for peer in {*PLAN.peers, OWNER} - {me}:
        await serve(peer)
    await members.source(me).ensure(PLAN, me, 1)
    return order


async def test_readers_start_with_different_neighbours_and_leave_the_coordinator_alone(
    job: ResolvedJob, tmp_path: Path
) -> None:
    orders = {me: await asked_by(job, tmp_path, me) for me in ("a", "b", "x", "y")}
    assert len({order[0] for order in orders.values()}) > 1
    for me, order in orders.items():
        assert not {me, "m", OWNER} & set(order)


async def test_while_nobody_has_a_shard_the_step_waits_for_it(job: ResolvedJob, tmp_path: Path) -> None:
    members = Members(job, tmp_path)
    asked = asyncio.Event()

    async def nothing(stream: Stream) -> None:
        asked.set()
        await serve_shards(stream, lambda sha256: None)

    await MemoryDataPlane(members.network, OWNER).serve(SHARDS, nothing)
    waiting = asyncio.create_task(members.source("a").ensure(PLAN, "a", 1))
    await asked.wait()
    asked.clear()
    await asked.wait()
    assert not waiting.done()
    await members.serve(OWNER)
    await asyncio.wait_for(waiting, 30)
    assert members.held("a") == wanted(job, "a", 1)


async def test_a_small_disk_holds_what_two_steps_need_and_the_oldest_shards_make_room(
    job: ResolvedJob, tmp_path: Path
) -> None:
    members = Members(job, tmp_path)
    await members.serve(OWNER)
    limit = 128 * max(len(wanted(job, "a", step) | wanted(job, "a", step + 1)) for step in range(1, 16))
    assert limit < 128 * len(job.corpus.shards)
    source = members.source("a", limit)
    for step in range(1, 17):
        await source.ensure(PLAN, "a", step)
        assert members.held("a") >= wanted(job, "a", step) | (wanted(job, "a", step - 1) if step > 1 else set())
        assert sum(members.folder("a").sizes().values()) <= limit


async def test_a_step_that_the_disk_has_no_room_for_is_refused_before_its_tokens_are_fetched(
    job: ResolvedJob, tmp_path: Path
) -> None:
    members = Members(job, tmp_path)
    await members.serve(OWNER)
    with pytest.raises(Refused, match=r"^a shard of the text takes .* --disk$"):
        await members.source("a", 127).ensure(PLAN, "a", 1)
    assert (members.held("a"), members.asked[OWNER]) == (set(), 0)


async def test_a_shard_of_another_size_than_the_job_says_is_not_read(job: ResolvedJob, tmp_path: Path) -> None:
    members = Members(job, tmp_path)

    async def swollen(stream: Stream) -> None:
        await read_message(stream, WantShard)
        await write_message(stream, TransferReply(size=1 << 20))
        await stream.write(bytes(1 << 20))

    await MemoryDataPlane(members.network, OWNER).serve(SHARDS, swollen)
    with pytest.raises(Refused, match="offers a shard of 1048576 bytes, not 128"):
        await fetch_shard(MemoryDataPlane(members.network, "a"), OWNER, job.corpus.shards[0].sha256, 128)


@pytest.mark.parametrize("peer", ["a", "m", "y"])
async def test_where_there_are_samples_every_stage_reads_marks_and_the_middle_ones_no_tokens(
    marked: ResolvedJob, tmp_path: Path, peer: str
) -> None:
    members = Members(marked, tmp_path)
    await members.serve(OWNER)
    source = members.source(peer)
    await source.ensure(PLAN, peer, 3)
    batches = Batches(marked.corpus, marked.training, marked.evaluation)
    assert members.held(peer) == (set() if peer == "m" else wanted(marked, peer, 3))
    assert source.marks is not None
    assert source.counts is not None
    for index in PLAN.micro_batches(peer):
        batches.micro_batch(3, index, source.marks.read)
    for index in range(batches.evaluation_micro_batches):
        batches.evaluation_micro_batch(index, source.marks.read)
    assert 0 < batches.targets(3, source.counts) < marked.training.tokens
    await members.serve(peer)
    members.asked.clear()
    other = "b" if peer == "a" else "a"
    await members.source(other).ensure(PLAN, other, 3)
    assert members.asked[peer] > 0
