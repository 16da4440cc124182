"""The owner's text as documents, in an order that does not depend on the file system."""

import glob
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Data


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
        raise UserError(f"data.text: there is no text in {data.text}: every file is empty")
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


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"data.text: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"data.text: {file} is not UTF-8 (byte {error.start}): convert it or leave it out") from None
