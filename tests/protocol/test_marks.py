"""What marks say of tokens, and how they are read."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_writer import CorpusWriter
from dtfm_protocol.data.marks import BEGINS, TARGET, are_targets, sample_layout, window_targets
from dtfm_protocol.data.sample_shards import MarkReader, TargetCounts
from dtfm_protocol.data.token_shards import ShardFolder, corpus_bytes
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning, Training
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.schema import needs_of

LENGTH, WINDOWS = 6, 30
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 200, WINDOWS * LENGTH + 1)
MARKS = RNG.integers(0, 4, WINDOWS * LENGTH + 1).astype(np.uint8)
TRAINING = Training(steps=5, global_batch=4, micro_batch=2, sequence_length=LENGTH, learning_rate=1e-3)


def written(folder: Path) -> Corpus:
    writer, borders = CorpusWriter(folder, 200, shard_bytes=2 * 50, sequence_length=LENGTH), [3, 4, 4, 5, 90, 131]
    for piece, marks in zip(np.split(TOKENS, borders), np.split(MARKS, borders), strict=True):
        writer.add(piece, marks)
    return writer.end()


def job(corpus: Corpus) -> ResolvedJob:
    made = ResolvedJob(
        name="x",
        config={},
        corpus=corpus,
        training=TRAINING,
        evaluation=Evaluation(every=2, sequences=5),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )
    return made.model_copy(update={"needs": needs_of(made)})


@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4))
def test_a_layout_says_of_each_place_what_a_loop_finds(rows: list[list[int]]) -> None:
    found = sample_layout(np.array(rows))
    for row, positions, segments, is_target in zip(rows, *found, strict=True):
        segment, begun = -1, 0
        for place, mark in enumerate(row[:-1]):
            if place == 0 or mark & BEGINS:
                segment, begun = segment + 1, place
            assert (positions[place], segments[place]) == (place - begun, segment)
            after = row[place + 1]
            assert is_target[place] == (bool(after & TARGET) and not after & BEGINS)


def test_the_targets_of_windows_are_those_that_their_layouts_have() -> None:
    windows = np.stack([MARKS[at * LENGTH : (at + 1) * LENGTH + 1] for at in range(WINDOWS)])
    assert window_targets(MARKS, LENGTH).tolist() == sample_layout(windows).is_target.sum(axis=1).tolist()
    assert window_targets(MARKS, LENGTH).sum() == are_targets(MARKS[1:]).sum()


def test_every_peer_knows_the_targets_of_a_step_without_its_tokens(tmp_path: Path) -> None:
    corpus = written(tmp_path)
    batches, reader = (
        Batches(corpus, TRAINING, Evaluation(every=2, sequences=5)),
        MarkReader(corpus, ShardFolder(tmp_path)),
    )
    counts = TargetCounts(corpus, ShardFolder(tmp_path))
    for step in range(1, 9):
        parts = [batches.micro_batch(step, index, reader.read) for index in range(2)]
        assert batches.targets(step, counts) == sum(sample_layout(part).is_target.sum() for part in parts)
    held_out = [batches.evaluation_micro_batch(index, reader.read) for index in range(3)]
    assert batches.evaluation_targets(counts) == sum(sample_layout(part).is_target.sum() for part in held_out)


def test_without_samples_all_tokens_but_the_first_of_a_window_are_targets() -> None:
    corpus = Corpus(dtype="uint16", vocab_size=9, shards=(Shard(sha256="0" * 64, tokens=100),))
    batches = Batches(corpus, TRAINING, Evaluation(every=2, sequences=3))
    assert (batches.targets(1), batches.evaluation_targets()) == (4 * LENGTH, 3 * LENGTH)


def test_marks_are_read_across_files_as_tokens_are(tmp_path: Path) -> None:
    corpus = written(tmp_path)
    reader = MarkReader(corpus, ShardFolder(tmp_path))
    assert reader.read(0, len(MARKS)).tolist() == MARKS.tolist()
    assert reader.read(30, 90).tolist() == MARKS[30:120].tolist()
    assert corpus_bytes(corpus) == 3 * len(MARKS) + 4 * WINDOWS
    ShardFolder(tmp_path).drop(corpus.shards[0].sha256)
    assert corpus.samples is not None
    ShardFolder(tmp_path).drop(corpus.samples.targets.sha256)
    with pytest.raises(Refused, match="is not here"):
        TargetCounts(corpus, ShardFolder(tmp_path)).total([0])
    with pytest.raises(ValueError, match="no window of 6 tokens begins at 3"):
        TargetCounts(corpus, ShardFolder(tmp_path)).total([0, 3])


@pytest.mark.parametrize("tokens", [LENGTH, LENGTH + 2, 2 * LENGTH])
def test_marks_that_end_within_a_window_are_no_samples(tmp_path: Path, tokens: int) -> None:
    writer = CorpusWriter(tmp_path, 200, sequence_length=LENGTH)
    writer.add(TOKENS[:tokens], MARKS[:tokens])
    with pytest.raises(ValueError, match="tokens behind"):
        writer.end()


def test_a_corpus_without_samples_is_announced_as_ever_and_one_with_them_is_needed(tmp_path: Path) -> None:
    corpus = written(tmp_path)
    plain = corpus.model_copy(update={"samples": None})
    assert "samples" not in plain.model_dump_json()
    assert job(corpus).needs == ("corpus.samples",)
    assert job(plain).needs == ()
    assert ResolvedJob.model_validate_json(job(corpus).model_dump_json()) == job(corpus)


@pytest.mark.parametrize(
    ("marks", "windows", "complaint"),
    [
        ((50, 50, 50, 30), WINDOWS, "cut in another way than the tokens"),
        ((50, 50, 50), WINDOWS, "cut in another way than the tokens"),
        ((50, 50, 50, 31), WINDOWS - 1, "181 tokens are not 29 windows of 6 and one more"),
    ],
)
def test_samples_that_do_not_fit_the_tokens_are_refused(
    tmp_path: Path, marks: tuple[int, ...], windows: int, complaint: str
) -> None:
    values = job(written(tmp_path)).model_dump(mode="json")
    named = [{"sha256": "0" * 64, "tokens": size} for size in marks]
    values["corpus"]["samples"] = {"marks": named, "targets": {"sha256": "0" * 64, "tokens": windows}}
    with pytest.raises(ValidationError, match=complaint):
        ResolvedJob.model_validate(values)
