"""Parquet files and folders of `datasets`: their rows are those that were written, read a few at a time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from dtfm_protocol.data import arrow_tables
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.source_files import files_read, sources_of
from dtfm_protocol.data.text_sample import read_piece, samples_of
from dtfm_protocol.data.tokenization import tokenize
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource

TEXTS = [f"{number} naïve — 漢字 🎉\n" * (1 + number % 7) for number in range(1000)]


def source(path: Path | str, kind: str, **keys: Any) -> Data:
    return Data(sources=[DataSource.model_validate({"path": str(path), "kind": kind} | keys)])


def texts(data: Data) -> list[str]:
    return [document.text for document in Documents(data)]


def parquet(file: Path, rows: int = 300, **columns: list[Any]) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), file, row_group_size=rows)
    return file


def dataset(folder: Path, *tables: dict[str, list[Any]]) -> Path:
    """A folder as `save_to_disk` of `datasets` 5.2 writes it, as far as it is read."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, columns in zip(names, tables, strict=True):
        table = pa.table(columns)
        with pa.OSFile(str(folder / name), "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table, max_chunksize=100)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The same documents in each kind of table, and as JSON lines."""
    parquet(tmp_path / "all.parquet", id=list(range(1000)), text=TEXTS)
    dataset(tmp_path / "all", {"text": TEXTS[:700]}, {"text": TEXTS[700:]})
    (tmp_path / "all.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    return tmp_path


@pytest.mark.parametrize(("name", "kind"), [("all.parquet", "parquet"), ("all", "dataset")])
def test_a_table_becomes_the_same_shards_as_lines_of_json(home: Path, name: str, kind: str) -> None:
    made, same = (
        tokenize(source(home / name, kind), home / "a"),
        tokenize(source(home / "all.jsonl", "jsonl"), home / "b"),
    )
    assert made.corpus == same.corpus
    found = list(Documents(source(home / name, kind)))
    assert [document.text for document in found] == TEXTS
    assert [document.row for document in found] == list(range(1, 1001))
    assert sum(document.read for document in found) == pytest.approx(
        Documents(source(home / name, kind)).bytes, rel=0.1
    )


@pytest.mark.process
def test_a_folder_that_datasets_itself_has_written_is_read(tmp_path: Path) -> None:
    """In a process of its own: `datasets` patches others as it is imported."""
    program = (
        "import sys, json, datasets; texts = json.load(sys.stdin); one = datasets.Dataset.from_dict({'text': texts});"
        "one.save_to_disk(sys.argv[1], num_shards=3);"
        "one.filter(lambda row: len(row['text']) < 40).save_to_disk(sys.argv[1] + '-filtered');"
        "datasets.DatasetDict({'train': one, 'test': one}).save_to_disk(sys.argv[1] + '-splits')"
    )
    folder = tmp_path / "saved"
    subprocess.run([sys.executable, "-c", program, str(folder)], input=json.dumps(TEXTS), text=True, check=True)
    assert texts(source(folder, "dataset")) == TEXTS
    assert texts(source(f"{folder}-filtered", "dataset")) == [text for text in TEXTS if len(text) < 40]
    assert texts(source(f"{folder}-splits/train", "dataset")) == TEXTS
    with pytest.raises(UserError, match=r'has the splits test, train: name one, as path = ".*saved-splits/test"'):
        texts(source(f"{folder}-splits", "dataset"))


def test_a_template_reads_several_columns_of_a_table(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", q=["a", "b"], n=[1, 2], other=[[1], [2]])
    assert texts(source(file, "parquet", template="{q}{n}")) == ["a1", "b2"]


@pytest.mark.parametrize("kind", ["parquet", "dataset"])
def test_a_table_without_the_column_or_with_an_empty_place_is_named(tmp_path: Path, kind: str) -> None:
    columns = {"body": ["a", None, "c"]}
    path = parquet(tmp_path / "a", **columns) if kind == "parquet" else dataset(tmp_path / "a", columns)
    with pytest.raises(UserError, match=r'data\.sources\.0: .*a, has no column "text", only body: mend it'):
        texts(source(path, kind))
    with pytest.raises(UserError, match=r'a, row 2, has no text in "body", which is empty'):
        texts(source(path, kind, column="body"))
    documents = Documents(source(path, kind, column="body", on_error="skip"))
    assert ([document.text for document in documents], documents.skipped.rows) == (["a", "c"], 1)


@pytest.mark.parametrize("damage", ["cut", "middle", "other"])
def test_a_broken_parquet_file_is_named_or_what_can_be_read_of_it_is_taken(home: Path, damage: str) -> None:
    file = home / "all.parquet"
    data = bytearray(file.read_bytes())
    if damage == "middle":
        data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    file.write_bytes(data[:-100] if damage == "cut" else b"no table at all" if damage == "other" else data)
    with pytest.raises(UserError, match=r"all\.parquet, row \d+, cannot be read") as caught:
        texts(source(file, "parquet"))
    assert "\n" not in str(caught.value)
    (home / "more").mkdir()
    parquet(home / "more.parquet", text=["last"])
    documents = Documents(source(home / "*.parquet", "parquet", on_error="skip"))
    found = [document.text for document in documents]
    assert found == [*TEXTS[: len(found) - 1], "last"]
    assert documents.skipped.rows == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, r"has no state\.json, so it is none that save_to_disk"),
        ("{", "lists no tables"),
        ('{"_data_files": [{"filename": "../all.jsonl"}]}', r"names \.\./all\.jsonl, which is not there"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', r"names gone\.arrow, which is not there"),
    ],
)
def test_a_folder_that_is_no_dataset_is_named(home: Path, state: str | None, said: str) -> None:
    (home / "all/state.json").unlink()
    if state is not None:
        (home / "all/state.json").write_text(state)
    with pytest.raises(UserError, match=said) as caught:
        texts(source(home / "all", "dataset"))
    assert "\n" not in str(caught.value)


def test_all_files_of_a_dataset_count_among_those_that_are_read(home: Path) -> None:
    names = [file.name for file in files_read(source(home / "all", "dataset"))]
    assert names == ["state.json", "data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]


def test_without_pyarrow_it_is_said_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_tables, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"need pyarrow: pip install 'dtfm\[data\]'"):
        texts(source(home / "all.parquet", "parquet"))


@pytest.mark.parametrize(("name", "kind"), [("all.parquet", "parquet"), ("all", "dataset"), ("all.jsonl", "jsonl")])
def test_a_piece_of_a_table_comes_from_about_the_byte_that_is_asked_for(home: Path, name: str, kind: str) -> None:
    (one,) = sources_of(source(home / name, kind))
    total = one.bytes
    for share in (0.0, 0.3, 0.8):
        found, read = read_piece(one, home / name, int(share * total), 200)
        place = TEXTS.index(found[0].text) / len(TEXTS)
        assert share - 0.35 <= place <= share + 0.05
        assert TEXTS.index(found[0].text) + len(found) == TEXTS.index(found[-1].text) + 1
        assert 0 < read < total / 5
    (sample,) = samples_of((one,))
    assert sample.documents == pytest.approx(len(TEXTS), rel=0.15)
    assert sample.total == pytest.approx(sum(len(text.encode()) for text in TEXTS), rel=0.15)
