"""The invite that a node keeps in its state folder, so that it can be started again without one."""

from pathlib import Path

from dtfm_node.commands.state_folders import known_folders
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.invite_source import invite_text
from dtfm_protocol.process.state_dir import write_atomically

INVITE = "invite"
"""Name of its file."""


def given_or_kept(argument: str | None, state_dir: Path | None) -> tuple[str, bool]:
    """Return the text of an invite, and whether it is one that was kept: the one that was given, or else that of the
    named folder, or of the only folder that has one; where there is none of these, the person is asked.

    Raises:
        UserError: there is no invite, and nobody to ask.
    """
    if argument is None:
        folders = known_folders() if state_dir is None else [state_dir]
        kept = [folder / INVITE for folder in folders if (folder / INVITE).is_file()]
        if len(kept) == 1:
            return f"@{kept[0]}", True
    return invite_text(argument), False


def keep(invite: Invite, folder: Path) -> None:
    """Write `invite` into a state folder; nobody but this user can read it.

    Raises:
        UserError: it cannot be written.
    """
    text = invite.encode() + "\n"
    path = folder / INVITE
    if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
        write_atomically(path, text, private=True)
