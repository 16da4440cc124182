"""What `[data] text` reads, and what it says when it cannot."""

from pathlib import Path

import pytest

from dtfm_protocol.data.documents import Documents
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource


def data(*globs: Path | str) -> Data:
    return Data(text=[str(glob) for glob in globs])


def read_text(asked: Data) -> list[str]:
    return [document.text for document in Documents(asked)]


def test_files_come_in_order_of_their_paths_once_each(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").touch()
    assert read_text(data(tmp_path / "**/*.txt", tmp_path / "b.txt")) == ["a.txt", "b.txt", "deep/c.txt"]


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\rthree\n")
    assert read_text(data(tmp_path / "a.txt")) == ["one\r\ntwo\rthree\n"]


def test_brackets_in_the_name_of_a_folder_that_exists_are_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "text [old]"
    folder.mkdir()
    (folder / "a[1].txt").write_text("here")
    assert read_text(data(folder / "*.txt")) == ["here"]
    assert read_text(data(folder / "a[1].txt")) == ["here"]


def test_the_manual_is_many_documents_always_in_the_same_order() -> None:
    documents = read_text(Data(text="cpython"))
    assert len(documents) > 50
    assert documents == read_text(Data(text="cpython"))


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("none/*.txt", "no file matches {folder}/none/*.txt"),
        ("missing.txt", "no file matches {folder}/missing.txt"),
        ("latin.txt", "{folder}/latin.txt is not UTF-8 (byte 1)"),
        ("empty.txt", "there is no text in"),
        ("folder", "{folder}/folder is a folder: name the files in it"),
        ("zero.txt", "{folder}/zero.txt is not text (byte 3 is zero)"),
        ("report.txt", "{folder}/report.txt is not text, it looks like a PDF: convert it"),
        (
            "notes.foo",
            "{folder}/notes.foo has a name that ends in .foo, which is no suffix of text that is known: if it",
        ),
        ("chat.jsonl", 'name it in sources = [{{ path = "{folder}/chat.jsonl", kind = "jsonl" }}]'),
        ("chat.txt", "{folder}/chat.txt is lines of JSON, not text: name it in sources = [{{ path ="),
        ("a.parquet", 'name it in sources = [{{ path = "{folder}/a.parquet", kind = "parquet" }}]'),
        ("table", "{folder}/table is a table in Parquet, not text: name it in sources"),
        ("all.JSON", "{folder}/all.JSON is JSON, whose syntax would be learned, not text: write its documents as JSON"),
        ("a.txt.gz", "{folder}/a.txt.gz is a packed file, not text: unpack it"),
        ("a.pdf", "{folder}/a.pdf is a document with its layout, not text: convert it"),
        ("a.csv", "{folder}/a.csv is a table, not text: write it as JSON lines or Parquet"),
    ],
)
def test_an_error_names_the_glob_or_the_file_on_one_line(tmp_path: Path, glob: str, message: str) -> None:
    (tmp_path / "latin.txt").write_bytes("fête".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero.txt").write_bytes(b"abc\0def")
    (tmp_path / "report.txt").write_text("%PDF-1.4 in letters alone")
    (tmp_path / "chat.txt").write_text('{"text": "a"}\n\n{"text": "b"}\n')
    (tmp_path / "table").write_bytes(b"PAR1\x15\x04")
    for name in ("chat.jsonl", "a.parquet", "all.JSON", "a.txt.gz", "a.pdf", "a.csv", "notes.foo"):
        (tmp_path / name).write_text("its name alone tells")
    with pytest.raises(UserError) as caught:
        read_text(data(tmp_path / glob))
    assert message.format(folder=tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_under_any_other_name_is_read_and_an_object_of_json_alone_is_no_table(tmp_path: Path) -> None:
    texts = {
        "README": "no suffix",
        ".notes": "hidden",
        "a.PY": "print()",
        "b.v2": "{\n}",
        "one.txt": '{"a": 1}\nsaid she',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert read_text(data(*(tmp_path / name for name in texts))) == [texts[name] for name in sorted(texts)]


def test_who_says_that_it_is_text_trains_on_the_syntax(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    source = DataSource(path=str(tmp_path / "a.jsonl"), kind="text")
    assert read_text(Data(sources=[source])) == ['{"a": 1}\n{"a": 2}\n']


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop.txt").symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=r"cannot read .*loop\.txt"):
        read_text(data(tmp_path / "loop.txt"))
