"""Chapters: a corpus whose job names lists of its shards is the corpus whose job names the shards."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dtfm_protocol.data import corpus_writer
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.chapters import RECORD, ChapterList, chapter_bytes
from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.sample_shards import MarkReader
from dtfm_protocol.data.token_shards import ShardFolder, ShardMap, TokenReader, corpus_bytes, corpus_files
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.job_file import Evaluation, Training
from dtfm_protocol.job.resolved_job import CHAPTER_SHARDS, MOST_CHAPTERS, Chapter, Corpus, Shard
from tests.protocol.test_job_timeline import job as job_of

TOKENS = np.random.default_rng(0).integers(0, 257, 2030)
SHARD, CHAPTER = 10, 7
"""Tokens of a shard, and shards of a chapter: 29 whole chapters and no rest, of 203 shards."""


def chaptered(folder: Path, tokens: np.ndarray = TOKENS, same_as: Corpus | None = None) -> Corpus:
    return write_shards(folder, [tokens], 257, 2 * SHARD, same_as, chapter_shards=CHAPTER)


@pytest.mark.parametrize("tokens", [2030, 2025, 2031, 2 * SHARD * CHAPTER, SHARD * CHAPTER + 1])
def test_a_corpus_in_chapters_has_the_shards_of_the_same_one_without_them(tmp_path: Path, tokens: int) -> None:
    plain, corpus = write_shards(tmp_path, [TOKENS[:tokens]], 257, 2 * SHARD), chaptered(tmp_path, TOKENS[:tokens])
    assert plain.chapters == corpus.shards == ()
    assert plain.tokens == corpus.tokens == min(tokens, len(TOKENS))
    found = ShardMap(corpus, ShardFolder(tmp_path))
    assert tuple(found) == plain.shards
    assert len(found) == len(plain.shards) == sum(chapter.shards for chapter in corpus.chapters)
    assert {chapter.shards for chapter in corpus.chapters[:-1]} == {CHAPTER}
    names = set(corpus_files(corpus, ShardFolder(tmp_path)))
    assert names == {path.stem for path in tmp_path.iterdir()}


def test_few_shards_stand_in_the_job_itself_where_older_versions_read_them(tmp_path: Path) -> None:
    corpus = chaptered(tmp_path, TOKENS[: SHARD * CHAPTER])
    assert len(corpus.shards) == CHAPTER
    assert "chapters" not in corpus.model_dump_json()
    assert job_of().needs == ()


def test_batches_are_those_of_the_corpus_without_chapters(tmp_path: Path) -> None:
    training = Training(steps=30, global_batch=8, micro_batch=2, sequence_length=23, learning_rate=1e-3)
    found = []
    for corpus in (write_shards(tmp_path, [TOKENS], 257, 2 * SHARD), chaptered(tmp_path)):
        batches, reader = (
            Batches(corpus, training, Evaluation(every=3, sequences=5)),
            TokenReader(corpus, ShardFolder(tmp_path)),
        )
        names = ShardMap(corpus, ShardFolder(tmp_path))
        trained = [batches.micro_batch(step, index, reader.read) for step in range(1, 31) for index in range(4)]
        held_out = [batches.evaluation_micro_batch(index, reader.read) for index in range(3)]
        touched = [names.numbers_at(batches.windows(step), batches.window_tokens) for step in range(1, 31)]
        found.append((np.concatenate([*trained, *held_out]).tolist(), touched))
    assert found[0] == found[1]


@given(start=st.integers(0, 2030), count=st.integers(0, 300))
def test_tokens_are_found_across_the_borders_of_chapters(
    tmp_path_factory: pytest.TempPathFactory, start: int, count: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "shared"
    corpus = chaptered(folder)
    reader, names = TokenReader(corpus, ShardFolder(folder)), ShardMap(corpus, ShardFolder(folder))
    if start + count > len(TOKENS):
        with pytest.raises(IndexError):
            reader.read(start, count)
        return
    assert reader.read(start, count).tolist() == TOKENS[start : start + count].tolist()
    needed = {number // CHAPTER for number, _ in names.spans(start, count)}
    assert names.chapters_at([start], count) == [corpus.chapters[number] for number in sorted(needed)]


def test_marks_are_named_in_the_chapter_beside_their_shard(tmp_path: Path) -> None:
    marks = np.random.default_rng(1).integers(0, 4, 2029).astype(np.uint8)
    made = [
        write_shards(tmp_path, [TOKENS[:2029]], 257, 2 * SHARD, chapter_shards=size, marks=marks, sequence_length=12)
        for size in (CHAPTER_SHARDS, CHAPTER)
    ]
    plain, corpus = made
    assert plain.samples is not None
    assert corpus.samples is not None
    assert corpus.samples.marks == ()
    assert corpus.samples.targets == plain.samples.targets
    assert MarkReader(corpus, ShardFolder(tmp_path)).read(333, 555).tolist() == marks[333:888].tolist()
    names = ShardMap(corpus, ShardFolder(tmp_path))
    assert tuple(names.marks(number) for number in range(len(names))) == plain.samples.marks
    lists = {chapter.sha256 for chapter in corpus.chapters}
    assert set(corpus_files(corpus, ShardFolder(tmp_path))) == lists | set(corpus_files(plain, ShardFolder(tmp_path)))
    assert corpus_bytes(corpus) == corpus_bytes(plain) == 3 * 2029 + 4 * 169


def test_who_lacks_a_list_says_so(tmp_path: Path) -> None:
    corpus = chaptered(tmp_path)
    ShardFolder(tmp_path).drop(corpus.chapters[1].sha256)
    reader = TokenReader(corpus, ShardFolder(tmp_path))
    reader.read(0, SHARD * CHAPTER)
    with pytest.raises(Refused, match=r"^chapter [0-9a-f]{12} of the text is not here$"):
        reader.read(SHARD * CHAPTER, 1)


def lie(folder: Path, data: bytes, **claims: int) -> Corpus:
    """A corpus of whoever makes jobs, whose second chapter is `data`."""
    corpus = chaptered(folder)
    digest = sha256(data).hexdigest()
    ShardFolder(folder).add(digest, data)
    values = corpus.chapters[1].model_dump() | {"sha256": digest} | claims
    return Corpus.model_validate(corpus.model_dump() | {"chapters": (corpus.chapters[0], values, *corpus.chapters[2:])})


def test_a_list_that_is_not_what_the_job_says_of_it_is_refused(tmp_path: Path) -> None:
    honest = chaptered(tmp_path)
    data = ShardFolder(tmp_path).find(honest.chapters[1].sha256)
    assert data is not None
    records = np.frombuffer(data, RECORD).copy()
    records["tokens"][0], records["tokens"][1] = 0, 2 * SHARD
    for false, claims, said in (
        (data + data[: RECORD.itemsize], {}, "288 bytes, not the 252 of its list"),
        (data[:-1], {}, "251 bytes, not the 252 of its list"),
        (data, {"tokens": 71}, "its shards have 70 tokens, and the job says 71"),
        (records.tobytes(), {}, "it lists a shard without tokens"),
    ):
        corpus = lie(tmp_path, false, **claims)
        with pytest.raises(Refused, match=said):
            TokenReader(corpus, ShardFolder(tmp_path)).read(SHARD * CHAPTER, SHARD)


@pytest.mark.parametrize(
    "change",
    [
        {"shards": CHAPTER_SHARDS + 1},
        {"shards": 0},
        {"tokens": 0},
        {"tokens": CHAPTER_SHARDS << 32},
        {"sha256": "../../etc/passwd"},
    ],
)
def test_what_a_job_says_of_a_chapter_is_bounded(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Chapter.model_validate({"sha256": "0" * 64, "shards": 5, "tokens": 50} | change)


def test_a_corpus_names_its_shards_once(tmp_path: Path) -> None:
    corpus = chaptered(tmp_path)
    both = corpus.model_dump() | {"shards": (Shard(sha256="0" * 64, tokens=1),)}
    neither = corpus.model_dump() | {"chapters": ()}
    for values in (both, neither):
        with pytest.raises(ValidationError):
            Corpus.model_validate(values)


def test_who_does_not_know_chapters_refuses_the_job_by_their_name(tmp_path: Path) -> None:
    from dtfm_protocol.schema import needs_of

    job = job_of().model_copy(update={"corpus": chaptered(tmp_path)})
    assert needs_of(job) == ("corpus.chapters",)
    assert "shards" not in json.loads(job.model_dump_json())["corpus"]


def test_terabytes_fit_in_a_job_that_is_sent() -> None:
    """A few hundred kilobytes name all of them."""
    chapters = [{"sha256": "f" * 64, "shards": CHAPTER_SHARDS, "tokens": CHAPTER_SHARDS << 20}] * MOST_CHAPTERS
    corpus = Corpus.model_validate({"dtype": "uint16", "vocab_size": 65_536, "chapters": chapters})
    assert 2 * corpus.tokens > 30e12
    assert len(corpus.model_dump_json()) < 500_000
    assert chapter_bytes(corpus.chapters[0]) < 180_000


def test_tokens_that_must_be_others_are_refused_at_the_first_shard_or_chapter_that_differs(tmp_path: Path) -> None:
    first = chaptered(tmp_path)
    assert chaptered(tmp_path, same_as=first) == first
    for place in (3, 75, 2029):
        changed = TOKENS.copy()
        changed[place] += 1
        writer = corpus_writer.CorpusWriter(tmp_path, 300, shard_bytes=2 * SHARD, same_as=first)
        with pytest.raises(UserError, match="another job"):
            writer.add(changed)
        assert writer.shards == place // SHARD
    ShardFolder(tmp_path).drop(first.chapters[1].sha256)
    writer = corpus_writer.CorpusWriter(tmp_path, 300, shard_bytes=2 * SHARD, same_as=first)
    with pytest.raises(UserError, match="another job"):
        writer.add(np.concatenate([TOKENS[:75], TOKENS]))
    assert writer.shards == 2 * CHAPTER
    with pytest.raises(UserError, match="another job"):
        chaptered(tmp_path, TOKENS[:2029], same_as=first)


def test_a_run_that_began_without_chapters_goes_on_without_them(tmp_path: Path) -> None:
    first = write_shards(tmp_path, [TOKENS], 257, 2 * SHARD)
    assert chaptered(tmp_path, same_as=first) == first


def test_a_list_comes_back_as_it_was() -> None:
    shards = [Shard(sha256=sha256(bytes([n])).hexdigest(), tokens=n + 1) for n in range(9)]
    listed = ChapterList.of_shards(shards)
    chapter = Chapter(sha256="0" * 64, shards=9, tokens=45)
    assert [ChapterList.read(listed.to_bytes(), chapter)[n] for n in range(9)] == shards
