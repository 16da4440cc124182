"""Acts of the owner as people read them: each wish that was answered, and each decision on who is a member."""

import contextlib
import heapq
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
    Ruled,
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
TOGETHER_SECONDS = 2.0
"""Times of entries that were written together differ by less: some are whole seconds."""


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
        found = _decisions(entries, self._ledger, names), self._answered(records)
        return list(heapq.merge(*found, key=lambda one: one.at))  # each in the order in which it was written

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
    """Yield what the owner has decided on members, bans that were written together in one. What an earlier version has
    written without its time is left out."""
    timed = [(at, entry) for entry in entries if (at := _time(entry))]
    is_told = False
    for (at, entry), (later, after) in zip(timed, [*timed[1:], (0.0, None)], strict=False):
        if is_told:
            is_told = False
            continue
        kind, _, who = _subject(entry).partition(":")
        did = "banned" if _bans(entry) else "took back the ban of"
        # Written together, after each other: the ban of a key, and that of its invite.
        is_told = kind == "peer" and _subject(after).startswith("token:") and _bans(after) == _bans(entry)
        is_told = is_told and abs(later - at) < TOGETHER_SECONDS
        too = ", and all who entered with the same invite" if is_told else ""
        match entry:
            case Invited():
                said = f"made an invite for {counted(entry.uses, 'machine')}{f' ({entry.name})' if entry.name else ''}"
            case Revoked():
                said = f"took back {_invite(ledger, entry.token)}"
            case Kicked():
                said = f"sent {called(entry.peer, names.get(entry.peer, ''))} away"
            case Banned() | Ruled() if kind == "peer":
                said = f"{did} {called(who, names.get(who, ''))}{too}"
            case Ruled() if kind == "token":
                said = f"{did} all who entered with {_invite(ledger, who)}"
            case _:
                continue
        yield NewsItem(at=at, level="wait", text=printable(f"The owner {said}."))


def _time(entry: LedgerEntry) -> float:
    """Return when the owner has decided this, Unix seconds; 0: that is not known, or nobody has."""
    match entry:
        case Invited() | Revoked() | Banned() | Kicked():
            return entry.at
        case Ruled():
            return entry.ruling.at
    return 0.0


def _subject(entry: LedgerEntry | None) -> str:
    """Return whom a ban or a ruling is about; "" of other entries."""
    match entry:
        case Banned():
            return entry.ban.subject
        case Ruled():
            return entry.ruling.subject
    return ""


def _bans(entry: LedgerEntry | None) -> bool:
    """Whether somebody is banned by an entry."""
    return isinstance(entry, Banned) or (isinstance(entry, Ruled) and entry.ruling.holds)


def _invite(ledger: MembershipLedger, token: str) -> str:
    made = ledger.invited.get(token)
    return f"the invite for {made.name}" if made is not None and made.name else "an invite"
