"""The invite that a node keeps in its state folder, so that it can be started again without one."""

from pathlib import Path

from dtfm_node.commands.state_folders import folder_option, known_folders
from dtfm_node.devices.device_folders import device_folders
from dtfm_protocol.errors import UserError
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


def check_swarm(swarm: str, folder: Path) -> None:
    """Check that a state folder, with those of devices below it, is no other swarm's than `swarm` (its id): what a node
    has promised in one swarm would hold it back in the next, and the invite to the first would be lost.

    Any invite to the same swarm will do. A folder whose kept invite cannot be read is taken for nobody's.

    Raises:
        UserError: it is another swarm's.
    """
    for place in (folder, *device_folders(folder)):
        kept = _swarm_of(place)
        if kept not in (None, swarm):
            raise UserError(
                f"the state folder {place} belongs to the swarm {kept}, and this invite is to another one, {swarm}: "
                "name another folder with --state-dir, or first delete what this machine keeps of the other swarm, "
                f"with `dtfm-node remove {folder_option(folder)}`"
            )


def _swarm_of(folder: Path) -> str | None:
    """Return the id of the swarm whose invite lies in a state folder; None where none does that can be read."""
    try:
        return Invite.decode(f"@{folder / INVITE}").swarm
    except UserError:
        return None


def keep(invite: Invite, folder: Path) -> None:
    """Write `invite` into a state folder; nobody but this user can read it.

    Raises:
        UserError: it cannot be written.
    """
    text = invite.encode() + "\n"
    path = folder / INVITE
    if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
        write_atomically(path, text, private=True)
