"""What is wrong with a text is said before it is tokenized, as far as its files' sizes and a sample of it tell."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dtfm_protocol.data.text_check import check_encoding, check_sample, check_text_bytes
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from dtfm_protocol.job.job_file import Checkpointing, EvaluationTable, Job, Model, Planning, Training

pytestmark = pytest.mark.unit
WHOLE = 1000
"""Bytes of a text that counts as short here."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a text that counts as long, in two files."""
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 7))) for _ in range(300)]
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(" ".join(draw.choices(words, k=1500)))
    return tmp_path


def job(home: Path, tokenizer: str = "bytes", **training: Any) -> Job:
    values = {"steps": 1, "global_batch": 2, "micro_batch": 1, "sequence_length": 8, "learning_rate": 1e-3} | training
    return Job(
        name="tiny",
        model=Model.model_validate({"architecture": "llama"}),
        data=Data(text=[str(home / "*.txt")], tokenizer=tokenizer),
        training=Training.model_validate(values),
        evaluation=EvaluationTable(),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )


def test_a_text_of_empty_files_is_none(home: Path) -> None:
    for name in "ab":
        (home / f"{name}.txt").write_text("")
    with pytest.raises(UserError, match="there is no text"):
        check_text_bytes(job(home, "folder"))


def test_a_bpe_that_no_text_of_so_many_bytes_yields_is_refused(home: Path) -> None:
    size = sum(file.stat().st_size for file in home.glob("*.txt"))
    check_text_bytes(job(home, f"bpe:{size + 257}"))
    with pytest.raises(UserError, match=f"bpe:{size + 258}.*{size} bytes"):
        check_text_bytes(job(home, f"bpe:{size + 258}"))


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"\xff\xfea\x00", r"not UTF-8 \(byte 0\), it looks like UTF-16: convert"),
        (b"\x1f\x8b\x08", r"not UTF-8 \(byte 1\), it looks like a file packed by gzip"),
        (b"caf\xe9 ", r"not UTF-8 \(byte 3\): convert"),
    ],
)
def test_a_file_in_another_encoding_is_named_from_its_beginning(home: Path, begin: bytes, words: str) -> None:
    """However small it is beside the others, of which pieces alone are read."""
    check_encoding(job(home), WHOLE)
    (home / "c.txt").write_bytes(begin)
    with pytest.raises(UserError, match=rf"c\.txt is {words}"):
        check_encoding(job(home), WHOLE)


def with_rows(home: Path, bad: str = "") -> Job:
    """A job on lines of JSON that count as many, one of them bad."""
    rows = [json.dumps({"text": f"{number} words " * 9}) for number in range(400)]
    (home / "rows.jsonl").write_text("\n".join([*rows[:1], *([bad] if bad else []), *rows[1:]]))
    source = DataSource(path=str(home / "rows.jsonl"), kind="jsonl")
    return job(home).model_copy(update={"data": Data(sources=[source])})


def test_rows_are_looked_at_at_their_files_beginning_and_by_samples(home: Path) -> None:
    check_encoding(with_rows(home), WHOLE)
    with pytest.raises(UserError, match=r'rows\.jsonl, line 2, has no "text"'):
        check_encoding(with_rows(home, "{}"), WHOLE)
    found = check_sample(with_rows(home), home, whole=WHOLE)
    assert found is not None
    assert found.documents == pytest.approx(400, rel=0.1)
    assert found.tokens == pytest.approx(sum(len(f"{number} words " * 9) for number in range(400)) + 399, rel=0.1)


def test_what_every_source_repeats_cannot_be_held_out(home: Path) -> None:
    data = Data(sources=[DataSource(path=str(home / "a.txt"), kind="text", weight=2)])
    asked = job(home).model_copy(update={"data": data})
    check_text_bytes(asked)
    with pytest.raises(UserError, match="every weight is above 1"):
        check_text_bytes(asked.model_copy(update={"evaluation": EvaluationTable(every=1, sequences=1)}))


def test_a_character_at_the_cut_of_a_beginning_is_no_mistake(home: Path) -> None:
    (home / "c.txt").write_text("x" * 4095 + "ä" * 5000)
    check_encoding(job(home), WHOLE)


def test_all_of_a_short_text_is_looked_at(home: Path) -> None:
    (home / "b.txt").write_bytes(b"x" * 30_000 + b"\xff")
    with pytest.raises(UserError, match=r"byte 30000"):
        check_encoding(job(home), 1 << 20)


def test_a_text_that_is_far_too_short_by_its_sample_is_refused(home: Path) -> None:
    """By its bytes alone it is long enough."""
    found = check_sample(job(home, "bpe:400"), home, whole=WHOLE)
    assert found is not None
    fits, lacks = (job(home, "bpe:400", global_batch=int(found.tokens * part / 8)) for part in (1.2, 2))
    check_sample(fits, home, whole=WHOLE)
    check_text_bytes(lacks)
    with pytest.raises(UserError, match=f"about {found.tokens} tokens, but .* are needed"):
        check_sample(lacks, home, whole=WHOLE)


def test_a_bpe_that_the_sample_does_not_yield_is_said(home: Path) -> None:
    said: list[str] = []
    found = check_sample(job(home, "bpe:3000"), home, said.append, whole=WHOLE)
    assert found is not None
    assert 400 < found.smaller_bpe < 3000
    assert f"{found.smaller_bpe:,} kinds of token at most" in said[-1]
    said.clear()
    check_sample(job(home, "bpe:300"), home, said.append, whole=WHOLE)
    assert said == ["Looking at a sample of the text."]


def test_tokens_that_find_no_room_are_said_before_any_is_written(home: Path) -> None:
    needed = 2 * (sum(file.stat().st_size for file in home.glob("*.txt")) + 1)
    with pytest.raises(UserError, match="left: make room"):
        check_sample(job(home), home / "state", whole=WHOLE, free=lambda _: needed // 2)
    check_sample(job(home), home / "state", whole=WHOLE, free=lambda _: needed)
    (home / "state/tokens").mkdir(parents=True)
    (home / "state/tokens" / f"{'0' * 64}.tokens").write_bytes(bytes(needed))
    check_sample(job(home), home / "state", whole=WHOLE, free=lambda _: 0)


def test_a_short_text_is_tokenized_instead(home: Path) -> None:
    assert check_sample(job(home), home, whole=1 << 20, free=lambda _: 0) is None
