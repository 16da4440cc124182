"""State folders that nobody has named: one for each swarm, where this system keeps programs' data."""

import shlex
from pathlib import Path

import platformdirs

from dtfm_node.commands.running_nodes import running_folders
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.process.product_version import DISTRIBUTION
from dtfm_protocol.process.state_dir import is_live


def default_folder(swarm: str) -> Path:
    """Return the state folder of this user's node in a swarm (its id), unless another one is named."""
    return _root() / swarm


def folder_for(named: Path | None, invite: str) -> Path | None:
    """Return the state folder with which a node would join by the text `invite`; None where that is no invite, and no
    folder was named."""
    if named is not None:
        return named
    try:
        return default_folder(Invite.decode(invite).swarm)
    except UserError:
        return None


def folder_of(named: Path | None, *, running: bool = False) -> Path:
    """Return the state folder that a command is about: the one that was named, or else the only one there is.

    Args:
        running: whether folders count only while a node runs with them.

    Raises:
        UserError: none was named, and there is none, or more than one.
    """
    if named is not None:
        return named
    found = [folder for folder in known_folders() if not running or is_live(folder)]
    if len(found) == 1:
        return found[0]
    if not found:
        what = "no node runs" if running else "no node has joined"
        elsewhere = " or ".join(folder_option(folder) for folder in running_folders())
        todo = (
            f"one that runs here was given its folder, say {elsewhere}"
            if elsewhere
            else "name its folder with --state-dir"
        )
        raise UserError(f"{what} with a folder under {_root()}: {todo}")
    listed = " or ".join(f"{folder_option(folder)}{' (running)' if is_live(folder) else ''}" for folder in found)
    raise UserError(f"there are {len(found)} nodes here: say which one, {listed}")


def folder_option(folder: Path) -> str:
    """Return the option that names `folder`, for a shell."""
    return f"--state-dir {shlex.quote(str(folder))}"


def option_for(named: Path | None) -> str:
    """Return what commands about a node need behind their name: nothing, or a blank and the option for its folder."""
    return "" if named is None else f" {folder_option(named)}"


def _root() -> Path:
    return data_folder() / "nodes"


def data_folder() -> Path:
    """Return the folder in which this system keeps what is this user's of this product."""
    return platformdirs.user_data_path(DISTRIBUTION, appauthor=False)


def known_folders() -> list[Path]:
    """Return the state folders that nobody has named, of all swarms that a node of this user has joined."""
    root = _root()
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink()) if root.is_dir() else []
