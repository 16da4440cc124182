"""File of entries: one JSON object a line, appended to by a program that runs and by commands beside it, and taken up
by all of them as it grows."""

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from dtfm_protocol.errors import UserError

E = TypeVar("E", bound=BaseModel)


class EntryFile(Generic[E]):
    """Append-only file of entries of one kind, or of a union of kinds."""

    def __init__(self, path: Path, adapter: TypeAdapter[E], what: str) -> None:
        """Read nothing before `take_up`.

        Args:
            path: the file, which need not be there; it is made so that this user alone can read it.
            adapter: turns a line into an entry.
            what: the file's contents for people, as "a membership ledger".
        """
        self.path = path
        self._adapter, self._what = adapter, what
        self._read = self._lines = 0
        """Bytes and lines that were taken up."""

    def take_up(self) -> list[E]:
        """Return the entries that were written since the last time.

        A line that is no entry is named once, after all that stand before it were returned; then it is passed over.

        Raises:
            UserError: the file cannot be read, or the next line is no entry.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from None
        found: list[E] = []
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):  # one being written is read the next time
            try:
                entry = self._adapter.validate_json(line) if line.strip() else None
            except ValidationError:
                if found:
                    return found
                self._pass(line)
                raise UserError(
                    f"{self.path} has a line that is none of {self._what} (line {self._lines}): "
                    "restore the file, or take that line out"
                ) from None
            self._pass(line)
            if entry is not None:
                found.append(entry)
        return found

    def append(self, *entries: E) -> None:
        """Write entries to the disk. They are taken up with the next `take_up`, as if somebody else had written them.

        Raises:
            UserError: they cannot be written.
        """
        self._write(lambda _: entries)

    def add(self, make: Callable[[Sequence[E]], E]) -> E:
        """Write an entry that `make` makes of all entries before it, which no other writer can come between; return it.

        Raises:
            UserError: it cannot be written.
        """
        return self._write(lambda before: (make(self._parsed(before)),))[0]

    def _pass(self, line: bytes) -> None:
        self._read += len(line)
        self._lines += 1

    def _write(self, compose: Callable[[bytes], Sequence[E]]) -> Sequence[E]:
        try:
            with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                if whole != data:  # a writer was cut off: its line is no entry
                    file.truncate(len(whole))
                entries = compose(whole)
                file.write(b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None
        return entries

    def _parsed(self, data: bytes) -> list[E]:
        """Return the entries among the lines of `data`."""
        found = []
        for line in data.splitlines():
            try:
                found.append(self._adapter.validate_json(line))
            except ValidationError:
                continue  # whoever takes it up names it
        return found
