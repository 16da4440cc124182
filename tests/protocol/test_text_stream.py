"""A text becomes the same corpus with any number of workers, and however often that was broken off."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.data import arrow_tables, corpus_writer, json_lines
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.piece_encoder import PieceEncoder
from dtfm_protocol.data.preparing_journal import PreparingJournal
from dtfm_protocol.data.text_pieces import text_pieces
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader, corpus_files
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.data.tokenizer import encode, make_tokenizer
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from dtfm_protocol.job.resolved_job import Corpus

SIZES: dict[str, Any] = {"shard_bytes": 600, "chapter_shards": 5}


class Killed(BaseException):
    """What a test does to the work."""


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "CUT_BYTES", 700)
    monkeypatch.setattr(arrow_tables, "CUT_BYTES", 3000)


def source(path: Path, **keys: Any) -> DataSource:
    return DataSource.model_validate({"path": str(path), "kind": "jsonl"} | keys)


def rows(count: int, seed: int) -> list[dict[str, str]]:
    draw = random.Random(seed)
    return [{"text": "".join(draw.choices("abc de€\n", k=draw.choice((0, 3, 40, 300))))} for _ in range(count)]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Sources of every form, with weights, empty rows and lines, and rows that are passed over."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    for number in range(2):
        lines = [json.dumps(row) for row in rows(60, number)]
        lines[7:7], lines[20:20], lines[30:30] = ["", "  "], ["{"], ['{"texd": 1}']
        (tmp_path / f"{number}.jsonl").write_text("\ufeff" + "\r\n".join(lines) + "\n\n", encoding="utf-8")
    write_table(pa.Table.from_pylist(rows(50, 3)), tmp_path / "a.parquet", row_group_size=8)
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-30])
    (tmp_path / "c.txt").write_text("a text, as it is. " * 30)
    return Data(
        sources=[
            source(tmp_path / "*.jsonl", on_error="skip", weight=0.7),
            source(tmp_path / "*.parquet", kind="parquet", on_error="skip"),
            source(tmp_path / "0.jsonl", on_error="skip", weight=2.5),
            source(tmp_path / "c.txt", kind="text"),
        ],
        tokenizer="bpe:290",
    )


def of_documents(data: Data, seed: int = 3) -> tuple[list[int], str, Any]:
    """The tokens as they are without pieces, one document after the other, and what was passed over."""
    documents = Documents(data, seed)
    tokenizer = make_tokenizer(data, (one.text for one in documents))
    tokens = [int(token) for piece in encode(data, tokenizer, (one.text for one in documents)) for token in piece]
    return tokens, str(documents.skipped), tokenizer


def test_pieces_have_the_documents_of_the_whole_text_in_their_order(data: Data, tmp_path: Path) -> None:
    expected, skipped, _ = of_documents(data)
    said: list[str] = []
    made = tokenize(data, tmp_path / "tokens", said.append, seed=3, **SIZES)
    found = TokenReader(made.corpus, ShardFolder(tmp_path / "tokens")).read(0, made.corpus.tokens)
    assert found.tolist() == expected
    assert said[-1] == skipped
    assert len(made.corpus.chapters) > 3
    assert len(list(text_pieces(Documents(data, 3).sources, 3))) > 40


@pytest.mark.process
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_makes_the_same_corpus(data: Data, tmp_path: Path, workers: int) -> None:
    said: dict[int, list[str]] = {1: [], workers: []}
    made = {
        count: tokenize(data, tmp_path / str(count), lines.append, seed=3, workers=count, **SIZES)
        for count, lines in said.items()
    }
    assert made[workers].corpus == made[1].corpus
    assert made[workers].repeated == made[1].repeated
    told = {count: [line for line in lines if not line.startswith("Turning the text")] for count, lines in said.items()}
    assert told[workers] == told[1]
    files = {path.name: path.read_bytes() for path in (tmp_path / "1").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / str(workers)).iterdir()} == files


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 3])
def test_of_several_damaged_rows_the_first_is_named_by_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    for name in "ab":
        lines = [json.dumps(row) for row in rows(200, 1)]
        for place in (150, 151, 190):
            lines[place] = "{"
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"a\.jsonl, line 151, is not JSON") as caught:
        tokenize(Data(sources=[source(tmp_path / "*.jsonl")]), tmp_path / "tokens", workers=workers, **SIZES)
    assert "\n" not in str(caught.value)


@pytest.mark.process
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"column": "body"}, 'whole.parquet, has no column "body", only text'),
        ({"path": "torn.parquet"}, r"torn\.parquet, row 1, cannot be read"),
        ({"path": "hole.parquet"}, r"hole\.parquet, row \d+, cannot be read, nor what comes after it"),
        ({"path": "void.jsonl", "kind": "jsonl"}, "there is no text in"),
    ],
)
def test_a_broken_table_is_named_by_any_number_of_workers(tmp_path: Path, keys: dict[str, str], said: str) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    write_table(pa.Table.from_pylist(rows(90, 3)), tmp_path / "whole.parquet", row_group_size=8, compression="zstd")
    whole = (tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(whole[:-30])
    (tmp_path / "hole.parquet").write_bytes(whole[:4000] + bytes(3000) + whole[7000:])
    (tmp_path / "void.jsonl").write_text("\n\n")
    path = tmp_path / keys.get("path", "whole.parquet")
    asked = Data(sources=[DataSource.model_validate({"kind": "parquet"} | keys | {"path": str(path)})])
    with pytest.raises(UserError, match=said) as caught:
        tokenize(asked, tmp_path / "tokens", workers=1, **SIZES)
    first = str(caught.value)
    with pytest.raises(UserError) as caught:
        tokenize(asked, tmp_path / "tokens", workers=2, **SIZES)
    assert str(caught.value) == first


def broken_off(monkeypatch: pytest.MonkeyPatch, data: Data, home: Path, after: int, *, torn: bool = False) -> bool:
    """Make the corpus, but die before file number `after` is written; whether that came."""
    written = 0
    keep = corpus_writer.CorpusWriter._keep

    def count(writer: corpus_writer.CorpusWriter, values: Any) -> Any:
        nonlocal written
        written += 1
        if written > after:
            raise Killed
        return keep(writer, values)

    with monkeypatch.context() as patched:
        patched.setattr(corpus_writer.CorpusWriter, "_keep", count)
        try:
            tokenize(data, home / "tokens", seed=3, journal=PreparingJournal(home / "journal", "s"), **SIZES)
        except Killed:
            if torn:
                path = home / "journal/preparing.jsonl"
                path.write_bytes(path.read_bytes()[:-17])
            return True
    return False


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("after", [0, 1, 7, 23, 40])
def test_who_is_broken_off_goes_on_and_makes_the_same_corpus(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, torn: bool
) -> None:
    whole = tokenize(data, tmp_path / "whole", seed=3, **SIZES)
    times = 0
    while broken_off(monkeypatch, data, tmp_path, after * (times + 1), torn=torn and not times):
        times += 1
        assert times < 100
        if after == 0:
            break
    said: list[str] = []
    journal = PreparingJournal(tmp_path / "journal", "s")
    made = tokenize(data, tmp_path / "tokens", said.append, seed=3, journal=journal, **SIZES)
    assert made.corpus == whole.corpus
    assert made.repeated == whole.repeated
    assert made.tokenizer.backend_tokenizer.to_str() == whole.tokenizer.backend_tokenizer.to_str()
    trained = any(line.startswith("Working out") for line in said)
    assert trained == (after == 0 and torn)  # else once
    assert said[-1].startswith("Passed over 7 rows of the text: ")
    assert set(corpus_files(made.corpus, ShardFolder(tmp_path / "tokens"))) == {
        path.stem for path in (tmp_path / "tokens").iterdir()
    }


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.booleans())
def test_a_stream_of_bytes_broken_off_anywhere_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, places: list[int], damaged: bool
) -> None:
    home = tmp_path_factory.mktemp("broken")
    (home / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows(80, 5)))
    data = Data(sources=[source(home / "a.jsonl", weight=1.5)])
    whole = tokenize(data, home / "whole", seed=3, **SIZES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "CUT_BYTES", 700)
        for place in places:
            broken_off(patch, data, home, place)
            shards = sorted((home / "tokens").glob("*.tokens"))
            if damaged and shards:
                shards[place % len(shards)].write_bytes(b"\0" * 600)
        journal = PreparingJournal(home / "journal", "s")
        made = tokenize(data, home / "tokens", seed=3, journal=journal, **SIZES)
    assert made.corpus == whole.corpus
    assert all(
        ShardFolder(home / "tokens").has(name) for name in corpus_files(made.corpus, ShardFolder(home / "tokens"))
    )


def test_what_was_done_is_not_read_again(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_off(monkeypatch, data, tmp_path, 30)
    read: list[str] = []
    parts = PieceEncoder.parts

    def noted(encoder: PieceEncoder, one: Any, file: Path, cut: Any) -> Any:
        read.append(f"{file.name} {cut.begin}")
        return parts(encoder, one, file, cut)

    monkeypatch.setattr(PieceEncoder, "parts", noted)
    said: list[str] = []
    tokenize(
        data, tmp_path / "tokens", said.append, seed=3, journal=PreparingJournal(tmp_path / "journal", "s"), **SIZES
    )
    assert any(line.startswith("Going on where preparing was broken off, after ") for line in said)
    rest = len(read)
    read.clear()
    tokenize(data, tmp_path / "whole", seed=3, **SIZES)
    assert rest < len(read) - 10


def test_a_journal_of_another_text_or_a_damaged_one_does_not_count(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(monkeypatch, data, tmp_path, 20)
    folder = tmp_path / "journal"
    assert PreparingJournal(folder, "s").is_begun
    other = PreparingJournal(folder, "another stamp")
    assert other.is_outdated
    assert not other.is_begun
    lines = (folder / "preparing.jsonl").read_text().splitlines()
    whole = PreparingJournal(folder, "s")
    for place in (1, len(lines) // 2, len(lines) - 1):
        middle = len(lines[place]) // 2
        damaged = lines[place][:middle] + chr(ord(lines[place][middle]) ^ 1) + lines[place][middle + 1 :]
        changed = [*lines[:place], damaged, *lines[place + 1 :]]
        (folder / "preparing.jsonl").write_text("\n".join(changed) + "\n")
        found = PreparingJournal(folder, "s")
        assert len(found.pieces) + len(found.shards) == place - 1
        assert (found.pieces, found.shards) == (whole.pieces[: len(found.pieces)], whole.shards[: len(found.shards)])
    (folder / "tokenizer.json").write_text("{}")
    assert PreparingJournal(folder, "s").is_outdated


PROGRAM = """
import sys
from pathlib import Path
from dtfm_protocol.data import json_lines
from dtfm_protocol.data.preparing_journal import PreparingJournal
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.job.data_table import Data
json_lines.CUT_BYTES = 10_000
home = Path(sys.argv[1])
data = Data.model_validate_json((home / "data.json").read_bytes())
print("begun", flush=True)
tokenize(data, home / "tokens", print, journal=PreparingJournal(home / "journal", "s"), shard_bytes=4096, workers=2)
print("done", flush=True)
"""


@pytest.mark.process
def test_a_process_that_is_killed_leaves_no_workers_and_what_can_be_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows(8000, 5)))
    data = Data(sources=[source(tmp_path / "a.jsonl")])
    (tmp_path / "data.json").write_text(data.model_dump_json())
    whole = tokenize(data, tmp_path / "whole", shard_bytes=4096)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.DEVNULL)
    journal = tmp_path / "journal/preparing.jsonl"
    while not journal.exists() or journal.read_bytes().count(b'"shard"') < 20:
        assert process.poll() is None, "it was done before it could be killed"
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(children) == 2
    while any(Path(f"/proc/{child}/stat").exists() and not is_zombie(child) for child in children):
        time.sleep(0.01)
    before = len(PreparingJournal(tmp_path / "journal", "s").shards)
    assert 20 <= before < len(whole.corpus.shards)
    said = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, capture_output=True, text=True)
    assert "Going on where preparing was broken off" in said.stdout
    made = Corpus.model_validate({**whole.corpus.model_dump(), "shards": whole.corpus.shards})
    assert {path.stem for path in (tmp_path / "tokens").glob("*.tokens")} == {one.sha256 for one in made.shards}


def is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.process
def test_a_worker_that_is_killed_stops_the_work_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dtfm_protocol.data import encoding_worker

    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows(300, 5)))
    start = encoding_worker.EncodingWorker.__init__

    def short_lived(worker: Any, *arguments: Any) -> None:
        start(worker, *arguments)
        os.kill(worker._process.pid, signal.SIGKILL)

    monkeypatch.setattr(encoding_worker.EncodingWorker, "__init__", short_lived)
    with pytest.raises(UserError, match=r"has ended with code -9: there may be too little memory$"):
        tokenize(Data(sources=[source(tmp_path / "a.jsonl")]), tmp_path / "tokens", workers=2)
