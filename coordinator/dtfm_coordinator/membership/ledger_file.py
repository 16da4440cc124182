"""File of the membership ledger: one JSON object a line, written by the running coordinator and by its owner's commands
beside it, each line at once."""

import fcntl
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dtfm_coordinator.membership.membership_ledger import LedgerEntry, MembershipLedger
from dtfm_protocol.errors import UserError

NAME = "membership.jsonl"
_ENTRY: TypeAdapter[LedgerEntry] = TypeAdapter(LedgerEntry)


class LedgerFile:
    """The ledger in a coordinator's state folder."""

    def __init__(self, folder: Path) -> None:
        """Read what is there.

        Raises:
            UserError: the file cannot be read, or has a line that is no entry.
        """
        self.ledger = MembershipLedger()
        """Sum of all that was read."""
        self._path = folder / NAME
        self._read = 0
        self.take_up()

    def take_up(self) -> list[LedgerEntry]:
        """Read what was written since the last time, and return it.

        Raises:
            UserError: as above.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from None
        whole = data[: data.rfind(b"\n") + 1]  # a line that is being written is read the next time
        self._read += len(whole)
        try:
            entries = [_ENTRY.validate_json(line) for line in whole.splitlines() if line.strip()]
        except ValidationError:
            raise UserError(f"{self._path} has a line that is none of a membership ledger: restore the file") from None
        for entry in entries:
            self.ledger.add(entry)
        return entries

    def append(self, *entries: LedgerEntry) -> None:
        """Write entries to the disk. They are taken up with the next `take_up`, as if somebody else had written them.

        Raises:
            UserError: they cannot be written.
        """
        try:
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                data = file.read()
                if not data.endswith(b"\n"):  # a writer was cut off: its line is no entry
                    file.truncate(data.rfind(b"\n") + 1)
                file.write(b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}") from None
