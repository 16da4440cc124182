"""Sets for evaluation in the corpus: whole windows of their own documents, which no step ever reads."""

import json
from pathlib import Path

import pytest

from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.sample_shards import TargetCounts
from dtfm_protocol.data.set_sizes import set_sizes
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.resolved_job import ResolvedJob

LENGTH = 16
JOB = """
name = "sets"
[model]
architecture = "llama"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
[training]
steps = 4
global_batch = 2
micro_batch = 2
sequence_length = 16
learning_rate = 1e-3
"""
TRAINED = "the text that is trained on, again and again. " * 20
STREAM = '[data]\ntext = ["train.txt"]\n'
PACKED = (
    '[data]\npacking = true\nchat_template = "chat.jinja"\nsources = [{ path = "chat.jsonl", kind = "messages" }]\n'
)
SETS = """
[evaluation]
every = 2
sequences = 3
[[evaluation.sets]]
name = "near"
text = ["near/*.txt"]
[[evaluation.sets]]
name = "far"
sources = [{ path = "far.jsonl", kind = "jsonl" }]
"""
CHAT = """
[[evaluation.sets]]
name = "chat"
sources = [{ path = "chat.jsonl", kind = "messages" }]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(TRAINED)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "a.txt").write_text("A NEAR TEXT, in capitals. " * 3)
    (tmp_path / "near" / "b.txt").write_text("ANOTHER ONE. " * 9)
    (tmp_path / "far.jsonl").write_text(json.dumps({"text": "0123456789" * 3 + "!!!"}) + "\n")
    turns = [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "three"}]
    (tmp_path / "chat.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 12)
    template = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    (tmp_path / "chat.jinja").write_text(template + "{% else %}{{ m.content }}{% endif %}{% endfor %}")
    return tmp_path


def job(home: Path, *parts: str) -> Job:
    (home / "job.toml").write_text(JOB + "".join(parts))
    return Job.load(home / "job.toml")


def made(home: Path, *parts: str) -> ResolvedJob:
    return prepare(job(home, *parts), home / "state", lambda line: None)


def read(home: Path, found: ResolvedJob, start: int, count: int) -> str:
    tokens = TokenReader(found.corpus, ShardFolder(home / "state" / "tokens")).read(start, count)
    return "".join(chr(token) if token < 256 else "|" for token in tokens)


def test_each_set_has_its_own_windows_behind_the_text_up_to_what_is_asked_for(home: Path) -> None:
    found = made(home, STREAM, SETS)
    near, far = found.corpus.held_out
    assert (near.name, near.start, near.windows) == ("near", len(TRAINED), 3)
    assert (far.name, far.start, far.windows) == ("far", near.start + 3 * LENGTH + 1, 2)  # it has no more
    assert read(home, found, 0, near.start) == TRAINED
    assert read(home, found, near.start, 3 * LENGTH + 1) == ("A NEAR TEXT, in capitals. " * 3)[: 3 * LENGTH + 1]
    assert read(home, found, far.start, 2 * LENGTH + 1) == "0123456789" * 3 + "!!!"
    assert found.corpus.tokens == far.start + 2 * LENGTH + 1
    assert "corpus.held_out" in found.needs
    assert "near/" not in found.model_dump_json()  # no path is told


def test_no_step_reads_a_token_of_a_set_and_no_micro_batch_two_sets(home: Path) -> None:
    found = made(home, STREAM, SETS)
    batches = Batches(found.corpus, found.training, found.evaluation)
    last = max(start for step in range(1, 40) for start in batches.windows(step))
    assert last + LENGTH + 1 <= found.corpus.held_out[0].start
    assert batches.evaluation_batch_sizes == [2, 1, 2]
    assert batches.evaluation_parts == [range(2), range(2, 3)]
    near, far = found.corpus.held_out
    starts = [one.start + at * LENGTH for one in (near, far) for at in range(one.windows)]
    assert batches.evaluation_windows() == starts
    fewer = Batches(found.corpus, found.training, found.evaluation, evaluated=1)
    assert fewer.evaluation_windows() == [near.start, far.start]
    assert fewer.evaluation_targets() == 2 * LENGTH


def test_sets_of_conversations_stand_beside_packed_ones_with_their_targets_counted(home: Path) -> None:
    found = made(home, PACKED, SETS, CHAT)
    assert [one.name for one in found.corpus.held_out] == ["near", "far", "chat"]
    assert all(one.start % LENGTH == 0 for one in found.corpus.held_out)
    counts = TargetCounts(found.corpus, ShardFolder(home / "state" / "tokens"))
    batches = Batches(found.corpus, found.training, found.evaluation)
    each = [sum(batches.micro_batch_targets(at, counts) for at in part) for part in batches.evaluation_parts]
    assert sum(each) == batches.evaluation_targets(counts)
    chat = found.corpus.held_out[2]
    assert each[2] == 5 * read(home, found, chat.start, chat.windows * LENGTH).count("three")


def test_going_on_finds_the_same_corpus_and_other_sets_are_another_job(home: Path) -> None:
    first = made(home, STREAM, SETS)
    assert made(home, STREAM, SETS) == first
    (home / "state" / "prepared").unlink()
    assert made(home, STREAM, SETS) == first
    (home / "far.jsonl").write_text(json.dumps({"text": "something else altogether " * 3}) + "\n")
    with pytest.raises(UserError, match="holds a run of another job"):
        made(home, STREAM, SETS)


ALONE = '[data]\ntext = ["train.txt"]\npacking = true\nchat_template = "chat.jinja"\n'
"""A chat template for a set alone: what is trained on is plain text."""


def test_a_chat_template_may_be_for_a_set_alone(home: Path) -> None:
    found = []
    for name, data in (("both", PACKED), ("alone", ALONE)):
        one = prepare(job(home, data, SETS, CHAT), home / name, lambda line: None)
        tokens = TokenReader(one.corpus, ShardFolder(home / name / "tokens"))
        found.append(tokens.read(one.corpus.held_out[2].start, LENGTH).tolist())
    assert found[0] == found[1]
    assert "three" in "".join(map(chr, found[0][:11]))


def test_the_sizes_of_sets_are_those_of_the_corpus(home: Path) -> None:
    for parts in ((STREAM, SETS), (PACKED, SETS, CHAT)):
        state = home / f"state-{len(parts)}"
        asked = job(home, *parts)
        found = prepare(asked, state, lambda line: None)
        counts = TargetCounts(found.corpus, ShardFolder(state / "tokens")) if len(parts) == 3 else None
        batches = Batches(found.corpus, found.training, found.evaluation)
        sizes = set_sizes(asked.data, asked.evaluation.sets, LENGTH, asked.evaluation.sequences)
        assert [one.name for one in sizes] == [one.name for one in found.corpus.held_out]
        assert [one.sequences for one in sizes] == [one.windows for one in found.corpus.held_out]
        each = [sum(batches.micro_batch_targets(at, counts) for at in part) for part in batches.evaluation_parts]
        assert [one.targets for one in sizes] == each
        assert sizes[1].bytes == (home / "far.jsonl").stat().st_size
    trained = job(home, STREAM.replace("[data]", '[data]\ntokenizer = "bpe:300"'), SETS)
    (size, _) = set_sizes(trained.data, trained.evaluation.sets, LENGTH, 3)
    assert (size.sequences, size.targets) == (None, None)
    assert size.bytes == sum(file.stat().st_size for file in (home / "near").iterdir())


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((ALONE, SETS), 'data.chat_template: no source is of kind = "messages": remove it'),
        ((ALONE.replace('chat_template = "chat.jinja"', ""), SETS, CHAT), "evaluation.sets.2.sources.0: kind ="),
        ((STREAM, SETS, CHAT), "evaluation.sets.2: chat has conversations"),
        ((STREAM, SETS.replace("near/*.txt", "none/*.txt")), "evaluation.sets.0.text: no file matches"),
        ((STREAM, SETS.replace('"jsonl" }', '"jsonl", column = "x" }')), "evaluation.sets.1.sources.0: "),
        ((STREAM, SETS.replace('"far"', '"near"')), "two have the name near"),
        ((STREAM, SETS.replace('"far"', '"f/r"')), "evaluation.sets.1.name"),
        ((STREAM, SETS.replace("every = 2", "every = 0")), "every is 0"),
        ((STREAM, SETS.replace('text = ["near/*.txt"]', "")), "evaluation.sets.0: give either text"),
        ((STREAM, SETS.replace("near/*.txt", "short.txt")), "near has 5 tokens, and a sequence needs 17"),
    ],
)
def test_a_set_that_cannot_be_is_named_by_its_key_before_anything_is_written(
    home: Path, parts: tuple[str, ...], said: str
) -> None:
    (home / "short.txt").write_text("short")
    with pytest.raises(UserError) as caught:
        made(home, *parts)
    assert said in str(caught.value)
    assert not (home / "state" / "job.json").exists()
