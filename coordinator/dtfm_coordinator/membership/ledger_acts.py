"""Acts of the owner on who is a member, for commands and the owner's page: each is written to the ledger.

A coordinator that runs takes them up at once.
"""

import time
from pathlib import Path

from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import (
    DAY_SECONDS,
    Banned,
    Invited,
    Kicked,
    LedgerEntry,
    MembershipLedger,
    Revoked,
    Ruled,
)
from dtfm_coordinator.membership.roster import Roster, invite_meant
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_list import MOST_RULINGS
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity


def served_invite(folder: Path) -> Path:
    """Return the file of the invite that a coordinator with this state folder has served.

    Raises:
        UserError: there is none.
    """
    path = folder / "invite"
    if not path.exists():
        raise UserError(f"{folder} is no coordinator's that has served: `dtfm-coordinator serve` makes the swarm")
    return path


def own_identity(folder: Path) -> Identity:
    """Return the coordinator's key.

    Raises:
        UserError: it cannot be read.
    """
    return Identity.load_or_create(folder / "key")


def make_invite(folder: Path, uses: int, days: float, name: str) -> str:
    """Make an invite, and return its text.

    Args:
        folder: the state folder.
        uses: nodes that may enter with it.
        days: days within which they may.
        name: whom it is for.

    Raises:
        UserError: no coordinator has served there, or the ledger cannot be written.
    """
    served = Invite.decode(f"@{served_invite(folder)}")
    now = time.time()
    token = EntryToken.issue(own_identity(folder), served.swarm, uses, int(now + days * DAY_SECONDS))
    LedgerFile(folder).append(Invited(token=token.id, uses=uses, expires=token.expires, name=name, at=now))
    return served.model_copy(update={"token": token}).encode()


def revoke_invite(folder: Path, token: str) -> str:
    """Take an invite back, and return what that means in a line.

    Args:
        folder: the state folder.
        token: its token, or whom it is for.

    Raises:
        UserError: there is no one such invite, or the ledger cannot be written.
    """
    served_invite(folder)
    file = LedgerFile(folder)
    found = invite_meant(file.ledger, token)
    file.append(Revoked(token=found, at=time.time()))
    stay = len(file.ledger.users(found))
    return f"invite {_with(found, file.ledger.invited[found].name)} is taken back; {stay} who entered with it stay"


def kick_member(folder: Path, peer: str) -> str:
    """Send a member away until its person has it join again, and return what that means in a line.

    Args:
        folder: the state folder.
        peer: its peer id, the last characters of it, or its name.

    Raises:
        UserError: there is no one such member, or the ledger cannot be written.
    """
    served_invite(folder)
    file = LedgerFile(folder)
    roster = Roster.of(folder, file.ledger)
    found = roster.member(file.ledger, peer)
    file.append(Kicked(peer=found, at=time.time()))
    return f"{_with(found, roster.names.get(found, ''))} is sent away, until its person types `dtfm-node join` again"


def ban_member(folder: Path, peer: str, *, key_only: bool) -> str:
    """Ban a member, and return what that means in a line.

    Args:
        folder: the state folder.
        peer: its peer id, the last characters of it, or its name.
        key_only: whether the others who entered with the same invite stay.

    Raises:
        UserError: there is no one such member, or the ledger cannot be written.
    """
    swarm = Invite.decode(f"@{served_invite(folder)}").swarm
    file, identity, now = LedgerFile(folder), own_identity(folder), time.time()
    roster = Roster.of(folder, file.ledger)
    found = roster.member(file.ledger, peer)
    token = file.ledger.members[found].token
    others = [one for one in file.ledger.users(token) if one != found]
    entries = list[LedgerEntry]()
    for subject in (f"peer:{found}", *(() if key_only else (f"token:{token}",))):
        if subject not in file.ledger.bans:
            entries.append(Banned(ban=Ban.of(identity, swarm, subject), at=now))
        if subject in file.ledger.rulings:  # a ruling counts before the ban, until there is a later one
            entries.append(_ruled(file.ledger, identity, swarm, subject, now, holds=True))
    file.append(*entries)
    also = f", and {len(others)} others of the same invite" if others and not key_only else ""
    return f"{_with(found, roster.names.get(found, ''))} is banned{also}"


def unban_member(folder: Path, peer: str) -> str:
    """Take the ban of a member back, and return what that means in a line.

    Args:
        folder: the state folder.
        peer: its peer id, the last characters of it, or its name.

    Raises:
        UserError: there is no one such member, or it is not banned, or the ledger cannot be written.
    """
    swarm = Invite.decode(f"@{served_invite(folder)}").swarm
    file, identity, now = LedgerFile(folder), own_identity(folder), time.time()
    ledger, roster = file.ledger, Roster.of(folder, file.ledger)
    found = roster.member(ledger, peer)
    who, token = _with(found, roster.names.get(found, "")), ledger.members[found].token
    banned = [subject for subject in (f"peer:{found}", f"token:{token}") if ledger.is_ban(subject)]
    if not banned:
        if ledger.is_ban(f"entry:{token}{found}"):
            raise UserError(
                f"{who} is not banned: its invite was used up by others before it came; `dtfm-coordinator invite` "
                "makes a new one for it"
            )
        raise UserError(f"{who} is not banned: `dtfm-coordinator members` says who is")
    if len({*ledger.rulings, *banned}) > MOST_RULINGS:
        raise UserError(
            f"{MOST_RULINGS:,} bans have been taken back, and no more can be: a new invite lets this person in with a "
            "new state folder"
        )
    file.append(*(_ruled(ledger, identity, swarm, subject, now, holds=False) for subject in banned))
    others = [one for one in ledger.users(token) if one != found and f"token:{token}" in banned]
    free = sum(not ledger.is_ban(f"peer:{one}") for one in others)
    also = f"; so can {free} other{'' if free == 1 else 's'} of the same invite" if free else ""
    return f"{who} is banned no more: its person can type `dtfm-node join` again{also}"


def _ruled(ledger: MembershipLedger, identity: Identity, swarm: str, subject: str, now: float, *, holds: bool) -> Ruled:
    """Return an entry by which a ban holds no more, or again, whatever was ruled before."""
    before = ledger.rulings.get(subject)
    at = max(int(now), before.at + 1 if before is not None else 1)
    return Ruled(ruling=BanRuling.of(identity, swarm, subject, at, holds=holds))


def _with(what: str, name: str) -> str:
    return f"{what} ({name})" if name else what
