"""Conversations, completions and documents as a job's corpus: what is learned of them, and how they are refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.marks import BEGINS, TARGET, sample_layout
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.sample_shards import MarkReader, TargetCounts
from dtfm_protocol.data.text_check import check_encoding, check_text_bytes
from dtfm_protocol.data.text_size import text_size
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader
from dtfm_protocol.data.tokenizer import load
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from tests.harness.chat_templates import CHATML, chat_tokenizer, unmarked

JOB = """
name = "chat"
[model]
architecture = "llama"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
[training]
steps = 5
global_batch = 2
micro_batch = 1
sequence_length = 48
learning_rate = 1e-3
[evaluation]
every = 2
sequences = 2
[data]
tokenizer = "tokenizer"
"""
MESSAGES = '\n[[data.sources]]\npath = "chat.jsonl"\nkind = "messages"\n'
COMPLETIONS = '\n[[data.sources]]\npath = "qa.jsonl"\nkind = "completions"\ntemplate = "Q: {q}\\nA: "\ncolumn = "a"\n'
TEXT = '\n[[data.sources]]\npath = "text.jsonl"\nkind = "jsonl"\n'


def chat(number: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": f"the answer is {number}"},
        {"role": "user", "content": "and then?"},
        {"role": "assistant", "content": "the answer " * (number % 3)},
    ]


def lines(file: Path, rows: list[Any]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    chat_tokenizer(unmarked(CHATML)).save_pretrained(str(tmp_path / "tokenizer"))
    lines(tmp_path / "chat.jsonl", [{"messages": chat(number), "id": number} for number in range(40)])
    lines(tmp_path / "qa.jsonl", [{"q": f"what is {number}?", "a": f"an answer {number}"} for number in range(30)])
    lines(tmp_path / "text.jsonl", [{"text": "the user says what " * (1 + number)} for number in range(20)])
    return tmp_path


def job(home: Path, sources: str, more: str = "") -> Job:
    (home / "job.toml").write_text(JOB + more + sources)
    return Job.load(home / "job.toml")


def segments(home: Path, asked: Job) -> tuple[list[tuple[str, str]], list[str]]:
    """The text of each segment of the prepared corpus, with what of it is learned, and what was said on the way."""
    said: list[str] = []
    found = prepare(asked, home / "state", said.append)
    tokens = TokenReader(found.corpus, ShardFolder(home / "state" / "tokens")).read(0, found.corpus.tokens)
    marks = MarkReader(found.corpus, ShardFolder(home / "state" / "tokens")).read(0, found.corpus.tokens)
    borders = [*np.flatnonzero(marks & BEGINS), len(marks)]
    length = asked.training.sequence_length
    assert set(range(0, len(tokens), length)) <= set(borders)
    tokenizer = load(home / "state" / "tokenizer")
    parts = []
    for begin, end in pairwise(borders):
        part, learned = tokens[begin:end], marks[begin:end] & TARGET != 0
        parts.append((tokenizer.decode(part), tokenizer.decode(part[learned])))
    return parts, said


def test_of_conversations_the_assistants_turns_are_learned_with_their_ends(home: Path) -> None:
    parts, _ = segments(home, job(home, MESSAGES))
    padding = {text for text, learned in parts if not learned}
    assert {text.replace("</s>", "") for text in padding} == {""}
    found = [(text, learned) for text, learned in parts if learned]
    assert len(found) == 40
    for number, (text, learned) in enumerate(found):
        one = chat(number)
        assert text.startswith(f"<|im_start|>user\nquestion {number}<|im_end|>\n<|im_start|>assistant\n")
        wanted = one[1]["content"] + "<|im_end|>" + one[3]["content"] + "<|im_end|>"
        assert learned == (wanted if text.endswith("<|im_end|>\n") else wanted[: len(learned)])


def test_packed_texts_conversations_and_completions_share_sequences_and_none_is_lost(home: Path) -> None:
    parts, _ = segments(home, job(home, MESSAGES + COMPLETIONS + TEXT, "packing = true\n"))
    texts = [text for text, learned in parts if learned]
    assert sum(text.startswith("<|im_start|>") for text in texts) == 40
    answers = {(text, learned) for text, learned in parts if text.startswith("Q: ")}
    assert answers == {
        (f"Q: what is {number}?\nA: an answer {number}</s>", f"an answer {number}</s>") for number in range(30)
    }
    plain = "".join(text for text in texts if not text.startswith(("<|im_start|>", "Q: ")))
    assert plain.count("</s>") == 20
    (home / "state").rename(home / "packed")
    apart, _ = segments(home, job(home, MESSAGES + COMPLETIONS + TEXT))
    assert sorted(part for part in apart if part[1]) == sorted(part for part in parts if part[1])
    assert len(apart) > len(parts)


def test_the_targets_that_are_announced_are_those_of_the_marks(home: Path) -> None:
    asked = job(home, MESSAGES, "packing = true\n")
    found = prepare(asked, home / "state", lambda line: None)
    folder = ShardFolder(home / "state" / "tokens")
    batches = Batches(found.corpus, found.training, found.evaluation)
    counts, marks = TargetCounts(found.corpus, folder), MarkReader(found.corpus, folder)
    for step in range(1, 6):
        layouts = [sample_layout(batches.micro_batch(step, index, marks.read)) for index in range(2)]
        assert batches.targets(step, counts) == sum(int(one.is_target.sum()) for one in layouts) > 0
    assert found.needs == ("corpus.samples",)
    again: list[str] = []
    assert prepare(asked, home / "state", again.append) == found
    assert again == []
    assert found.corpus.samples is not None
    folder.drop(found.corpus.samples.targets.sha256)
    assert prepare(asked, home / "state", again.append) == found
    assert again != []


def test_what_is_longer_than_a_sequence_is_cut_off_and_said(home: Path) -> None:
    lines(
        home / "chat.jsonl",
        [{"messages": chat(2)}] * 30
        + [{"messages": [{"role": "user", "content": "x " * 90}, {"role": "assistant", "content": "late"}]}]
        + [{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y " * 90}]}],
    )
    parts, said = segments(home, job(home, MESSAGES))
    learned = [learned for _, learned in parts if learned]
    assert len(learned) == 31
    assert "y y y" in learned[-1]
    assert "late" not in "".join(learned)
    rows = [json.loads(line)["messages"] for line in (home / "chat.jsonl").read_text().splitlines()]
    tokenizer = load(home / "tokenizer")
    longest = max(len(tokenizer.apply_chat_template(row, return_dict=True)["input_ids"]) for row in rows)
    cut = f"Cut off 2 conversations or completions at training.sequence_length: the longest has {longest} tokens."
    assert cut in said
    assert said[-1].startswith("Left out 1 document of which nothing is learned")
    size = text_size(job(home, MESSAGES).data, sequence_length=48)
    assert size.layout is not None
    assert (size.layout.cut, size.layout.left_out) == (2, 1)


@pytest.mark.parametrize("packing", [True, False])
def test_the_size_that_is_foretold_is_that_of_the_corpus(home: Path, packing: bool) -> None:
    asked = job(home, MESSAGES + TEXT, "packing = true\n" if packing else "")
    size = text_size(asked.data, sequence_length=48)
    found = prepare(asked, home / "state", lambda line: None)
    folder = ShardFolder(home / "state" / "tokens")
    marks = MarkReader(found.corpus, folder).read(0, found.corpus.tokens)
    assert size.layout is not None
    assert (size.tokens, size.documents) == (found.corpus.tokens, 60)
    assert size.layout.targets == (marks == TARGET).sum()
    assert 0 < size.layout.padding < (0.2 if packing else 0.9)
    sampled = text_size(asked.data, 100, sequence_length=48)
    assert sampled.how
    assert sampled.layout is not None
    assert sampled.tokens == pytest.approx(size.tokens, rel=0.3)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"chat": []}, 'has no "messages", only chat'),
        ({"messages": []}, 'has no list of messages in "messages"'),
        ({"messages": "hello"}, 'has no list of messages in "messages"'),
        ({"messages": ["hello"]}, 'has a message 1 in "messages" that is no object with a role and a content'),
        ({"messages": [{"content": "x"}]}, 'has a message 1 in "messages" without a "role"'),
        ({"messages": [*chat(1), {"role": "user"}]}, 'has a message 5 in "messages" without text in "content"'),
        ({"messages": [{"role": "user", "content": "x"}]}, 'has no message of the role "assistant"'),
        ({"messages": [{"role": "assistant", "content": "\ud800"}]}, "has half a character"),
    ],
)
def test_a_row_of_another_form_stops_before_anybody_trains_or_is_counted(
    home: Path, row: dict[str, Any], complaint: str
) -> None:
    rows = [{"messages": chat(1)}, row, *[{"messages": chat(number)} for number in range(30)]]
    lines(home / "chat.jsonl", rows)
    asked = job(home, MESSAGES)
    with pytest.raises(UserError) as caught:
        check_encoding(asked)
    said = str(caught.value)
    assert said.startswith(f"data.sources.0: {home / 'chat.jsonl'}, line 2, {complaint}")
    assert said.endswith('mend it, or pass over such with on_error = "skip"')
    assert "\n" not in said
    parts, spoken = segments(home, job(home, MESSAGES + 'on_error = "skip"\n'))
    assert sum(bool(learned) for _, learned in parts) == 31
    assert f"Passed over 1 row of the text: {home / 'chat.jsonl'}, line 2, {complaint}" in spoken[-1]


def test_messages_come_from_parquet_and_folders_of_datasets_too(home: Path) -> None:
    from datasets import Dataset

    rows = [{"messages": chat(number)} for number in range(40)]
    Dataset.from_list(rows).save_to_disk(str(home / "saved"))
    Dataset.from_list(rows).to_parquet(str(home / "chat.parquet"))
    wanted, _ = segments(home, job(home, MESSAGES))
    for source in ('path = "saved"\nformat = "dataset"', 'path = "chat.parquet"'):
        (home / "state").rename(home / f"state-{len(source)}")
        found, _ = segments(home, job(home, f'\n[[data.sources]]\nkind = "messages"\n{source}\n'))
        assert found == wanted


def test_messages_without_a_template_are_refused_before_the_text_is_read(home: Path) -> None:
    chat_tokenizer(None).save_pretrained(str(home / "bare"))
    asked = job(home, MESSAGES)
    bare = asked.model_copy(update={"data": asked.data.model_copy(update={"tokenizer": str(home / "bare")})})
    with pytest.raises(UserError, match=r'^data.sources.0: kind = "messages" needs a chat template'):
        check_text_bytes(bare)
    (home / "chat.jinja").write_text(unmarked(CHATML))
    given = bare.data.model_copy(update={"chat_template": str(home / "chat.jinja")})
    parts, _ = segments(home, bare.model_copy(update={"data": given}))
    assert sum(bool(learned) for _, learned in parts) == 40
    assert load(home / "state" / "tokenizer").chat_template == unmarked(CHATML)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('path = "a.jsonl"\nkind = "messages"\ntemplate = "{x}"', "template: messages are put together by"),
        ('path = "a.json"\nkind = "messages"', "format: .*a.json does not end as JSON lines"),
        ('path = "a.jsonl"\nkind = "jsonl"\nformat = "jsonl"', 'format: the kind "jsonl" says it: remove it'),
        ('path = "a.jsonl"\nkind = "completions"\ntemplate = "{"', "template: .* has a brace that stands alone"),
    ],
)
def test_a_source_that_does_not_fit_its_kind_is_refused(home: Path, source: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        job(home, f"\n[[data.sources]]\n{source}\n")


def test_nothing_to_learn_and_sequences_of_one_token_are_refused(home: Path) -> None:
    lines(
        home / "chat.jsonl",
        [{"messages": [{"role": "user", "content": "x " * 90}, {"role": "assistant", "content": "y"}]}],
    )
    with pytest.raises(UserError, match="there is nothing to learn in it"):
        prepare(job(home, MESSAGES), home / "state", lambda line: None)
    asked = job(home, MESSAGES)
    short = asked.training.model_copy(update={"sequence_length": 1})
    with pytest.raises(UserError, match="sequence_length: documents that stand apart need 2 tokens at least"):
        prepare(asked.model_copy(update={"training": short}), home / "state", lambda line: None)


def test_a_models_folder_brings_its_tokenizer_and_the_template_by_which_it_chats(home: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    base = home / "base"
    chat_tokenizer(CHATML).save_pretrained(str(base))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(load(base)), **sizes)).save_pretrained(str(base))
    text = JOB[: JOB.index("[model]")] + '[model]\npath = "base"\n' + JOB[JOB.index("[training]") :]
    (home / "job.toml").write_text(text.replace('tokenizer = "tokenizer"\n', "packing = true\n") + MESSAGES)
    parts, _ = segments(home, Job.load(home / "job.toml"))
    assert sum(text.startswith("<|im_start|>user\nquestion") for text, _ in parts) == 40
    assert load(home / "state" / "tokenizer").chat_template == CHATML


def test_a_tokenizer_that_is_trained_here_is_trained_on_what_the_template_writes(home: Path) -> None:
    (home / "chat.jinja").write_text(
        "{% for one in messages %}{{ '###' + one.role + ':' + one.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '###assistant:' }}{% endif %}"
    )
    (home / "job.toml").write_text(
        JOB.replace('tokenizer = "tokenizer"', 'tokenizer = "bpe:300"\nchat_template = "chat.jinja"') + MESSAGES
    )
    parts, _ = segments(home, Job.load(home / "job.toml"))
    found = [part for part in parts if part[1]]
    assert found[1] == (
        "###user:question 1<|endoftext|>###assistant:the answer is 1<|endoftext|>"
        "###user:and then?<|endoftext|>###assistant:the answer <|endoftext|>",
        "the answer is 1<|endoftext|>the answer <|endoftext|>",
    )
    assert "assistant" in " ".join(load(home / "state" / "tokenizer").get_vocab())
