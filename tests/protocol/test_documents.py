"""The documents of a job, from any source: the same ones in the same order everywhere, and every fault in one line."""

import json
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dtfm_protocol.data.contents import Content
from dtfm_protocol.data.documents import Document, Documents
from dtfm_protocol.data.json_lines import json_lines
from dtfm_protocol.data.rows import Fault, Row
from dtfm_protocol.data.source_files import sources_of
from dtfm_protocol.data.tokenization import Told, tokenize
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource

TEXTS = ["one\r\ntwo", "a naïve façade — 漢字 🎉", "  ", "the end<|endoftext|>of it"]


def written(file: Path, *rows: Any) -> Path:
    """A file of JSON lines: text as it is, all else as JSON."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    file.write_bytes(b"\n".join(lines))
    return file


def lines(path: Path | str, **keys: Any) -> Data:
    return Data(sources=[DataSource.model_validate({"path": str(path), "kind": "jsonl"} | keys)])


def texts(data: Data, seed: int = 0) -> list[str]:
    return [document.text for document in Documents(data, seed)]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:290"])
def test_lines_of_json_become_the_same_shards_as_files_of_the_same_text(tmp_path: Path, tokenizer: str) -> None:
    draw = random.Random(2)
    many = TEXTS + ["".join(draw.choices("abc de€", k=draw.randint(1, 400))) for _ in range(300)]
    for number, text in enumerate(many):
        (tmp_path / f"{number:04}.txt").write_bytes(text.encode())
    written(tmp_path / "all.jsonl", *({"text": text} for text in many))
    files = Data(text=[str(tmp_path / "*.txt")], tokenizer=tokenizer)
    table = lines(tmp_path / "all.jsonl").model_copy(update={"tokenizer": tokenizer})
    assert texts(files) == texts(table) == many
    assert tokenize(files, tmp_path / "a").corpus == tokenize(table, tmp_path / "b").corpus


def test_a_document_knows_its_file_and_line(tmp_path: Path) -> None:
    for name in ("b", "a"):
        written(tmp_path / f"{name}.jsonl", {"text": name}, b"", {"text": ""}, {"text": name * 2})
    found = list(Documents(lines(tmp_path / "*.jsonl")))
    places = [(document.text, document.file and document.file.name, document.row) for document in found]
    assert places == [("a", "a.jsonl", 1), ("aa", "a.jsonl", 4), ("b", "b.jsonl", 1), ("bb", "b.jsonl", 4)]
    assert sum(document.read for document in found) == Documents(lines(tmp_path / "*.jsonl")).bytes


def test_a_template_makes_a_document_of_several_columns(tmp_path: Path) -> None:
    written(tmp_path / "qa.jsonl", {"q": "why?", "a": 3}, {"q": "how?", "a": "so"})
    assert texts(lines(tmp_path / "qa.jsonl", template="{q}\n{a}")) == ["why?\n3", "how?\nso"]
    assert texts(lines(tmp_path / "qa.jsonl", column="q")) == ["why?", "how?"]


BAD: dict[str, tuple[Any, str]] = {
    "no column": ({"txt": "a"}, 'bad.jsonl, line 2, has no "text", only txt: mend it, or pass over such'),
    "no text": ({"text": 3}, 'line 2, has no text in "text", which is a number'),
    "empty": ({"text": None}, "which is empty (null)"),
    "no JSON": (b'{"text": "a', "line 2, is not JSON (Unterminated string starting at, character 10)"),
    "no object": (b"[1, 2]", "line 2, is no object of JSON"),
    "no UTF-8": (b'{"text": "\xff"}', "line 2, is not UTF-8 (byte 10 of it)"),
    "half a character": (b'{"text": "\\ud83d"}', "line 2, has half a character"),
    "deep": (b"[" * 200_000, "line 2, is "),
    "a long number": (b'{"text": ' + b"9" * 5000 + b"}", "line 2, is JSON beyond reading"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_line_that_is_wrong_is_named_in_one_line_or_passed_over_and_counted(tmp_path: Path, kind: str) -> None:
    row, said = BAD[kind]
    file = written(tmp_path / "bad.jsonl", {"text": "first"}, row, {"text": "last"})
    with pytest.raises(UserError) as caught:
        texts(lines(file))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"data.sources.0: {file}, line 2,")
    assert "\n" not in str(caught.value)
    documents = Documents(lines(file, on_error="skip"))
    assert [document.text for document in documents] == ["first", "last"]
    assert documents.skipped.rows == 1
    assert str(documents.skipped).startswith(f"Passed over 1 row of the text: {file}, line 2, ")


def test_what_was_passed_over_is_said_at_the_end_and_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "bad.jsonl", {"text": "to be or not to be"}, {}, {"text": "that is"}, b"x")
    said: list[str] = []
    data = lines(file, on_error="skip", weight=3).model_copy(update={"tokenizer": "bpe:260"})
    tokenize(data, tmp_path / "tokens", said.append)
    assert said[-1] == f'Passed over 2 rows of the text: {file}, line 2, has no "text", and others.'


@pytest.mark.parametrize(
    ("path", "keys", "said"),
    [
        ("none.jsonl", {}, "data.sources.0: no file matches"),
        ("*.none", {}, "data.sources.0: no file matches"),
        (".", {}, "is a folder: name the files in it"),
        ("empty.jsonl", {}, "data.sources.0: there is no text in"),
        ("a.jsonl", {"weight": 0.001, "column": "x"}, "takes none of its 1 documents"),
        ("a.jsonl", {"kind": "dataset"}, "is a file, and kind"),
    ],
)
def test_a_source_that_leads_to_nothing_is_named(tmp_path: Path, path: str, keys: dict[str, Any], said: str) -> None:
    written(tmp_path / "empty.jsonl", b"", {"text": ""})
    written(tmp_path / "a.jsonl", {"x": "a"})
    with pytest.raises(UserError) as caught:
        texts(lines(tmp_path / path, **keys), seed=1)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sources_come_in_their_order_those_that_are_repeated_first_and_not_twice_at_once(tmp_path: Path) -> None:
    for name in "abc":
        written(tmp_path / f"{name}.jsonl", {"text": f"{name}1"}, {"text": f"{name}2"})
    weights = {"c": 1.0, "a": 2.0, "b": 1.0}
    sources = [
        DataSource(path=str(tmp_path / f"{name}.jsonl"), kind="jsonl", weight=one) for name, one in weights.items()
    ]
    assert texts(Data(sources=sources)) == ["a1", "a2", "a1", "a2", "c1", "c2", "b1", "b2"]
    made = tokenize(Data(sources=sources), tmp_path / "tokens")
    assert (made.corpus.tokens, made.repeated) == (8 * 2 + 7, 4 * 2 + 3)


def test_a_weight_draws_documents_by_the_seed(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", *({"text": str(number)} for number in range(100)))
    half = lines(tmp_path / "a.jsonl", weight=0.5)
    assert len(texts(half)) == 50
    assert texts(half) == texts(half) != texts(half, seed=1)
    more = texts(lines(tmp_path / "a.jsonl", weight=2.5))
    assert len(more) == 250
    assert more[:100] == more[100:200] == [str(number) for number in range(100)]
    assert len(set(more[200:])) == 50


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b" * 500}, {"text": "c"})
    (source,) = sources_of(lines(file))
    found = list(json_lines(source, file, longest=100))
    assert [type(row) for row in found] == [Row, Fault, Row]
    assert [row.number for row in found] == [1, 2, 3]
    assert sum(row.size for row in found) == file.stat().st_size


@pytest.mark.parametrize("at", range(1, 40))
def test_reading_from_a_byte_begins_with_the_next_line(tmp_path: Path, at: int) -> None:
    file = written(tmp_path / "a.jsonl", {"text": "a"}, {"text": "bb"}, {"text": "c"})
    (source,) = sources_of(lines(file))
    begins = [0, 14, 29]
    found = [row.values["text"] for row in json_lines(source, file, at) if isinstance(row, Row)]
    assert found == [text for text, begin in zip(["a", "bb", "c"], begins, strict=True) if begin >= at]


def test_a_long_reading_is_told_with_words_on_how_far_it_is() -> None:
    """A clock that goes on by ten seconds a look."""
    said: list[str] = []
    told = Told("Turning the text into tokens", 4e6, said.append, count(0, 10).__next__)
    assert list(told.texts(Document(Content("x"), None, number, 1e6) for number in range(4))) == ["x"] * 4
    assert said[0] == "Turning the text into tokens: 1 MB of 4 MB (25 %), less than a minute left."
    assert [f"{share} %" in line for share, line in zip((25, 50, 75), said, strict=True)] == [True] * 3
