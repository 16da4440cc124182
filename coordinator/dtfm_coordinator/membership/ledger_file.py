"""File of the membership ledger: one JSON object a line, written by the running coordinator and by its owner's commands
beside it, each line at once."""

from pathlib import Path

from pydantic import TypeAdapter

from dtfm_coordinator.membership.membership_ledger import LedgerEntry, MembershipLedger
from dtfm_protocol.process.entry_file import EntryFile

NAME = "membership.jsonl"
_ENTRY: TypeAdapter[LedgerEntry] = TypeAdapter(LedgerEntry)


def ledger_entries(folder: Path) -> EntryFile[LedgerEntry]:
    """Return the entries of a coordinator's state folder, one by one as they were written."""
    return EntryFile(folder / NAME, _ENTRY, "a membership ledger")


class LedgerFile:
    """The ledger in a coordinator's state folder."""

    def __init__(self, folder: Path) -> None:
        """Read what is there.

        Raises:
            UserError: the file cannot be read, or has a line that is no entry.
        """
        self.ledger = MembershipLedger()
        """Sum of all that was read."""
        self._file = ledger_entries(folder)
        while self.take_up():
            pass

    def take_up(self) -> list[LedgerEntry]:
        """Read what was written since the last time, and return it.

        Raises:
            UserError: as above; a line that is no entry is passed over the next time.
        """
        entries = self._file.take_up()
        for entry in entries:
            self.ledger.add(entry)
        return entries

    def append(self, *entries: LedgerEntry) -> None:
        """Write entries to the disk. They are taken up with the next `take_up`, as if somebody else had written them.

        Raises:
            UserError: they cannot be written.
        """
        self._file.append(*entries)
