"""File of the owner's wishes: one JSON object a line, written by the owner's commands, and by the coordinator that
answers them."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from dtfm_coordinator.owner.owner_wishes import OwnerWishes, WishRecord
from dtfm_protocol.process.entry_file import EntryFile

NAME = "wishes.jsonl"
_RECORD: TypeAdapter[WishRecord] = TypeAdapter(WishRecord)


def wish_records(folder: Path) -> EntryFile[WishRecord]:
    """Return the records of a coordinator's state folder, one by one as they were written."""
    return EntryFile(folder / NAME, _RECORD, "the owner's wishes")


class WishFile:
    """The owner's wishes in a coordinator's state folder."""

    def __init__(self, folder: Path) -> None:
        """Read what is there.

        Raises:
            UserError: the file cannot be read, or has a line that is no record.
        """
        self.wishes = OwnerWishes()
        """Sum of all that was read."""
        self._file = wish_records(folder)
        while self.take_up():
            pass

    def take_up(self) -> list[WishRecord]:
        """Read what was written since the last time, and return it.

        Raises:
            UserError: as above; a line that is no record is passed over the next time.
        """
        records = self._file.take_up()
        for record in records:
            self.wishes.add(record)
        return records

    def add(self, record: WishRecord) -> WishRecord:
        """Write a record to the disk, and return it with its running number. It is taken up with the next `take_up`.

        Raises:
            UserError: it cannot be written.
        """

        def numbered(before: Sequence[WishRecord]) -> WishRecord:
            number = max((one.number for one in before), default=0) + 1
            return record.model_copy(update={"number": number})

        return self._file.add(numbered)
