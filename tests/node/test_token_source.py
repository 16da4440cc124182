"""Tokens of a step: fetched by hash from whoever has them, before the step is computed."""

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dtfm_node.runner import token_source
from dtfm_node.runner.token_source import TokenSource
from dtfm_node.state.disk_budget import DiskBudget
from dtfm_protocol.checkpoint.transfers import SHARDS, TransferReply, WantShard, ask_for_shard, serve_shards
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.token_shards import ShardFolder, ShardMap, TokenReader
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
    tokens = np.random.default_rng(3).integers(0, 250, 2033)
    marks = np.random.default_rng(4).integers(0, 4, 2033).astype(np.uint8)
    keys = {"vocab_size": 257, "shard_bytes": 128, "marks": marks, "sequence_length": 16}
    return job.model_copy(update={"corpus": write_shards(tmp_path / OWNER, [tokens], **keys)})


class Members:
    """Peers with a folder of shards each, and who was asked for what."""

    def __init__(self, job: ResolvedJob, home: Path) -> None:
        self.network, self.job, self.home = MemoryNetwork(), job, home
        self.asked: Counter[str] = Counter()

    def folder(self, peer: str) -> ShardFolder:
        return ShardFolder(self.home / peer)

    def source(self, peer: str, limit: float = float("inf"), patience: float = 60.0) -> TokenSource:
        """A source on a disk of so many bytes, which waits for others so many seconds."""
        folder, budget = self.folder(peer), DiskBudget(limit)
        budget.counts(lambda: sum(folder.sizes().values()))
        plane = MemoryDataPlane(self.network, peer)
        return TokenSource(
            plane, self.job, folder, OWNER, retry_seconds=0.01, budget=budget, pause=60.0, piece_seconds=patience
        )

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
    starts = batches.windows_for(step, PLAN.micro_batches(peer)) + batches.evaluation_windows()
    spans = (ShardMap(job.corpus).spans(start, batches.window_tokens) for start in starts)
    return {number for found in spans for number, _ in found}


async def test_a_step_fetches_what_this_peers_micro_batches_read_and_no_more(job: ResolvedJob, tmp_path: Path) -> None:
    members = Members(job, tmp_path)
    await members.serve(OWNER)
    source = members.source("y")
    await source.ensure(PLAN, "y", 1)
    assert members.held("y") == wanted(job, "y", 1)
    assert len(members.held("y")) < len(job.corpus.shards)
    batches = Batches(job.corpus, job.training, job.evaluation)
    batches.micro_batch(1, 1, source.reader.tokens.read)
    for index in range(batches.evaluation_micro_batches):
        batches.evaluation_micro_batch(index, source.reader.tokens.read)
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
        await ask_for_shard(MemoryDataPlane(members.network, "a"), OWNER, job.corpus.shards[0].sha256, 128)


@pytest.mark.parametrize("sent", [None, 0, 64])
async def test_who_keeps_a_reader_waiting_is_given_up_and_asked_last_from_then_on(
    job: ResolvedJob, tmp_path: Path, sent: int | None
) -> None:
    members, asked = Members(job, tmp_path), Counter[str]()
    await members.serve(OWNER)

    async def stall(stream: Stream) -> None:
        asked["b"] += 1
        await read_message(stream, WantShard)
        if sent is not None:
            await write_message(stream, TransferReply(size=128))
            await stream.write(bytes(sent))
        await asyncio.Event().wait()

    await MemoryDataPlane(members.network, "b").serve(SHARDS, stall)
    await asyncio.wait_for(members.source("a", patience=0.05).ensure(PLAN, "a", 1), 30)
    assert members.held("a") == wanted(job, "a", 1)
    assert len(wanted(job, "a", 1)) > 1
    assert asked["b"] == 1


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
    assert source.reader.marks is not None
    assert source.reader.counts is not None
    for index in PLAN.micro_batches(peer):
        batches.micro_batch(3, index, source.reader.marks.read)
    for index in range(batches.evaluation_micro_batches):
        batches.evaluation_micro_batch(index, source.reader.marks.read)
    assert 0 < batches.targets(3, source.reader.counts) < marked.training.tokens
    await members.serve(peer)
    members.asked.clear()
    other = "b" if peer == "a" else "a"
    await members.source(other).ensure(PLAN, other, 3)
    assert members.asked[peer] > 0


