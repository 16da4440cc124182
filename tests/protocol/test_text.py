"""What `[data] text` reads, and what it says when it cannot."""

from pathlib import Path

import pytest

from dtfm_protocol.data.text import read_text
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Data


def data(*globs: Path | str) -> Data:
    return Data(text=[str(glob) for glob in globs])


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
    ],
)
def test_an_error_names_the_glob_or_the_file_on_one_line(tmp_path: Path, glob: str, message: str) -> None:
    (tmp_path / "latin.txt").write_bytes("fête".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError) as caught:
        read_text(data(tmp_path / glob))
    assert message.format(folder=tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop.txt").symlink_to("/proc/self/mem")
    with pytest.raises(UserError, match=r"cannot read .*loop\.txt"):
        read_text(data(tmp_path / "loop.txt"))
