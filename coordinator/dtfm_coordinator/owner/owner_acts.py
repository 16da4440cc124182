"""Acts of the owner as people read them: each wish that was answered, and each decision on who is a member."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from dtfm_coordinator.membership.ledger_file import ledger_entries
from dtfm_coordinator.membership.membership_ledger import (
    Banned,
    Invited,
    Kicked,
    LedgerEntry,
    MembershipLedger,
    Revoked,
)
from dtfm_coordinator.membership.roster import Roster
from dtfm_coordinator.owner.owner_wishes import Amended, Wish, WishAnswer, WishRecord
from dtfm_coordinator.owner.wish_file import wish_records
from dtfm_coordinator.swarm.overview.overview import NewsItem
from dtfm_coordinator.swarm.overview.spoken_numbers import counted
from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import called
from dtfm_protocol.job.amendment import spoken

WISHES = {
    "pause": "pause the run",
    "resume": "have the run go on",
    "finish": "end the run",
    "checkpoint": "keep a checkpoint",
    "replan": "have the work divided anew",
    "cancel": "take back what is not done yet",
}
"""What each command asks for, but for `set`."""


class OwnerActs:
    """Acts of the owner of one run, as its state folder has them."""

    def __init__(self, folder: Path) -> None:
        """Read nothing before `take_up`."""
        self._folder = folder
        self._entries, self._records = ledger_entries(folder), wish_records(folder)
        self._ledger = MembershipLedger()
        self._asked: dict[int, Wish] = {}

    def take_up(self) -> list[NewsItem]:
        """Return what was done since the last time, oldest first; at first, all that ever was.

        What cannot be read is left out: those who need it say so.
        """
        entries, records = list[LedgerEntry](), list[WishRecord]()
        with contextlib.suppress(UserError):
            entries = self._entries.take_up()
        with contextlib.suppress(UserError):
            records = self._records.take_up()
        for entry in entries:
            self._ledger.add(entry)
        names = Roster.of(self._folder, self._ledger).names if entries else {}
        found = [*_decisions(entries, self._ledger, names), *self._answered(records)]
        return sorted(found, key=lambda one: one.at)

    def _answered(self, records: Iterable[WishRecord]) -> Iterable[NewsItem]:
        for record in records:
            if not isinstance(record, WishAnswer):
                self._asked[record.number] = record
            elif wish := self._asked.pop(record.to, None):
                yield NewsItem(at=record.at, level="wait" if record.done else "warn", text=told_wish(wish, record))


def told_wish(wish: Wish, answer: WishAnswer | None = None) -> str:
    """Return in a line what the owner has asked for, and what has become of it; `answer`: None, it is not done yet."""
    what = f"change {spoken(wish.values)}" if isinstance(wish, Amended) else WISHES[wish.word]
    return printable(f"The owner asked to {what}: {(answer.text if answer else 'not done yet').rstrip('.')}.")


def _decisions(
    entries: Iterable[LedgerEntry], ledger: MembershipLedger, names: Mapping[str, str]
) -> Iterable[NewsItem]:
    """Yield what the owner has decided on members; entries of one moment are one decision. What an earlier version has
    written without its time is left out."""
    entries = [one for one in entries if not isinstance(one, Invited | Kicked | Revoked | Banned) or one.at]
    whole = {one.at for one in entries if isinstance(one, Banned) and one.ban.subject.startswith("token:")}
    for entry in entries:
        match entry:
            case Invited():
                whom = f" ({entry.name})" if entry.name else ""
                said = f"made an invite for {counted(entry.uses, 'machine')}{whom}"
            case Revoked():
                made = ledger.invited.get(entry.token)
                said = f"took back {f'the invite for {made.name}' if made and made.name else 'an invite'}"
            case Kicked():
                said = f"sent {called(entry.peer, names.get(entry.peer, ''))} away"
            case Banned() if entry.ban.subject.startswith("peer:"):
                peer = entry.ban.subject.removeprefix("peer:")
                more = ", and all who entered with the same invite" if entry.at in whole else ""
                said = f"banned {called(peer, names.get(peer, ''))}{more}"
            case _:
                continue
        yield NewsItem(at=entry.at, level="wait", text=printable(f"The owner {said}."))
