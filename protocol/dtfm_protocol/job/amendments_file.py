"""The file `amendments.jsonl`: how a job was changed while it trained, one amendment a line."""

from pathlib import Path

from pydantic import ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import Amendment
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import first_fault

NAME = "amendments.jsonl"


def read_amendments(path: Path) -> tuple[Amendment, ...]:
    """Read the amendments of a run, in the order in which they were made.

    Raises:
        UserError: the file cannot be read, or has a line that is no amendment.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the amendments {path}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Amendment.model_validate_json(line))
        except ValidationError as error:
            raise UserError(f"{path}, line {number}: {first_fault(error)}") from None
    return tuple(found)


def write_amendments(path: Path, amendments: tuple[Amendment, ...]) -> None:
    """Write all amendments of a run, where the file does not have just them; where there are none, and no file, none.

    Raises:
        UserError: there is no room on the disk.
    """
    text = "".join(one.model_dump_json() + "\n" for one in amendments)
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if text != before:
        write_atomically(path, text, lasting=True)