@pytest.fixture
def chaptered(job: ResolvedJob, tmp_path: Path) -> ResolvedJob:
    """The same corpus in chapters of five shards, the last one of two."""
    tokens = np.random.default_rng(3).integers(0, 250, 2048)
    corpus = write_shards(tmp_path / OWNER, [tokens], vocab_size=257, shard_bytes=128, chapter_shards=5)
    return job.model_copy(update={"corpus": corpus})


async def test_of_a_corpus_in_chapters_a_step_fetches_the_lists_that_name_its_shards_and_reads_the_same(
    job: ResolvedJob, chaptered: ResolvedJob, tmp_path: Path
) -> None:
    members = Members(chaptered, tmp_path)
    await members.serve(OWNER)
    source = members.source("y")
    await source.ensure(PLAN, "y", 1)
    numbers = wanted(job, "y", 1)
    lists = {chaptered.corpus.chapters[number // 5].sha256 for number in numbers}
    assert set(members.folder("y").sizes()) == lists | {job.corpus.shards[number].sha256 for number in numbers}
    assert len(lists) < len(chaptered.corpus.chapters)
    batches, all_of_it = (
        Batches(job.corpus, job.training, job.evaluation),
        TokenReader(job.corpus, members.folder(OWNER)),
    )
    found = batches.micro_batch(1, 1, source.reader.tokens.read)
    assert np.array_equal(found, batches.micro_batch(1, 1, all_of_it.read))
    members.asked.clear()
    await members.serve("y")
    await members.source("x").ensure(PLAN, "x", 1)
    assert members.asked["y"] > 0


async def test_a_list_that_is_not_the_chapters_is_taken_from_another_peer(
    chaptered: ResolvedJob, tmp_path: Path
) -> None:
    members = Members(chaptered, tmp_path)
    await members.serve(OWNER)
    asked: list[str] = []

    async def lie(stream: Stream) -> None:
        asked.append((await read_message(stream, WantShard)).sha256)
        longer = len(asked) % 2
        await write_message(stream, TransferReply(size=36 * (5 + longer)))
        await stream.write(bytes(36 * (5 + longer)))

    await MemoryDataPlane(members.network, "b").serve(SHARDS, lie)
    await members.source("a").ensure(PLAN, "a", 1)
    assert {chapter.sha256 for chapter in chaptered.corpus.chapters} & set(asked)
    assert all(members.folder("a").has(sha256) for sha256 in members.folder("a").sizes())


async def test_a_job_whose_chapter_does_not_add_up_stops_before_any_shard_of_it_is_fetched(
    chaptered: ResolvedJob, tmp_path: Path
) -> None:
    corpus = chaptered.corpus
    wrong = [
        {"tokens": one.tokens - 1} if number == 0 else {"tokens": one.tokens + 1} if number == 1 else {}
        for number, one in enumerate(corpus.chapters)
    ]
    false = [one.model_copy(update=change) for one, change in zip(corpus.chapters, wrong, strict=True)]
    liar = chaptered.model_copy(update={"corpus": corpus.model_copy(update={"chapters": tuple(false)})})
    members = Members(liar, tmp_path)
    await members.serve(OWNER)

    async def train() -> None:
        for step in range(1, 9):
            await members.source("a").ensure(PLAN, "a", step)

    with pytest.raises(Refused, match=r"its shards have 320 tokens, and the job says 3(19|21)"):
        await train()


async def test_what_the_next_steps_read_is_let_go_of_last_and_first_what_was_needed_longest_ago(
    job: ResolvedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_source, "AHEAD_STEPS", 3)
    members = Members(job, tmp_path)
    await members.serve(OWNER)
    source, folder, seen = members.source("a", 128 * 18), members.folder("a"), Counter[bool]()
    for step in range(1, 30):
        held = members.held("a")
        await source.ensure(PLAN, "a", step)
        gone, left = held - members.held("a"), members.held("a")
        soon = wanted(job, "a", step + 1) | wanted(job, "a", step + 2)
        in_use = wanted(job, "a", step) | wanted(job, "a", max(1, step - 1))
        assert not gone & in_use
        if gone & soon:  # there was nothing else
            assert left <= soon | in_use
        if gone:
            seen[bool(gone & soon)] += 1
    assert seen[False]
    assert sum(folder.sizes().values()) <= 128 * 18
    order = list(folder.sizes())
    last = {job.corpus.shards[number].sha256 for number in wanted(job, "a", 29)}
    assert set(order[-len(last) :]) == last
    assert list(ShardFolder(tmp_path / "a").sizes())[-len(last) :] == order[-len(last) :]
