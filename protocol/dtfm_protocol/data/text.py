"""The owner's text as documents, in an order that does not depend on the file system."""

import codecs
import glob
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Data

NO_TEXT = "data.text: there is no text in {}: every file is empty"
"""What is said of a text without any."""
_LOOKS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1f\x8b": "a file packed by gzip",
    b"PK\x03\x04": "a zip archive or a document of an office program",
    b"\x28\xb5\x2f\xfd": "a file packed by zstd",
    b"\xfd7zXZ": "a file packed by xz",
    b"BZh": "a file packed by bzip2",
    b"%PDF": "a PDF",
    b"PAR1": "a table in Parquet",
}
"""What files are that begin so."""


def read_text(data: Data) -> list[str]:
    """Read the documents of the corpus: one a file, sorted by path, or one a topic of Python's own manual.

    Line ends stay as they are in the files; empty documents are left out.

    Args:
        data: the job's `[data]`, with globs made absolute (`Job.rooted`).

    Raises:
        UserError: names the glob that matches no file, or the file that cannot be read or is not UTF-8, or says
            that there is no text at all.
    """
    documents = _manual() if data.text == "cpython" else [_read(file) for file in text_files(data)]
    documents = [document for document in documents if document]
    if not documents:
        raise UserError(NO_TEXT.format(data.text))
    return documents


def text_files(data: Data) -> list[Path]:
    """List the files of the corpus, sorted; none where it is Python's manual.

    Args:
        data: the job's `[data]`, with globs made absolute (`Job.rooted`).

    Raises:
        UserError: names the glob that matches no file.
    """
    if data.text == "cpython":
        return []
    return sorted({file for pattern in data.text for file in _matches(pattern)})


def _manual() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            'data.text: "cpython" needs the module pydoc_data, which this Python lacks: name text files instead'
        ) from None
    return [topics[key] for key in sorted(topics)]


def _matches(pattern: str) -> list[Path]:
    # What exists under its own name is no pattern: a folder called "text [old]" must not be read as a glob.
    parts = Path(pattern).parts
    literal = Path(parts[0])
    at = 1
    while at < len(parts) and (literal / parts[at]).exists():
        literal /= parts[at]
        at += 1
    if at == len(parts):
        if literal.is_dir():
            raise UserError(f'data.text: {literal} is a folder: name the files in it, e.g. "{literal.name}/*.txt"')
        return [literal]
    found = glob.glob(str(Path(*parts[at:])), root_dir=literal, recursive=True)
    files = [literal / name for name in found if (literal / name).is_file()]
    if not files:
        raise UserError(f"data.text: no file matches {pattern}: check the path, which is seen from the job file")
    return files


def decoded(file: Path, data: bytes, at: int = 0, *, is_cut: bool = False) -> str:
    """Return what the bytes of a file say.

    Args:
        data: bytes of the file from byte `at` on.
        is_cut: whether the last character of them may go on after them; then it is left out.

    Raises:
        UserError: they are not UTF-8.
    """
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, not is_cut)
    except UnicodeDecodeError as error:
        looks = next(
            (f", it looks like {kind}" for mark, kind in _LOOKS.items() if not at and data.startswith(mark)), ""
        )
        raise UserError(
            f"data.text: {file} is not UTF-8 (byte {at + error.start}){looks}: convert it or leave it out"
        ) from None


def _read(file: Path) -> str:
    try:
        return decoded(file, file.read_bytes())
    except OSError as error:
        raise UserError(f"data.text: cannot read {file}: {error.strerror}") from None
