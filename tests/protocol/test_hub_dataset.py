"""Data sets by name, streamed: here from folders that `datasets` loads as it loads what the hub has."""

import json
from pathlib import Path
from typing import Any

import pytest

from dtfm_protocol.data import hub_sizes
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.source_files import sources_of
from dtfm_protocol.data.text_check import check_encoding, check_yield
from dtfm_protocol.data.text_size import text_size
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from dtfm_protocol.job.job_file import Job

ROWS = [{"text": f"row {number} " * (1 + number % 7), "more": number} for number in range(200)]


@pytest.fixture(autouse=True)
def nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data set with the splits train, in two files, and test."""
    folder = tmp_path / "org" / "set"
    folder.mkdir(parents=True)
    for name, rows in (("train-0", ROWS[:90]), ("train-1", ROWS[90:]), ("test", ROWS[:3])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def data(home: Path, **keys: Any) -> Data:
    source = DataSource(**{"path": "org/set", "kind": "hub"} | keys)
    return Data(sources=[source]).rooted(home, None)


def texts(asked: Data) -> list[str]:
    return [document.text for document in Documents(asked)]


def test_all_rows_of_a_split_come_in_order(home: Path) -> None:
    assert texts(data(home)) == [row["text"] for row in ROWS]
    assert texts(data(home, split="test", template="{more}: {text}")) == [
        "0: row 0 ",
        "1: row 1 row 1 ",
        "2: row 2 row 2 row 2 ",
    ]
    (one,) = sources_of(data(home))
    assert one.bytes == sum(file.stat().st_size for file in (home / "org" / "set").glob("train*"))


def test_its_tokens_are_those_of_the_same_rows_in_a_file(home: Path) -> None:
    (home / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    same = data(home, path=str(home / "all.jsonl"), kind="jsonl")
    assert tokenize(data(home), home / "a").corpus == tokenize(same, home / "b").corpus
    assert text_size(data(home)).tokens == text_size(same).tokens
    sampled = text_size(data(home), 100)
    assert sampled.how
    assert sampled.tokens == pytest.approx(text_size(same).tokens, rel=0.2)


def test_conversations_are_streamed_too(home: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (home / "chats").mkdir()
    (home / "chats" / "test.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (home / "chat.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}")
    source = DataSource(path="chats", kind="messages", format="hub", split="test")
    asked = Data(sources=[source], chat_template="chat.jinja").rooted(home, None)
    (document,) = Documents(asked)
    assert (document.text, document.content.learned) == ("ab", ((1, 2),))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        (
            {"split": "none"},
            r"^data\.sources\.0: cannot open the data set .*, split none: it has no such split, only train, test$",
        ),
        ({"path": "no-org/none"}, r"^data\.sources\.0: cannot open the data set no-org/none, split train: "),
        ({"column": "body"}, r'^data\.sources\.0: .*org/set, has no column "body", only text, more: mend it'),
    ],
)
def test_what_is_not_there_is_said_in_a_line(home: Path, keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        text_size(data(home, **keys))
    assert "\n" not in str(caught.value)


def test_without_datasets_it_is_refused_before_anything_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_sizes, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"data\.sources\.0: data sets by name need datasets: pip install 'dtfm\[data\]'"
    ):
        texts(data(home))


def test_split_and_revision_belong_to_data_sets_by_name(home: Path) -> None:
    with pytest.raises(ValueError, match='goes with the form "hub" alone'):
        data(home, kind="jsonl", revision="main")


def test_a_job_of_it_is_checked_as_any_other(home: Path) -> None:
    (home / "job.toml").write_text(
        'name = "x"\nmodel = { architecture = "llama" }\ndata = { sources = [{ path = "org/set", kind = "hub" }] }\n'
        "training = { steps = 1, global_batch = 1, micro_batch = 1, sequence_length = 8, learning_rate = 1e-3 }\n"
    )
    job = Job.load(home / "job.toml")
    check_yield(job)
    check_encoding(job)
    check_encoding(job, 100)
