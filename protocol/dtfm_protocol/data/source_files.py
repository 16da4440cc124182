"""The files of a job's sources, in an order that does not depend on the file system."""

import glob
import json
from dataclasses import dataclass
from pathlib import Path

from dtfm_protocol.data.hub_sizes import hub_bytes
from dtfm_protocol.data.not_text import other_suffix
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource

DATASET_STATE = "state.json"
"""File of a folder of `datasets` that lists its tables."""


@dataclass(frozen=True)
class SourceFiles:
    """A source, and the files that its path leads to."""

    key: str
    """The key of the job that names it, for errors: "data.text", or "data.sources.2"."""
    source: DataSource
    files: tuple[Path, ...]
    """Sorted by their paths; of the form "dataset", folders, and of "hub" a data set's name."""

    @property
    def bytes(self) -> int:
        """Bytes of all files.

        Raises:
            UserError: one is out of reach.
        """
        return sum(map(self.bytes_of, self.files))

    def bytes_of(self, file: Path) -> int:
        """Return the size of one of its files; of a folder, of the tables in it.

        Raises:
            UserError: it is out of reach.
        """
        try:
            if self.source.form == "hub":
                return hub_bytes(self.source, self.key)
            if self.source.form == "dataset":
                return sum(table.stat().st_size for table in tables_of(file, self.key))
            return file.stat().st_size
        except OSError as error:
            raise UserError(f"{self.key}: cannot read {file}: {error.strerror}") from None


def sources_of(data: Data) -> tuple[SourceFiles, ...]:
    """List a job's sources with their files; none where its text is Python's manual.

    The files that `text` names are one source, each file once.

    Args:
        data: the job's `[data]`, with paths made absolute (`Job.rooted`).

    Raises:
        UserError: names the path that leads to nothing, or to what cannot be of its kind.
    """
    if data.sources is not None:
        return tuple(_files_of(f"data.sources.{place}", one) for place, one in enumerate(data.sources))
    if not isinstance(data.text, list):
        return ()
    files = sorted({file for pattern in data.text for file in _matches("data.text", pattern)})
    for file in files:
        if why := other_suffix(str(file)):
            raise UserError(f"data.text: {file} {why}")
    return (SourceFiles("data.text", DataSource(path=", ".join(data.text), kind="text"), tuple(files)),)


def files_read(data: Data) -> list[Path]:
    """List all files that the documents of a job are made from, those in folders of `datasets` one by one; of data sets
    by name there are none here.

    Raises:
        UserError: as `sources_of` does.
    """
    found = list[Path]()
    for source in sources_of(data):
        if source.source.form == "hub":
            continue
        for file in source.files:
            is_folder = source.source.form == "dataset"
            found += [file / DATASET_STATE, *tables_of(file, source.key)] if is_folder else [file]
    return found + ([Path(data.chat_template)] if data.chat_template is not None else [])


def tables_of(folder: Path, key: str) -> list[Path]:
    """List the tables of a folder that `save_to_disk` of `datasets` has written, in the order of their rows.

    Raises:
        UserError: it is no such folder, or one of several splits, which it names.
    """
    try:
        state = json.loads((folder / DATASET_STATE).read_bytes())
        names = [str(one["filename"]) for one in state["_data_files"]]
    except FileNotFoundError:
        splits = sorted(file.parent.name for file in folder.glob(f"*/{DATASET_STATE}"))
        if splits:
            raise UserError(
                f'{key}: {folder} has the splits {", ".join(splits)}: name one, as path = "{folder / splits[0]}"'
            ) from None
        raise UserError(
            f"{key}: {folder} has no {DATASET_STATE}, so it is none that save_to_disk of datasets has written: name "
            "such a folder, or the files in it by their own kind"
        ) from None
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{key}: {folder / DATASET_STATE} lists no tables: write the folder anew") from None
    if wrong := [name for name in names if Path(name).name != name or not (folder / name).is_file()]:
        raise UserError(f"{key}: {folder / DATASET_STATE} names {wrong[0]}, which is not there: write the folder anew")
    return [folder / name for name in names]


def _files_of(key: str, source: DataSource) -> SourceFiles:
    is_folder = source.form == "dataset"
    if source.form == "hub":
        return SourceFiles(key, source, (Path(source.path),))
    return SourceFiles(key, source, tuple(sorted(set(_matches(key, source.path, is_folder=is_folder)))))


def _matches(key: str, pattern: str, *, is_folder: bool = False) -> list[Path]:
    # What exists under its own name is no pattern: a folder called "text [old]" must not be read as a glob.
    parts = Path(pattern).parts
    literal = Path(parts[0])
    at = 1
    while at < len(parts) and (literal / parts[at]).exists():
        literal /= parts[at]
        at += 1
    if at == len(parts):
        if literal.is_dir() and not is_folder:
            raise UserError(f'{key}: {literal} is a folder: name the files in it, e.g. "{literal.name}/*.txt"')
        if is_folder and not literal.is_dir():
            raise UserError(f'{key}: {literal} is a file, and kind = "dataset" wants the folder it lies in: name that')
        return [literal]
    found = [literal / name for name in glob.glob(str(Path(*parts[at:])), root_dir=literal, recursive=True)]
    if is_folder:
        found = [folder for folder in found if folder.is_dir() and any(folder.glob(f"**/{DATASET_STATE}"))]
    else:
        found = [file for file in found if file.is_file()]
    if not found:
        what = "folder of a dataset" if is_folder else "file"
        raise UserError(f"{key}: no {what} matches {pattern}: check the path, which is seen from the job file")
    return found
